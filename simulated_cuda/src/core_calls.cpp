// Calls of entry points: how often each came, which shall fail, and which are not simulated.
#include <cstdio>
#include <cstring>
#include "core.h"

namespace simgpu {
std::atomic<ApiStat*> g_stats{nullptr};

namespace {
struct Fault {
  int64_t after;
  int error;
};
// Failures asked for before the first call of an entry point, which is when it gets its statistics.
std::map<std::string, Fault>& pending_faults() {
  static auto* faults = new std::map<std::string, Fault>;
  return *faults;
}
std::set<std::string>& uncovered() {
  static auto* names = new std::set<std::string>;
  return *names;
}
}  // namespace

ApiStat::ApiStat(const char* entry_point) : name(entry_point) {
  LOCK;
  auto it = pending_faults().find(entry_point);
  if (it != pending_faults().end()) {
    fail_after = it->second.after;
    fail_error = it->second.error;
    pending_faults().erase(it);
  }
  next = g_stats.load();
  g_stats.store(this);
}

int ApiStat::enter() {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (config().trace) fprintf(stderr, "[simgpu] %s\n", name);
  if (fail_after.load(std::memory_order_relaxed) < 0) return 0;
  return fail_after.fetch_sub(1) == 0 ? fail_error.load() : 0;
}

// What a program wanted that calls such functions, by the beginning of a name.
static constexpr const char* WANTED[][2] = {
    {"cuDeviceGetDevResource", "green contexts are not simulated"},
    {"cuDevSmResource", "green contexts are not simulated"},
    {"cuGreenCtx", "green contexts are not simulated"},
    {"cudaIpcOpenMemHandle", "with values, memory of another process cannot be opened"},
};

static std::string& last_wanted() {
  static thread_local auto* text = new std::string;
  return *text;
}
const std::string& last_unimplemented() { return last_wanted(); }

int unimplemented(const char* name) {
  LOCK;
  if (uncovered().insert(name).second)
    fprintf(stderr, "[simgpu] not simulated: %s (returns 'not supported')\n", name);
  last_wanted() = name;
  for (auto& [beginning, why] : WANTED)
    if (!strncmp(name, beginning, strlen(beginning))) last_wanted() += std::string(": ") + why;
  return E_UNSUPPORTED;
}
}  // namespace simgpu

using namespace simgpu;

extern "C" uint64_t simgpu_calls(const char* entry_point) {
  uint64_t count = 0;
  for (auto* stat = g_stats.load(); stat; stat = stat->next)
    if (!strcmp(stat->name, entry_point)) count += stat->calls;
  return count;
}

// After so many more calls the entry point returns the error once.
extern "C" void simgpu_fail(const char* entry_point, int64_t after, int error) {
  LOCK;
  for (auto* stat = g_stats.load(); stat; stat = stat->next)
    if (!strcmp(stat->name, entry_point)) {
      stat->fail_error = error;
      stat->fail_after = after;
      return;
    }
  pending_faults()[entry_point] = {after, error};
}

// Names of the functions that were called and are not simulated, each with a newline. Returns the
// number of bytes that all of them take.
extern "C" size_t simgpu_uncovered(char* buffer, size_t size) {
  LOCK;
  std::string text;
  for (auto& name : uncovered())
    text += name + "\n";
  return fill(buffer, size, text);
}

// Stubs (libraries.py) end here, with what they return.
extern "C" int simgpu_unimplemented(const char* name, int code) {
  unimplemented(name);
  return code;
}
