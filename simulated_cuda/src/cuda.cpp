// libcuda.so.1, the driver: devices, contexts and errors. The other files beside it have the rest.
#include <cstdio>
#include <dlfcn.h>
#include <string>
#include <vector>
#include "driver.h"
using namespace simgpu;
using namespace simgpu::driver;

// The device of this thread's context; -1: follow the runtime once a primary context exists.
static thread_local int tl_context = -1;
static thread_local std::vector<int>* tl_stack = nullptr;

// ---- devices
API(cuInit, unsigned) {
  ENTER(cuInit);
  return ret(config().devices ? OK : E_NODEVICE);
}
API(cuDriverGetVersion, int* v) {
  *v = CUDA_VERSION;
  return CUDA_SUCCESS;
}
API(cuDeviceGet, CUdevice* d, int i) {
  if (i < 0 || i >= config().devices) return ret(E_DEVICE);
  *d = i;
  return CUDA_SUCCESS;
}
API(cuDeviceGetCount, int* n) {
  *n = config().devices;
  return CUDA_SUCCESS;
}
API(cuDeviceGetName, char* s, int n, CUdevice) {
  snprintf(s, n, "%s", config().name.c_str());
  return CUDA_SUCCESS;
}
API(cuDeviceGetUuid, CUuuid* u, CUdevice d) {
  device_uuid(physical_device(d), (unsigned char*)u->bytes);
  return CUDA_SUCCESS;
}
API(cuDeviceTotalMem, size_t* n, CUdevice) {
  *n = config().reported_memory;
  return CUDA_SUCCESS;
}
API(cuDeviceGetAttribute, int* v, CUdevice_attribute a, CUdevice d) {
  ENTER(cuDeviceGetAttribute);
  return ret(device_attribute((int)a, d, v));
}
API(cuDeviceGetPCIBusId, char* s, int n, CUdevice d) {
  snprintf(s, n, "0000:%02x:00.0", physical_device(d) + 1);
  return CUDA_SUCCESS;
}
API(cuDeviceCanAccessPeer, int* r, CUdevice a, CUdevice b) {
  *r = a != b;
  return CUDA_SUCCESS;
}
API(cuDevicePrimaryCtxRetain, CUcontext* c, CUdevice d) {
  ENTER(cuDevicePrimaryCtxRetain);
  touch_primary(d);
  *c = context_of(d);
  return CUDA_SUCCESS;
}
API(cuDevicePrimaryCtxRelease, CUdevice) { return CUDA_SUCCESS; }
API(cuDevicePrimaryCtxGetState, CUdevice d, unsigned* f, int* a) {
  *f = 0;
  *a = primary_active(d);
  return CUDA_SUCCESS;
}
API(cuDevicePrimaryCtxSetFlags, CUdevice, unsigned) { return CUDA_SUCCESS; }
API(cuCtxGetCurrent, CUcontext* c) {
  int d = tl_context >= 0                    ? current_device()
          : primary_active(current_device()) ? current_device()
                                             : -1;
  *c = context_of(d);
  return CUDA_SUCCESS;
}
API(cuCtxSetCurrent, CUcontext c) {
  tl_context = device_of(c);
  if (tl_context >= 0) set_device(tl_context);
  return CUDA_SUCCESS;
}
API(cuCtxPushCurrent, CUcontext c) {
  if (!tl_stack) tl_stack = new std::vector<int>;
  tl_stack->push_back(current_device());
  return cuCtxSetCurrent(c);
}
API(cuCtxPopCurrent, CUcontext* c) {
  if (c) *c = context_of(current_device());
  if (!tl_stack || tl_stack->empty()) return ret(E_CONTEXT);
  int d = tl_stack->back();
  tl_stack->pop_back();
  return cuCtxSetCurrent(context_of(d));
}
API(cuCtxGetDevice, CUdevice* d) {
  *d = current_device();
  return CUDA_SUCCESS;
}
API(cuCtxSynchronize, void) { return ret(device_sync()); }
API(cuCtxGetLimit, size_t* v, CUlimit) {
  *v = 1 << 20;
  return CUDA_SUCCESS;
}
API(cuCtxSetLimit, CUlimit, size_t) { return CUDA_SUCCESS; }
API(cuCtxGetApiVersion, CUcontext, unsigned* v) {
  *v = CUDA_VERSION;
  return CUDA_SUCCESS;
}
API(cuCtxGetStreamPriorityRange, int* lo, int* hi) {
  *lo = 0;
  *hi = -5;
  return CUDA_SUCCESS;
}
// The driver's log: nothing is ever written to it.
API(cuLogsRegisterCallback, CUlogsCallback, void*, CUlogsCallbackHandle* h) {
  *h = nullptr;
  return CUDA_SUCCESS;
}
API(cuLogsUnregisterCallback, CUlogsCallbackHandle) { return CUDA_SUCCESS; }
API(cuGetErrorString, CUresult e, const char** s) {
  *s = error_string(e);
  return CUDA_SUCCESS;
}
API(cuGetErrorName, CUresult e, const char** s) {
  *s = error_name(e);
  return CUDA_SUCCESS;
}

API(cuGetProcAddress, const char* sym, void** fp, int, cuuint64_t,
    CUdriverProcAddressQueryResult* r) {
  static void* h = dlopen("libcuda.so.1", RTLD_NOW);
  *fp = nullptr;
  for (const char* suf : {"_v3", "_v2", ""})
    if (!*fp) *fp = dlsym(h, (std::string(sym) + suf).c_str());
  if (r) *r = *fp ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return ret(*fp ? OK : E_NOTFOUND);
}
API(cuGetExportTable, const void** t, const CUuuid*) {
  *t = nullptr;
  return ret(unimplemented("cuGetExportTable"));
}
