// libnccl: communicators of any size whose ranks never talk to one another.
//
// A world of one rank is exact. In a larger one each rank takes the others for copies of itself, so
// that nothing waits, memory is booked as in a real run and checks that all ranks agree pass: a
// gather puts its own part into every place. What only another rank knows (a broadcast to this one,
// a message) does not arrive. What a real communicator takes of device memory for itself is not
// counted.
#include <algorithm>
#include <cstring>
#include "library.h"
using namespace simgpu;

namespace {
enum {
  SUCCESS = 0,
  UNHANDLED_CUDA_ERROR = 1,
  SYSTEM_ERROR = 2,
  INTERNAL_ERROR = 3,
  INVALID_ARGUMENT = 4,
  INVALID_USAGE = 5
};
struct Comm {
  int ranks, rank, device;
};
struct UniqueId {
  char bytes[128];
};

size_t bytes_of(int type) {  // ncclDataType_t
  switch (type) {
    case 0:
    case 1:
    case 10:
    case 11: return 1;  // (u)int8, the two float8
    case 6:
    case 9: return 2;  // half, bfloat16
    case 4:
    case 5:
    case 8: return 8;  // (u)int64, double
    default: return 4;
  }
}
int make(Comm** out, int ranks, int rank) {
  if (!out || ranks < 1 || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
  touch_primary(current_device());
  *out = new Comm{ranks, rank, current_device()};
  return SUCCESS;
}
int collective(const char* name, void* stream, void* dst, const void* src, size_t bytes) {
  if (count_kernel(name, stream) || (dst && src && copy_in_stream(dst, src, bytes, stream)))
    return UNHANDLED_CUDA_ERROR;
  return SUCCESS;
}
char* part(const void* base, int index, size_t bytes) { return (char*)base + index * bytes; }
int gather(const char* name, void* stream, void* dst, const void* src, size_t bytes, int places) {
  if (count_kernel(name, stream)) return UNHANDLED_CUDA_ERROR;
  for (int i = 0; i < places; i++)
    if (copy_in_stream(part(dst, i, bytes), src, bytes, stream)) return UNHANDLED_CUDA_ERROR;
  return SUCCESS;
}
}  // namespace

#define API(name, ...) extern "C" int nccl##name(__VA_ARGS__)
API(GetVersion, int* v) {
  *v = 22809;
  return SUCCESS;
}
extern "C" const char* ncclGetErrorString(int e) {
  switch (e) {
    case SUCCESS: return "no error";
    case UNHANDLED_CUDA_ERROR: return "unhandled cuda error";
    case SYSTEM_ERROR: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE:
      return "invalid usage, or a function that the simulated device does not have";
    default: return "internal error";
  }
}
extern "C" const char* ncclGetLastError(Comm*) { return ""; }
API(GetUniqueId, UniqueId* id) {
  memset(id, 0, sizeof *id);
  memcpy(id->bytes, "simgpu", 6);
  return SUCCESS;
}
API(CommGetUniqueId, Comm*, UniqueId* id) { return ncclGetUniqueId(id); }
API(CommInitRank, Comm** out, int ranks, UniqueId, int rank) { return make(out, ranks, rank); }
API(CommInitRankConfig, Comm** out, int ranks, UniqueId, int rank, void*) {
  return make(out, ranks, rank);
}
API(CommInitRankScalable, Comm** out, int ranks, int rank, int, UniqueId*, void*) {
  return make(out, ranks, rank);
}
API(CommInitAll, Comm** out, int n, const int* devices) {
  int before = current_device();
  for (int i = 0; i < n; i++) {
    if (set_device(devices ? devices[i] : i)) {
      set_device(before);
      return INVALID_ARGUMENT;
    }
    make(&out[i], n, i);
  }
  set_device(before);
  return SUCCESS;
}
// Which ranks share the colour is not known here: the new communicator keeps this one's size.
API(CommSplit, Comm* c, int color, int, Comm** out, void*) {
  if (color < 0) {
    *out = nullptr;
    return SUCCESS;
  }
  return make(out, c->ranks, c->rank);
}
API(CommShrink, Comm* c, int*, int excluded, Comm** out, void*, int) {
  return make(out, c->ranks - excluded, std::min(c->rank, c->ranks - excluded - 1));
}
API(CommCount, Comm* c, int* n) {
  *n = c->ranks;
  return SUCCESS;
}
API(CommUserRank, Comm* c, int* r) {
  *r = c->rank;
  return SUCCESS;
}
API(CommCuDevice, Comm* c, int* d) {
  *d = c->device;
  return SUCCESS;
}
API(CommGetAsyncError, Comm*, int* e) {
  *e = SUCCESS;
  return SUCCESS;
}
API(CommFinalize, Comm*) { return SUCCESS; }
API(CommDestroy, Comm* c) {
  delete c;
  return SUCCESS;
}
API(CommAbort, Comm* c) {
  delete c;
  return SUCCESS;
}
API(CommRevoke, Comm*, int) { return SUCCESS; }
API(CommSuspend, Comm*, int) { return SUCCESS; }
API(CommResume, Comm*) { return SUCCESS; }
API(CommMemStats, Comm*, int, uint64_t* v) {
  *v = 0;
  return SUCCESS;
}
API(GroupStart) { return SUCCESS; }
API(GroupEnd) { return SUCCESS; }
API(GroupSimulateEnd, void*) { return SUCCESS; }

// ---- memory
API(MemAlloc, void** p, size_t n) {
  return mem_alloc(current_device(), n, p) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}
API(MemFree, void* p) { return mem_free(p) ? UNHANDLED_CUDA_ERROR : SUCCESS; }
API(CommRegister, Comm*, void* p, size_t, void** handle) {
  *handle = p;
  return SUCCESS;
}
API(CommDeregister, Comm*, void*) { return SUCCESS; }
API(CommWindowRegister, Comm*, void* p, size_t, void** window, int) {
  *window = p;
  return SUCCESS;
}
API(CommWindowDeregister, Comm*, void*) { return SUCCESS; }
API(WinGetUserPtr, Comm*, void* window, void** p) {
  *p = window;
  return SUCCESS;
}
API(RedOpCreatePreMulSum, int* op, void*, int, int, Comm*) {
  *op = 5;  // the first number after the built-in ones
  return SUCCESS;
}
API(RedOpDestroy, int, Comm*) { return SUCCESS; }

// ---- collectives
API(AllReduce, const void* src, void* dst, size_t n, int t, int, Comm*, void* s) {
  return collective("ncclAllReduce", s, dst, src, n * bytes_of(t));
}
API(Broadcast, const void* src, void* dst, size_t n, int t, int root, Comm* c, void* s) {
  return collective("ncclBroadcast", s, dst, c->rank == root ? src : nullptr, n * bytes_of(t));
}
API(Bcast, void* p, size_t n, int t, int, Comm*, void* s) {
  return collective("ncclBroadcast", s, p, p, n * bytes_of(t));
}
API(Reduce, const void* src, void* dst, size_t n, int t, int, int root, Comm* c, void* s) {
  return collective("ncclReduce", s, c->rank == root ? dst : nullptr, src, n * bytes_of(t));
}
API(AllGather, const void* src, void* dst, size_t n, int t, Comm* c, void* s) {
  return gather("ncclAllGather", s, dst, src, n * bytes_of(t), c->ranks);
}
API(ReduceScatter, const void* src, void* dst, size_t n, int t, int, Comm* c, void* s) {
  size_t b = n * bytes_of(t);
  return collective("ncclReduceScatter", s, dst, part(src, c->rank, b), b);
}
API(AlltoAll, const void* src, void* dst, size_t n, int t, Comm* c, void* s) {
  size_t b = n * bytes_of(t);
  return gather("ncclAlltoAll", s, dst, part(src, c->rank, b), b, c->ranks);
}
API(Gather, const void* src, void* dst, size_t n, int t, int root, Comm* c, void* s) {
  return gather("ncclGather", s, dst, src, n * bytes_of(t), c->rank == root ? c->ranks : 0);
}
API(Scatter, const void* src, void* dst, size_t n, int t, int root, Comm* c, void* s) {
  size_t b = n * bytes_of(t);
  return collective("ncclScatter", s, dst, c->rank == root ? part(src, c->rank, b) : nullptr, b);
}
API(Send, const void*, size_t, int, int, Comm*, void* s) {
  return collective("ncclSend", s, nullptr, nullptr, 0);
}
API(Recv, void*, size_t, int, int, Comm*, void* s) {
  return collective("ncclRecv", s, nullptr, nullptr, 0);
}
