// libcusparseLt: 2:4 structured sparsity. Descriptors are 1024-byte buffers of the caller; ours lie
// at their beginning.
#include <cstring>
#include "library.h"
using namespace simgpu;

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 3, EXECUTION_FAILED = 6 };
struct Descriptor {
  int64_t rows, cols;
  int type;
};
// Each group of four keeps two values, and two bits for the place of each.
size_t kept_bytes(const Descriptor* d) { return d->rows * d->cols / 2 * bytes_of_type(d->type); }
size_t place_bytes(const Descriptor* d) { return (d->rows * d->cols / 2 * 2 + 7) / 8; }
int describe(void* out, int64_t rows, int64_t cols, int type) {
  if (!out || rows < 0 || cols < 0) return INVALID_VALUE;
  Descriptor d{rows, cols, type};
  memcpy(out, &d, sizeof d);
  return SUCCESS;
}
}  // namespace

#define API(name, ...) extern "C" int cusparseLt##name(__VA_ARGS__)
API(Init, void*) { return SUCCESS; }
API(Destroy, const void*) { return SUCCESS; }
API(GetVersion, const void*, int* v) {
  *v = 800;
  return SUCCESS;
}
API(GetProperty, int what, int* v) {
  *v = what == 1 ? 8 : 0;
  return SUCCESS;
}
API(DenseDescriptorInit, const void*, void* d, int64_t rows, int64_t cols, int64_t, uint32_t,
    int type, int) {
  return describe(d, rows, cols, type);
}
API(StructuredDescriptorInit, const void*, void* d, int64_t rows, int64_t cols, int64_t, uint32_t,
    int type, int, int) {
  return describe(d, rows, cols, type);
}
API(MatDescriptorDestroy, const void*) { return SUCCESS; }
API(MatmulDescriptorInit, const void*, void*, int, int, const void*, const void*, const void*,
    const void*, int) {
  return SUCCESS;
}
API(MatmulDescSetAttribute, const void*, void*, int, const void*, size_t) { return SUCCESS; }
API(MatmulAlgSelectionInit, const void*, void*, const void*, int) { return SUCCESS; }
API(MatmulAlgSetAttribute, const void*, void*, int, const void*, size_t) { return SUCCESS; }
API(MatmulAlgGetAttribute, const void*, const void*, int, void* data, size_t n) {
  memset(data, 0, n);
  return SUCCESS;
}
API(MatmulPlanInit, const void*, void*, const void*, const void*) { return SUCCESS; }
API(MatmulPlanDestroy, const void*) { return SUCCESS; }
// Algorithm 0 without splitting needs none.
API(MatmulGetWorkspace, const void*, const void*, size_t* n) {
  *n = 0;
  return SUCCESS;
}
API(Matmul, const void*, const void*, const void*, const void*, const void*, const void*,
    const void*, void*, void*, void* const* streams, int32_t n) {
  return count_kernel("cusparseLtMatmul", n > 0 ? streams[0] : nullptr) ? EXECUTION_FAILED
                                                                        : SUCCESS;
}
API(MatmulSearch, const void*, void*, const void*, const void*, const void*, const void*,
    const void*, void*, void*, void* const* streams, int32_t n) {
  return count_kernel("cusparseLtMatmulSearch", n > 0 ? streams[0] : nullptr) ? EXECUTION_FAILED
                                                                              : SUCCESS;
}
API(SpMMACompressedSize2, const void*, const void* d, size_t* compressed, size_t* buffer) {
  *compressed = kept_bytes((const Descriptor*)d) + place_bytes((const Descriptor*)d);
  *buffer = 0;
  return SUCCESS;
}
API(SpMMACompress2, const void*, const void*, int, int, const void*, void*, void*, void* stream) {
  return count_kernel("cusparseLtSpMMACompress2", stream) ? EXECUTION_FAILED : SUCCESS;
}
