// The control interface for tests and measurements, which control.py calls. What belongs to one
// part of the device only is in that part's file.
#include <array>
#include <cstring>
#include "core.h"
using namespace simgpu;

namespace {
template <class F>
void each_kernel(F&& function) {
  for (auto& named : named_kernels())
    function(named.second.get());
  for (auto* kernel : module_kernels())
    function(kernel);
}
}  // namespace

size_t simgpu::fill(char* buffer, size_t size, const std::string& text) {
  if (buffer && size) {
    strncpy(buffer, text.c_str(), size - 1);
    buffer[size - 1] = 0;
  }
  return text.size() + 1;
}

// Sum over kernels whose name contains `part`; which: 0 launched, 1 captured, 2 replayed.
extern "C" uint64_t simgpu_kernels(const char* part, int which) {
  LOCK;
  uint64_t count = 0;
  each_kernel([&](const Kernel* kernel) {
    if (kernel->name.find(part) == std::string::npos) return;
    count += which == 0 ? kernel->launched : which == 1 ? kernel->captured : kernel->replayed;
  });
  return count;
}

// A line "NAME COUNT" for each entry point and "kernel:NAME LAUNCHED/CAPTURED/REPLAYED" for each
// kernel. Returns the number of bytes that all of it takes.
extern "C" size_t simgpu_report(char* buffer, size_t size) {
  LOCK;
  std::map<std::string, uint64_t> calls;
  for (auto* stat = g_stats.load(); stat; stat = stat->next)
    if (stat->calls) calls[stat->name] += stat->calls;
  std::string text;
  for (auto& [name, count] : calls)
    text += name + " " + std::to_string(count) + "\n";
  std::map<std::string, std::array<uint64_t, 3>> kernels;
  each_kernel([&](const Kernel* kernel) {
    auto& counts = kernels[kernel->name];
    counts[0] += kernel->launched;
    counts[1] += kernel->captured;
    counts[2] += kernel->replayed;
  });
  for (auto& [name, counts] : kernels)
    if (counts[0] + counts[1] + counts[2])
      text += "kernel:" + name + " " + std::to_string(counts[0]) + "/" + std::to_string(counts[1]) +
              "/" + std::to_string(counts[2]) + "\n";
  return fill(buffer, size, text);
}

extern "C" size_t simgpu_used(int device) {
  size_t free, total;
  mem_info(device, &free, &total);
  return total - free;
}

extern "C" size_t simgpu_live_allocs(int device) {
  LOCK;
  return arena(device)->live.size();
}

extern "C" size_t simgpu_live_handles(int kind) {
  LOCK;
  return live(kind).size();
}

extern "C" int simgpu_active_captures() {
  LOCK;
  return (int)captures().size();
}
