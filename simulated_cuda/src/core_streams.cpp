// Streams, and the submission of work to them. Work runs at once, in the order in which it comes,
// on the thread that submits it.
#include <algorithm>
#include "core.h"

namespace simgpu {
std::unordered_set<void*>& live(int kind) {
  static auto* handles = new std::unordered_set<void*>[HANDLE_KINDS];
  return handles[kind];
}
uint64_t next_handle_id() {
  static uint64_t last = 0;
  return ++last;
}

Stream* legacy_stream(int device) {
  static auto* streams = new std::map<int, Stream*>;
  auto& stream = (*streams)[device];
  if (!stream) {
    stream = new Stream;
    stream->dev = device;
    stream->legacy = true;
  }
  return stream;
}

// 0 is the default stream; cudaStreamLegacy is 1 and cudaStreamPerThread 2, and the latter counts
// as the same one here.
Stream* stream_resolve(void* handle) {
  LOCK;
  if ((uintptr_t)handle <= 2) return legacy_stream(current_device());
  return live(L_STREAM).count(handle) ? (Stream*)handle : nullptr;
}

int stream_create(unsigned flags, int priority, Stream** out) {
  LOCK;
  touch_primary(current_device());
  auto* stream = new Stream;
  stream->dev = current_device();
  stream->flags = flags;
  stream->priority = priority;
  stream->id = next_handle_id();
  live(L_STREAM).insert(stream);
  *out = stream;
  return OK;
}

int stream_destroy(Stream* stream) {
  LOCK;
  if (!live(L_STREAM).count(stream)) return E_HANDLE;
  if (stream->capture) {
    auto& of_capture = stream->capture->streams;
    of_capture.erase(std::remove(of_capture.begin(), of_capture.end(), stream), of_capture.end());
    invalidate(stream->capture);
  }
  live(L_STREAM).erase(stream);
  delete stream;
  return OK;
}

int stream_sync(void* handle) {
  LOCK;
  Stream* stream = stream_resolve(handle);
  if (!stream) return E_HANDLE;
  if (stream->capture) return invalidate(stream->capture, E_CAP_UNSUPPORTED);
  if (stream->legacy) {
    if (int error = legacy_op_check()) return error;
  }
  pools_synchronized();
  host_reach(stream->busy_until);
  return OK;
}

int stream_query(void* handle) {
  LOCK;
  Stream* stream = stream_resolve(handle);
  if (!stream) return E_HANDLE;
  if (stream->capture) return invalidate(stream->capture, E_CAP_UNSUPPORTED);
  if (int error = unsafe_check()) return error;
  if (!async_mode()) return OK;
  return stream->busy_until > (g_host_clock += POLL_NS) ? E_NOTREADY : OK;
}

int device_sync() {
  LOCK;
  if (!captures().empty()) return invalidate(captures().front(), E_CAP_UNSUPPORTED);
  pools_synchronized();
  for (void* stream : live(L_STREAM))
    host_reach(((Stream*)stream)->busy_until);
  host_reach(legacy_stream(current_device())->busy_until);
  return OK;
}

bool overwritten_in_capture(void* handle, Range range) {
  LOCK;
  Stream* stream = stream_resolve(handle);
  if (!stream || !stream->capture) return false;
  stream->overwrites.push_back(range);
  return true;
}

int submit(void* handle, Op&& op) {
  {
    LOCK;
    Stream* stream = stream_resolve(handle);
    if (!stream) return E_HANDLE;
    op.work.operation = this_operation();
    if (Capture* capture = stream->capture) {
      if (capture->status != CAP_ACTIVE) return E_CAP_INVALIDATED;
      if (op.kind == OP_KERNEL) op.kernel->captured++;
      auto& overwrites = stream->overwrites;
      op.overwrites.insert(op.overwrites.end(), overwrites.begin(), overwrites.end());
      overwrites.clear();
      Node* node = add_node(capture->graph, stream->deps, std::move(op));
      stream->deps.assign(1, node);
      return OK;
    }
    if (stream->legacy) {
      if (Capture* other = capture_of_blocking_stream()) return invalidate(other, E_CAP_IMPLICIT);
    }
    busy(stream, cost(op));
    log_op(stream, op);
  }
  return execute(op, false);  // outside the lock: host functions and hooks may take Python's
}

// What a stream does next comes after what the event was recorded behind. An event that was
// recorded in a capture takes the stream into that capture.
static int join_capture(Stream* stream, Event* event) {
  Capture* capture = capture_by_id(event->capture_id);
  if (!capture) {  // it is over
    if (!stream->capture) return E_CAPTURED_EVENT;
    return invalidate(stream->capture, E_CAP_ISOLATION);
  }
  if (capture->status != CAP_ACTIVE) return E_CAP_INVALIDATED;
  if (stream->capture && stream->capture != capture) {
    invalidate(capture);
    return invalidate(stream->capture, E_CAP_MERGE);
  }
  if (!stream->capture) {
    if (stream->legacy) return invalidate(capture, E_CAP_IMPLICIT);
    stream->capture = capture;
    stream->deps.clear();
    capture->streams.push_back(stream);
  }
  auto& deps = stream->deps;
  for (auto* node : event->capture_deps)
    if (std::find(deps.begin(), deps.end(), node) == deps.end()) deps.push_back(node);
  return OK;
}

int stream_wait(void* handle, Event* event, unsigned flags) {
  LOCK;
  Stream* stream = stream_resolve(handle);
  if (!stream || !live(L_EVENT).count(event)) return E_HANDLE;
  if (flags & EVENT_EXTERNAL) {
    if (!stream->capture) return OK;
    Op op;
    op.kind = OP_EVENT_WAIT;
    op.event = event;
    return submit(handle, std::move(op));
  }
  if (event->capture_id) return join_capture(stream, event);
  if (stream->capture && event->recorded) return invalidate(stream->capture, E_CAP_ISOLATION);
  if (!stream->capture) {
    stream->busy_until = std::max(stream->busy_until, event->ready_at);
    log_event(LOG_WAIT, stream, event);
  }
  return OK;
}
}  // namespace simgpu
