// Memory that one process opens of another (cudaIpc*). The handle names the allocation; whoever
// opens it gets addresses that cost none of the device's memory. Kernels compute nothing, so what
// lies there reads as zero in each process; with values it would be wrong, and is refused. A handle
// of this very process leads to the allocation itself: ranks that are not there are taken for
// copies of this one.
#include <cstring>
#include <tuple>
#include <unistd.h>
#include "core.h"

namespace simgpu {
namespace {
struct Shared {  // what is in a handle
  int process;
  uint64_t address, size, id;
  bool operator<(const Shared& other) const {
    return std::tie(process, id) < std::tie(other.process, other.id);
  }
};
static_assert(sizeof(Shared) <= HANDLE_BYTES);

struct Opened {
  void* pointer;
  int times;
};
std::map<Shared, Opened>& opened() {
  static auto* all = new std::map<Shared, Opened>;
  return *all;
}
}  // namespace

int share(void* pointer, void* handle) {
  LOCK;
  for (int i = 0; i < config().devices; i++) {
    Arena* of = arena(i);
    auto block = last_up_to(of->live, (uintptr_t)pointer);
    if (block == of->live.end() || (uintptr_t)pointer >= block->first + block->second) continue;
    uint64_t id = device_allocation_ids()[block->first];
    Shared shared{getpid(), block->first, block->second, id};
    memset(handle, 0, HANDLE_BYTES);
    memcpy(handle, &shared, sizeof shared);
    return OK;
  }
  return E_VALUE;
}

int open_shared(int device, const void* handle, void** out) {
  LOCK;
  Shared shared;
  memcpy(&shared, handle, sizeof shared);
  auto known = opened().find(shared);
  if (known == opened().end()) {
    void* pointer = (void*)shared.address;
    if (shared.process != getpid()) {
      if (values_mode()) return unimplemented("cudaIpcOpenMemHandle");
      touch_primary(device);
      pointer = address_take(arena(device), shared.size);
      if (!pointer) return E_OOM;
    } else if (device_allocation_ids()[shared.address] != shared.id) {
      return E_HANDLE;  // freed meanwhile
    }
    known = opened().insert({shared, {pointer, 0}}).first;
  }
  known->second.times++;
  *out = known->second.pointer;
  return OK;
}

int close_shared(void* pointer) {
  LOCK;
  for (auto it = opened().begin(); it != opened().end(); ++it) {
    if (it->second.pointer != pointer) continue;
    if (--it->second.times) return OK;
    bool own = it->first.process == getpid();
    opened().erase(it);
    if (own) return OK;
    g_memory_generation++;
    for (int i = 0; i < config().devices; i++) {
      auto block = arena(i)->live.find((uintptr_t)pointer);
      if (block != arena(i)->live.end()) address_give_back(arena(i), block);
    }
    return OK;
  }
  return E_VALUE;
}
}  // namespace simgpu
