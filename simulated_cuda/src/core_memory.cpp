// Memory of devices, as cudaMalloc hands it out, and pinned memory of the host.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#include "core.h"

namespace simgpu {
std::atomic<uint64_t> g_memory_generation{1};

namespace {
constexpr size_t PAGE = 4096;
constexpr int LAZY = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Fixed addresses: they are the same from run to run.
void* first_address(int device) { return (void*)(0x300000000000ull + ((uint64_t)device << 42)); }

size_t rounded_up(size_t size, size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}
}  // namespace

std::map<uintptr_t, HostBlock>& host_blocks() {
  static auto* blocks = new std::map<uintptr_t, HostBlock>;
  return *blocks;
}
std::map<uintptr_t, uint64_t>& device_allocation_ids() {
  static auto* ids = new std::map<uintptr_t, uint64_t>;
  return *ids;
}
uint64_t next_allocation_id() {
  static uint64_t last = 0;
  return ++last;
}

Arena* arena(int device) {
  static Arena* arenas = [] {
    auto* made = new Arena[MAX_DEVICES];
    for (int i = 0; i < config().devices; i++) {
      size_t size = config().memory * ADDRESS_SPACE_FACTOR;
      void* space = mmap(first_address(i), size + GRANULARITY, PROT_NONE, LAZY, -1, 0);
      if (space == MAP_FAILED) {
        perror("[simgpu] cannot reserve device address space");
        abort();
      }
      made[i].base = rounded_up((uintptr_t)space, GRANULARITY);
      made[i].holes[made[i].base] = size;
      // What a context takes on a real device.
      made[i].used = (size_t)environment_number("SIMGPU_CONTEXT_MB", 512) << 20;
      made[i].physical = physical_device(i);
    }
    return made;
  }();
  return &arenas[device];
}

static void join_holes(std::map<uintptr_t, size_t>& holes, uintptr_t begin, size_t size) {
  auto next = holes.lower_bound(begin);
  if (next != holes.end() && next->first == begin + size) {
    size += next->second;
    next = holes.erase(next);
  }
  if (next != holes.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += size;
      return;
    }
  }
  holes[begin] = size;
}

// The hole with the lowest address that is large enough gives its beginning.
void* address_take(Arena* from, size_t size) {
  for (auto hole = from->holes.begin(); hole != from->holes.end(); ++hole) {
    auto [begin, hole_size] = *hole;
    if (hole_size < size) continue;
    if (mprotect((void*)begin, size, PROT_READ | PROT_WRITE)) return nullptr;
    from->holes.erase(hole);
    if (hole_size > size) from->holes[begin + size] = hole_size - size;
    from->live[begin] = size;
    device_allocation_ids()[begin] = next_allocation_id();
    return (void*)begin;
  }
  return nullptr;
}

void address_give_back(Arena* to, std::map<uintptr_t, size_t>::iterator block) {
  auto [begin, size] = *block;
  contents_gone((void*)begin, size);
  madvise((void*)begin, size, MADV_DONTNEED);
  mprotect((void*)begin, size, PROT_NONE);
  to->live.erase(block);
  device_allocation_ids().erase(begin);
  join_holes(to->holes, begin, size);
}

int mem_alloc(int device, size_t size, void** out) {
  LOCK;
  if (!out) return E_VALUE;
  *out = nullptr;
  if (size == 0) return OK;
  touch_primary(device);
  Arena* from = arena(device);
  size = rounded_up(size, GRANULARITY);
  if (!from->take(size)) return E_OOM;
  *out = address_take(from, size);
  if (*out) return OK;
  from->give_back(size);
  return E_OOM;
}

int mem_free(void* pointer) {
  LOCK;
  if (!pointer) return OK;
  g_memory_generation++;
  for (int i = 0; i < config().devices; i++) {
    Arena* of = arena(i);
    auto block = of->live.find((uintptr_t)pointer);
    if (block == of->live.end()) continue;
    of->give_back(block->second);
    address_give_back(of, block);
    return OK;
  }
  return E_VALUE;
}

void mem_info(int device, size_t* free, size_t* total) {
  LOCK;
  *total = config().reported_memory;
  size_t used = arena(device)->used + used_by_others(arena(device)->physical);
  *free = used < *total ? *total - used : 0;
}

int host_alloc(size_t size, void** out) {
  LOCK;
  if (!out) return E_VALUE;
  size = rounded_up(std::max<size_t>(size, 1), PAGE);
  void* pointer = mmap(nullptr, size, PROT_READ | PROT_WRITE, LAZY, -1, 0);
  if (pointer == MAP_FAILED) return E_OOM;
  host_blocks()[(uintptr_t)pointer] = {size, next_allocation_id(), true};
  *out = pointer;
  return OK;
}

int host_free(void* pointer) {
  LOCK;
  if (!pointer) return OK;
  auto it = host_blocks().find((uintptr_t)pointer);
  if (it == host_blocks().end()) return E_VALUE;
  munmap(pointer, it->second.size);
  host_blocks().erase(it);
  return OK;
}

int host_register(void* pointer, size_t size) {
  LOCK;
  if (mem_find(pointer).kind != MEM_NONE) return E_HOSTREG;
  host_blocks()[(uintptr_t)pointer] = {size, next_allocation_id(), false};
  return OK;
}

int host_unregister(void* pointer) {
  LOCK;
  return host_blocks().erase((uintptr_t)pointer) ? OK : E_HOSTNOTREG;
}
}  // namespace simgpu
