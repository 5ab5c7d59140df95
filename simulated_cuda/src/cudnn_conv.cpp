// Convolutions of the simulated cuDNN: the workspace rule, and the descriptor interface of cuDNN 7
// (which torch takes under TORCH_CUDNN_V8_API_DISABLED=1; its usual way is cudnn_graph.cpp).
#include <cstdlib>
#include <cstring>
#include "cudnn.h"
using namespace simdnn;

namespace simdnn {

int64_t Tensor::numel() const {
  int64_t n = 1;
  for (int64_t d : dims)
    n *= d;
  return n;
}

int64_t type_size(int type) {
  switch (type) {
    case DOUBLE:
    case 10: return 8;  // int64
    case HALF:
    case BFLOAT16: return 2;
    case INT8:
    case 6:
    case 11:
    case 12:
    case 13: return 1;  // uint8, boolean, the two kinds of fp8
    default: return 4;
  }
}

int64_t align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

int64_t workspace(int64_t by_rule) {
  const char* mode = getenv("SIMGPU_CUDNN_WORKSPACE");
  if (!mode || !*mode || !strcmp(mode, "rule")) return by_rule;
  return !strcmp(mode, "none") ? 0 : strtoll(mode, nullptr, 10);
}

// Whether the elements lie in the order N, spatial, C. A dimension of size 1 has no place in the
// order.
static bool channels_last(const Tensor& t) {
  int64_t expected = 1;
  auto follows = [&](size_t i) {
    bool ok = t.dims[i] == 1 || t.strides[i] == expected;
    expected *= t.dims[i];
    return ok;
  };
  if (!follows(1)) return false;
  for (size_t i = t.dims.size() - 1; i >= 2; i--)
    if (!follows(i)) return false;
  return follows(0);
}

// Channels that a 16-byte load of a tensor core kernel takes at once: operands are padded to a
// multiple of it.
static int64_t channel_multiple(int type) { return 16 / type_size(type); }

bool tensor_cores_apply(const Tensor& x, const Tensor& w) {
  bool known = (x.type == FLOAT || x.type == HALF || x.type == BFLOAT16) &&
               simgpu::config().cc_major >= (x.type == HALF ? 7 : 8);
  int64_t groups = x.dims[1] / w.dims[1];
  int64_t multiple = channel_multiple(x.type);
  return known &&
         (groups == 1 || (w.dims[1] % multiple == 0 && w.dims[0] / groups % multiple == 0));
}

// What a device was seen to ask for besides copies, where there are any.
constexpr int64_t BESIDE_COPIES = 512;

// A tensor core kernel reads and writes channels-last operands of padded channels; an operand that
// is not has such a copy in the workspace, but for the result in float32 on devices of compute
// capability 8.x, whose kernels write it where it belongs. The gradient of a filter of half
// precision is summed in a float32 copy. Observed: forwards in float32 and bfloat16, cuDNN 9.10 on
// Blackwell and 9.20 on Ampere; the rest is by analogy.
int64_t convolution_workspace(Direction direction, const Tensor& x, const Tensor& w,
                              const Tensor& y) {
  int64_t bytes = 0;
  bool in_place = x.type == FLOAT && simgpu::config().cc_major == 8;
  auto copy = [&](const Tensor& t, Direction result_of) {
    if (in_place && direction == result_of) return;
    int64_t channels = t.dims[1], multiple = channel_multiple(t.type),
            padded = (channels + multiple - 1) / multiple * multiple;
    if (padded != channels || !channels_last(t))
      bytes += align(t.numel() / channels * padded * type_size(t.type));
  };
  if (x.numel() && y.numel() && w.numel()) {
    copy(x, BACKWARD_DATA);
    copy(w, BACKWARD_FILTER);
    copy(y, FORWARD);
    if (direction == BACKWARD_FILTER && type_size(w.type) < 4) bytes += align(w.numel() * 4);
  }
  return workspace(bytes ? bytes + BESIDE_COPIES : 0);
}

}  // namespace simdnn

// ---- the interface of cuDNN 7
namespace {
struct Perf {  // cudnnConvolution*AlgoPerf_t
  int algo, status;
  float time;  // in milliseconds
  size_t memory;
  int deterministic, math_type, reserved[3];
};
// cudnnConvolution*Algo_t: these numbers suit all three directions.
enum { ALGO_DIRECT = 0, ALGO_TENSOR_CORES = 1 };
enum { TENSOR_OP_MATH = 1, FMA_MATH = 3 };  // cudnnMathType_t

int sizes(Direction d, void* x, void* w, void* y, int algo, size_t* bytes) {
  auto &tx = *(Tensor*)x, &tw = *(Tensor*)w;
  bool tensor_cores = algo == ALGO_TENSOR_CORES && tensor_cores_apply(tx, tw);
  *bytes = tensor_cores ? convolution_workspace(d, tx, tw, *(Tensor*)y) : 0;
  return SUCCESS;
}
int algorithms(Direction d, void* x, void* w, void* y, int wanted, int* found, Perf* out) {
  bool tensor_cores = tensor_cores_apply(*(Tensor*)x, *(Tensor*)w);
  *found = 0;
  for (int algo : {ALGO_TENSOR_CORES, ALGO_DIRECT}) {
    bool direct = algo == ALGO_DIRECT;
    if (*found == wanted || (!direct && !tensor_cores)) continue;
    Perf& result = out[(*found)++];
    result = Perf{};
    result.algo = algo;
    result.status = SUCCESS;
    result.time = (direct ? DIRECT_COST_NS : TENSOR_CORES_COST_NS) / 1e6f;
    result.deterministic = 1;
    result.math_type = direct ? FMA_MATH : TENSOR_OP_MATH;
    sizes(d, x, w, y, algo, &result.memory);
  }
  return SUCCESS;
}
}  // namespace

// Padding, stride, groups and the like follow from the tensors, as far as sizes depend on them.
CUDNN(cudnnCreateConvolutionDescriptor, void** d) {
  *d = new char;
  return SUCCESS;
}
CUDNN(cudnnDestroyConvolutionDescriptor, void* d) {
  delete (char*)d;
  return SUCCESS;
}
CUDNN(cudnnSetConvolutionNdDescriptor, void*, int, const int*, const int*, const int*, int, int) {
  return SUCCESS;
}
CUDNN(cudnnSetConvolutionGroupCount, void*, int) { return SUCCESS; }
CUDNN(cudnnSetConvolutionMathType, void*, int) { return SUCCESS; }
CUDNN(cudnnGetConvolutionForwardWorkspaceSize, void*, void* x, void* w, void*, void* y, int algo,
      size_t* n) {
  return sizes(FORWARD, x, w, y, algo, n);
}
CUDNN(cudnnGetConvolutionBackwardDataWorkspaceSize, void*, void* w, void* y, void*, void* x,
      int algo, size_t* n) {
  return sizes(BACKWARD_DATA, x, w, y, algo, n);
}
CUDNN(cudnnGetConvolutionBackwardFilterWorkspaceSize, void*, void* x, void* y, void*, void* w,
      int algo, size_t* n) {
  return sizes(BACKWARD_FILTER, x, w, y, algo, n);
}
CUDNN(cudnnGetConvolutionForwardAlgorithm_v7, void*, void* x, void* w, void*, void* y, int wanted,
      int* n, Perf* p) {
  return algorithms(FORWARD, x, w, y, wanted, n, p);
}
CUDNN(cudnnGetConvolutionBackwardDataAlgorithm_v7, void*, void* w, void* y, void*, void* x,
      int wanted, int* n, Perf* p) {
  return algorithms(BACKWARD_DATA, x, w, y, wanted, n, p);
}
CUDNN(cudnnGetConvolutionBackwardFilterAlgorithm_v7, void*, void* x, void* y, void*, void* w,
      int wanted, int* n, Perf* p) {
  return algorithms(BACKWARD_FILTER, x, w, y, wanted, n, p);
}
CUDNN(cudnnFindConvolutionForwardAlgorithmEx, void*, void* x, const void*, void* w, const void*,
      void*, void* y, void*, int wanted, int* n, Perf* p, void*, size_t) {
  return algorithms(FORWARD, x, w, y, wanted, n, p);
}
CUDNN(cudnnFindConvolutionBackwardDataAlgorithmEx, void*, void* w, const void*, void* y,
      const void*, void*, void* x, void*, int wanted, int* n, Perf* p, void*, size_t) {
  return algorithms(BACKWARD_DATA, x, w, y, wanted, n, p);
}
CUDNN(cudnnFindConvolutionBackwardFilterAlgorithmEx, void*, void* x, const void*, void* y,
      const void*, void*, void* w, void*, int wanted, int* n, Perf* p, void*, size_t) {
  return algorithms(BACKWARD_FILTER, x, w, y, wanted, n, p);
}
CUDNN_KERNEL(cudnnConvolutionForward)
CUDNN_KERNEL(cudnnConvolutionBackwardData)
CUDNN_KERNEL(cudnnConvolutionBackwardFilter)
CUDNN_KERNEL(cudnnConvolutionBiasActivationForward)
