// What the files of libcudart share: how an entry point is written.
#pragma once
#include "abi.h"
#include "device.h"

namespace simgpu {
namespace runtime {
// The last error of a thread, which cudaGetLastError tells and forgets.
inline thread_local int tl_error = 0;
inline cudaError_t ret(int error) {
  if (error) tl_error = error;
  return (cudaError_t)error;
}
// Whose handles they are.
inline Event* event_of(cudaEvent_t event) { return (Event*)event; }
inline Graph* graph_of(cudaGraph_t graph) { return (Graph*)graph; }
inline GraphExec* exec_of(cudaGraphExec_t exec) { return (GraphExec*)exec; }
inline Pool* pool_of(cudaMemPool_t pool) { return (Pool*)pool; }
}  // namespace runtime
}  // namespace simgpu

#define API(name, ...) extern "C" cudaError_t name(__VA_ARGS__)
// Counts the call, and returns the error that a test has asked for.
#define ENTER(name)                                              \
  static simgpu::ApiStat stat_(#name);                           \
  do {                                                           \
    if (int e_ = stat_.enter()) return simgpu::runtime::ret(e_); \
  } while (0)
