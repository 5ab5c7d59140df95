// libcudnn: the library, its handle, descriptors, dropout states, batch normalisation, CTC loss and
// spatial transformers. The other files beside it have recurrent networks, convolutions and the
// graph interface. Sizes are right where torch depends on their parts; workspaces and reserve
// spaces are estimates, each with its rule beside it.
#include <algorithm>
#include <cstring>
#include "cudnn.h"
using namespace simdnn;

namespace simdnn {
int launch(const char* name, void* handle, uint64_t cost_ns, uint64_t plan) {
  simgpu::Op op = simgpu::kernel_op(simgpu::kernel_by_name(name));
  op.cost_ns = cost_ns;
  op.grid[0] = (unsigned)plan, op.grid[1] = (unsigned)(plan >> 32);
  void* stream = handle ? ((Handle*)handle)->stream : nullptr;
  return simgpu::submit(stream, std::move(op)) ? EXECUTION_FAILED : SUCCESS;
}
}  // namespace simdnn

// ---- the library and its handle
extern "C" size_t cudnnGetVersion() { return CUDNN_VERSION; }
extern "C" size_t cudnnGetCudartVersion() { return 13000; }
CUDNN(cudnnGetProperty, int what, int* v) {  // libraryPropertyType: major, minor, patch
  switch (what) {
    case 0: *v = CUDNN_VERSION / 10000; break;
    case 1: *v = CUDNN_VERSION / 100 % 100; break;
    default: *v = CUDNN_VERSION % 100;
  }
  return SUCCESS;
}
extern "C" const char* cudnnGetErrorString(int e) {
  switch (e) {
    case SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS of the simulated device";
  }
}
extern "C" void cudnnGetLastErrorString(char* s, size_t n) {
  if (n) {
    strncpy(s, "simulated cuDNN", n - 1);
    s[n - 1] = 0;
  }
}
CUDNN(cudnnCreate, void** h) {
  *h = new Handle;
  return SUCCESS;
}
CUDNN(cudnnDestroy, void* h) {
  delete (Handle*)h;
  return SUCCESS;
}
CUDNN(cudnnSetStream, void* h, void* s) {
  ((Handle*)h)->stream = s;
  return SUCCESS;
}
CUDNN(cudnnGetStream, void* h, void** s) {
  *s = ((Handle*)h)->stream;
  return SUCCESS;
}

// ---- tensors and filters
CUDNN(cudnnCreateTensorDescriptor, void** d) {
  *d = new Tensor;
  return SUCCESS;
}
CUDNN(cudnnDestroyTensorDescriptor, void* d) {
  delete (Tensor*)d;
  return SUCCESS;
}
CUDNN(cudnnSetTensorNdDescriptor, void* d, int type, int n, const int* dims, const int* strides) {
  auto* t = (Tensor*)d;
  t->type = type;
  t->dims.assign(dims, dims + n);
  t->strides.assign(strides, strides + n);
  return SUCCESS;
}
CUDNN(cudnnGetTensorNdDescriptor, void* d, int room, int* type, int* n, int* dims, int* strides) {
  auto* t = (Tensor*)d;
  *type = t->type;
  *n = (int)t->dims.size();
  for (int i = 0; i < std::min(room, *n); i++) {
    dims[i] = (int)t->dims[i];
    strides[i] = (int)t->strides[i];
  }
  return SUCCESS;
}
CUDNN(cudnnCreateFilterDescriptor, void** d) {
  *d = new Tensor;
  return SUCCESS;
}
CUDNN(cudnnDestroyFilterDescriptor, void* d) {
  delete (Tensor*)d;
  return SUCCESS;
}
CUDNN(cudnnSetFilterNdDescriptor, void* d, int type, int format, int n, const int* dims) {
  auto* t = (Tensor*)d;
  t->type = type;
  t->format = format;
  t->dims.assign(dims, dims + n);
  t->strides.assign(n, 1);
  int64_t stride = 1;
  auto place = [&](int i) {
    t->strides[i] = stride;
    stride *= t->dims[i];
  };
  if (format == 1 && n > 2) place(1);  // CUDNN_TENSOR_NHWC
  for (int i = n - 1; i > (format == 1 ? 1 : 0); i--)
    place(i);
  place(0);
  return SUCCESS;
}
CUDNN(cudnnGetFilterNdDescriptor, void* d, int room, int* type, int* format, int* n, int* dims) {
  auto* t = (Tensor*)d;
  *type = t->type;
  *format = t->format;
  *n = (int)t->dims.size();
  for (int i = 0; i < std::min(room, *n); i++)
    dims[i] = (int)t->dims[i];
  return SUCCESS;
}

// ---- descriptors that only say what a kernel does
#define UNUSED_DESCRIPTOR(name)                    \
  CUDNN(cudnnCreate##name##Descriptor, void** d) { \
    *d = new char;                                 \
    return SUCCESS;                                \
  }                                                \
  CUDNN(cudnnDestroy##name##Descriptor, void* d) { \
    delete (char*)d;                               \
    return SUCCESS;                                \
  }
UNUSED_DESCRIPTOR(Activation)
UNUSED_DESCRIPTOR(SpatialTransformer)
CUDNN(cudnnSetActivationDescriptor, void*, int, int, double) { return SUCCESS; }
CUDNN(cudnnSetSpatialTransformerNdDescriptor, void*, int, int, int, const int*) { return SUCCESS; }
CUDNN_KERNEL(cudnnSpatialTfGridGeneratorForward)
CUDNN_KERNEL(cudnnSpatialTfGridGeneratorBackward)
CUDNN_KERNEL(cudnnSpatialTfSamplerForward)
CUDNN_KERNEL(cudnnSpatialTfSamplerBackward)

// ---- dropout
CUDNN(cudnnCreateDropoutDescriptor, void** d) {
  *d = new Dropout;
  return SUCCESS;
}
CUDNN(cudnnDestroyDropoutDescriptor, void* d) {
  delete (Dropout*)d;
  return SUCCESS;
}
// One XORWOW generator (48 bytes, curand_kernel.h) for each thread that the device can hold.
CUDNN(cudnnDropoutGetStatesSize, void*, size_t* n) {
  int threads = 0;
  auto attribute = simgpu::MAX_THREADS_PER_MULTIPROCESSOR;
  if (simgpu::device_attribute(attribute, simgpu::current_device(), &threads)) return NOT_SUPPORTED;
  *n = (size_t)simgpu::config().multiprocessors * threads * 48;
  return SUCCESS;
}
CUDNN(cudnnSetDropoutDescriptor, void* d, void* h, float p, void* states, size_t,
      unsigned long long) {
  ((Dropout*)d)->probability = p;
  return states ? launch("cudnn_dropout_states", h) : SUCCESS;
}
CUDNN(cudnnRestoreDropoutDescriptor, void* d, void*, float p, void*, size_t, unsigned long long) {
  ((Dropout*)d)->probability = p;
  return SUCCESS;
}

// ---- batch normalisation: one pass over the data, without workspace; nothing is kept when there
// is no activation --------
CUDNN(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, void*, int, int, void*, void*,
      void*, void*, void*, size_t* n) {
  *n = 0;
  return SUCCESS;
}
CUDNN(cudnnGetBatchNormalizationBackwardExWorkspaceSize, void*, int, int, void*, void*, void*,
      void*, void*, void*, void*, size_t* n) {
  *n = 0;
  return SUCCESS;
}
CUDNN(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, void*, int, int, void*, void*,
      size_t* n) {
  *n = 0;
  return SUCCESS;
}
CUDNN_KERNEL(cudnnBatchNormalizationForwardTrainingEx)
CUDNN_KERNEL(cudnnBatchNormalizationBackwardEx)
CUDNN_KERNEL(cudnnBatchNormalizationForwardInference)

// ---- CTC loss
namespace {
struct Ctc {
  int longest_label = 0;
};
}  // namespace
CUDNN(cudnnCreateCTCLossDescriptor, void** d) {
  *d = new Ctc;
  return SUCCESS;
}
CUDNN(cudnnDestroyCTCLossDescriptor, void* d) {
  delete (Ctc*)d;
  return SUCCESS;
}
CUDNN(cudnnSetCTCLossDescriptorEx, void*, int, int, int) { return SUCCESS; }
CUDNN(cudnnSetCTCLossDescriptor_v9, void* d, int, int, int, int longest) {
  ((Ctc*)d)->longest_label = longest;
  return SUCCESS;
}
// Estimate: the forward and the backward variables (float32) of every time step, for a label with
// blanks between.
static int ctc_workspace(const Tensor& probabilities, int64_t label, size_t* n) {
  *n = workspace(align(2 * probabilities.dims[0] * probabilities.dims[1] * (2 * label + 1) * 4));
  return SUCCESS;
}
CUDNN(cudnnGetCTCLossWorkspaceSize, void*, void* probabilities, void*, const int*,
      const int* lengths, const int*, int, void*, size_t* n) {
  auto& t = *(Tensor*)probabilities;
  return ctc_workspace(t, t.dims[1] ? *std::max_element(lengths, lengths + t.dims[1]) : 0, n);
}
CUDNN(cudnnGetCTCLossWorkspaceSize_v8, void*, int, void* d, void* probabilities, void*, size_t* n) {
  return ctc_workspace(*(Tensor*)probabilities, ((Ctc*)d)->longest_label, n);
}
CUDNN_KERNEL(cudnnCTCLoss)
CUDNN_KERNEL(cudnnCTCLoss_v8)
