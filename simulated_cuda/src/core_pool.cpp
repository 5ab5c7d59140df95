// Memory pools (cudaMallocAsync): one default pool for each device, and those that a program makes.
// Work runs in issue order, so that a block is free for every stream as soon as it is freed.
#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include "device.h"

namespace simgpu {
struct Pool {
  int dev;
  uint64_t release_threshold = 0;
  size_t reserved = 0, reserved_high = 0, used = 0, used_high = 0;
  std::map<uintptr_t, size_t> chunks, free, live;
};
namespace {
// The driver reserves for a pool in steps of 32 MiB and hands out multiples of 512 bytes.
constexpr size_t CHUNK = size_t(32) << 20, GRAIN = 512;
std::recursive_mutex& lock() {
  static auto* m = new std::recursive_mutex;
  return *m;
}
#define POOL_LOCK std::lock_guard<std::recursive_mutex> lock_(lock())
std::set<Pool*>& pools() {
  static auto* s = new std::set<Pool*>;
  return *s;
}

void give_back(Pool* p, uintptr_t b, size_t n) {
  auto chunk = std::prev(p->chunks.upper_bound(b));  // blocks of two chunks are not joined
  auto next = p->free.lower_bound(b);
  if (next != p->free.end() && next->first == b + n && next->first < chunk->first + chunk->second) {
    n += next->second;
    next = p->free.erase(next);
  }
  if (next != p->free.begin()) {
    auto before = std::prev(next);
    if (before->first >= chunk->first && before->first + before->second == b) {
      before->second += n;
      return;
    }
  }
  p->free[b] = n;
}
bool take(Pool* p, size_t n, void** out) {
  auto best = p->free.end();
  for (auto it = p->free.begin(); it != p->free.end(); ++it)
    if (it->second >= n && (best == p->free.end() || it->second < best->second)) best = it;
  if (best == p->free.end()) return false;
  uintptr_t b = best->first;
  size_t size = best->second;
  p->free.erase(best);
  if (size > n) p->free[b + n] = size - n;
  p->live[b] = n;
  p->used += n;
  p->used_high = std::max(p->used_high, p->used);
  *out = (void*)b;
  return true;
}
}  // namespace

Pool* pool_create(int dev) {
  POOL_LOCK;
  auto* p = new Pool;
  p->dev = dev;
  pools().insert(p);
  return p;
}
Pool* pool_default(int dev) {
  POOL_LOCK;
  static auto* all = new std::map<int, Pool*>;
  auto& p = (*all)[dev];
  if (!p) p = pool_create(dev);
  return p;
}
int pool_trim(Pool* p, size_t keep) {
  POOL_LOCK;
  for (auto it = p->chunks.begin(); it != p->chunks.end() && p->reserved > keep;) {
    auto whole = p->free.find(it->first);
    if (whole == p->free.end() || whole->second != it->second) {
      ++it;
      continue;
    }
    p->free.erase(whole);
    p->reserved -= it->second;
    mem_free((void*)it->first);
    it = p->chunks.erase(it);
  }
  return OK;
}
int pool_destroy(Pool* p) {
  POOL_LOCK;
  if (!pools().erase(p)) return E_VALUE;
  pool_trim(p, 0);
  if (p->live.empty())
    delete p;
  else
    pools().insert(p);  // until its last block is freed
  return OK;
}
int pool_alloc(Pool* p, size_t n, void** out) {
  POOL_LOCK;
  if (!out || !pools().count(p)) return E_VALUE;
  *out = nullptr;
  if (!n) return OK;
  n = (n + GRAIN - 1) / GRAIN * GRAIN;
  if (!take(p, n, out)) {
    void* chunk;
    size_t size = (n + CHUNK - 1) / CHUNK * CHUNK;
    if (mem_alloc(p->dev, size, &chunk)) {
      pool_trim(p, 0);
      size = (n + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
      if (int e = mem_alloc(p->dev, size, &chunk)) return e;
    }
    p->chunks[(uintptr_t)chunk] = size;
    p->free[(uintptr_t)chunk] = size;
    p->reserved += size;
    p->reserved_high = std::max(p->reserved_high, p->reserved);
    take(p, n, out);
  }
  contents_fresh(*out, n);
  return OK;
}
int pool_free(void* ptr) {
  POOL_LOCK;
  if (!ptr) return OK;
  for (auto* p : pools()) {
    auto it = p->live.find((uintptr_t)ptr);
    if (it == p->live.end()) continue;
    size_t n = it->second;
    p->live.erase(it);
    p->used -= n;
    give_back(p, (uintptr_t)ptr, n);
    return OK;
  }
  return E_VALUE;
}
void pools_synchronized() {  // a synchronisation releases what is above the threshold
  POOL_LOCK;
  for (auto* p : pools())
    if (p->reserved > p->release_threshold) pool_trim(p, p->release_threshold);
}
int pool_attribute(Pool* p, int a, uint64_t* v, bool set) {  // numbers of cudaMemPoolAttr
  POOL_LOCK;
  if (!pools().count(p)) return E_VALUE;
  switch (a) {
    case 1:
    case 2:
    case 3:
      if (!set) *(int*)v = 1;
      return OK;  // reuse policies
    case 4:
      if (set)
        p->release_threshold = *v;
      else
        *v = p->release_threshold;
      return OK;
    case 5:
      if (set) return E_VALUE;
      *v = p->reserved;
      return OK;
    case 6:
      if (set)
        p->reserved_high = p->reserved;
      else
        *v = p->reserved_high;
      return OK;
    case 7:
      if (set) return E_VALUE;
      *v = p->used;
      return OK;
    case 8:
      if (set)
        p->used_high = p->used;
      else
        *v = p->used_high;
      return OK;
    default: return E_VALUE;
  }
}
}  // namespace simgpu
