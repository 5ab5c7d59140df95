// Virtual memory management (cuMem*), on which torch's expandable segments stand: address space is
// reserved, physical memory created, and mapped there. All physical memory of a process lies in one
// file without a name, so that mapping a handle twice really makes both addresses the same memory.
//
// Note [Physical memory of another process]
// A handle becomes a file descriptor, which goes to another process and becomes a handle there: the
// same memory, which costs nothing there. Descriptors are of the whole file. Which memory is meant
// is a descriptor's position, which goes with it: the memory's offset plus its size in GRANULARITY.
// On a real device memory lives until the last process lets go of it; here it goes with the one
// that created it, and reads as zero from then on.
#include <algorithm>
#include <cstdio>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "core.h"

namespace simgpu {
namespace {
constexpr int LAZY = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

int physical_file() {
  static int file = memfd_create("simgpu", MFD_CLOEXEC);
  return file;
}
size_t g_file_size = 0;
uint64_t g_last_handle = 0x7000;

void unreference(uint64_t handle) {
  auto it = vmm_physical().find(handle);
  PhysicalMemory& memory = it->second;
  if (--memory.references) return;
  if (memory.file == physical_file()) {
    constexpr int GIVE_BACK = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    fallocate(memory.file, GIVE_BACK, memory.offset, memory.size);
    arena(memory.dev)->give_back(memory.taken);
  } else {
    close(memory.file);
  }
  vmm_physical().erase(it);
}

// Of `size` bytes, of which a device has `taken`.
int create(int device, size_t size, size_t taken, uint64_t* handle) {
  if (!size || size % GRANULARITY) return E_VALUE;
  if (!arena(device)->take(taken)) return E_OOM;
  size_t offset = g_file_size;
  g_file_size += size;  // offsets are never used again; `unreference` gives back what lies there
  if (ftruncate(physical_file(), g_file_size)) {
    arena(device)->give_back(taken);
    return E_OOM;
  }
  touch_primary(device);
  *handle = ++g_last_handle;
  vmm_physical()[*handle] = {size, physical_file(), offset, 1, device, taken};
  return OK;
}
}  // namespace

std::map<uintptr_t, size_t>& vmm_reservations() {
  static auto* reservations = new std::map<uintptr_t, size_t>;
  return *reservations;
}
std::map<uintptr_t, Mapping>& vmm_mappings() {
  static auto* mappings = new std::map<uintptr_t, Mapping>;
  return *mappings;
}
std::map<uint64_t, PhysicalMemory>& vmm_physical() {
  static auto* physical = new std::map<uint64_t, PhysicalMemory>;
  return *physical;
}

int vmm_reserve(size_t size, size_t alignment, void** out) {
  LOCK;
  if (!size || size % GRANULARITY) return E_VALUE;
  alignment = std::max(alignment, GRANULARITY);
  void* space = mmap(nullptr, size + alignment, PROT_NONE, LAZY, -1, 0);
  if (space == MAP_FAILED) return E_OOM;
  // What lies before the first aligned address and behind the end goes back.
  uintptr_t begin = (uintptr_t)space;
  uintptr_t aligned = (begin + alignment - 1) / alignment * alignment;
  if (aligned > begin) munmap(space, aligned - begin);
  if (begin + alignment > aligned) munmap((void*)(aligned + size), begin + alignment - aligned);
  vmm_reservations()[aligned] = size;
  *out = (void*)aligned;
  return OK;
}

int vmm_address_free(void* pointer, size_t size) {
  LOCK;
  uintptr_t begin = (uintptr_t)pointer;
  auto it = vmm_reservations().find(begin);
  if (it == vmm_reservations().end() || it->second != size) return E_VALUE;
  auto mapping = vmm_mappings().lower_bound(begin);
  bool still_mapped = mapping != vmm_mappings().end() && mapping->first < begin + size;
  if (still_mapped) return E_VALUE;
  munmap(pointer, size);
  vmm_reservations().erase(it);
  return OK;
}

int vmm_create(int device, size_t size, uint64_t* handle) {
  LOCK;
  return create(device, size, size, handle);
}

int vmm_multicast(size_t size, uint64_t* handle) {
  LOCK;
  return create(current_device(), size, 0, handle);
}

bool vmm_live(uint64_t handle) {
  LOCK;
  return vmm_physical().count(handle);
}

// See Note [Physical memory of another process].
int vmm_export(uint64_t handle, int* descriptor) {
  LOCK;
  auto it = vmm_physical().find(handle);
  if (it == vmm_physical().end()) return E_VALUE;
  const PhysicalMemory& memory = it->second;
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", memory.file);
  *descriptor = open(path, O_RDWR | O_CLOEXEC);  // unlike a copy it has a position of its own
  if (*descriptor < 0) return E_OOM;
  lseek(*descriptor, memory.offset + memory.size / GRANULARITY, SEEK_SET);
  return OK;
}

int vmm_import(int descriptor, uint64_t* handle) {
  LOCK;
  off_t position = lseek(descriptor, 0, SEEK_CUR);
  size_t granules = position > 0 ? position % GRANULARITY : 0;
  if (!granules) return E_VALUE;
  int file = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return E_OOM;
  int device = current_device();
  touch_primary(device);
  *handle = ++g_last_handle;
  vmm_physical()[*handle] = {granules * GRANULARITY, file, position - granules, 1, device, 0};
  return OK;
}

int vmm_release(uint64_t handle) {
  LOCK;
  if (!vmm_physical().count(handle)) return E_VALUE;
  unreference(handle);
  return OK;
}

// The whole of a handle is mapped, into one reservation, where nothing is mapped yet.
int vmm_map(void* pointer, size_t size, size_t offset, uint64_t handle) {
  LOCK;
  auto physical = vmm_physical().find(handle);
  if (physical == vmm_physical().end() || offset || size != physical->second.size) return E_VALUE;
  uintptr_t begin = (uintptr_t)pointer;
  auto reservation = last_up_to(vmm_reservations(), begin);
  if (reservation == vmm_reservations().end()) return E_VALUE;
  if (begin + size > reservation->first + reservation->second) return E_VALUE;
  auto next = vmm_mappings().lower_bound(begin);
  if (next != vmm_mappings().end() && next->first < begin + size) return E_VALUE;
  if (next != vmm_mappings().begin()) {
    auto before = std::prev(next);
    if (before->first + before->second.size > begin) return E_VALUE;
  }
  // Without access until cuMemSetAccess grants it.
  constexpr int IN_PLACE = MAP_SHARED | MAP_FIXED;
  size_t at = physical->second.offset;
  if (mmap(pointer, size, PROT_NONE, IN_PLACE, physical->second.file, at) == MAP_FAILED) return E_OOM;
  vmm_mappings()[begin] = {size, handle};
  physical->second.references++;
  device_allocation_ids()[begin] = next_allocation_id();
  return OK;
}

int vmm_unmap(void* pointer, size_t size) {
  LOCK;
  g_memory_generation++;
  uintptr_t begin = (uintptr_t)pointer, end = begin + size;
  auto it = vmm_mappings().find(begin);
  while (it != vmm_mappings().end() && it->first < end) {
    auto [first, mapping] = *it;
    if (first + mapping.size > end) return E_VALUE;
    contents_gone((void*)first, mapping.size);
    mmap((void*)first, mapping.size, PROT_NONE, LAZY | MAP_FIXED, -1, 0);
    unreference(mapping.handle);
    device_allocation_ids().erase(first);
    it = vmm_mappings().erase(it);
  }
  return OK;
}

int vmm_access(void* pointer, size_t size, bool writable) {
  LOCK;
  uintptr_t begin = (uintptr_t)pointer, end = begin + size;
  auto it = vmm_mappings().lower_bound(begin);
  for (; it != vmm_mappings().end() && it->first < end; ++it)
    mprotect((void*)it->first, it->second.size, writable ? PROT_READ | PROT_WRITE : PROT_NONE);
  return OK;
}

int vmm_retain(uint64_t* handle, void* pointer) {
  LOCK;
  auto it = last_up_to(vmm_mappings(), (uintptr_t)pointer);
  if (it == vmm_mappings().end()) return E_VALUE;
  if ((uintptr_t)pointer >= it->first + it->second.size) return E_VALUE;
  *handle = it->second.handle;
  vmm_physical()[*handle].references++;
  return OK;
}

int vmm_handle_device(uint64_t handle, int* device) {
  LOCK;
  auto it = vmm_physical().find(handle);
  if (it == vmm_physical().end()) return E_VALUE;
  *device = it->second.dev;
  return OK;
}
}  // namespace simgpu
