// libcuda: modules and launches of their functions. A function is its name and the hash of its
// image.
#include <cstring>
#include <fstream>
#include <iterator>
#include "driver.h"
using namespace simgpu;
using namespace simgpu::driver;

extern "C" uint64_t simgpu_image_hash(const void* image);
struct Module {
  uint64_t image;
};
API(cuModuleLoadData, CUmodule* m, const void* d) {
  ENTER(cuModuleLoadData);
  touch_primary(current_device());
  *m = (CUmodule) new Module{simgpu_image_hash(d)};
  return CUDA_SUCCESS;
}
API(cuModuleLoadDataEx, CUmodule* m, const void* d, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(m, d);
}
API(cuModuleLoad, CUmodule* m, const char* path) {
  std::ifstream f(path, std::ios::binary);
  if (!f) return CUDA_ERROR_FILE_NOT_FOUND;
  std::string s((std::istreambuf_iterator<char>(f)), {});
  return cuModuleLoadData(m, s.size() > 64 ? s.data() : nullptr);
}
API(cuModuleUnload, CUmodule) {
  ENTER(cuModuleUnload);
  return CUDA_SUCCESS;  // it is leaked: graphs may still hold its kernels
}
API(cuModuleGetFunction, CUfunction* f, CUmodule m, const char* name) {
  *f = (CUfunction)kernel_of_module(name, m ? ((Module*)m)->image : 0);
  return CUDA_SUCCESS;
}
API(cuModuleGetLoadingMode, CUmoduleLoadingMode* m) {
  *m = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}
API(cuFuncGetAttribute, int* v, CUfunction_attribute a, CUfunction) {
  switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *v = 32; break;
    default: *v = 0;
  }
  return CUDA_SUCCESS;
}
API(cuFuncSetAttribute, CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API(cuFuncSetCacheConfig, CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
API(cuFuncGetName, const char** n, CUfunction f) {
  *n = ((Kernel*)f)->name.c_str();
  return CUDA_SUCCESS;
}
API(cuOccupancyMaxActiveBlocksPerMultiprocessor, int* n, CUfunction, int b, size_t) {
  *n = occupancy(b);
  return CUDA_SUCCESS;
}
API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int* n, CUfunction, int b, size_t,
    unsigned) {
  *n = occupancy(b);
  return CUDA_SUCCESS;
}
API(cuOccupancyMaxActiveClusters, int* n, CUfunction, const CUlaunchConfig*) {
  *n = config().multiprocessors / 2;
  return CUDA_SUCCESS;
}
API(cuOccupancyMaxPotentialBlockSize, int* g, int* b, CUfunction, CUoccupancyB2DSize, size_t, int) {
  *g = config().multiprocessors * 2;
  *b = 1024;
  return CUDA_SUCCESS;
}
static int launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned sh, CUstream s, void** params) {
  if (!f || !gx || !gy || !gz || !bx || !by || !bz || (size_t)bx * by * bz > 1024) return E_VALUE;
  Op op = kernel_op((Kernel*)f);
  op.shared_memory = sh;
  op.args = kernel_args(op.kernel, params);
  op.overwrites = kernel_overwrites(op.kernel, params);
  op.grid[0] = gx;
  op.grid[1] = gy;
  op.grid[2] = gz;
  op.block[0] = bx;
  op.block[1] = by;
  op.block[2] = bz;
  return submit(s, std::move(op));
}
API(cuLaunchKernel, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned sh, CUstream s, void** a, void**) {
  ENTER(cuLaunchKernel);
  return ret(launch(f, gx, gy, gz, bx, by, bz, sh, s, a));
}
API(cuLaunchCooperativeKernel, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
    unsigned by, unsigned bz, unsigned sh, CUstream s, void** a) {
  ENTER(cuLaunchCooperativeKernel);
  return ret(launch(f, gx, gy, gz, bx, by, bz, sh, s, a));
}
API(cuLaunchKernelEx, const CUlaunchConfig* c, CUfunction f, void** a, void**) {
  ENTER(cuLaunchKernelEx);
  return ret(launch(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                    c->blockDimZ, c->sharedMemBytes, c->hStream, a));
}
API(cuLaunchHostFunc, CUstream s, CUhostFn fn, void* u) {
  ENTER(cuLaunchHostFunc);
  return ret(submit(s, host_op(fn, u)));
}
API(cuTensorMapEncodeTiled, CUtensorMap* m, CUtensorMapDataType, cuuint32_t, void*,
    const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
    CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  memset(m, 0, sizeof *m);
  return CUDA_SUCCESS;
}
