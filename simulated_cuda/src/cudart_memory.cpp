// libcudart: memory, copies, and pools of memory.
#include <cstring>
#include "runtime.h"
using namespace simgpu;
using namespace simgpu::runtime;

// ---- memory
API(cudaMalloc, void** p, size_t n) {
  ENTER(cudaMalloc);
  if (int e = unsafe_check()) return ret(e);
  return ret(mem_alloc(current_device(), n, p));
}
API(cudaFree, void* p) {
  ENTER(cudaFree);
  if (!p) {
    touch_primary(current_device());
    return cudaSuccess;
  }
  if (int e = unsafe_check()) return ret(e);
  return ret(pool_free(p) ? mem_free(p) : OK);
}
API(cudaIpcGetMemHandle, cudaIpcMemHandle_t* h, void* p) {
  ENTER(cudaIpcGetMemHandle);
  return ret(share(p, h));
}
API(cudaIpcOpenMemHandle, void** p, cudaIpcMemHandle_t h, unsigned) {
  ENTER(cudaIpcOpenMemHandle);
  return ret(open_shared(current_device(), &h, p));
}
API(cudaIpcCloseMemHandle, void* p) {
  ENTER(cudaIpcCloseMemHandle);
  return ret(close_shared(p));
}
API(cudaMallocManaged, void** p, size_t n, unsigned) {
  ENTER(cudaMallocManaged);
  int e = mem_alloc(current_device(), n, p);
  if (!e) contents_written(*p, n);
  return ret(e);
}
API(cudaMemPrefetchAsync, const void*, size_t, struct cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
API(cudaMemAdvise, const void*, size_t, enum cudaMemoryAdvise, struct cudaMemLocation) {
  return cudaSuccess;
}
API(cudaHostAlloc, void** p, size_t n, unsigned) {
  ENTER(cudaHostAlloc);
  if (int e = unsafe_check()) return ret(e);
  return ret(host_alloc(n, p));
}
API(cudaMallocHost, void** p, size_t n) {
  ENTER(cudaMallocHost);
  if (int e = unsafe_check()) return ret(e);
  return ret(host_alloc(n, p));
}
API(cudaFreeHost, void* p) {
  ENTER(cudaFreeHost);
  if (int e = unsafe_check()) return ret(e);
  return ret(host_free(p));
}
API(cudaHostRegister, void* p, size_t n, unsigned) {
  ENTER(cudaHostRegister);
  if (int e = unsafe_check()) return ret(e);
  return ret(host_register(p, n));
}
API(cudaHostUnregister, void* p) {
  ENTER(cudaHostUnregister);
  return ret(host_unregister(p));
}
API(cudaHostGetDevicePointer, void** d, void* h, unsigned) {
  *d = h;
  return cudaSuccess;
}
API(cudaMemGetInfo, size_t* f, size_t* t) {
  ENTER(cudaMemGetInfo);
  mem_info(current_device(), f, t);
  return cudaSuccess;
}
API(cudaPointerGetAttributes, struct cudaPointerAttributes* a, const void* p) {
  ENTER(cudaPointerGetAttributes);
  memset(a, 0, sizeof *a);
  MemInfo m = mem_find(p);
  if (m.kind == MEM_DEVICE || m.kind == MEM_VMM) {
    a->type = cudaMemoryTypeDevice;
    a->device = m.dev;
    a->devicePointer = (void*)p;
  } else if (m.kind == MEM_HOST) {
    a->type = cudaMemoryTypeHost;
    a->device = current_device();
    a->devicePointer = a->hostPointer = (void*)p;
  } else {
    a->type = cudaMemoryTypeUnregistered;
    a->device = -2;
    a->hostPointer = (void*)p;
  }
  return cudaSuccess;
}

// ---- copies and sets
static int copied(void* d, const void* s, size_t n, int error) {
  if (!error) note_host_read(d, s, n);
  return error;
}
API(cudaMemcpy, void* d, const void* s, size_t n, enum cudaMemcpyKind) {
  ENTER(cudaMemcpy);
  if (int e = legacy_op_check()) return ret(e);
  return ret(copied(d, s, n, submit(nullptr, copy_op(d, s, n))));
}
API(cudaMemcpyAsync, void* d, const void* s, size_t n, enum cudaMemcpyKind, cudaStream_t t) {
  ENTER(cudaMemcpyAsync);
  return ret(copied(d, s, n, submit(t, copy_op(d, s, n))));
}
API(cudaMemcpyPeerAsync, void* d, int, const void* s, int, size_t n, cudaStream_t t) {
  ENTER(cudaMemcpyPeerAsync);
  return ret(submit(t, copy_op(d, s, n)));
}
API(cudaMemcpy2DAsync, void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h,
    enum cudaMemcpyKind, cudaStream_t t) {
  ENTER(cudaMemcpy2DAsync);
  Op o = copy_op(d, s, w);
  o.height = h;
  o.dpitch = dp;
  o.spitch = sp;
  return ret(submit(t, std::move(o)));
}
API(cudaMemset, void* d, int v, size_t n) {
  ENTER(cudaMemset);
  if (int e = legacy_op_check()) return ret(e);
  return ret(submit(nullptr, set_op(d, (unsigned char)v, 1, n)));
}
API(cudaMemsetAsync, void* d, int v, size_t n, cudaStream_t t) {
  ENTER(cudaMemsetAsync);
  return ret(submit(t, set_op(d, (unsigned char)v, 1, n)));
}

// ---- memory pools
API(cudaMallocAsync, void** p, size_t n, cudaStream_t) {
  ENTER(cudaMallocAsync);
  return ret(pool_alloc(pool_default(current_device()), n, p));
}
API(cudaMallocFromPoolAsync, void** p, size_t n, cudaMemPool_t pool, cudaStream_t) {
  ENTER(cudaMallocFromPoolAsync);
  return ret(pool_alloc(pool_of(pool), n, p));
}
API(cudaFreeAsync, void* p, cudaStream_t) {
  ENTER(cudaFreeAsync);
  return ret(pool_free(p) ? mem_free(p) : OK);
}
API(cudaDeviceGetDefaultMemPool, cudaMemPool_t* p, int d) {
  *p = (cudaMemPool_t)pool_default(d);
  return cudaSuccess;
}
API(cudaDeviceGetMemPool, cudaMemPool_t* p, int d) {
  *p = (cudaMemPool_t)pool_default(d);
  return cudaSuccess;
}
API(cudaMemPoolCreate, cudaMemPool_t* p, const struct cudaMemPoolProps* props) {
  *p = (cudaMemPool_t)pool_create(props->location.id);
  return cudaSuccess;
}
API(cudaMemPoolDestroy, cudaMemPool_t p) { return ret(pool_destroy(pool_of(p))); }
API(cudaMemPoolSetAttribute, cudaMemPool_t p, enum cudaMemPoolAttr a, void* v) {
  return ret(pool_attribute(pool_of(p), a, (uint64_t*)v, true));
}
API(cudaMemPoolGetAttribute, cudaMemPool_t p, enum cudaMemPoolAttr a, void* v) {
  return ret(pool_attribute(pool_of(p), a, (uint64_t*)v, false));
}
API(cudaMemPoolTrimTo, cudaMemPool_t p, size_t keep) { return ret(pool_trim(pool_of(p), keep)); }
// Graphs have no memory of their own: what is allocated in a capture is the pool's.
API(cudaDeviceGetGraphMemAttribute, int, int, void* v) {
  *(uint64_t*)v = 0;
  return cudaSuccess;
}
API(cudaMemPoolSetAccess, cudaMemPool_t, const struct cudaMemAccessDesc*, size_t) {
  return cudaSuccess;
}
API(cudaMemPoolGetAccess, enum cudaMemAccessFlags* f, cudaMemPool_t, struct cudaMemLocation*) {
  *f = cudaMemAccessFlagsProtReadWrite;
  return cudaSuccess;
}
