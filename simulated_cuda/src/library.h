// What the math and communication libraries have in common. Their handles are ours, their
// computations are counted kernels that do nothing; only what the host reads back or allocates by
// (status, info, sizes) is answered. Declarations are plain C with every handle a pointer, so that
// no header of the libraries is needed.
#pragma once
#include <cstddef>
#include <cstdint>
#include "fc.h"

namespace fc {
inline int count_kernel(const char* name, void* stream) {
  Op o;
  o.kind = OP_KERNEL;
  o.kernel = kernel_by_name(name);
  return submit(stream, std::move(o));
}
// Zeros written by a kernel: `devInfo` of a factorisation, whose zero the host takes for success.
inline int zero_in_stream(void* dst, size_t bytes, void* stream) {
  if (!dst || !bytes) return OK;
  Op o;
  o.kind = OP_MEMSET;
  o.dst = dst;
  o.width = bytes;
  return submit(stream, std::move(o));
}
inline int copy_in_stream(void* dst, const void* src, size_t bytes, void* stream) {
  if (!bytes || dst == src) return OK;
  Op o;
  o.kind = OP_MEMCPY;
  o.dst = dst;
  o.src = src;
  o.width = bytes;
  return submit(stream, std::move(o));
}
// Bytes of an element of a cudaDataType; complex types have two parts, four-bit types count as one
// byte.
inline size_t bytes_of_type(int type) {
  switch (type) {
    case 5:
    case 25:
    case 27: return 16;  // C_64F, C_64I, C_64U
    case 1:
    case 4:
    case 11:
    case 13:
    case 24:
    case 26: return 8;  // R_64F, C_32F, C_32I, C_32U, R_64I, R_64U
    case 0:
    case 6:
    case 10:
    case 12:
    case 15:
    case 21:
    case 23: return 4;  // R_32F, C_16F, R_32I, R_32U, C_16BF, C_16I, C_16U
    case 2:
    case 14:
    case 20:
    case 22: return 2;  // R_16F, R_16BF, R_16I, R_16U
    default: return 1;
  }
}
}  // namespace fc
