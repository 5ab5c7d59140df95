// What the math and communication libraries have in common. Their handles are ours, their
// computations are counted kernels that do nothing; only what the host reads back or allocates by
// (status, info, sizes) is answered. Declarations are plain C with every handle a pointer, so that
// no header of the libraries is needed.
#pragma once
#include <cstddef>
#include <cstdint>
#include "device.h"

namespace simgpu {
inline int count_kernel(const char* name, void* stream) {
  return submit(stream, kernel_op(kernel_by_name(name)));
}
// Zeros written by a kernel: `devInfo` of a factorisation, whose zero the host takes for success.
inline int zero_in_stream(void* dst, size_t bytes, void* stream) {
  if (!dst || !bytes) return OK;
  return submit(stream, set_op(dst, 0, 1, bytes));
}
inline int copy_in_stream(void* dst, const void* src, size_t bytes, void* stream) {
  if (!bytes || dst == src) return OK;
  return submit(stream, copy_op(dst, src, bytes));
}
// Bytes of an element of a cudaDataType (library_types.h). Complex types have two parts; types
// of four bits count as one byte.
inline size_t bytes_of_type(int type) {
  switch (type) {
    case 5:   // C_64F
    case 25:  // C_64I
    case 27:  // C_64U
      return 16;
    case 1:   // R_64F
    case 4:   // C_32F
    case 11:  // C_32I
    case 13:  // C_32U
    case 24:  // R_64I
    case 26:  // R_64U
      return 8;
    case 0:   // R_32F
    case 6:   // C_16F
    case 10:  // R_32I
    case 12:  // R_32U
    case 15:  // C_16BF
    case 21:  // C_16I
    case 23:  // C_16U
      return 4;
    case 2:   // R_16F
    case 14:  // R_16BF
    case 20:  // R_16I
    case 22:  // R_16U
      return 2;
    default: return 1;
  }
}
}  // namespace simgpu
