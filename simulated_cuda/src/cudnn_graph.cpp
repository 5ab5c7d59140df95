// The graph interface of the simulated cuDNN (cudnnBackend*). A descriptor is a store of
// attributes, whatever its kind; what cuDNN works out by itself (heuristics, engines, workspace) is
// derived from the stored operation graph. Executing a plan is one kernel.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include "cudnn.h"
using namespace simdnn;

namespace {
// cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t and
// others: the numbers that matter here.
enum Kind {
  ENGINE = 2,
  ENGINE_CONFIG = 3,
  HEURISTICS = 4,
  PLAN = 5,
  CONVOLUTION_FORWARD = 10,
  CONVOLUTION_BACKWARD_FILTER = 11,
  CONVOLUTION_BACKWARD_DATA = 12,
  OPERATION_GRAPH = 15
};
enum Name {
  HEURISTICS_MODE = 200,
  HEURISTICS_GRAPH = 201,
  HEURISTICS_RESULTS = 202,
  CONFIG_ENGINE = 300,
  CONFIG_KNOBS = 302,
  CONFIG_WORKSPACE = 303,
  CONFIG_SHARED_MEMORY = 304,
  PLAN_CONFIG = 401,
  PLAN_WORKSPACE = 402,
  FORWARD_W = 703,
  FORWARD_X = 704,
  FORWARD_Y = 705,
  DATA_W = 709,
  DATA_X = 710,
  DATA_Y = 711,
  FILTER_W = 715,
  FILTER_X = 716,
  FILTER_Y = 717,
  GRAPH_OPERATIONS = 801,
  GRAPH_ENGINES = 802,
  TENSOR_TYPE = 901,
  TENSOR_DIMENSIONS = 902,
  TENSOR_STRIDES = 903,
  ENGINE_GRAPH = 1300,
  ENGINE_INDEX = 1301,
  ENGINE_KNOBS = 1302,
  ENGINE_NUMERICAL_NOTES = 1303,
  ENGINE_BEHAVIOUR_NOTES = 1305
};
enum Type {
  T_HANDLE = 0,
  T_BOOLEAN = 2,
  T_INT64 = 3,
  T_DOUBLE = 5,
  T_POINTER = 6,
  T_NUMERICAL_NOTE = 11,
  T_DESCRIPTOR = 15,
  T_BEHAVIOUR_NOTE = 19,
  T_INT32 = 23,
  T_CHAR = 24,
  T_FRACTION = 26
};
constexpr int HEURISTICS_FALLBACK = 2;     // cudnnBackendHeurMode_t
constexpr int NOTE_TENSOR_CORE = 0;        // cudnnBackendNumericalNote_t
constexpr int NOTE_CUDA_GRAPH_NATIVE = 3;  // cudnnBackendBehaviorNote_t

size_t element_size(int type) {
  switch (type) {
    case T_HANDLE:
    case T_INT64:
    case T_DOUBLE:
    case T_POINTER:
    case T_DESCRIPTOR: return 8;
    case T_BOOLEAN:
    case T_CHAR: return 1;
    case T_FRACTION: return 16;
    default: return 4;  // enumerations, float, int32
  }
}

struct State;
using Ref = std::shared_ptr<State>;
struct Value {
  int type;
  int64_t count;
  std::string bytes;
  std::vector<Ref> descriptors;
};
struct State {
  int kind;
  std::map<int, Value> values;
};
// What the handle of a descriptor points to. One that is put into another is kept there as it was:
// its owner may destroy it.
struct Descriptor {
  Ref state;
};

const Value* find(const Ref& s, int name) {
  auto i = s->values.find(name);
  return i == s->values.end() ? nullptr : &i->second;
}
Ref child(const Ref& s, int name) {
  auto v = s ? find(s, name) : nullptr;
  return v && !v->descriptors.empty() ? v->descriptors[0] : nullptr;
}
template <class T>
std::vector<T> numbers(const Ref& s, int name) {
  auto v = find(s, name);
  std::vector<T> r(v ? v->count : 0);
  if (v) memcpy(r.data(), v->bytes.data(), r.size() * sizeof(T));
  return r;
}
template <class T>
T number(const Ref& s, int name, T otherwise) {
  auto v = s ? numbers<T>(s, name) : std::vector<T>();
  return v.empty() ? otherwise : v[0];
}
template <class T>
Value value(int type, std::vector<T> v) {
  return {type, (int64_t)v.size(), std::string((const char*)v.data(), v.size() * sizeof(T)), {}};
}
Value value(Ref s) { return {T_DESCRIPTOR, 1, {}, {std::move(s)}}; }

Tensor tensor(const Ref& s) {
  Tensor t;
  t.type = number<int>(s, TENSOR_TYPE, FLOAT);
  t.dims = numbers<int64_t>(s, TENSOR_DIMENSIONS);
  t.strides = numbers<int64_t>(s, TENSOR_STRIDES);
  return t;
}

struct Convolution {
  Direction direction;
  Tensor x, w, y;
};
// The convolution of an operation graph, if it has one (with bias and activation there are other
// operations beside it).
std::unique_ptr<Convolution> convolution(const Ref& graph) {
  auto operations = graph ? find(graph, GRAPH_OPERATIONS) : nullptr;
  if (operations)
    for (auto& o : operations->descriptors) {
      auto make = [&](Direction d, int x, int w, int y) {
        return std::make_unique<Convolution>(
            Convolution{d, tensor(child(o, x)), tensor(child(o, w)), tensor(child(o, y))});
      };
      if (o->kind == CONVOLUTION_FORWARD) return make(FORWARD, FORWARD_X, FORWARD_W, FORWARD_Y);
      if (o->kind == CONVOLUTION_BACKWARD_DATA) return make(BACKWARD_DATA, DATA_X, DATA_W, DATA_Y);
      if (o->kind == CONVOLUTION_BACKWARD_FILTER)
        return make(BACKWARD_FILTER, FILTER_X, FILTER_W, FILTER_Y);
    }
  return nullptr;
}

int engine_index(const Ref& config) {
  return (int)number<int64_t>(child(config, CONFIG_ENGINE), ENGINE_INDEX, TENSOR_CORES);
}
int64_t config_workspace(const Ref& config) {
  if (engine_index(config) == DIRECT) return 0;
  auto c = convolution(child(child(config, CONFIG_ENGINE), ENGINE_GRAPH));
  // Attention: the frontend has what it needs beside the plan.
  return c ? convolution_workspace(c->direction, c->x, c->w, c->y) : 0;
}
const char* kernel_name(const Ref& config) {
  auto c = convolution(child(child(config, CONFIG_ENGINE), ENGINE_GRAPH));
  if (!c) return "cudnn_graph";
  switch (c->direction) {
    case FORWARD: return "cudnn_convolution_forward";
    case BACKWARD_DATA: return "cudnn_convolution_backward_data";
    default: return "cudnn_convolution_backward_filter";
  }
}

Value heuristics(const Ref& s) {
  Ref graph = child(s, HEURISTICS_GRAPH);
  auto c = convolution(graph);
  std::vector<int64_t> engines{TENSOR_CORES};
  if (c) {
    engines = {DIRECT};
    if (number<int>(s, HEURISTICS_MODE, 0) != HEURISTICS_FALLBACK && tensor_cores_apply(c->x, c->w))
      engines.insert(engines.begin(), TENSOR_CORES);
  }
  Value r{T_DESCRIPTOR, (int64_t)engines.size(), {}, {}};
  for (int64_t index : engines) {
    Ref engine(new State{
        ENGINE, {{ENGINE_GRAPH, value(graph)}, {ENGINE_INDEX, value<int64_t>(T_INT64, {index})}}});
    r.descriptors.push_back(Ref(new State{ENGINE_CONFIG, {{CONFIG_ENGINE, value(engine)}}}));
  }
  return r;
}

// An attribute that cuDNN derives. False if it is none.
bool derived(const Ref& s, int name, Value* r) {
  switch (name) {
    case HEURISTICS_RESULTS: *r = heuristics(s); return true;
    case CONFIG_KNOBS:
    case ENGINE_KNOBS: *r = Value{T_DESCRIPTOR, 0, {}, {}}; return true;
    case CONFIG_WORKSPACE: *r = value<int64_t>(T_INT64, {config_workspace(s)}); return true;
    case CONFIG_SHARED_MEMORY: *r = value<int32_t>(T_INT32, {0}); return true;
    case PLAN_WORKSPACE:
      *r = value<int64_t>(T_INT64, {config_workspace(child(s, PLAN_CONFIG))});
      return true;
    case GRAPH_ENGINES: *r = value<int64_t>(T_INT64, {2}); return true;
    case ENGINE_NUMERICAL_NOTES: {
      std::vector<int> notes;
      if (number<int64_t>(s, ENGINE_INDEX, 0) == TENSOR_CORES) notes = {NOTE_TENSOR_CORE};
      *r = value<int>(T_NUMERICAL_NOTE, notes);
      return true;
    }
    case ENGINE_BEHAVIOUR_NOTES:
      *r = value<int>(T_BEHAVIOUR_NOTE, std::vector<int>{NOTE_CUDA_GRAPH_NATIVE});
      return true;
    default: return false;
  }
}
}  // namespace

CUDNN(cudnnBackendCreateDescriptor, int kind, void** d) {
  *d = new Descriptor{Ref(new State{kind, {}})};
  return SUCCESS;
}
CUDNN(cudnnBackendDestroyDescriptor, void* d) {
  delete (Descriptor*)d;
  return SUCCESS;
}

CUDNN(cudnnBackendSetAttribute, void* d, int name, int type, int64_t count, const void* elements) {
  if (!d || count < 0 || (count && !elements)) return BAD_PARAM;
  Value v{type, count, {}, {}};
  if (type == T_DESCRIPTOR) {
    for (int64_t i = 0; i < count; i++) {
      auto* x = ((Descriptor* const*)elements)[i];
      if (!x) return BAD_PARAM;
      v.descriptors.push_back(x->state);
    }
  } else if (count) {
    v.bytes.assign((const char*)elements, count * element_size(type));
  }
  ((Descriptor*)d)->state->values[name] = std::move(v);
  return SUCCESS;
}

// Whether a descriptor has the one that it is made from.
static bool complete(const Ref& s) {
  switch (s->kind) {
    case HEURISTICS: return child(s, HEURISTICS_GRAPH) != nullptr;
    case ENGINE: return child(s, ENGINE_GRAPH) != nullptr;
    case ENGINE_CONFIG: return child(s, CONFIG_ENGINE) != nullptr;
    case PLAN: return child(s, PLAN_CONFIG) != nullptr;
    case OPERATION_GRAPH: return child(s, GRAPH_OPERATIONS) != nullptr;
    default: return true;
  }
}
CUDNN(cudnnBackendFinalize, void* d) {
  return d && complete(((Descriptor*)d)->state) ? SUCCESS : BAD_PARAM;
}

CUDNN(cudnnBackendGetAttribute, void* d, int name, int type, int64_t room, int64_t* count,
      void* elements) {
  if (!d) return BAD_PARAM;
  const Ref& s = ((Descriptor*)d)->state;
  Value made;
  const Value* v = find(s, name);
  if (!v) {
    if (!derived(s, name, &made)) return NOT_SUPPORTED;
    v = &made;
  }
  if (v->type != type) return BAD_PARAM;
  // Without room for elements it is asked how many there are.
  int64_t n = elements ? std::min(room, v->count) : 0;
  if (count) *count = elements ? n : v->count;
  if (type == T_DESCRIPTOR) {
    for (int64_t i = 0; i < n; i++)
      ((Descriptor**)elements)[i]->state = v->descriptors[i];
  } else if (n) {
    memcpy(elements, v->bytes.data(), n * element_size(type));
  }
  return SUCCESS;
}

CUDNN(cudnnBackendExecute, void* handle, void* plan, void* variant) {
  if (!plan || !variant) return BAD_PARAM;
  Ref config = child(((Descriptor*)plan)->state, PLAN_CONFIG);
  if (!config) return BAD_PARAM;
  uint64_t cost_ns = engine_index(config) == DIRECT ? DIRECT_COST_NS : TENSOR_CORES_COST_NS;
  return launch(kernel_name(config), handle, cost_ns, (uint64_t)config.get());
}
