// Stream capture: what is submitted to a stream becomes nodes of a graph. The rules, and errors 900
// to 908, are those of the CUDA programming guide and of the runtime's reference.
#include <algorithm>
#include "core.h"

namespace simgpu {
namespace {
thread_local int tl_mode = MODE_GLOBAL;
}

std::vector<Capture*>& captures() {
  static auto* active = new std::vector<Capture*>;
  return *active;
}
Capture* capture_by_id(uint64_t id) {
  for (auto* capture : captures())
    if (capture->id == id) return capture;
  return nullptr;
}
void invalidate(Capture* capture) {
  if (capture) capture->status = CAP_INVALID;
}
int invalidate(Capture* capture, int error) {
  invalidate(capture);
  return error;
}
Capture* capture_of_blocking_stream() {
  for (auto* capture : captures())
    for (auto* stream : capture->streams)
      if (!(stream->flags & STREAM_NON_BLOCKING)) return capture;
  return nullptr;
}

int unsafe_check() {
  LOCK;
  if (captures().empty() || tl_mode == MODE_RELAXED) return OK;
  int error = OK;
  for (auto* capture : captures()) {
    bool mine = capture->owner == std::this_thread::get_id();
    bool forbidden = mine ? capture->mode != MODE_RELAXED
                          : tl_mode == MODE_GLOBAL && capture->mode == MODE_GLOBAL;
    if (forbidden) error = invalidate(capture, E_CAP_UNSUPPORTED);
  }
  return error;
}

int legacy_op_check() {
  LOCK;
  if (Capture* capture = capture_of_blocking_stream()) return invalidate(capture, E_CAP_IMPLICIT);
  return unsafe_check();
}

int capture_begin(void* handle, int mode, Graph* into, Node** deps, size_t count) {
  LOCK;
  Stream* stream = stream_resolve(handle);
  if (!stream) return E_HANDLE;
  if (stream->legacy) return E_CAP_UNSUPPORTED;
  if (stream->capture) return invalidate(stream->capture, E_CAP_UNSUPPORTED);
  static uint64_t last_id = 0;
  auto* capture = new Capture;
  capture->id = ++last_id;
  capture->status = CAP_ACTIVE;
  capture->mode = mode;
  capture->owner = std::this_thread::get_id();
  capture->own_graph = !into;
  capture->graph = into;
  if (!into) graph_create(&capture->graph);
  capture->origin = stream;
  capture->streams.push_back(stream);
  stream->capture = capture;
  stream->deps.assign(deps, deps + count);
  captures().push_back(capture);
  return OK;
}

// Whether all streams of a capture have been joined back into its origin: whether what each did
// last is among what the origin's next node would come after.
static bool joined(const Capture* capture) {
  std::set<Node*> ancestors;
  std::vector<Node*> todo(capture->origin->deps);
  while (!todo.empty()) {
    Node* node = todo.back();
    todo.pop_back();
    if (ancestors.insert(node).second)
      todo.insert(todo.end(), node->deps.begin(), node->deps.end());
  }
  for (auto* stream : capture->streams)
    for (auto* node : stream->deps)
      if (!ancestors.count(node)) return false;
  return true;
}

int capture_end(void* handle, Graph** out) {
  LOCK;
  *out = nullptr;
  Stream* stream = stream_resolve(handle);
  if (!stream) return E_HANDLE;
  Capture* capture = stream->capture;
  if (!capture) return E_VALUE;
  if (capture->origin != stream) return invalidate(capture, E_CAP_UNMATCHED);
  bool mine = capture->owner == std::this_thread::get_id();
  if (capture->mode != MODE_RELAXED && !mine) return E_CAP_THREAD;
  int error = OK;
  if (capture->status != CAP_ACTIVE)
    error = E_CAP_INVALIDATED;
  else if (!joined(capture))
    error = E_CAP_UNJOINED;
  for (auto* of_capture : capture->streams) {
    of_capture->capture = nullptr;
    of_capture->deps.clear();
    of_capture->overwrites.clear();
  }
  captures().erase(std::find(captures().begin(), captures().end(), capture));
  if (!error)
    *out = capture->graph;
  else if (capture->own_graph)
    graph_destroy(capture->graph);
  delete capture;
  return error;
}

int capture_info(void* handle, int* status, uint64_t* id, Graph** graph, Node*** deps,
                 size_t* count) {
  LOCK;
  Stream* stream = stream_resolve(handle);
  if (!stream) return E_HANDLE;
  if (stream->legacy && capture_of_blocking_stream()) return E_CAP_IMPLICIT;
  Capture* capture = stream->capture;
  if (status) *status = capture ? capture->status : CAP_NONE;
  if (capture) {
    if (id) *id = capture->id;
    if (graph) *graph = capture->graph;
    if (deps) *deps = stream->deps.data();
    if (count) *count = stream->deps.size();
  }
  return OK;
}

int capture_update(void* handle, Node** deps, size_t count, unsigned flags) {
  LOCK;
  Stream* stream = stream_resolve(handle);
  if (!stream || !stream->capture) return E_VALUE;
  if (stream->capture->status != CAP_ACTIVE) return E_CAP_INVALIDATED;
  constexpr unsigned SET = 1;  // cudaStreamSetCaptureDependencies; 0 adds
  if (flags & SET) stream->deps.clear();
  stream->deps.insert(stream->deps.end(), deps, deps + count);
  return OK;
}

int capture_exchange_mode(int* mode) {
  if (!mode || *mode < MODE_GLOBAL || *mode > MODE_RELAXED) return E_VALUE;
  std::swap(*mode, tl_mode);
  return OK;
}
}  // namespace simgpu
