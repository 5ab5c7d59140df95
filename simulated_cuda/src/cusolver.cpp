// libcusolver (dense): every factorisation is a counted kernel that reports success in its `info`.
//
// Work areas are estimates, as NVIDIA documents no formula: those of LAPACK's routine of the same
// name with blocks of 64 columns, and for the Jacobi methods (gesvdj, syevj, gesvda), which LAPACK
// has not, a copy of the matrix and a square of the smaller side. On the host nothing is asked for.
#include <algorithm>
#include <complex>
#include "library.h"
using namespace simgpu;

namespace {
enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 3, EXECUTION_FAILED = 6 };
struct Solver {
  void* stream = nullptr;
};
constexpr int64_t BLOCK = 64;

// Of getrf, geqrf, orgqr, ormqr, potrf and sytrf.
int64_t columns(int64_t n) { return std::max<int64_t>(n, 1) * BLOCK; }
int64_t gesvd_elements(int64_t m, int64_t n) { return 3 * std::min(m, n) + (m + n) * BLOCK; }
int64_t syevd_elements(int64_t n) { return 1 + 6 * n + 2 * n * n; }
int64_t geev_elements(int64_t n) { return n * n + n * (2 + BLOCK); }
int64_t jacobi_elements(int64_t m, int64_t n, int64_t batch) {
  int64_t k = std::min(m, n);
  return batch * (m * n + k * k + 2 * k);
}

int answer(int* lwork, int64_t elements) {
  if (!lwork) return INVALID_VALUE;
  *lwork = (int)std::min<int64_t>(elements, INT32_MAX);
  return SUCCESS;
}
int answer_bytes(size_t* device, size_t* host, int64_t elements, int type) {
  if (!device || !host) return INVALID_VALUE;
  *device = elements * bytes_of_type(type);
  *host = 0;
  return SUCCESS;
}
int run(const char* name, void* handle, int* info, int64_t batch = 1) {
  if (!handle) return NOT_INITIALIZED;
  void* stream = ((Solver*)handle)->stream;
  if (count_kernel(name, stream) || zero_in_stream(info, sizeof(int) * batch, stream))
    return EXECUTION_FAILED;
  return SUCCESS;
}
}  // namespace

#define API(name, ...) extern "C" int cusolverDn##name(__VA_ARGS__)
API(Create, void** h) {
  *h = new Solver;
  return SUCCESS;
}
API(Destroy, void* h) {
  delete (Solver*)h;
  return SUCCESS;
}
API(SetStream, void* h, void* stream) {
  if (!h) return NOT_INITIALIZED;
  ((Solver*)h)->stream = stream;
  return SUCCESS;
}
API(GetStream, void* h, void** stream) {
  if (!h) return NOT_INITIALIZED;
  *stream = ((Solver*)h)->stream;
  return SUCCESS;
}
API(SetDeterministicMode, void*, int) { return SUCCESS; }

// Parameter objects: settings of methods that do not run.
static int make(void** p) {
  *p = new char;
  return SUCCESS;
}
static int drop(void* p) {
  delete (char*)p;
  return SUCCESS;
}
API(CreateParams, void** p) { return make(p); }
API(DestroyParams, void* p) { return drop(p); }
API(CreateGesvdjInfo, void** p) { return make(p); }
API(DestroyGesvdjInfo, void* p) { return drop(p); }
API(CreateSyevjInfo, void** p) { return make(p); }
API(DestroySyevjInfo, void* p) { return drop(p); }
API(XgesvdjSetTolerance, void*, double) { return SUCCESS; }
API(XgesvdjSetMaxSweeps, void*, int) { return SUCCESS; }
API(XgesvdjSetSortEig, void*, int) { return SUCCESS; }
API(XsyevjSetTolerance, void*, double) { return SUCCESS; }
API(XsyevjSetMaxSweeps, void*, int) { return SUCCESS; }
API(XsyevjSetSortEig, void*, int) { return SUCCESS; }

// One routine in four types. T: element, R: its real type; OR and SY are the parts of names that
// depend on it.
#define ROUTINES(L, T, R, OR, SY)                                                                  \
  API(L##getrf_bufferSize, void*, int m, int n, T*, int, int* lwork) {                             \
    return answer(lwork, columns(std::max(m, n)));                                                 \
  }                                                                                                \
  API(L##getrf, void* h, int, int, T*, int, T*, int*, int* info) {                                 \
    return run("cusolverDn" #L "getrf", h, info);                                                  \
  }                                                                                                \
  API(L##getrs, void* h, int, int, int, const T*, int, const int*, T*, int, int* info) {           \
    return run("cusolverDn" #L "getrs", h, info);                                                  \
  }                                                                                                \
  API(L##geqrf_bufferSize, void*, int, int n, T*, int, int* lwork) {                               \
    return answer(lwork, columns(n));                                                              \
  }                                                                                                \
  API(L##geqrf, void* h, int, int, T*, int, T*, T*, int, int* info) {                              \
    return run("cusolverDn" #L "geqrf", h, info);                                                  \
  }                                                                                                \
  API(L##OR##gqr_bufferSize, void*, int, int n, int, const T*, int, const T*, int* lwork) {        \
    return answer(lwork, columns(n));                                                              \
  }                                                                                                \
  API(L##OR##gqr, void* h, int, int, int, T*, int, const T*, T*, int, int* info) {                 \
    return run("cusolverDn" #L#OR "gqr", h, info);                                                 \
  }                                                                                                \
  API(L##OR##mqr_bufferSize, void*, int side, int, int m, int n, int, const T*, int, const T*,     \
      const T*, int, int* lwork) {                                                                 \
    return answer(lwork, columns(side == 0 ? n : m));                                              \
  }                                                                                                \
  API(L##OR##mqr, void* h, int, int, int, int, int, const T*, int, const T*, T*, int, T*, int,     \
      int* info) {                                                                                 \
    return run("cusolverDn" #L#OR "mqr", h, info);                                                 \
  }                                                                                                \
  API(L##potrf_bufferSize, void*, int, int n, T*, int, int* lwork) {                               \
    return answer(lwork, columns(n));                                                              \
  }                                                                                                \
  API(L##potrf, void* h, int, int, T*, int, T*, int, int* info) {                                  \
    return run("cusolverDn" #L "potrf", h, info);                                                  \
  }                                                                                                \
  API(L##potrs, void* h, int, int, int, const T*, int, T*, int, int* info) {                       \
    return run("cusolverDn" #L "potrs", h, info);                                                  \
  }                                                                                                \
  API(L##potrfBatched, void* h, int, int, T**, int, int* info, int batch) {                        \
    return run("cusolverDn" #L "potrfBatched", h, info, batch);                                    \
  }                                                                                                \
  API(L##potrsBatched, void* h, int, int, int, T**, int, T**, int, int* info, int) {               \
    return run("cusolverDn" #L "potrsBatched", h, info);                                           \
  }                                                                                                \
  API(L##sytrf_bufferSize, void*, int n, T*, int, int* lwork) {                                    \
    return answer(lwork, columns(n));                                                              \
  }                                                                                                \
  API(L##sytrf, void* h, int, int, T*, int, int*, T*, int, int* info) {                            \
    return run("cusolverDn" #L "sytrf", h, info);                                                  \
  }                                                                                                \
  API(L##gesvd_bufferSize, void*, int m, int n, int* lwork) {                                      \
    return answer(lwork, gesvd_elements(m, n));                                                    \
  }                                                                                                \
  API(L##gesvd, void* h, signed char, signed char, int, int, T*, int, R*, T*, int, T*, int, T*,    \
      int, R*, int* info) {                                                                        \
    return run("cusolverDn" #L "gesvd", h, info);                                                  \
  }                                                                                                \
  API(L##gesvdj_bufferSize, void*, int, int, int m, int n, const T*, int, const R*, const T*, int, \
      const T*, int, int* lwork, void*) {                                                          \
    return answer(lwork, jacobi_elements(m, n, 1));                                                \
  }                                                                                                \
  API(L##gesvdj, void* h, int, int, int, int, T*, int, R*, T*, int, T*, int, T*, int, int* info,   \
      void*) {                                                                                     \
    return run("cusolverDn" #L "gesvdj", h, info);                                                 \
  }                                                                                                \
  API(L##gesvdjBatched_bufferSize, void*, int, int m, int n, const T*, int, const R*, const T*,    \
      int, const T*, int, int* lwork, void*, int batch) {                                          \
    return answer(lwork, jacobi_elements(m, n, batch));                                            \
  }                                                                                                \
  API(L##gesvdjBatched, void* h, int, int, int, T*, int, R*, T*, int, T*, int, T*, int, int* info, \
      void*, int batch) {                                                                          \
    return run("cusolverDn" #L "gesvdjBatched", h, info, batch);                                   \
  }                                                                                                \
  API(L##gesvdaStridedBatched_bufferSize, void*, int, int, int m, int n, const T*, int, long long, \
      const R*, long long, const T*, int, long long, const T*, int, long long, int* lwork,         \
      int batch) {                                                                                 \
    return answer(lwork, jacobi_elements(m, n, batch));                                            \
  }                                                                                                \
  API(L##gesvdaStridedBatched, void* h, int, int rank, int, int, const T*, int, long long, R*,     \
      long long, T*, int, long long, T*, int, long long, T*, int, int* info, double* residuals,    \
      int batch) {                                                                                 \
    if (residuals) std::fill_n(residuals, batch, 0.0);                                             \
    return run("cusolverDn" #L "gesvdaStridedBatched", h, info, batch);                            \
  }                                                                                                \
  API(L##SY##evd_bufferSize, void*, int, int, int n, const T*, int, const R*, int* lwork) {        \
    return answer(lwork, syevd_elements(n));                                                       \
  }                                                                                                \
  API(L##SY##evd, void* h, int, int, int, T*, int, R*, T*, int, int* info) {                       \
    return run("cusolverDn" #L#SY "evd", h, info);                                                 \
  }                                                                                                \
  API(L##SY##evj_bufferSize, void*, int, int, int n, const T*, int, const R*, int* lwork, void*) { \
    return answer(lwork, jacobi_elements(n, n, 1));                                                \
  }                                                                                                \
  API(L##SY##evj, void* h, int, int, int, T*, int, R*, T*, int, int* info, void*) {                \
    return run("cusolverDn" #L#SY "evj", h, info);                                                 \
  }                                                                                                \
  API(L##SY##evjBatched_bufferSize, void*, int, int, int n, const T*, int, const R*, int* lwork,   \
      void*, int batch) {                                                                          \
    return answer(lwork, jacobi_elements(n, n, batch));                                            \
  }                                                                                                \
  API(L##SY##evjBatched, void* h, int, int, int, T*, int, R*, T*, int, int* info, void*,           \
      int batch) {                                                                                 \
    return run("cusolverDn" #L#SY "evjBatched", h, info, batch);                                   \
  }
ROUTINES(S, float, float, or, sy)
ROUTINES(D, double, double, or, sy)
ROUTINES(C, std::complex<float>, float, un, he)
ROUTINES(Z, std::complex<double>, double, un, he)

// The interface with 64-bit sizes; types are cudaDataType.
API(Xgetrf_bufferSize, void*, void*, int64_t m, int64_t n, int, const void*, int64_t, int type,
    size_t* dev, size_t* host) {
  return answer_bytes(dev, host, columns(std::max(m, n)), type);
}
API(Xgetrf, void* h, void*, int64_t, int64_t, int, void*, int64_t, int64_t*, int, void*, size_t,
    void*, size_t, int* info) {
  return run("cusolverDnXgetrf", h, info);
}
API(Xgetrs, void* h, void*, int, int64_t, int64_t, int, const void*, int64_t, const int64_t*, int,
    void*, int64_t, int* info) {
  return run("cusolverDnXgetrs", h, info);
}
API(Xgeqrf_bufferSize, void*, void*, int64_t, int64_t n, int, const void*, int64_t, int,
    const void*, int type, size_t* dev, size_t* host) {
  return answer_bytes(dev, host, columns(n), type);
}
API(Xgeqrf, void* h, void*, int64_t, int64_t, int, void*, int64_t, int, void*, int, void*, size_t,
    void*, size_t, int* info) {
  return run("cusolverDnXgeqrf", h, info);
}
API(Xpotrf_bufferSize, void*, void*, int, int64_t n, int, const void*, int64_t, int type,
    size_t* dev, size_t* host) {
  return answer_bytes(dev, host, columns(n), type);
}
API(Xpotrf, void* h, void*, int, int64_t, int, void*, int64_t, int, void*, size_t, void*, size_t,
    int* info) {
  return run("cusolverDnXpotrf", h, info);
}
API(Xpotrs, void* h, void*, int, int64_t, int64_t, int, const void*, int64_t, int, void*, int64_t,
    int* info) {
  return run("cusolverDnXpotrs", h, info);
}
API(Xsyevd_bufferSize, void*, void*, int, int, int64_t n, int, const void*, int64_t, int,
    const void*, int type, size_t* dev, size_t* host) {
  return answer_bytes(dev, host, syevd_elements(n), type);
}
API(Xsyevd, void* h, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, size_t,
    void*, size_t, int* info) {
  return run("cusolverDnXsyevd", h, info);
}
API(XsyevBatched_bufferSize, void*, void*, int, int, int64_t n, int, const void*, int64_t, int,
    const void*, int type, size_t* dev, size_t* host, int64_t batch) {
  return answer_bytes(dev, host, jacobi_elements(n, n, batch), type);
}
API(XsyevBatched, void* h, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*,
    size_t, void*, size_t, int* info, int64_t batch) {
  return run("cusolverDnXsyevBatched", h, info, batch);
}
API(Xgeev_bufferSize, void*, void*, int, int, int64_t n, int, const void*, int64_t, int,
    const void*, int, const void*, int64_t, int, const void*, int64_t, int type, size_t* dev,
    size_t* host) {
  return answer_bytes(dev, host, geev_elements(n), type);
}
API(Xgeev, void* h, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void*, int64_t,
    int, void*, int64_t, int, void*, size_t, void*, size_t, int* info) {
  return run("cusolverDnXgeev", h, info);
}
API(Xsytrs_bufferSize, void*, int, int64_t n, int64_t, int type, const void*, int64_t,
    const int64_t*, int, void*, int64_t, size_t* dev, size_t* host) {
  return answer_bytes(dev, host, columns(n), type);
}
API(Xsytrs, void* h, int, int64_t, int64_t, int, const void*, int64_t, const int64_t*, int, void*,
    int64_t, void*, size_t, void*, size_t, int* info) {
  return run("cusolverDnXsytrs", h, info);
}
