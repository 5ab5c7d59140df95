// Work of streams and of graphs: what an operation does, and what simulated time it takes.
//
// Note [Simulated time]
// Work is done at once, but each stream has a time until which it counts as busy, and the host has
// a clock that advances a little with every call. With SIMGPU_ASYNC=1 an event is ready only when
// the host clock has reached it (by polling or by synchronising); otherwise every recorded event is
// ready.
#include <algorithm>
#include <cstdio>
#include "core.h"

namespace simgpu {
std::atomic<uint64_t> g_host_clock{1000};

namespace {
constexpr uint64_t SUBMIT_NS = 100;
std::atomic<int> g_async{-1};  // -1: SIMGPU_ASYNC was not looked at yet

using KernelHook = void (*)(const char* name, int replay);
std::atomic<KernelHook> g_kernel_hook{nullptr};

const char* when(bool replay) { return replay ? " (graph replay)" : ""; }

int execute_kernel(const Op& op, bool replay) {
  (replay ? op.kernel->replayed : op.kernel->launched)++;
  if (auto hook = g_kernel_hook.load()) hook(op.kernel->name.c_str(), replay);
  if (op.args) return run_kernel(op);
  return op.compute ? (*op.compute)() : OK;
}

int execute_copy(const Op& op, bool replay) {
  for (size_t row = 0; row < op.height; row++) {
    char* dst = (char*)op.dst + row * op.dpitch;
    const char* src = (const char*)op.src + row * op.spitch;
    if (!range_ok(dst, op.width) || !range_ok(src, op.width)) {
      fprintf(stderr,
              "[simgpu] memcpy touches memory that is not allocated: dst=%p src=%p n=%zu%s\n", dst,
              src, op.width, when(replay));
      return E_ILLEGAL;
    }
    contents_copy(dst, src, op.width);
  }
  return OK;
}

int execute_set(const Op& op, bool replay) {
  size_t bytes = op.width * op.element_size;
  for (size_t row = 0; row < op.height; row++) {
    char* dst = (char*)op.dst + row * op.dpitch;
    if (!range_ok(dst, bytes)) {
      fprintf(stderr, "[simgpu] memset touches memory that is not allocated: dst=%p n=%zu%s\n", dst,
              bytes, when(replay));
      return E_ILLEGAL;
    }
    contents_set(dst, op.value, op.element_size, op.width);
  }
  return OK;
}
}  // namespace

int execute(const Op& op, bool replay) {
  // First: a copy writes what is known.
  for (auto& range : op.overwrites)
    contents_fresh(range.pointer, range.size);
  switch (op.kind) {
    case OP_KERNEL: return execute_kernel(op, replay);
    case OP_PYTHON: return run_python(op, replay);
    case OP_MEMCPY: return execute_copy(op, replay);
    case OP_MEMSET: return execute_set(op, replay);
    case OP_HOST:
      if (op.host_function) op.host_function(op.user_data);
      return OK;
    case OP_CHILD: return execute_nodes(*op.child);
    case OP_EVENT_RECORD:
      if (op.event) {
        op.event->recorded = true;
        op.event->ready_at = g_host_clock;
        op.event->capture_id = 0;
      }
      return OK;
    default: return OK;
  }
}

int execute_nodes(const NodeList& nodes) {
  for (auto& node : nodes)
    if (int error = execute(node->op, true)) return error;
  return OK;
}

bool async_mode() {
  if (g_async < 0) g_async = (int)environment_number("SIMGPU_ASYNC", 0);
  return g_async > 0;
}

void host_reach(uint64_t time) {
  uint64_t now = g_host_clock;
  while (now < time && !g_host_clock.compare_exchange_weak(now, time)) {
  }
}

// A byte takes a picosecond. A kernel that computes counts as longer, so that benchmarks (of
// Inductor's choices) repeat it less often.
uint64_t cost(const Op& op) {
  switch (op.kind) {
    case OP_KERNEL: return op.args ? 1000 * op.cost_ns : op.cost_ns;
    case OP_MEMCPY: return 1000 + op.width * op.height / 1000;
    case OP_MEMSET: return 1000 + op.width * op.height * op.element_size / 1000;
    case OP_CHILD: {
      uint64_t sum = 0;
      for (auto& node : *op.child)
        sum += cost(node->op);
      return sum;
    }
    default: return 0;
  }
}

void busy(Stream* stream, uint64_t nanoseconds) {
  uint64_t begin = std::max<uint64_t>(stream->busy_until, g_host_clock += SUBMIT_NS);
  stream->busy_until = begin + nanoseconds;
}
}  // namespace simgpu

using namespace simgpu;
extern "C" void simgpu_async(int on) { g_async = on; }
// Called for each kernel as it runs, on the thread that launched it.
extern "C" void simgpu_kernel_hook(KernelHook hook) { g_kernel_hook = hook; }
