// Events. One that was recorded in a capture stands for nodes of its graph, and cannot be asked
// for.
#include <algorithm>
#include "core.h"

namespace simgpu {
int event_create(unsigned flags, Event** out) {
  LOCK;
  touch_primary(current_device());
  auto* event = new Event;
  event->flags = flags;
  event->dev = current_device();
  live(L_EVENT).insert(event);
  *out = event;
  return OK;
}

int event_destroy(Event* event) {
  LOCK;
  if (!live(L_EVENT).erase(event)) return E_HANDLE;
  delete event;
  return OK;
}

int event_record(Event* event, void* handle, unsigned flags) {
  LOCK;
  Stream* stream = stream_resolve(handle);
  if (!stream || !live(L_EVENT).count(event)) return E_HANDLE;
  if (stream->dev != event->dev) return E_HANDLE;
  if (stream->capture) {
    if (stream->capture->status != CAP_ACTIVE) return E_CAP_INVALIDATED;
    if (flags & EVENT_EXTERNAL) {
      Op op;
      op.kind = OP_EVENT_RECORD;
      op.event = event;
      return submit(handle, std::move(op));
    }
    event->recorded = true;
    event->capture_id = stream->capture->id;
    event->capture_deps = stream->deps;
    return OK;
  }
  event->recorded = true;
  event->capture_id = 0;
  event->capture_deps.clear();
  event->ready_at = std::max<uint64_t>(stream->busy_until, g_host_clock);
  log_event(LOG_EVENT, stream, event);
  return OK;
}

// Whether the host may ask for an event now.
static int may_ask(Event* event) {
  if (!live(L_EVENT).count(event)) return E_HANDLE;
  if (event->capture_id) return invalidate(capture_by_id(event->capture_id), E_CAPTURED_EVENT);
  return unsafe_check();
}

int event_query(Event* event) {
  LOCK;
  if (int error = may_ask(event)) return error;
  if (!event->recorded || !async_mode()) return OK;
  return event->ready_at > (g_host_clock += POLL_NS) ? E_NOTREADY : OK;
}

int event_sync(Event* event) {
  LOCK;
  if (int error = may_ask(event)) return error;
  host_reach(event->ready_at);
  return OK;
}

int event_elapsed(float* milliseconds, Event* start, Event* end) {
  LOCK;
  for (Event* event : {start, end})
    if (!live(L_EVENT).count(event) || !event->recorded || (event->flags & EVENT_DISABLE_TIMING))
      return E_HANDLE;
  if (start->capture_id || end->capture_id) return E_CAPTURED_EVENT;
  int64_t nanoseconds = (int64_t)end->ready_at - (int64_t)start->ready_at;
  *milliseconds = (float)((double)nanoseconds * 1e-6);
  return OK;
}
}  // namespace simgpu
