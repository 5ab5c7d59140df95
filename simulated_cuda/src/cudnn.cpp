// libcudnn without the graph interface (cudnn_graph.cpp) and convolutions (cudnn_conv.cpp): the
// handle, descriptors, dropout states, recurrent networks, batch normalisation, CTC loss, spatial
// transformers. Sizes are right where torch depends on their parts (weights of recurrent networks);
// workspaces and reserve spaces are estimates, each with its rule beside it.
#include <algorithm>
#include <cstring>
#include "cudnn.h"
using namespace simdnn;

namespace simdnn {
int launch(const char* name, void* handle, uint64_t cost_ns) {
  simgpu::Op op = simgpu::kernel_op(simgpu::kernel_by_name(name));
  op.cost_ns = cost_ns;
  return simgpu::submit(handle ? ((Handle*)handle)->stream : nullptr, std::move(op))
             ? EXECUTION_FAILED
             : SUCCESS;
}
}  // namespace simdnn

// ---- the library and its handle
// ----------------------------------------------------------------------------------------
extern "C" size_t cudnnGetVersion() { return CUDNN_VERSION; }
extern "C" size_t cudnnGetCudartVersion() { return 13000; }
CUDNN(cudnnGetProperty, int what, int* v) {  // libraryPropertyType: major, minor, patch
  *v = what == 0   ? CUDNN_VERSION / 10000
       : what == 1 ? CUDNN_VERSION / 100 % 100
                   : CUDNN_VERSION % 100;
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
// -----------------------------------------------------------------------------------------------
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
// ----------------------------------------------------------------------
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
// -----------------------------------------------------------------------------------------------------------
namespace {
struct Dropout {
  float p = 0;
};
}  // namespace
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
  ((Dropout*)d)->p = p;
  return states ? launch("cudnn_dropout_states", h) : SUCCESS;
}
CUDNN(cudnnRestoreDropoutDescriptor, void* d, void*, float p, void*, size_t, unsigned long long) {
  ((Dropout*)d)->p = p;
  return SUCCESS;
}

// ---- recurrent networks
// ------------------------------------------------------------------------------------------------
namespace {
enum { RNN_LSTM = 2, RNN_GRU = 3 };  // cudnnRNNMode_t; 0 and 1 are plain cells
struct Rnn {
  int cell = 0, bias = 0, directions = 1, type = FLOAT;
  int64_t input = 0, hidden = 0, projection = 0, layers = 1;
  float dropout = 0;
  int64_t gates() const { return cell == RNN_LSTM ? 4 : cell == RNN_GRU ? 3 : 1; }
  bool projects() const { return projection && projection != hidden; }
  int64_t output() const { return projects() ? projection : hidden; }
  int64_t fan_in(int64_t layer) const { return layer < directions ? input : output() * directions; }
  // Elements of a pseudo-layer (a layer's direction): input and recurrent matrices of all gates,
  // then the projection.
  int64_t matrices(int64_t layer) const {
    return gates() * hidden * (fan_in(layer) + output()) + (projects() ? hidden * projection : 0);
  }
  int64_t bias_sets() const {
    return bias == 0 ? 0 : bias == 2 ? 2 : 1;
  }  // cudnnRNNBiasMode_t: none, input, both, recurrent
  int64_t biases() const { return gates() * hidden * bias_sets(); }
  int64_t pseudo_layers() const { return layers * directions; }
};
struct RnnData {
  int64_t tokens = 0;
};
}  // namespace
CUDNN(cudnnCreateRNNDescriptor, void** d) {
  *d = new Rnn;
  return SUCCESS;
}
CUDNN(cudnnDestroyRNNDescriptor, void* d) {
  delete (Rnn*)d;
  return SUCCESS;
}
CUDNN(cudnnSetRNNDescriptor_v8, void* d, int, int cell, int bias, int direction, int, int type, int,
      int, int32_t input, int32_t hidden, int32_t projection, int32_t layers, void* dropout,
      uint32_t) {
  *(Rnn*)d = Rnn{cell,       bias,   direction ? 2 : 1,
                 type,       input,  hidden,
                 projection, layers, dropout ? ((Dropout*)dropout)->p : 0};
  return SUCCESS;
}
CUDNN(cudnnCreateRNNDataDescriptor, void** d) {
  *d = new RnnData;
  return SUCCESS;
}
CUDNN(cudnnDestroyRNNDataDescriptor, void* d) {
  delete (RnnData*)d;
  return SUCCESS;
}
CUDNN(cudnnSetRNNDataDescriptor, void* d, int, int layout, int longest, int batch, int,
      const int* lengths, const void*) {
  int64_t tokens = (int64_t)longest * batch;
  if (layout == 1) {
    tokens = 0;
    for (int i = 0; i < batch; i++)
      tokens += lengths[i];
  }  // sequences packed one step after the other
  ((RnnData*)d)->tokens = tokens;
  return SUCCESS;
}
// All matrices come first, then all biases.
CUDNN(cudnnGetRNNWeightSpaceSize, void*, void* d, size_t* n) {
  auto& r = *(Rnn*)d;
  int64_t elements = r.biases() * r.pseudo_layers();
  for (int64_t l = 0; l < r.pseudo_layers(); l++)
    elements += r.matrices(l);
  *n = elements * type_size(r.type);
  return SUCCESS;
}
CUDNN(cudnnGetRNNWeightParams, void*, void* d, int32_t layer, size_t, const void* base, int32_t id,
      void* matrix, void** matrix_at, void* bias, void** bias_at) {
  auto& r = *(Rnn*)d;
  int64_t gates = r.gates(), weights = 0;
  if (layer < 0 || layer >= r.pseudo_layers() || id < 0 || id > 2 * gates - (r.projects() ? 0 : 1))
    return BAD_PARAM;
  auto describe = [&](void* t, int64_t rows, int64_t columns, void** at, int64_t offset) {
    if (t) *(Tensor*)t = Tensor{r.type, 0, {1, rows, columns}, {rows * columns, columns, 1}};
    if (at) *at = rows * columns ? (char*)base + offset * type_size(r.type) : nullptr;
  };
  for (int64_t l = 0; l < r.pseudo_layers(); l++)
    weights += r.matrices(l);
  int64_t offset = 0;
  for (int64_t l = 0; l < layer; l++)
    offset += r.matrices(l);
  bool projection = id == 2 * gates, recurrent = id >= gates;
  if (projection)
    offset += r.matrices(layer) - r.hidden * r.projection;
  else
    offset += recurrent ? gates * r.hidden * r.fan_in(layer) + (id - gates) * r.hidden * r.output()
                        : id * r.hidden * r.fan_in(layer);
  describe(matrix, projection ? r.projection : r.hidden,
           projection  ? r.hidden
           : recurrent ? r.output()
                       : r.fan_in(layer),
           matrix_at, offset);
  bool has_bias =
      !projection && (r.bias == 2 || (r.bias == 1 && !recurrent) || (r.bias == 3 && recurrent));
  describe(bias, has_bias ? r.hidden : 0, has_bias ? 1 : 0, bias_at,
           weights + layer * r.biases() + (r.bias == 2 ? id : id % gates) * r.hidden);
  return SUCCESS;
}
// Estimates. Workspace: the gates of every token in one layer, before activation. Reserve
// (training): of every token and pseudo-layer the activated gates and what their derivatives need
// besides (LSTM: the cell, GRU: the recurrent part of the candidate), the outputs of the layers
// below the last, and of these with dropout a mask of bytes.
CUDNN(cudnnGetRNNTempSpaceSizes, void*, void* d, int training, void* x, size_t* work,
      size_t* reserve) {
  auto& r = *(Rnn*)d;
  int64_t tokens = ((RnnData*)x)->tokens, size = type_size(r.type);
  int64_t between = tokens * r.output() * r.directions * (r.layers - 1);
  *work = workspace(align(tokens * r.gates() * r.hidden * r.directions * size));
  if (reserve)
    *reserve = training ? align(tokens * (r.gates() + (r.cell >= RNN_LSTM)) * r.hidden *
                                    r.pseudo_layers() * size +
                                between * size + (r.dropout > 0 ? between : 0))
                        : 0;
  return SUCCESS;
}
CUDNN_KERNEL(cudnnRNNForward)
CUDNN_KERNEL(cudnnRNNBackwardData_v8)
CUDNN_KERNEL(cudnnRNNBackwardWeights_v8)

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
// ----------------------------------------------------------------------------------------------------------
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
