// What the parts of the simulated cuDNN share: the handle, a tensor's description, launches, and
// the workspace rule. Written from the documented C interface; numbers (enumerators, argument
// orders) are its ABI.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>
#include "device.h"

namespace simdnn {

// cudnnStatus_t of cuDNN 9, as far as it is returned here.
enum Status : int {
  SUCCESS = 0,
  NOT_INITIALIZED = 1001,
  BAD_PARAM = 2000,
  NOT_SUPPORTED = 3000,
  EXECUTION_FAILED = 5000
};
// cudnnDataType_t, as far as it is told apart here.
enum DataType : int { FLOAT = 0, DOUBLE = 1, HALF = 2, INT8 = 3, INT32 = 4, BFLOAT16 = 9 };

struct Handle {
  void* stream = nullptr;
};

// A tensor or filter descriptor: dimensions in the order N, C, then the spatial ones; strides in
// elements.
struct Tensor {
  int type = FLOAT;
  int format = 0;  // cudnnTensorFormat_t of a filter
  std::vector<int64_t> dims, strides;
  int64_t numel() const;
};

int64_t type_size(int type);
int64_t align(int64_t bytes);  // up to the 256 bytes at which parts of a workspace begin

// A dropout descriptor, which a recurrent network's refers to.
struct Dropout {
  float probability = 0;
};

// A library kernel on the handle's stream: counted, and a node under capture. cost_ns is simulated
// time.
constexpr uint64_t TENSOR_CORES_COST_NS = 5000, DIRECT_COST_NS = 50000;
// What a plan computes stands in it alone, so that its number is in the place of a grid.
int launch(const char* name, void* handle, uint64_t cost_ns = TENSOR_CORES_COST_NS,
           uint64_t plan = 1);

// Convolutions know two engines: TENSOR_CORES, which wants channels-last operands, and DIRECT,
// which takes any.
enum Direction { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };
enum Engine : int { TENSOR_CORES = 0, DIRECT = 1 };
// Benchmark mode finds the direct engine slower, by the costs above.
bool tensor_cores_apply(const Tensor& x, const Tensor& w);
int64_t convolution_workspace(Direction direction, const Tensor& x, const Tensor& w,
                              const Tensor& y);

// SIMGPU_CUDNN_WORKSPACE: the rule's bytes ("rule", or unset), 0 ("none"), or a fixed number of
// bytes.
int64_t workspace(int64_t by_rule);

}  // namespace simdnn

#define CUDNN(name, ...) extern "C" int name(__VA_ARGS__)
// An entry point that computes on the device and nothing else: its first argument is the handle,
// the others are not looked at.
#define CUDNN_KERNEL(name) \
  extern "C" int name(void* handle) { return simdnn::launch(#name, handle); }
