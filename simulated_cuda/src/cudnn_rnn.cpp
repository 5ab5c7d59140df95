// libcudnn: recurrent networks. The layout of the weights is cuDNN's, as torch copies its
// parameters there; the workspace and the reserve space are estimates.
#include "cudnn.h"
using namespace simdnn;

namespace {
enum Cell { RNN_LSTM = 2, RNN_GRU = 3 };  // cudnnRNNMode_t; 0 and 1 are plain cells
enum Bias {
  NO_BIAS = 0,
  INPUT_BIAS = 1,
  BOTH_BIASES = 2,
  RECURRENT_BIAS = 3
};  // cudnnRNNBiasMode_t

// A pseudo-layer is a layer's direction. Its matrices are one of the input and one of the state for
// each gate, and then the projection; sizes are in elements.
struct Rnn {
  int cell = 0, bias = 0, directions = 1, type = FLOAT;
  int64_t input = 0, hidden = 0, projection = 0, layers = 1;
  float dropout = 0;

  int64_t gates() const {
    switch (cell) {
      case RNN_LSTM: return 4;
      case RNN_GRU: return 3;
      default: return 1;
    }
  }
  bool projects() const { return projection && projection != hidden; }
  int64_t output() const { return projects() ? projection : hidden; }
  int64_t pseudo_layers() const { return layers * directions; }
  int64_t fan_in(int64_t layer) const { return layer < directions ? input : output() * directions; }
  int64_t input_matrix(int64_t layer) const { return hidden * fan_in(layer); }
  int64_t state_matrix() const { return hidden * output(); }
  int64_t projection_matrix() const { return projects() ? hidden * projection : 0; }
  int64_t matrices(int64_t layer) const {
    return gates() * (input_matrix(layer) + state_matrix()) + projection_matrix();
  }
  int64_t matrices_below(int64_t end) const {
    int64_t sum = 0;
    for (int64_t layer = 0; layer < end; layer++)
      sum += matrices(layer);
    return sum;
  }
  int64_t biases() const {
    int64_t sets = bias == NO_BIAS ? 0 : bias == BOTH_BIASES ? 2 : 1;
    return gates() * hidden * sets;
  }
};
struct RnnData {
  int64_t tokens = 0;
};

// One of a pseudo-layer's parameters. cuDNN numbers the input matrices of all gates, then those of
// the state, then the projection.
struct Parameter {
  bool is_projection, is_recurrent;
  int64_t gate;
  Parameter(const Rnn& rnn, int64_t number)
      : is_projection(number == 2 * rnn.gates()),
        is_recurrent(number >= rnn.gates()),
        gate(number % rnn.gates()) {}

  int64_t rows(const Rnn& rnn) const { return is_projection ? rnn.projection : rnn.hidden; }
  int64_t columns(const Rnn& rnn, int64_t layer) const {
    if (is_projection) return rnn.hidden;
    return is_recurrent ? rnn.output() : rnn.fan_in(layer);
  }
  // Within the matrices of its pseudo-layer.
  int64_t offset(const Rnn& rnn, int64_t layer) const {
    if (is_projection) return rnn.matrices(layer) - rnn.hidden * rnn.projection;
    if (!is_recurrent) return gate * rnn.input_matrix(layer);
    return rnn.gates() * rnn.input_matrix(layer) + gate * rnn.state_matrix();
  }
  bool has_bias(const Rnn& rnn) const {
    if (is_projection) return false;
    return rnn.bias == BOTH_BIASES || rnn.bias == (is_recurrent ? RECURRENT_BIAS : INPUT_BIAS);
  }
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
  Rnn rnn;
  rnn.cell = cell;
  rnn.bias = bias;
  rnn.directions = direction ? 2 : 1;
  rnn.type = type;
  rnn.input = input;
  rnn.hidden = hidden;
  rnn.projection = projection;
  rnn.layers = layers;
  rnn.dropout = dropout ? ((Dropout*)dropout)->probability : 0;
  *(Rnn*)d = rnn;
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
  constexpr int PACKED = 1;  // cudnnRNNDataLayout_t: without padding, one step after the other
  int64_t tokens = (int64_t)longest * batch;
  if (layout == PACKED) {
    tokens = 0;
    for (int i = 0; i < batch; i++)
      tokens += lengths[i];
  }
  ((RnnData*)d)->tokens = tokens;
  return SUCCESS;
}

// All matrices come first, then all biases.
CUDNN(cudnnGetRNNWeightSpaceSize, void*, void* d, size_t* size) {
  auto& rnn = *(Rnn*)d;
  int64_t matrices = rnn.matrices_below(rnn.pseudo_layers());
  *size = (matrices + rnn.biases() * rnn.pseudo_layers()) * type_size(rnn.type);
  return SUCCESS;
}
CUDNN(cudnnGetRNNWeightParams, void*, void* d, int32_t layer, size_t, const void* base, int32_t id,
      void* matrix, void** matrix_at, void* bias, void** bias_at) {
  auto& rnn = *(Rnn*)d;
  int64_t last = 2 * rnn.gates() - (rnn.projects() ? 0 : 1);
  if (layer < 0 || layer >= rnn.pseudo_layers() || id < 0 || id > last) return BAD_PARAM;
  auto describe = [&](void* t, int64_t rows, int64_t columns, void** at, int64_t offset) {
    if (t) *(Tensor*)t = Tensor{rnn.type, 0, {1, rows, columns}, {rows * columns, columns, 1}};
    bool empty = rows == 0 || columns == 0;
    if (at) *at = empty ? nullptr : (char*)base + offset * type_size(rnn.type);
  };
  Parameter parameter(rnn, id);
  describe(matrix, parameter.rows(rnn), parameter.columns(rnn, layer), matrix_at,
           rnn.matrices_below(layer) + parameter.offset(rnn, layer));
  bool has_bias = parameter.has_bias(rnn);
  // With both biases, those of the input come before those of the state, as the matrices do.
  int64_t place = rnn.bias == BOTH_BIASES ? id : parameter.gate;
  describe(bias, has_bias ? rnn.hidden : 0, has_bias ? 1 : 0, bias_at,
           rnn.matrices_below(rnn.pseudo_layers()) + layer * rnn.biases() + place * rnn.hidden);
  return SUCCESS;
}

// Estimates. Workspace: the gates of every token in one layer, before activation. Reserve
// (training): of every token and pseudo-layer the activated gates and what their derivatives need
// besides (LSTM: the cell, GRU: the recurrent part of the candidate), the outputs of the layers
// below the last, and of these with dropout a mask of bytes.
CUDNN(cudnnGetRNNTempSpaceSizes, void*, void* d, int training, void* x, size_t* work,
      size_t* reserve) {
  auto& rnn = *(Rnn*)d;
  int64_t tokens = ((RnnData*)x)->tokens, size = type_size(rnn.type);
  *work = workspace(align(tokens * rnn.gates() * rnn.hidden * rnn.directions * size));
  if (!reserve) return SUCCESS;
  int64_t kept = rnn.gates() + (rnn.cell >= RNN_LSTM ? 1 : 0);
  int64_t activations = tokens * kept * rnn.hidden * rnn.pseudo_layers() * size;
  int64_t between = tokens * rnn.output() * rnn.directions * (rnn.layers - 1);
  int64_t masks = rnn.dropout > 0 ? between : 0;
  *reserve = training ? align(activations + between * size + masks) : 0;
  return SUCCESS;
}
CUDNN_KERNEL(cudnnRNNForward)
CUDNN_KERNEL(cudnnRNNBackwardData_v8)
CUDNN_KERNEL(cudnnRNNBackwardWeights_v8)
