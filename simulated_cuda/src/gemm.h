// What libcublas and libcublasLt share: handles, computations as counted kernels on a stream, and
// matrix products, which in values mode are computed on the host (unless an aten operator does it:
// see values/operators.py).
#pragma once
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>
#include "library.h"

namespace simgpu {
namespace blas {
// cublasStatus_t, as far as it is returned here.
enum { SUCCESS = 0, MAPPING_ERROR = 11, EXECUTION_FAILED = 13 };
// cudaDataType, as far as it is computed here.
enum { R32F = 0, R64F = 1, R16F = 2, R8I = 3, R32I = 10, R16BF = 14 };

struct Handle {
  void* stream = nullptr;
  int math_mode = 0;
  int pointer_mode = 0;  // 0: scalars lie on the host
};

inline int counted(const char* name, void* stream, Work work = {}) {
  Op op = kernel_op(kernel_by_name(name));
  op.work = work;
  return submit(stream, std::move(op)) ? EXECUTION_FAILED : SUCCESS;
}

// ---- elements of a matrix as double
inline double from_half(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double value;
  if (exponent == 31)
    value = mantissa ? NAN : INFINITY;
  else
    value = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
  return bits & 0x8000 ? -value : value;
}

// To the nearest, ties to even.
inline uint16_t to_half(float value) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  double magnitude = fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;
  int exponent;
  frexp(magnitude, &exponent);
  if (exponent < -13) exponent = -13;  // subnormal
  int mantissa = (int)nearbyint(ldexp(magnitude, 11 - exponent));
  if (mantissa == 2048) {
    mantissa = 1024;
    exponent++;
  }
  if (mantissa < 1024) return sign | mantissa;
  return sign | (exponent + 14) << 10 | (mantissa - 1024);
}

inline double from_bfloat16(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

inline uint16_t to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline double load(const void* base, int64_t i, int type) {
  switch (type) {
    case R32F: return ((const float*)base)[i];
    case R64F: return ((const double*)base)[i];
    case R16F: return from_half(((const uint16_t*)base)[i]);
    case R8I: return ((const int8_t*)base)[i];
    case R32I: return ((const int32_t*)base)[i];
    default: return from_bfloat16(((const uint16_t*)base)[i]);
  }
}

inline void store(void* base, int64_t i, int type, double value) {
  switch (type) {
    case R32F: ((float*)base)[i] = (float)value; break;
    case R64F: ((double*)base)[i] = value; break;
    case R16F: ((uint16_t*)base)[i] = to_half((float)value); break;
    case R8I: ((int8_t*)base)[i] = (int8_t)value; break;
    case R32I: ((int32_t*)base)[i] = (int32_t)value; break;
    default: ((uint16_t*)base)[i] = to_bfloat16((float)value);
  }
}

// ---- products
// A matrix in column-major order, or a batch of them; lengths in elements.
struct Matrix {
  const void* base;
  int type;
  int64_t leading;  // between columns
  int64_t stride;   // between matrices
  int transposed;

  int64_t place(int64_t batch, int64_t row, int64_t column) const {
    int64_t within = transposed ? column + row * leading : row + column * leading;
    return batch * stride + within;
  }
  // Whether the memory of rows × columns (after the transposition) is there.
  bool allocated(int64_t batch, int64_t rows, int64_t columns) const {
    if (transposed) std::swap(rows, columns);
    int64_t size = bytes_of_type(type);
    return range_ok((const char*)base + batch * stride * size,
                    ((columns - 1) * leading + rows) * size);
  }
};

// cublasLtEpilogue_t: bits that may be set beside one another.
enum Epilogue { RELU = 2, BIAS = 4, GELU = 32 };

// D = activation(alpha * A B + beta * C + bias), where A is m × k, B is k × n and the bias has one
// element for each row. Sums are made in double. As a function: runs it, and returns an error.
struct Gemm {
  int64_t m, n, k, batches;
  double alpha, beta;
  Matrix a, b, c, d;
  int epilogue;
  const void* bias;
  int bias_type;

  int operator()() const {
    std::vector<double> rows(m * k), columns(n * k);
    for (int64_t batch = 0; batch < batches; batch++) {
      if (m * n == 0) return OK;
      bool inputs_there = !k || (a.allocated(batch, m, k) && b.allocated(batch, k, n));
      if (!d.allocated(batch, m, n) || !inputs_there) {
        fprintf(stderr, "[simgpu] gemm touches memory that is not allocated\n");
        return E_ILLEGAL;
      }
      for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++)
          rows[i * k + l] = load(a.base, a.place(batch, i, l), a.type);
      for (int64_t j = 0; j < n; j++)
        for (int64_t l = 0; l < k; l++)
          columns[j * k + l] = load(b.base, b.place(batch, l, j), b.type);
      for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
          double sum = 0;
          for (int64_t l = 0; l < k; l++)
            sum += rows[i * k + l] * columns[j * k + l];
          store((void*)d.base, d.place(batch, i, j), d.type, finished(sum, batch, i, j));
        }
    }
    return OK;
  }

  double finished(double sum, int64_t batch, int64_t i, int64_t j) const {
    double x = sum * alpha;
    if (beta != 0) x += beta * load(c.base, c.place(batch, i, j), c.type);
    if (bias) x += load(bias, i, bias_type);
    if (epilogue & RELU) x = x > 0 ? x : 0;
    // The approximation by tanh; the number is the square root of 2 / pi.
    if (epilogue & GELU) x = 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    return x;
  }
};

inline int multiply(const char* name, void* stream, const Gemm& gemm) {
  Op op = kernel_op(kernel_by_name(name));
  op.work = {0, gemm.a.type, gemm.m, gemm.n, gemm.k, gemm.batches};
  if (compute_here()) op.compute = std::make_shared<std::function<int()>>(gemm);
  return submit(stream, std::move(op)) ? EXECUTION_FAILED : SUCCESS;
}
}  // namespace blas
}  // namespace simgpu
