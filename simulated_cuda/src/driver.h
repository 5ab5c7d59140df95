// What the files of libcuda share: how an entry point is written, and handles of contexts.
#pragma once
#include "abi.h"
#include "device.h"

namespace simgpu {
namespace driver {
inline CUresult ret(int error) { return (CUresult)error; }
// There is one context for each device, the primary one.
inline CUcontext context_of(int device) {
  return device < 0 ? nullptr : (CUcontext)(uintptr_t)(0x1000 + device);
}
inline int device_of(CUcontext context) {
  return context ? (int)((uintptr_t)context - 0x1000) : -1;
}
}  // namespace driver
}  // namespace simgpu

#define API(name, ...) extern "C" CUresult CUDAAPI name(__VA_ARGS__)
// Counts the call, and returns the error that a test has asked for.
#define ENTER(name)                                  \
  static simgpu::ApiStat stat_(#name);               \
  do {                                               \
    if (int e_ = stat_.enter()) return (CUresult)e_; \
  } while (0)
