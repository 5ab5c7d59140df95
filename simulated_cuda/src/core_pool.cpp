// Memory pools (cudaMallocAsync): one default pool for each device, and those that a program makes.
// Work runs in issue order, so that a block is free for every stream as soon as it is freed.
#include <algorithm>
#include "core.h"

namespace simgpu {
struct Pool {
  int dev;
  uint64_t release_threshold = 0;
  size_t reserved = 0, reserved_high = 0;          // of the device, now and at most
  size_t used = 0, used_high = 0;                  // by blocks, now and at most
  std::map<uintptr_t, size_t> chunks, free, live;  // address -> size; free and live are blocks
};

namespace {
// The driver reserves for a pool in steps of 32 MiB and hands out multiples of 512 bytes.
constexpr size_t CHUNK = size_t(32) << 20, GRAIN = 512;

std::recursive_mutex& pool_lock() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}
#define POOL_LOCK std::lock_guard<std::recursive_mutex> lock_(pool_lock())

std::set<Pool*>& pools() {
  static auto* all = new std::set<Pool*>;
  return *all;
}

// A block becomes free, and one with its free neighbours; blocks of two chunks are not joined.
void give_back(Pool* pool, uintptr_t begin, size_t size) {
  auto chunk = std::prev(pool->chunks.upper_bound(begin));
  uintptr_t chunk_end = chunk->first + chunk->second;
  auto next = pool->free.lower_bound(begin);
  if (next != pool->free.end() && next->first == begin + size && next->first < chunk_end) {
    size += next->second;
    next = pool->free.erase(next);
  }
  if (next != pool->free.begin()) {
    auto before = std::prev(next);
    if (before->first >= chunk->first && before->first + before->second == begin) {
      before->second += size;
      return;
    }
  }
  pool->free[begin] = size;
}

// The smallest free block that is large enough gives its beginning.
bool take(Pool* pool, size_t size, void** out) {
  auto best = pool->free.end();
  for (auto it = pool->free.begin(); it != pool->free.end(); ++it)
    if (it->second >= size && (best == pool->free.end() || it->second < best->second)) best = it;
  if (best == pool->free.end()) return false;
  auto [begin, whole] = *best;
  pool->free.erase(best);
  if (whole > size) pool->free[begin + size] = whole - size;
  pool->live[begin] = size;
  pool->used += size;
  pool->used_high = std::max(pool->used_high, pool->used);
  *out = (void*)begin;
  return true;
}
}  // namespace

Pool* pool_create(int device) {
  POOL_LOCK;
  auto* pool = new Pool;
  pool->dev = device;
  pools().insert(pool);
  return pool;
}

Pool* pool_default(int device) {
  POOL_LOCK;
  static auto* defaults = new std::map<int, Pool*>;
  auto& pool = (*defaults)[device];
  if (!pool) pool = pool_create(device);
  return pool;
}

// Gives chunks without a live block back to the device, until no more than `keep` is reserved.
int pool_trim(Pool* pool, size_t keep) {
  POOL_LOCK;
  for (auto it = pool->chunks.begin(); it != pool->chunks.end() && pool->reserved > keep;) {
    auto [begin, size] = *it;
    auto whole = pool->free.find(begin);
    if (whole == pool->free.end() || whole->second != size) {
      ++it;
      continue;
    }
    pool->free.erase(whole);
    pool->reserved -= size;
    mem_free((void*)begin);
    it = pool->chunks.erase(it);
  }
  return OK;
}

int pool_destroy(Pool* pool) {
  POOL_LOCK;
  if (!pools().erase(pool)) return E_VALUE;
  pool_trim(pool, 0);
  if (pool->live.empty())
    delete pool;
  else
    pools().insert(pool);  // until its last block is freed
  return OK;
}

int pool_alloc(Pool* pool, size_t size, void** out) {
  POOL_LOCK;
  if (!out || !pools().count(pool)) return E_VALUE;
  *out = nullptr;
  if (!size) return OK;
  size = (size + GRAIN - 1) / GRAIN * GRAIN;
  if (!take(pool, size, out)) {
    void* chunk;
    size_t chunk_size = (size + CHUNK - 1) / CHUNK * CHUNK;
    if (mem_alloc(pool->dev, chunk_size, &chunk)) {
      // Once more with what the pool can spare, and for no more than is asked for.
      pool_trim(pool, 0);
      chunk_size = (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
      if (int error = mem_alloc(pool->dev, chunk_size, &chunk)) return error;
    }
    pool->chunks[(uintptr_t)chunk] = chunk_size;
    pool->free[(uintptr_t)chunk] = chunk_size;
    pool->reserved += chunk_size;
    pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
    take(pool, size, out);
  }
  contents_fresh(*out, size);
  return OK;
}

int pool_free(void* pointer) {
  POOL_LOCK;
  if (!pointer) return OK;
  for (auto* pool : pools()) {
    auto it = pool->live.find((uintptr_t)pointer);
    if (it == pool->live.end()) continue;
    auto [begin, size] = *it;
    pool->live.erase(it);
    pool->used -= size;
    give_back(pool, begin, size);
    return OK;
  }
  return E_VALUE;
}

// A synchronisation gives back what is above the threshold.
void pools_synchronized() {
  POOL_LOCK;
  for (auto* pool : pools())
    if (pool->reserved > pool->release_threshold) pool_trim(pool, pool->release_threshold);
}

int pool_attribute(Pool* pool, int attribute, uint64_t* value, bool set) {
  // cudaMemPoolAttr. Setting a high water mark resets it.
  enum { REUSE_FOLLOW = 1, REUSE_OPPORTUNISTIC = 2, REUSE_INTERNAL = 3, RELEASE_THRESHOLD = 4 };
  enum { RESERVED_CURRENT = 5, RESERVED_HIGH = 6, USED_CURRENT = 7, USED_HIGH = 8 };
  POOL_LOCK;
  if (!pools().count(pool)) return E_VALUE;
  switch (attribute) {
    case REUSE_FOLLOW:
    case REUSE_OPPORTUNISTIC:
    case REUSE_INTERNAL:
      if (!set) *(int*)value = 1;
      return OK;
    case RELEASE_THRESHOLD:
      if (set)
        pool->release_threshold = *value;
      else
        *value = pool->release_threshold;
      return OK;
    case RESERVED_CURRENT:
      if (set) return E_VALUE;
      *value = pool->reserved;
      return OK;
    case RESERVED_HIGH:
      if (set)
        pool->reserved_high = pool->reserved;
      else
        *value = pool->reserved_high;
      return OK;
    case USED_CURRENT:
      if (set) return E_VALUE;
      *value = pool->used;
      return OK;
    case USED_HIGH:
      if (set)
        pool->used_high = pool->used;
      else
        *value = pool->used_high;
      return OK;
    default: return E_VALUE;
  }
}
}  // namespace simgpu
