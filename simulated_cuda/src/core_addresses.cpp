// What an address belongs to: a device's memory, pinned memory, or nothing that is known here.
#include "core.h"

namespace simgpu {
namespace {
bool in_arena_of(int device, uintptr_t address) {
  uintptr_t base = arena(device)->base;
  return address >= base && address < base + config().memory * ADDRESS_SPACE_FACTOR;
}
bool is_reserved(uintptr_t address) {
  auto it = last_up_to(vmm_reservations(), address);
  return it != vmm_reservations().end() && address < it->first + it->second;
}
}  // namespace

MemInfo mem_find(const void* pointer) {
  LOCK;
  uintptr_t address = (uintptr_t)pointer;
  for (int i = 0; i < config().devices; i++) {
    if (!in_arena_of(i, address)) continue;
    auto it = last_up_to(arena(i)->live, address);
    if (it == arena(i)->live.end()) return {MEM_NONE, i, 0, 0, 0};
    auto [base, size] = *it;
    if (address < base + size) return {MEM_DEVICE, i, base, size, device_allocation_ids()[base]};
    return {MEM_NONE, i, 0, 0, 0};
  }
  auto mapped = last_up_to(vmm_mappings(), address);
  if (mapped != vmm_mappings().end()) {
    auto [base, mapping] = *mapped;
    int device = vmm_physical()[mapping.handle].dev;
    if (address < base + mapping.size)
      return {MEM_VMM, device, base, mapping.size, device_allocation_ids()[base]};
  }
  auto pinned = last_up_to(host_blocks(), address);
  if (pinned != host_blocks().end()) {
    auto [base, block] = *pinned;
    if (address < base + block.size) return {MEM_HOST, 0, base, block.size, block.id};
  }
  return {MEM_NONE, 0, 0, 0, 0};
}

bool in_arena(const void* pointer) {
  for (int i = 0; i < config().devices; i++)
    if (in_arena_of(i, (uintptr_t)pointer)) return true;
  return false;
}

bool is_device(const void* pointer) {
  if (in_arena(pointer)) return true;
  MemKind kind = mem_find(pointer).kind;
  return kind == MEM_DEVICE || kind == MEM_VMM;
}

bool host_allocated(const void* pointer, size_t size) {
  LOCK;
  auto it = last_up_to(host_blocks(), (uintptr_t)pointer);
  if (it == host_blocks().end()) return false;
  auto [base, block] = *it;
  return block.own && (uintptr_t)pointer + size <= base + block.size;
}

// Ordinary host memory is not checked: the host would notice by itself.
bool range_ok(const void* pointer, size_t size) {
  if (!size) return true;
  uintptr_t address = (uintptr_t)pointer, end = address + size;
  if (!in_arena(pointer) && !is_reserved(address)) return true;
  while (address < end) {
    MemInfo found = mem_find((void*)address);
    if (found.kind == MEM_NONE) return false;
    address = found.base + found.size;
  }
  return true;
}
}  // namespace simgpu

using namespace simgpu;

// For kernels that are made of TTIR, once for each tile that they touch: the allocation that a
// thread found last is remembered for as long as no memory goes away.
extern "C" int simgpu_range_ok(const void* pointer, uint64_t size) {
  static thread_local uintptr_t begin = 0, end = 0;
  static thread_local uint64_t generation = 0;
  uintptr_t address = (uintptr_t)pointer;
  if (generation == g_memory_generation && address >= begin && address + size <= end) return 1;
  uint64_t before = g_memory_generation;
  if (!range_ok(pointer, size)) return 0;
  MemInfo found = mem_find(pointer);
  if (found.kind == MEM_DEVICE || found.kind == MEM_VMM) {
    begin = found.base;
    end = found.base + found.size;
    generation = before;
  }
  return 1;
}
