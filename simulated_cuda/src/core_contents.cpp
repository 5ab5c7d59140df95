// What device memory holds while kernels compute nothing (outside values mode): the bytes that
// copies from the host and memsets wrote, and zeros everywhere else. So a host that reads a result
// reads zero: no count of a kernel (nonzero, unique, found_inf, info) is ever made of the bytes
// that an earlier tensor left there.
//
// Known are the ranges that were written, and as long as nothing wrote over them: what a kernel
// that computed nothing may have written to is zeros again, which nobody knows. A block that
// torch's allocator hands out begins as zeros too; it reports each to the profiler through a
// function of libc10 that the dynamic linker lets us take the place of. Copies within the device
// and zeroing touch written ranges alone, so that tensors that only kernels fill never cost host
// memory.
#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>
#include "core.h"

namespace simgpu {
namespace {
// Not the device's lock: copies are made outside of that one.
std::mutex& contents_lock() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
#define CONTENTS_LOCK std::lock_guard<std::mutex> lock_(contents_lock())

// The ranges that were written, from their beginnings to their ends; none touches another.
std::map<uintptr_t, uintptr_t>& written() {
  static auto* ranges = new std::map<uintptr_t, uintptr_t>;
  return *ranges;
}
// Blocks that torch's allocator has handed out, from their beginnings to their ends.
std::map<uintptr_t, uintptr_t>& blocks() {
  static auto* ranges = new std::map<uintptr_t, uintptr_t>;
  return *ranges;
}
std::atomic<void (*)(size_t, void*, int)> g_on_read{nullptr};
// Zeros of more bytes are not kept as known: copying them would cost host memory.
constexpr size_t KNOWN_ZEROS = size_t(1) << 20;

// The first range that may reach behind an address.
std::map<uintptr_t, uintptr_t>::iterator first_behind(uintptr_t address) {
  auto it = written().upper_bound(address);
  return it == written().begin() ? it : std::prev(it);
}

// Calls function(begin, end) for each written part of a range.
template <class F>
void each_written(uintptr_t begin, uintptr_t end, F&& function) {
  for (auto it = first_behind(begin); it != written().end() && it->first < end; ++it)
    if (it->second > begin) function(std::max(begin, it->first), std::min(end, it->second));
}

// A range counts as never written.
void forget(uintptr_t begin, uintptr_t end) {
  auto it = first_behind(begin);
  while (it != written().end() && it->first < end) {
    auto [first, last] = *it;
    if (last <= begin) {
      ++it;
      continue;
    }
    it = written().erase(it);
    if (first < begin) written()[first] = begin;
    if (last > end) {
      written()[end] = last;
      break;
    }
  }
}

// A range counts as written.
void mark(uintptr_t begin, uintptr_t end) {
  if (begin >= end) return;
  auto it = written().upper_bound(begin);
  if (it != written().begin() && std::prev(it)->second >= begin) {
    --it;
    begin = it->first;
  }
  while (it != written().end() && it->first <= end) {
    end = std::max(end, it->second);
    it = written().erase(it);
  }
  written()[begin] = end;
}

// Zeros. Whole pages of memory that is ours alone are given back instead of being written.
void zero(void* pointer, size_t size, bool ours_alone) {
  constexpr uintptr_t PAGE = 4096;
  uintptr_t begin = (uintptr_t)pointer, end = begin + size;
  uintptr_t first_page = (begin + PAGE - 1) / PAGE * PAGE, pages_end = end / PAGE * PAGE;
  bool large = size >= 16 * PAGE;
  if (ours_alone && large && !madvise((void*)first_page, pages_end - first_page, MADV_DONTNEED)) {
    memset(pointer, 0, first_page - begin);
    memset((void*)pages_end, 0, end - pages_end);
  } else {
    memset(pointer, 0, size);
  }
}

// What was written becomes zeros, which nobody has written.
void wipe(uintptr_t begin, uintptr_t end) {
  each_written(begin, end, [](uintptr_t first, uintptr_t last) {
    zero((void*)first, last - first, in_arena((void*)first));
  });
  forget(begin, end);
}
}  // namespace

void note_host_read(void* dst, const void* src, size_t size) {
  auto* function = g_on_read.load();
  if (function && size && is_device(src) && !is_device(dst))
    function(size, dst, contents_known(src, size));
}

void contents_copy(void* dst, const void* src, size_t size) {
  if (!size) return;
  if (values_mode()) {
    memmove(dst, src, size);
    return;
  }
  uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
  bool to_device = is_device(dst);
  bool disjoint = to + size <= from || from + size <= to;
  if (!in_arena(src) || !disjoint || (to_device && !in_arena(dst))) {
    CONTENTS_LOCK;
    // What is known of a device's memory is known of its copy, and the rest of the copy is not.
    std::map<uintptr_t, uintptr_t> parts;
    if (is_device(src))
      each_written(from, from + size, [&](uintptr_t begin, uintptr_t end) { parts[begin] = end; });
    else
      parts[from] = from + size;
    memmove(dst, src, size);
    if (!to_device) return;
    forget(to, to + size);
    for (auto& [begin, end] : parts) mark(to + (begin - from), to + (end - from));
    return;
  }
  // From memory whose written parts are known: all of the rest is zeros.
  bool pages = !to_device && host_allocated(dst, size);
  CONTENTS_LOCK;
  if (to_device)
    wipe(to, to + size);
  else
    zero(dst, size, pages);
  std::map<uintptr_t, uintptr_t> parts;  // `mark` changes what `each_written` goes through
  each_written(from, from + size, [&](uintptr_t begin, uintptr_t end) { parts[begin] = end; });
  for (auto& [begin, end] : parts) {
    memcpy((void*)(to + (begin - from)), (void*)begin, end - begin);
    if (to_device) mark(to + (begin - from), to + (end - from));
  }
}

void contents_set(void* dst, unsigned value, unsigned element_size, size_t count) {
  size_t size = count * element_size;
  if (!size) return;
  bool known = !values_mode() && is_device(dst);
  if (known && value == 0) {
    CONTENTS_LOCK;
    uintptr_t begin = (uintptr_t)dst, end = begin + size;
    if (in_arena(dst)) {
      wipe(begin, end);
    } else {
      memset(dst, 0, size);
      forget(begin, end);
    }
    if (size <= KNOWN_ZEROS) mark(begin, end);
    return;
  }
  if (element_size == 1) {
    memset(dst, (int)value, size);
  } else {
    for (size_t i = 0; i < count; i++)
      memcpy((char*)dst + i * element_size, &value, element_size);
  }
  if (known) contents_written(dst, size);
}

void contents_written(void* pointer, size_t size) {
  CONTENTS_LOCK;
  mark((uintptr_t)pointer, (uintptr_t)pointer + size);
}
bool contents_known(const void* pointer, size_t size) {
  if (values_mode()) return true;
  CONTENTS_LOCK;
  auto it = last_up_to(written(), (uintptr_t)pointer);
  return it != written().end() && (uintptr_t)pointer + size <= it->second;
}
void contents_gone(void* pointer, size_t size) {
  CONTENTS_LOCK;
  forget((uintptr_t)pointer, (uintptr_t)pointer + size);
}
void contents_fresh(void* pointer, size_t size) {
  if (values_mode()) return;
  CONTENTS_LOCK;
  wipe((uintptr_t)pointer, (uintptr_t)pointer + size);
}
Range contents_reachable(void* pointer) {
  MemInfo found = mem_find(pointer);
  if (found.kind != MEM_DEVICE && found.kind != MEM_VMM) return {};
  CONTENTS_LOCK;
  auto it = last_up_to(blocks(), (uintptr_t)pointer);
  if (it != blocks().end() && (uintptr_t)pointer < it->second)
    return {(void*)it->first, it->second - it->first};
  return {(void*)found.base, found.size};
}
}  // namespace simgpu

// Calls function(bytes, destination, known) after each copy from a device to the host, on the
// thread that asks for it: whether all of it was known. It may take Python's lock, and write to the
// destination.
extern "C" void simgpu_on_host_read(void (*function)(size_t, void*, int)) {
  simgpu::g_on_read = function;
}
// Whether these bytes of a device are known.
extern "C" int simgpu_known(const void* pointer, size_t size) {
  return simgpu::contents_known(pointer, size);
}
// What the stream does next writes what nobody knows to these bytes of a device: they are zeros from
// now on, or, while the stream is being captured, from then on in each launch of the graph.
extern "C" void simgpu_overwritten(void* handle, void* pointer, size_t size) {
  if (!simgpu::overwritten_in_capture(handle, {pointer, size}))
    simgpu::contents_fresh(pointer, size);
}
// The host has written to these bytes of a device.
extern "C" void simgpu_written(void* pointer, size_t size) {
  simgpu::contents_written(pointer, size);
}

// c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device): torch's allocator
// calls it with each block that it hands out (size > 0) or takes back (size < 0).
struct TorchDevice {
  int8_t type, index;
};
static constexpr char kReport[] = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
extern "C" __attribute__((visibility("default"))) void simgpu_block_reported(
    void* block, int64_t size, size_t allocated, size_t reserved,
    TorchDevice device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
void simgpu_block_reported(void* block, int64_t size, size_t allocated, size_t reserved,
                           TorchDevice device) {
  constexpr int8_t CUDA = 1;  // c10::DeviceType
  if (device.type == CUDA) {
    if (size > 0) simgpu::contents_fresh(block, (size_t)size);
    std::lock_guard<std::mutex> lock(simgpu::contents_lock());
    simgpu::blocks().erase((uintptr_t)block);
    if (size > 0) simgpu::blocks()[(uintptr_t)block] = (uintptr_t)block + (size_t)size;
  }
  using Report = void (*)(void*, int64_t, size_t, size_t, TorchDevice);
  // Not RTLD_NEXT: Python loads libc10 into a scope of its own.
  static Report real = [] {
    void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    return c10 ? (Report)dlsym(c10, kReport) : nullptr;
  }();
  if (real) real(block, size, allocated, reserved, device);
}
