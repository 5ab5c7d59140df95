/* What each translated kernel begins with: conversions of types that C does not have, and
   arithmetic that is defined where C's is not. */
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <stdlib.h>
#include <stdio.h>

/* Whether memory at an address may be touched (core_addresses.cpp). */
int simgpu_range_ok(const void*, uint64_t);

/* ---- bits of numbers */
static inline float f_of_u(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static inline uint32_t u_of_f(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

/* ---- narrow types: ld_ gives a float, st_ the bits of the nearest number, of two the even one */
typedef _Float16 half_t;
static inline uint16_t st_bf16(float value) {
  uint32_t bits = u_of_f(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >> 16) | 64; /* NaN */
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
static inline float ld_bf16(uint16_t bits) { return f_of_u((uint32_t)bits << 16); }
static inline uint16_t st_f16(float value) {
  half_t half = (half_t)value;
  uint16_t bits;
  memcpy(&bits, &half, 2);
  return bits;
}
static inline float ld_f16(uint16_t bits) {
  half_t half;
  memcpy(&half, &bits, 2);
  return (float)half;
}
static inline float ld_e5m2(uint8_t bits) { return ld_f16((uint16_t)bits << 8); }
/* No infinities, and one NaN of each sign. */
static inline float ld_e4m3(uint8_t bits) {
  int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  float value;
  if (exponent == 15 && mantissa == 7)
    value = NAN;
  else
    value = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
  return bits & 128 ? -value : value;
}
/* Of so many bits of mantissa; what is as large as `too_large` becomes `infinity`. */
static inline uint8_t st_f8(float value, int mantissa_bits, int bias, float too_large,
                            uint8_t infinity) {
  uint8_t sign = signbit(value) ? 128 : 0;
  float magnitude = fabsf(value);
  if (isnan(value)) return sign | 127;
  if (magnitude >= too_large) return sign | infinity;
  int exponent, lowest = 2 - bias, one = 1 << mantissa_bits;
  frexpf(magnitude, &exponent);
  if (exponent < lowest) exponent = lowest; /* subnormal */
  int mantissa = (int)nearbyintf(ldexpf(magnitude, mantissa_bits + 1 - exponent));
  if (mantissa == 2 * one) {
    mantissa = one;
    exponent++;
  }
  if (mantissa < one) return sign | mantissa;
  return sign | (exponent + bias - 1) << mantissa_bits | (mantissa - one);
}
static inline uint8_t st_e5m2(float value) { return st_f8(value, 2, 15, 61440.0f, 0x7c); }
static inline uint8_t st_e4m3(float value) { return st_f8(value, 3, 7, 464.1f, 0x7f); }
#define RND(type, value) ld_##type(st_##type(value))

/* ---- floating point to integers: what is too large becomes the largest, NaN 0, as on a device */
static inline int64_t saturated(double value, double low, double high, int64_t lowest,
                                int64_t highest) {
  if (value != value) return 0;
  if (value <= low) return lowest;
  return value >= high ? highest : (int64_t)value;
}
#define CLIP(value, bits)                                                                \
  saturated(value, -ldexp(1, bits - 1), ldexp(1, bits - 1), -(INT64_C(1) << (bits - 1)), \
            (int64_t)((UINT64_C(1) << (bits - 1)) - 1))
#define UCLIP(v) \
  ((v) != (v) || (v) <= 0 ? 0 : (v) >= 18446744073709551615.0 ? UINT64_MAX : (uint64_t)(v))

/* ---- functions that C's library does not have */
static inline float rsqrtf_(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt_(double x) { return 1.0 / sqrt(x); }
/* NaN if one of them is. */
#define NANMAX(a, b) ((a) != (a) ? (a) : (b) != (b) ? (b) : (a) > (b) ? (a) : (b))
#define NANMIN(a, b) ((a) != (a) ? (a) : (b) != (b) ? (b) : (a) < (b) ? (a) : (b))

/* cudaErrorIllegalAddress, with a line on stderr. */
static int bad(const char* kernel, const char* what, const void* pointer, int bytes) {
  fprintf(stderr, "[simgpu] kernel %s: %s touches memory that is not allocated: %p, %d bytes\n",
          kernel, what, pointer, bytes);
  return 700;
}
