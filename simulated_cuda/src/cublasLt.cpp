// libcublasLt: matrix products whose operands are described by objects.
#include <cstdlib>
#include "gemm.h"
using namespace simgpu;
using namespace simgpu::blas;

#define API(name, ...) extern "C" int cublasLt##name(__VA_ARGS__)

namespace {
struct Product {  // cublasLtMatmulDesc_t
  int scale_type = 0, pointer_mode = 0, transpose_a = 0, transpose_b = 0;
  int epilogue = 1, bias_type = -1;
  const void* bias = nullptr;
};
struct Layout {  // cublasLtMatrixLayout_t
  int type;
  int64_t rows, columns, leading;
  int batches = 1;
  int64_t stride = 0;
  int order = 0;  // 0: column-major
};
struct Heuristic {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
bool computable(const Layout* layout) {
  switch (layout->type) {
    case R32F:
    case R64F:
    case R16F:
    case R8I:
    case R32I:
    case R16BF: return true;
    default: return false;
  }
}
}  // namespace

// ---- the library and its handle
extern "C" size_t cublasLtGetVersion() { return 130100; }
API(Create, void** h) {
  *h = new Handle;
  return SUCCESS;
}
API(Destroy, void* h) {
  delete (Handle*)h;
  return SUCCESS;
}

// ---- descriptors
API(MatmulDescCreate, void** d, int, int scale_type) {
  auto* product = new Product;
  product->scale_type = scale_type;
  *d = product;
  return SUCCESS;
}
API(MatmulDescDestroy, void* d) {
  delete (Product*)d;
  return SUCCESS;
}
API(MatmulDescSetAttribute, void* d, int attribute, const void* value, size_t) {
  auto* product = (Product*)d;
  switch (attribute) {  // cublasLtMatmulDescAttributes_t
    case 1: memcpy(&product->scale_type, value, 4); break;
    case 2: memcpy(&product->pointer_mode, value, 4); break;
    case 3: memcpy(&product->transpose_a, value, 4); break;
    case 4: memcpy(&product->transpose_b, value, 4); break;
    case 7: memcpy(&product->epilogue, value, 4); break;
    case 8: memcpy(&product->bias, value, 8); break;
    case 26: memcpy(&product->bias_type, value, 4); break;
  }
  return SUCCESS;
}
API(MatrixLayoutCreate, void** d, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *d = new Layout{type, (int64_t)rows, (int64_t)columns, leading};
  return SUCCESS;
}
API(MatrixLayoutDestroy, void* d) {
  delete (Layout*)d;
  return SUCCESS;
}
API(MatrixLayoutSetAttribute, void* d, int attribute, const void* value, size_t) {
  auto* layout = (Layout*)d;
  switch (attribute) {  // cublasLtMatrixLayoutAttribute_t
    case 0: memcpy(&layout->type, value, 4); break;
    case 1: memcpy(&layout->order, value, 4); break;
    case 2: memcpy(&layout->rows, value, 8); break;
    case 3: memcpy(&layout->columns, value, 8); break;
    case 4: memcpy(&layout->leading, value, 8); break;
    case 5: memcpy(&layout->batches, value, 4); break;
    case 6: memcpy(&layout->stride, value, 8); break;
  }
  return SUCCESS;
}
API(MatmulPreferenceCreate, void** d) {
  *d = calloc(1, 64);
  return SUCCESS;
}
API(MatmulPreferenceDestroy, void* d) {
  free(d);
  return SUCCESS;
}
API(MatmulPreferenceSetAttribute, void*, int, const void*, size_t) { return SUCCESS; }

// ---- products
// One algorithm, which needs no workspace.
API(MatmulAlgoGetHeuristic, void*, void*, void*, void*, void*, void*, void*, int wanted,
    Heuristic* result, int* found) {
  memset(result, 0, sizeof *result);
  result->waves = 1;
  *found = wanted > 0 ? 1 : 0;
  return SUCCESS;
}
API(Matmul, void*, void* descriptor, const void* alpha, const void* A, void* layout_a,
    const void* B, void* layout_b, const void* beta, const void* C, void* layout_c, void* D,
    void* layout_d, const void*, void*, size_t, void* stream) {
  auto* product = (Product*)descriptor;
  auto *a = (Layout*)layout_a, *b = (Layout*)layout_b;
  auto *c = (Layout*)layout_c, *d = (Layout*)layout_d;
  if (product->pointer_mode || a->order || !computable(a) || !computable(b) || !computable(d))
    return counted("cublasLtMatmul", stream,
                   {0, a->type, d->rows, d->columns,
                    product->transpose_a ? a->rows : a->columns, d->batches});
  Gemm gemm;
  gemm.m = d->rows;
  gemm.n = d->columns;
  gemm.k = product->transpose_a ? a->rows : a->columns;
  gemm.batches = d->batches;
  gemm.alpha = load(alpha, 0, product->scale_type);
  gemm.beta = load(beta, 0, product->scale_type);
  gemm.a = {A, a->type, a->leading, a->stride, product->transpose_a};
  gemm.b = {B, b->type, b->leading, b->stride, product->transpose_b};
  gemm.c = {C, c->type, c->leading, c->stride, 0};
  gemm.d = {D, d->type, d->leading, d->stride, 0};
  gemm.epilogue = product->epilogue;
  gemm.bias = product->epilogue & BIAS ? product->bias : nullptr;
  gemm.bias_type = product->bias_type < 0 ? d->type : product->bias_type;
  return multiply("cublasLtMatmul", stream, gemm);
}
