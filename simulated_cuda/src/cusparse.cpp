// libcusparse: descriptors that know their shape, sizes of work areas and of results.
//
// Estimates, as NVIDIA documents no formula: a product of a sparse matrix takes one 8-byte word for
// each row and each nonzero element of it (what a pass of balancing needs); a sort or a triangular
// solve the same. The number of nonzero elements of a product of two sparse matrices, which is a
// result, is the number of multiplications that uniformly spread nonzero elements need, or all
// elements if that is less.
#include <algorithm>
#include "library.h"
using namespace simgpu;

namespace {
enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 3, EXECUTION_FAILED = 6 };
struct Handle {
  void* stream = nullptr;
  int pointer_mode = 0;
};
struct Matrix {
  int64_t rows = 0, cols = 0, nnz = 0;
};
struct Setting {
  int type = 0, fill = 0, diagonal = 0, base = 0;
};

int64_t work_bytes(int64_t rows, int64_t nnz) { return 8 * (rows + nnz); }
int64_t work_bytes(const void* sparse) {
  auto* m = (const Matrix*)sparse;
  return work_bytes(m->rows, m->nnz);
}
template <class N>
int answer(N* out, int64_t bytes) {
  if (!out) return INVALID_VALUE;
  *out = (N)bytes;
  return SUCCESS;
}
int run(const char* name, void* handle) {
  if (!handle) return NOT_INITIALIZED;
  return count_kernel(name, ((Handle*)handle)->stream) ? EXECUTION_FAILED : SUCCESS;
}
template <class T>
int make(void** p) {
  *p = new T;
  return SUCCESS;
}
template <class T>
int drop(const void* p) {
  delete (const T*)p;
  return SUCCESS;
}
int matrix(void** p, int64_t rows, int64_t cols, int64_t nnz) {
  *p = new Matrix{rows, cols, nnz};
  return SUCCESS;
}
}  // namespace

#define API(name, ...) extern "C" int cusparse##name(__VA_ARGS__)
API(Create, void** h) { return make<Handle>(h); }
API(Destroy, void* h) { return drop<Handle>(h); }
API(SetStream, void* h, void* stream) {
  ((Handle*)h)->stream = stream;
  return SUCCESS;
}
API(GetStream, void* h, void** stream) {
  *stream = ((Handle*)h)->stream;
  return SUCCESS;
}
API(GetPointerMode, void* h, int* mode) {
  *mode = ((Handle*)h)->pointer_mode;
  return SUCCESS;
}
API(SetPointerMode, void* h, int mode) {
  ((Handle*)h)->pointer_mode = mode;
  return SUCCESS;
}
API(GetVersion, void*, int* v) {
  *v = 12600;
  return SUCCESS;
}
extern "C" const char* cusparseGetErrorName(int e) {
  return e ? "CUSPARSE_STATUS_EXECUTION_FAILED" : "CUSPARSE_STATUS_SUCCESS";
}
extern "C" const char* cusparseGetErrorString(int e) {
  return e ? "failed on the simulated device" : "success";
}

// ---- generic interface
API(CreateCsr, void** p, int64_t rows, int64_t cols, int64_t nnz, void*, void*, void*, int, int,
    int, int) {
  return matrix(p, rows, cols, nnz);
}
API(CreateConstCsr, void** p, int64_t rows, int64_t cols, int64_t nnz, const void*, const void*,
    const void*, int, int, int, int) {
  return matrix(p, rows, cols, nnz);
}
API(CreateCsc, void** p, int64_t rows, int64_t cols, int64_t nnz, void*, void*, void*, int, int,
    int, int) {
  return matrix(p, rows, cols, nnz);
}
API(CreateCoo, void** p, int64_t rows, int64_t cols, int64_t nnz, void*, void*, void*, int, int,
    int) {
  return matrix(p, rows, cols, nnz);
}
API(CreateDnMat, void** p, int64_t rows, int64_t cols, int64_t, void*, int, int) {
  return matrix(p, rows, cols, rows * cols);
}
API(CreateDnVec, void** p, int64_t n, void*, int) { return matrix(p, n, 1, n); }
API(DestroySpMat, const void* m) { return drop<Matrix>(m); }
API(DestroyDnMat, const void* m) { return drop<Matrix>(m); }
API(DestroyDnVec, const void* m) { return drop<Matrix>(m); }
API(CsrSetPointers, void*, void*, void*, void*) { return SUCCESS; }
API(CsrSetStridedBatch, void*, int, int64_t, int64_t) { return SUCCESS; }
API(DnMatSetStridedBatch, void*, int, int64_t) { return SUCCESS; }
API(SpMatSetAttribute, void*, int, const void*, size_t) { return SUCCESS; }
API(SpMatGetSize, const void* m, int64_t* rows, int64_t* cols, int64_t* nnz) {
  auto* x = (const Matrix*)m;
  *rows = x->rows;
  *cols = x->cols;
  *nnz = x->nnz;
  return SUCCESS;
}
API(SpMM_bufferSize, void*, int, int, const void*, const void* a, const void*, const void*, void*,
    int, int, size_t* n) {
  return answer(n, work_bytes(a));
}
API(SpMM_preprocess, void*, int, int, const void*, const void*, const void*, const void*, void*,
    int, int, void*) {
  return SUCCESS;
}
API(SpMM, void* h, int, int, const void*, const void*, const void*, const void*, void*, int, int,
    void*) {
  return run("cusparseSpMM", h);
}
API(SpMV_bufferSize, void*, int, const void*, const void* a, const void*, const void*, void*, int,
    int, size_t* n) {
  return answer(n, work_bytes(a));
}
API(SpMV, void* h, int, const void*, const void*, const void*, const void*, void*, int, int,
    void*) {
  return run("cusparseSpMV", h);
}
API(SDDMM_bufferSize, void*, int, int, const void*, const void*, const void*, const void*, void* c,
    int, int, size_t* n) {
  return answer(n, work_bytes(c));
}
API(SDDMM_preprocess, void* h, int, int, const void*, const void*, const void*, const void*, void*,
    int, int, void*) {
  return run("cusparseSDDMM_preprocess", h);
}
API(SDDMM, void* h, int, int, const void*, const void*, const void*, const void*, void*, int, int,
    void*) {
  return run("cusparseSDDMM", h);
}
API(SpSV_createDescr, void** p) { return make<Setting>(p); }
API(SpSV_destroyDescr, void* p) { return drop<Setting>(p); }
API(SpSV_bufferSize, void*, int, const void*, const void* a, const void*, void*, int, int, void*,
    size_t* n) {
  return answer(n, work_bytes(a));
}
API(SpSV_analysis, void* h, int, const void*, const void*, const void*, void*, int, int, void*,
    void*) {
  return run("cusparseSpSV_analysis", h);
}
API(SpSV_solve, void* h, int, const void*, const void*, const void*, void*, int, int, void*) {
  return run("cusparseSpSV_solve", h);
}
API(SpSM_createDescr, void** p) { return make<Setting>(p); }
API(SpSM_destroyDescr, void* p) { return drop<Setting>(p); }
API(SpSM_bufferSize, void*, int, int, const void*, const void* a, const void*, void*, int, int,
    void*, size_t* n) {
  return answer(n, work_bytes(a));
}
API(SpSM_analysis, void* h, int, int, const void*, const void*, const void*, void*, int, int, void*,
    void*) {
  return run("cusparseSpSM_analysis", h);
}
API(SpSM_solve, void* h, int, int, const void*, const void*, const void*, void*, int, int, void*) {
  return run("cusparseSpSM_solve", h);
}

// Both steps of a sparse product are called first without a buffer, for its size.
API(SpGEMM_createDescr, void** p) { return make<Setting>(p); }
API(SpGEMM_destroyDescr, void* p) { return drop<Setting>(p); }
API(SpGEMM_workEstimation, void* h, int, int, const void*, const void* a, const void*, const void*,
    void*, int, int, void*, size_t* n, void* buffer) {
  return buffer ? run("cusparseSpGEMM_workEstimation", h) : answer(n, work_bytes(a));
}
API(SpGEMM_compute, void* h, int op_a, int op_b, const void*, const void* a, const void* b,
    const void*, void* c, int, int, void*, size_t* n, void* buffer) {
  auto *x = (const Matrix*)a, *y = (const Matrix*)b;
  auto* z = (Matrix*)c;
  z->rows = op_a ? x->cols : x->rows;
  z->cols = op_b ? y->rows : y->cols;
  int64_t inner = std::max<int64_t>(op_a ? x->rows : x->cols, 1);
  double multiplications = (double)x->nnz * (double)y->nnz / (double)inner;
  z->nnz = (int64_t)std::min(multiplications, (double)z->rows * (double)z->cols);
  return buffer ? run("cusparseSpGEMM_compute", h)
                : answer(n, work_bytes(z->rows, (int64_t)multiplications));
}
API(SpGEMM_copy, void* h, int, int, const void*, const void*, const void*, const void*, void*, int,
    int, void*) {
  return run("cusparseSpGEMM_copy", h);
}

// ---- older interface
API(CreateMatDescr, void** p) { return make<Setting>(p); }
API(DestroyMatDescr, void* p) { return drop<Setting>(p); }
API(SetMatType, void* p, int v) {
  ((Setting*)p)->type = v;
  return SUCCESS;
}
API(SetMatFillMode, void* p, int v) {
  ((Setting*)p)->fill = v;
  return SUCCESS;
}
API(SetMatDiagType, void* p, int v) {
  ((Setting*)p)->diagonal = v;
  return SUCCESS;
}
API(SetMatIndexBase, void* p, int v) {
  ((Setting*)p)->base = v;
  return SUCCESS;
}
API(CreateBsrsv2Info, void** p) { return make<Setting>(p); }
API(DestroyBsrsv2Info, void* p) { return drop<Setting>(p); }
API(CreateBsrsm2Info, void** p) { return make<Setting>(p); }
API(DestroyBsrsm2Info, void* p) { return drop<Setting>(p); }
// -1: there is none.
API(Xbsrsv2_zeroPivot, void*, void*, int* position) {
  *position = -1;
  return SUCCESS;
}
API(Xbsrsm2_zeroPivot, void*, void*, int* position) {
  *position = -1;
  return SUCCESS;
}
API(CreateIdentityPermutation, void* h, int, int*) {
  return run("cusparseCreateIdentityPermutation", h);
}
API(Xcoo2csr, void* h, const int*, int, int, int*, int) { return run("cusparseXcoo2csr", h); }
API(Xcoosort_bufferSizeExt, void*, int m, int, int nnz, const int*, const int*, size_t* n) {
  return answer(n, work_bytes(m, nnz));
}
API(XcoosortByRow, void* h, int, int, int, int*, int*, int*, void*) {
  return run("cusparseXcoosortByRow", h);
}
API(Xcsrsort_bufferSizeExt, void*, int m, int, int nnz, const int*, const int*, size_t* n) {
  return answer(n, work_bytes(m, nnz));
}
API(Xcsrsort, void* h, int, int, int, void*, const int*, int*, int*, void*) {
  return run("cusparseXcsrsort", h);
}
// The sum has at most the elements of both.
API(Xcsrgeam2Nnz, void* h, int m, int n, void*, int nnz_a, const int*, const int*, void*, int nnz_b,
    const int*, const int*, void*, int*, int* total, void*) {
  int64_t most = std::min<int64_t>((int64_t)m * n, (int64_t)nnz_a + nnz_b);
  if (((Handle*)h)->pointer_mode == 0) *total = (int)most;
  return run("cusparseXcsrgeam2Nnz", h);
}
#define TYPED(L)                                                                                   \
  API(L##csrgeam2_bufferSizeExt, void*, int m, int, const void*, void*, int nnz_a, const void*,    \
      const int*, const int*, const void*, void*, int nnz_b, const void*, const int*, const int*,  \
      void*, const void*, const int*, const int*, size_t* n) {                                     \
    return answer(n, work_bytes(m, (int64_t)nnz_a + nnz_b));                                       \
  }                                                                                                \
  API(L##csrgeam2, void* h, int, int, const void*, void*, int, const void*, const int*,            \
      const int*, const void*, void*, int, const void*, const int*, const int*, void*, void*,      \
      int*, int*, void*) {                                                                         \
    return run("cusparse" #L "csrgeam2", h);                                                       \
  }                                                                                                \
  API(L##bsrmm, void* h, ...) { return run("cusparse" #L "bsrmm", h); }                            \
  API(L##bsrmv, void* h, ...) { return run("cusparse" #L "bsrmv", h); }                            \
  API(L##bsrsv2_bufferSize, void*, int, int, int mb, int nnzb, void*, void*, const int*,           \
      const int*, int, void*, int* n) {                                                            \
    return answer(n, work_bytes(mb, nnzb));                                                        \
  }                                                                                                \
  API(L##bsrsv2_analysis, void* h, ...) { return run("cusparse" #L "bsrsv2_analysis", h); }        \
  API(L##bsrsv2_solve, void* h, ...) { return run("cusparse" #L "bsrsv2_solve", h); }              \
  API(L##bsrsm2_bufferSize, void*, int, int, int, int mb, int, int nnzb, void*, void*, const int*, \
      const int*, int, void*, int* n) {                                                            \
    return answer(n, work_bytes(mb, nnzb));                                                        \
  }                                                                                                \
  API(L##bsrsm2_analysis, void* h, ...) { return run("cusparse" #L "bsrsm2_analysis", h); }        \
  API(L##bsrsm2_solve, void* h, ...) { return run("cusparse" #L "bsrsm2_solve", h); }
TYPED(S)
TYPED(D)
TYPED(C)
TYPED(Z)
