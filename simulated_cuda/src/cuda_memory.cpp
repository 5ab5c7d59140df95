// libcuda: memory, copies, and virtual memory management.
#include <cstring>
#include "driver.h"
using namespace simgpu;
using namespace simgpu::driver;

// ---- memory
API(cuMemAlloc, CUdeviceptr* p, size_t n) {
  ENTER(cuMemAlloc);
  if (int e = unsafe_check()) return ret(e);
  return ret(mem_alloc(current_device(), n, (void**)p));
}
API(cuMemFree, CUdeviceptr p) {
  ENTER(cuMemFree);
  if (int e = unsafe_check()) return ret(e);
  return ret(pool_free((void*)p) ? mem_free((void*)p) : OK);
}
API(cuMemGetInfo, size_t* f, size_t* t) {
  mem_info(current_device(), f, t);
  return CUDA_SUCCESS;
}
API(cuMemGetAddressRange, CUdeviceptr* b, size_t* n, CUdeviceptr p) {
  MemInfo m = mem_find((void*)p);
  if (!m.kind) return ret(E_NOTFOUND);
  if (b) *b = m.base;
  if (n) *n = m.size;
  return CUDA_SUCCESS;
}
API(cuMemHostAlloc, void** p, size_t n, unsigned) { return ret(host_alloc(n, p)); }
API(cuMemFreeHost, void* p) { return ret(host_free(p)); }
API(cuPointerGetAttribute, void* out, CUpointer_attribute a, CUdeviceptr p) {
  MemInfo m = mem_find((void*)p);
  bool dev = m.kind == MEM_DEVICE || m.kind == MEM_VMM;
  switch (a) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (!m.kind) {
        *(CUdeviceptr*)out = 0;
        return ret(E_VALUE);
      }
      *(CUdeviceptr*)out = p;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (!m.kind) return ret(E_VALUE);
      *(unsigned*)out = dev ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      if (!m.kind) return ret(E_VALUE);
      *(int*)out = m.dev;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (!m.kind) return ret(E_VALUE);
      *(CUcontext*)out = context_of(m.dev);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (!m.kind) return ret(E_VALUE);
      *(CUdeviceptr*)out = m.base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (!m.kind) return ret(E_VALUE);
      *(size_t*)out = m.size;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      if (!m.kind) return ret(E_VALUE);
      *(unsigned long long*)out = m.id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned*)out = 0; return CUDA_SUCCESS;
    default: return ret(unimplemented("cuPointerGetAttribute(other attribute)"));
  }
}
// ---- copies and sets
static CUresult copy_async(CUdeviceptr dst, const void* src, size_t size, CUstream stream) {
  return ret(submit(stream, copy_op((void*)dst, src, size)));
}
static CUresult copy_now(CUdeviceptr dst, const void* src, size_t size) {
  if (int error = legacy_op_check()) return ret(error);
  return copy_async(dst, src, size, nullptr);
}
static CUresult read_by_host(void* dst, CUdeviceptr src, size_t size, CUresult result) {
  if (!result) note_host_read(dst, (void*)src, size);
  return result;
}
static CUresult set(CUdeviceptr dst, unsigned value, unsigned element_size, size_t count,
                    CUstream stream) {
  return ret(submit(stream, set_op((void*)dst, value, element_size, count)));
}
API(cuMemcpyHtoD, CUdeviceptr d, const void* s, size_t n) {
  ENTER(cuMemcpyHtoD);
  return copy_now(d, s, n);
}
API(cuMemcpyDtoH, void* d, CUdeviceptr s, size_t n) {
  ENTER(cuMemcpyDtoH);
  return read_by_host(d, s, n, copy_now((CUdeviceptr)d, (void*)s, n));
}
API(cuMemcpyDtoD, CUdeviceptr d, CUdeviceptr s, size_t n) {
  ENTER(cuMemcpyDtoD);
  return copy_now(d, (void*)s, n);
}
API(cuMemcpyHtoDAsync, CUdeviceptr d, const void* s, size_t n, CUstream t) {
  ENTER(cuMemcpyHtoDAsync);
  return copy_async(d, s, n, t);
}
API(cuMemcpyDtoHAsync, void* d, CUdeviceptr s, size_t n, CUstream t) {
  ENTER(cuMemcpyDtoHAsync);
  return read_by_host(d, s, n, copy_async((CUdeviceptr)d, (void*)s, n, t));
}
API(cuMemcpyDtoDAsync, CUdeviceptr d, CUdeviceptr s, size_t n, CUstream t) {
  ENTER(cuMemcpyDtoDAsync);
  return copy_async(d, (void*)s, n, t);
}
API(cuMemcpyAsync, CUdeviceptr d, CUdeviceptr s, size_t n, CUstream t) {
  ENTER(cuMemcpyAsync);
  return copy_async(d, (void*)s, n, t);
}
API(cuMemsetD8Async, CUdeviceptr d, unsigned char v, size_t n, CUstream t) {
  ENTER(cuMemsetD8Async);
  return set(d, v, 1, n, t);
}
API(cuMemsetD16Async, CUdeviceptr d, unsigned short v, size_t n, CUstream t) {
  ENTER(cuMemsetD16Async);
  return set(d, v, 2, n, t);
}
API(cuMemsetD32Async, CUdeviceptr d, unsigned v, size_t n, CUstream t) {
  ENTER(cuMemsetD32Async);
  return set(d, v, 4, n, t);
}

// ---- virtual memory management (expandable segments)
API(cuMemGetAllocationGranularity, size_t* g, const CUmemAllocationProp*,
    CUmemAllocationGranularity_flags) {
  *g = GRANULARITY;
  return CUDA_SUCCESS;
}
API(cuMemAddressReserve, CUdeviceptr* p, size_t n, size_t al, CUdeviceptr, unsigned long long) {
  ENTER(cuMemAddressReserve);
  return ret(vmm_reserve(n, al, (void**)p));
}
API(cuMemAddressFree, CUdeviceptr p, size_t n) {
  ENTER(cuMemAddressFree);
  return ret(vmm_address_free((void*)p, n));
}
API(cuMemCreate, CUmemGenericAllocationHandle* h, size_t n, const CUmemAllocationProp* pr,
    unsigned long long) {
  ENTER(cuMemCreate);
  // Handles that other machines can open want a service that most machines do not run.
  if (pr->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) return ret(E_NOTPERM);
  uint64_t x = 0;
  int e = vmm_create(pr->location.id, n, &x);
  *h = x;
  return ret(e);
}
API(cuMemRelease, CUmemGenericAllocationHandle h) {
  ENTER(cuMemRelease);
  return ret(vmm_release(h));
}
API(cuMemMap, CUdeviceptr p, size_t n, size_t off, CUmemGenericAllocationHandle h,
    unsigned long long) {
  ENTER(cuMemMap);
  return ret(vmm_map((void*)p, n, off, h));
}
API(cuMemUnmap, CUdeviceptr p, size_t n) {
  ENTER(cuMemUnmap);
  return ret(vmm_unmap((void*)p, n));
}
API(cuMemSetAccess, CUdeviceptr p, size_t n, const CUmemAccessDesc* d, size_t c) {
  ENTER(cuMemSetAccess);
  bool rw = false;
  for (size_t i = 0; i < c; i++)
    rw |= d[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return ret(vmm_access((void*)p, n, rw));
}
API(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle* h, void* p) {
  uint64_t x;
  int e = vmm_retain(&x, p);
  *h = x;
  return ret(e);
}
API(cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp* p,
    CUmemGenericAllocationHandle h) {
  memset(p, 0, sizeof *p);
  p->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return ret(vmm_handle_device(h, &p->location.id));
}
API(cuMemExportToShareableHandle, void* out, CUmemGenericAllocationHandle h,
    CUmemAllocationHandleType kind, unsigned long long) {
  ENTER(cuMemExportToShareableHandle);
  if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return ret(unimplemented("cuMemExportToShareableHandle(other kinds of handles)"));
  return ret(vmm_export(h, (int*)out));
}
API(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle* h, void* descriptor,
    CUmemAllocationHandleType kind) {
  ENTER(cuMemImportFromShareableHandle);
  if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return ret(unimplemented("cuMemImportFromShareableHandle(other kinds of handles)"));
  uint64_t x = 0;
  int e = vmm_import((int)(uintptr_t)descriptor, &x);
  *h = x;
  return ret(e);
}

// ---- multicast objects: what is bound to one is not written through it
API(cuMulticastGetGranularity, size_t* g, const CUmulticastObjectProp*,
    CUmulticastGranularity_flags) {
  *g = GRANULARITY;
  return CUDA_SUCCESS;
}
API(cuMulticastCreate, CUmemGenericAllocationHandle* h, const CUmulticastObjectProp* p) {
  ENTER(cuMulticastCreate);
  uint64_t x = 0;
  int supported = 0;
  if (int e = device_attribute(MULTICAST, current_device(), &supported)) return ret(e);
  if (!supported) return ret(E_UNSUPPORTED);
  int e = vmm_multicast(p->size, &x);
  *h = x;
  return ret(e);
}
API(cuMulticastAddDevice, CUmemGenericAllocationHandle object, CUdevice) {
  return ret(vmm_live(object) ? OK : E_VALUE);
}
API(cuMulticastBindMem, CUmemGenericAllocationHandle object, size_t, CUmemGenericAllocationHandle,
    size_t, size_t, unsigned long long) {
  ENTER(cuMulticastBindMem);
  return ret(vmm_live(object) ? OK : E_VALUE);
}
API(cuMulticastBindAddr, CUmemGenericAllocationHandle object, size_t, CUdeviceptr, size_t,
    unsigned long long) {
  return ret(vmm_live(object) ? OK : E_VALUE);
}
// With a device, as CUDA 13.1 has them. Who asks for the older ones by name may be given these.
API(cuMulticastBindMem_v2, CUmemGenericAllocationHandle object, CUdevice, size_t,
    CUmemGenericAllocationHandle, size_t, size_t, unsigned long long) {
  return ret(vmm_live(object) ? OK : E_VALUE);
}
API(cuMulticastBindAddr_v2, CUmemGenericAllocationHandle object, CUdevice, size_t, CUdeviceptr,
    size_t, unsigned long long) {
  return ret(vmm_live(object) ? OK : E_VALUE);
}
API(cuMulticastUnbind, CUmemGenericAllocationHandle object, CUdevice, size_t, size_t) {
  return ret(vmm_live(object) ? OK : E_VALUE);
}
