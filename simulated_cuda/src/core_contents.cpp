// What device memory holds while kernels compute nothing (outside values mode): the bytes that
// copies from the host and memsets wrote, and zeros everywhere else. So a host that reads a result
// reads zero: no count of a kernel (nonzero, unique, found_inf, info) is ever made of the bytes
// that an earlier tensor left there.
//
// Known are the ranges that were written. A block that torch's allocator hands out begins as zeros
// again; it reports each to the profiler through a function of libc10 that the dynamic linker lets
// us take the place of. Copies within the device and zeroing touch written ranges alone, so that
// tensors that only kernels fill never cost host memory.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include "device.h"

namespace simgpu {
namespace {
std::mutex& lock() {
  static auto* m = new std::mutex;
  return *m;
}
std::map<uintptr_t, uintptr_t>& written() {
  static auto* m = new std::map<uintptr_t, uintptr_t>;
  return *m;
}  // begin -> end, disjoint
std::atomic<void (*)(size_t, void*)> g_on_read{nullptr};

// fn(begin, end) for each written part of [b, e).
template <class F>
void each_written(uintptr_t b, uintptr_t e, F&& fn) {
  auto it = written().upper_bound(b);
  if (it != written().begin()) --it;
  for (; it != written().end() && it->first < e; ++it)
    if (it->second > b) fn(std::max(b, it->first), std::min(e, it->second));
}
void forget(uintptr_t b, uintptr_t e) {
  auto it = written().upper_bound(b);
  if (it != written().begin()) --it;
  while (it != written().end() && it->first < e) {
    uintptr_t x = it->first, y = it->second;
    if (y <= b) {
      ++it;
      continue;
    }
    it = written().erase(it);
    if (x < b) written()[x] = b;
    if (y > e) {
      written()[e] = y;
      break;
    }
  }
}
void mark(uintptr_t b, uintptr_t e) {
  if (b >= e) return;
  auto it = written().upper_bound(b);
  if (it != written().begin() && std::prev(it)->second >= b) {
    --it;
    b = it->first;
  }
  while (it != written().end() && it->first <= e) {
    e = std::max(e, it->second);
    it = written().erase(it);
  }
  written()[b] = e;
}
// Zeros; whole pages of memory that is ours alone are given back instead of being written.
void zero(void* p, size_t n, bool anonymous) {
  constexpr uintptr_t PAGE = 4096;
  uintptr_t b = (uintptr_t)p, e = b + n, x = (b + PAGE - 1) / PAGE * PAGE, y = e / PAGE * PAGE;
  if (!anonymous || n < 16 * PAGE || madvise((void*)x, y - x, MADV_DONTNEED)) {
    memset(p, 0, n);
    return;
  }
  memset(p, 0, x - b);
  memset((void*)y, 0, e - y);
}
void wipe(uintptr_t b, uintptr_t e) {
  each_written(b, e, [](uintptr_t x, uintptr_t y) { zero((void*)x, y - x, in_arena((void*)x)); });
  forget(b, e);
}
}  // namespace

void note_host_read(void* dst, const void* src, size_t n) {
  auto* fn = g_on_read.load();
  if (fn && n && is_device(src) && !is_device(dst)) fn(n, dst);
}

void contents_copy(void* dst, const void* src, size_t n) {
  if (!n) return;
  uintptr_t d = (uintptr_t)dst, s = (uintptr_t)src;
  bool to_device = is_device(dst);
  if (values_mode()) {
    memmove(dst, src, n);
    return;
  }
  bool disjoint = d + n <= s || s + n <= d;
  if (!in_arena(src) || !disjoint || (to_device && !in_arena(dst))) {
    memmove(dst, src, n);
    if (to_device) {
      std::lock_guard<std::mutex> l(lock());
      mark(d, d + n);
    }
    return;
  }
  bool pages = !to_device && host_allocated(dst, n);
  std::lock_guard<std::mutex> l(lock());
  if (to_device)
    wipe(d, d + n);
  else
    zero(dst, n, pages);
  std::map<uintptr_t, uintptr_t> parts;
  each_written(s, s + n, [&](uintptr_t b, uintptr_t e) { parts[b] = e; });
  for (auto& [b, e] : parts) {
    memcpy((void*)(d + (b - s)), (void*)b, e - b);
    if (to_device) mark(d + (b - s), d + (e - s));
  }
}
void contents_set(void* dst, unsigned value, unsigned elem, size_t count) {
  size_t n = count * elem;
  if (!n) return;
  uintptr_t d = (uintptr_t)dst;
  bool device = !values_mode() && is_device(dst);
  if (device && value == 0 && in_arena(dst)) {
    std::lock_guard<std::mutex> l(lock());
    wipe(d, d + n);
    return;
  }
  if (elem == 1)
    memset(dst, (int)value, n);
  else
    for (size_t i = 0; i < count; i++)
      memcpy((char*)dst + i * elem, &value, elem);
  if (device) {
    std::lock_guard<std::mutex> l(lock());
    mark(d, d + n);
  }
}
void contents_unknown(void* p, size_t n) {
  std::lock_guard<std::mutex> l(lock());
  mark((uintptr_t)p, (uintptr_t)p + n);
}
void contents_gone(void* p, size_t n) {
  std::lock_guard<std::mutex> l(lock());
  forget((uintptr_t)p, (uintptr_t)p + n);
}
void contents_fresh(void* p, size_t n) {
  if (values_mode()) return;
  std::lock_guard<std::mutex> l(lock());
  wipe((uintptr_t)p, (uintptr_t)p + n);
}
}  // namespace simgpu

// fn(bytes, destination) after each copy from a device to the host, on the thread that asks for it;
// fn may take Python's lock, and write to the destination.
extern "C" void simgpu_on_host_read(void (*fn)(size_t, void*)) { simgpu::g_on_read = fn; }
// The host has written to these bytes of a device.
extern "C" void simgpu_written(void* p, size_t n) { simgpu::contents_unknown(p, n); }

// c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device): torch's allocator
// calls it with each block that it hands out (size > 0) or takes back (size < 0).
struct TorchDevice {
  int8_t type, index;
};
static constexpr char kReport[] = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
extern "C" __attribute__((visibility("default"))) void simgpu_block_reported(
    void* p, int64_t size, size_t allocated, size_t reserved,
    TorchDevice device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
void simgpu_block_reported(void* p, int64_t size, size_t allocated, size_t reserved,
                           TorchDevice device) {
  constexpr int8_t CUDA = 1;
  if (device.type == CUDA && size > 0) simgpu::contents_fresh(p, (size_t)size);
  using Report = void (*)(void*, int64_t, size_t, size_t, TorchDevice);
  // Not RTLD_NEXT: Python loads libc10 into a scope of its own.
  static Report real = [] {
    void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    return c10 ? (Report)dlsym(c10, kReport) : nullptr;
  }();
  if (real) real(p, size, allocated, reserved, device);
}
