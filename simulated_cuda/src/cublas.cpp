// libcublas: handles are real, every computation is a counted kernel on the handle's stream. Which
// of them compute, and when, says gemm.h.
#include <string>
#include "gemm.h"
using namespace simgpu;
using namespace simgpu::blas;

#define API(name, ...) extern "C" int cublas##name(__VA_ARGS__)
static void* stream_of(void* handle) { return ((Handle*)handle)->stream; }

// Stubs of computations end here (libraries.py).
extern "C" int simgpu_blas(const char* name, void* handle) {
  return counted(name, handle ? stream_of(handle) : nullptr);
}

// ---- the library and its handle
API(Create_v2, void** h) {
  *h = new Handle;
  return SUCCESS;
}
API(Destroy_v2, void* h) {
  delete (Handle*)h;
  return SUCCESS;
}
API(SetStream_v2, void* h, void* s) {
  ((Handle*)h)->stream = s;
  return SUCCESS;
}
API(GetStream_v2, void* h, void** s) {
  *s = stream_of(h);
  return SUCCESS;
}
API(SetWorkspace_v2, void*, void*, size_t) { return SUCCESS; }
API(SetMathMode, void* h, int m) {
  ((Handle*)h)->math_mode = m;
  return SUCCESS;
}
API(GetMathMode, void* h, int* m) {
  *m = ((Handle*)h)->math_mode;
  return SUCCESS;
}
API(SetPointerMode_v2, void* h, int m) {
  ((Handle*)h)->pointer_mode = m;
  return SUCCESS;
}
API(GetPointerMode_v2, void* h, int* m) {
  *m = ((Handle*)h)->pointer_mode;
  return SUCCESS;
}
API(SetAtomicsMode, void*, int) { return SUCCESS; }
API(SetSmCountTarget, void*, int) { return SUCCESS; }
API(GetVersion_v2, void*, int* v) {
  *v = 130100;
  return SUCCESS;
}
API(GetProperty, int, int* v) {
  *v = 13;
  return SUCCESS;
}
extern "C" const char* cublasGetStatusString(int) { return "simgpu status"; }
extern "C" const char* cublasGetStatusName(int) { return "simgpu status"; }
// ---- matrix products
// Scalars that lie on the device are not read: such a product is counted, and not computed.
static int product(const char* name, void* handle, int64_t m, int64_t n, int64_t k, int batches,
                   const void* alpha, const void* beta, int scale_type, Matrix a, Matrix b,
                   Matrix c) {
  if (((Handle*)handle)->pointer_mode)
    return counted(name, stream_of(handle), {0, a.type, m, n, k, batches});
  Gemm gemm;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.batches = batches;
  gemm.alpha = load(alpha, 0, scale_type);
  gemm.beta = load(beta, 0, scale_type);
  gemm.a = a;
  gemm.b = b;
  gemm.c = gemm.d = c;
  gemm.epilogue = 0;
  gemm.bias = nullptr;
  gemm.bias_type = 0;
  return multiply(name, stream_of(handle), gemm);
}
static int scale_type(int compute_type) {
  switch (compute_type) {  // cublasComputeType_t
    case 64:
    case 65: return R16F;
    case 70:
    case 71: return R64F;
    case 72:
    case 73: return R32I;
    default: return R32F;
  }
}

#define PLAIN(L, T, type)                                                                       \
  API(L##gemm_v2, void* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* A,     \
      int lda, const T* B, int ldb, const T* beta, T* C, int ldc) {                             \
    return product("cublas" #L "gemm", h, m, n, k, 1, alpha, beta, type, {A, type, lda, 0, ta}, \
                   {B, type, ldb, 0, tb}, {C, type, ldc, 0, 0});                                \
  }                                                                                             \
  API(L##gemmStridedBatched, void* h, int ta, int tb, int m, int n, int k, const T* alpha,      \
      const T* A, int lda, long long stride_a, const T* B, int ldb, long long stride_b,         \
      const T* beta, T* C, int ldc, long long stride_c, int batches) {                          \
    return product("cublas" #L "gemmStridedBatched", h, m, n, k, batches, alpha, beta, type,    \
                   {A, type, lda, stride_a, ta}, {B, type, ldb, stride_b, tb},                  \
                   {C, type, ldc, stride_c, 0});                                                \
  }
PLAIN(S, float, R32F)
PLAIN(D, double, R64F)
API(GemmEx, void* h, int ta, int tb, int m, int n, int k, const void* alpha, const void* A,
    int type_a, int lda, const void* B, int type_b, int ldb, const void* beta, void* C, int type_c,
    int ldc, int compute_type, int) {
  return product("cublasGemmEx", h, m, n, k, 1, alpha, beta, scale_type(compute_type),
                 {A, type_a, lda, 0, ta}, {B, type_b, ldb, 0, tb}, {C, type_c, ldc, 0, 0});
}
API(GemmStridedBatchedEx, void* h, int ta, int tb, int m, int n, int k, const void* alpha,
    const void* A, int type_a, int lda, long long stride_a, const void* B, int type_b, int ldb,
    long long stride_b, const void* beta, void* C, int type_c, int ldc, long long stride_c,
    int batches, int compute_type, int) {
  return product("cublasGemmStridedBatchedEx", h, m, n, k, batches, alpha, beta,
                 scale_type(compute_type), {A, type_a, lda, stride_a, ta},
                 {B, type_b, ldb, stride_b, tb}, {C, type_c, ldc, stride_c, 0});
}

// ---- copies between host and device, without a handle
static int copy_columns(void* stream, size_t width, size_t height, const void* src, size_t spitch,
                        void* dst, size_t dpitch) {
  if (!width || !height) return SUCCESS;
  Op op = copy_op(dst, src, width);
  op.height = height;
  op.spitch = spitch;
  op.dpitch = dpitch;
  return submit(stream, std::move(op)) ? MAPPING_ERROR : SUCCESS;
}
#define COPIES(way)                                                                             \
  API(way##MatrixAsync, int rows, int cols, int elem, const void* a, int lda, void* b, int ldb, \
      void* s) {                                                                                \
    return copy_columns(s, (size_t)rows * elem, cols, a, (size_t)lda * elem, b,                 \
                        (size_t)ldb * elem);                                                    \
  }                                                                                             \
  API(way##Matrix, int rows, int cols, int elem, const void* a, int lda, void* b, int ldb) {    \
    return copy_columns(nullptr, (size_t)rows * elem, cols, a, (size_t)lda * elem, b,           \
                        (size_t)ldb * elem);                                                    \
  }                                                                                             \
  API(way##VectorAsync, int n, int elem, const void* x, int incx, void* y, int incy, void* s) { \
    return copy_columns(s, elem, n, x, (size_t)incx * elem, y, (size_t)incy * elem);            \
  }                                                                                             \
  API(way##Vector, int n, int elem, const void* x, int incx, void* y, int incy) {               \
    return copy_columns(nullptr, elem, n, x, (size_t)incx * elem, y, (size_t)incy * elem);      \
  }
COPIES(Set)
COPIES(Get)

// ---- reductions, which may return to the host. MAGMA swaps rows by the index, which counts
// from 1.
template <class R>
static int reduce(const char* name, void* h, R* result, R value) {
  if (((Handle*)h)->pointer_mode == 0) *result = value;
  return counted(name, stream_of(h));
}
#define TO_HOST(name, R, value)                               \
  API(name##_v2, void* h, int, const void*, int, R* result) { \
    return reduce("cublas" #name, h, result, (R)(value));     \
  }
TO_HOST(Isamax, int, 1)
TO_HOST(Idamax, int, 1)
TO_HOST(Icamax, int, 1)
TO_HOST(Izamax, int, 1)
TO_HOST(Isamin, int, 1)
TO_HOST(Idamin, int, 1)
TO_HOST(Icamin, int, 1)
TO_HOST(Izamin, int, 1)
TO_HOST(Snrm2, float, 0)
TO_HOST(Dnrm2, double, 0)
TO_HOST(Scnrm2, float, 0)
TO_HOST(Dznrm2, double, 0)
TO_HOST(Sasum, float, 0)
TO_HOST(Dasum, double, 0)
TO_HOST(Scasum, float, 0)
TO_HOST(Dzasum, double, 0)

// ---- batched LAPACK. The host or, for getrf, the device reads `info`; zero is success.
static int with_info_on_device(const char* name, void* h, int* info, int batch) {
  void* stream = stream_of(h);
  if (counted(name, stream) || zero_in_stream(info, sizeof(int) * batch, stream))
    return EXECUTION_FAILED;
  return SUCCESS;
}
static void succeed(int* info_on_host) {
  if (info_on_host) *info_on_host = 0;
}
static int with_info_on_host(const char* name, void* h, int* info) {
  succeed(info);
  return counted(name, stream_of(h));
}
#define BATCHED(L, T)                                                                             \
  API(L##getrfBatched, void* h, int, T* const*, int, int*, int* info, int batch) {                \
    return with_info_on_device("cublas" #L "getrfBatched", h, info, batch);                       \
  }                                                                                               \
  API(L##getriBatched, void* h, int, const T* const*, int, const int*, T* const*, int, int* info, \
      int batch) {                                                                                \
    return with_info_on_device("cublas" #L "getriBatched", h, info, batch);                       \
  }                                                                                               \
  API(L##matinvBatched, void* h, int, const T* const*, int, T* const*, int, int* info,            \
      int batch) {                                                                                \
    return with_info_on_device("cublas" #L "matinvBatched", h, info, batch);                      \
  }                                                                                               \
  API(L##getrsBatched, void* h, int, int, int, const T* const*, int, const int*, T* const*, int,  \
      int* info, int) {                                                                           \
    return with_info_on_host("cublas" #L "getrsBatched", h, info);                                \
  }                                                                                               \
  API(L##geqrfBatched, void* h, int, int, T* const*, int, T* const*, int* info, int) {            \
    return with_info_on_host("cublas" #L "geqrfBatched", h, info);                                \
  }                                                                                               \
  API(L##gelsBatched, void* h, int, int, int, int, T* const*, int, T* const*, int, int* info,     \
      int* device_info, int batch) {                                                              \
    succeed(info);                                                                                \
    return with_info_on_device("cublas" #L "gelsBatched", h, device_info, batch);                 \
  }
BATCHED(S, float)
BATCHED(D, double)
BATCHED(C, void)
BATCHED(Z, void)
