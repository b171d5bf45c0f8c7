// Sixteen f32 lanes in portable C++ (compiler vectors, lowered to whatever the target has).
// See simd16.h.
#pragma once

#include <stdint.h>
#include <string.h>

#define WW_INLINE static inline __attribute__((always_inline))

namespace {

typedef float FloatLanes __attribute__((vector_size(64), aligned(16)));
typedef int32_t IntLanes __attribute__((vector_size(64), aligned(16)));
typedef uint32_t UIntLanes __attribute__((vector_size(64), aligned(16)));

// Structs, because a bare vector type wider than the target's registers warns about its ABI.
struct Vec {
  FloatLanes v;
};
struct IVec {
  IntLanes v;
};

WW_INLINE Vec vset1(float x) { return {x - FloatLanes{}}; }
WW_INLINE Vec vzero() { return {FloatLanes{}}; }
WW_INLINE Vec vload(const float* p) {
  Vec out;
  memcpy(&out.v, p, sizeof out.v);
  return out;
}
WW_INLINE void vstore(float* p, Vec v) { memcpy(p, &v.v, sizeof v.v); }
WW_INLINE Vec vload_first(const float* p, int n, float fill) {
  Vec out = vset1(fill);
  for (int i = 0; i < n; ++i) out.v[i] = p[i];
  return out;
}
WW_INLINE void vstore_first(float* p, Vec v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v.v[i];
}
WW_INLINE Vec vadd(Vec a, Vec b) { return {a.v + b.v}; }
WW_INLINE Vec vsub(Vec a, Vec b) { return {a.v - b.v}; }
WW_INLINE Vec vmul(Vec a, Vec b) { return {a.v * b.v}; }
WW_INLINE Vec vdiv(Vec a, Vec b) { return {a.v / b.v}; }
// Two roundings: a baseline CPU has no fused form, and a library call per lane would be too slow.
WW_INLINE Vec vfma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
// As the x86 instructions: b where either is NaN.
WW_INLINE Vec vmin(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
WW_INLINE Vec vmax(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
WW_INLINE Vec vselect_lt(Vec a, Vec b, Vec x, Vec y) { return {a.v < b.v ? x.v : y.v}; }
WW_INLINE uint32_t vequal_bits(Vec a, Vec b) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(a.v[i] == b.v[i]) << i;
  return bits;
}

WW_INLINE IVec vbits(Vec v) { return {reinterpret_cast<IntLanes>(v.v)}; }
WW_INLINE Vec vfrom_bits(IVec v) { return {reinterpret_cast<FloatLanes>(v.v)}; }
WW_INLINE Vec vabs(Vec a) {
  return {reinterpret_cast<FloatLanes>(reinterpret_cast<IntLanes>(a.v) & 0x7fffffff)};
}
WW_INLINE Vec vto_float(IVec v) { return {__builtin_convertvector(v.v, FloatLanes)}; }
// Callers pass whole numbers.
WW_INLINE IVec vto_int(Vec v) { return {__builtin_convertvector(v.v, IntLanes)}; }
WW_INLINE IVec iset1(int32_t x) { return {x - IntLanes{}}; }
WW_INLINE IVec iload(const void* p) {
  IVec out;
  memcpy(&out.v, p, sizeof out.v);
  return out;
}
WW_INLINE void istore(void* p, IVec v) { memcpy(p, &v.v, sizeof v.v); }
WW_INLINE IVec iload_u8(const uint8_t* p) {
  IVec out;
  for (int i = 0; i < 16; ++i) out.v[i] = p[i];
  return out;
}
WW_INLINE IVec iload_i8(const int8_t* p) {
  IVec out;
  for (int i = 0; i < 16; ++i) out.v[i] = p[i];
  return out;
}
WW_INLINE IVec iload_u16(const uint16_t* p) {
  IVec out;
  for (int i = 0; i < 16; ++i) out.v[i] = p[i];
  return out;
}
WW_INLINE void istore_u16(uint16_t* p, IVec v) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint16_t>(v.v[i]);
}
// Lanes hold values below 256.
WW_INLINE void istore_u8(uint8_t* p, IVec v) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(v.v[i]);
}
// Each byte, 0 to 15, becomes that element of a table of 16.
WW_INLINE IVec ilookup(const uint8_t* table, IVec places) {
  uint8_t bytes[sizeof places.v];
  memcpy(bytes, &places.v, sizeof bytes);
  for (uint8_t& byte : bytes) byte = table[byte];
  IVec out;
  memcpy(&out.v, bytes, sizeof bytes);
  return out;
}
// Lanes may hold four bytes each, and then their sums wrap as those of the vector tiers do.
WW_INLINE IVec iadd(IVec a, IVec b) {
  return {reinterpret_cast<IntLanes>(reinterpret_cast<UIntLanes>(a.v) + reinterpret_cast<UIntLanes>(b.v))};
}
WW_INLINE IVec isub(IVec a, IVec b) {
  return {reinterpret_cast<IntLanes>(reinterpret_cast<UIntLanes>(a.v) - reinterpret_cast<UIntLanes>(b.v))};
}
WW_INLINE IVec iand(IVec a, IVec b) { return {a.v & b.v}; }
WW_INLINE IVec ior(IVec a, IVec b) { return {a.v | b.v}; }
WW_INLINE IVec ixor(IVec a, IVec b) { return {a.v ^ b.v}; }
template <int kBits>
WW_INLINE IVec ishl(IVec a) { return {a.v << kBits}; }
template <int kBits>
WW_INLINE IVec ishr(IVec a) {
  return {reinterpret_cast<IntLanes>(reinterpret_cast<UIntLanes>(a.v) >> kBits)};
}
WW_INLINE IVec iselect_gt(IVec a, IVec b, IVec x, IVec y) { return {a.v > b.v ? x.v : y.v}; }

// Half precision by exponent rebias; subnormals through an exact product with 2^-24.
WW_INLINE Vec vload_half(const uint16_t* p) {
  const IVec bits = iload_u16(p);
  const IntLanes sign = (bits.v & 0x8000) << 16;
  const IntLanes magnitude = bits.v & 0x7fff;
  const FloatLanes small = __builtin_convertvector(magnitude, FloatLanes) * 5.9604644775390625e-8f;
  const IntLanes normal = (magnitude << 13) + (112 << 23);
  const IntLanes special = (magnitude << 13) | 0x7f800000;
  const IntLanes value = magnitude < 0x400    ? reinterpret_cast<IntLanes>(small)
                         : magnitude >= 0x7c00 ? special
                                               : normal;
  return {reinterpret_cast<FloatLanes>(value | sign)};
}
WW_INLINE void vstore_half(uint16_t* p, Vec v) {
  const IntLanes bits = reinterpret_cast<IntLanes>(v.v);
  const IntLanes sign = (bits >> 16) & 0x8000;
  const IntLanes magnitude = bits & 0x7fffffff;
  // Adding 0.5 puts the subnormal half's last bit at the sum's last bit: the sum rounds for us.
  const IntLanes half_one = IntLanes{} + 0x3f000000;
  const IntLanes small =
      reinterpret_cast<IntLanes>(reinterpret_cast<FloatLanes>(magnitude) +
                                 reinterpret_cast<FloatLanes>(half_one)) - half_one;
  const IntLanes normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
  const IntLanes nan = IntLanes{} + 0x7e00, inf = IntLanes{} + 0x7c00;
  IntLanes value = magnitude < 0x38800000 ? small : normal;
  value = magnitude >= 0x477ff000 ? inf : value;
  value = magnitude > 0x7f800000 ? nan : value;
  istore_u16(p, {value | sign});
}

WW_INLINE float vreduce_add(Vec v) {
  float a[8], b[4];
  for (int i = 0; i < 8; ++i) a[i] = v.v[i] + v.v[i + 8];
  for (int i = 0; i < 4; ++i) b[i] = a[i] + a[i + 4];
  return (b[0] + b[2]) + (b[1] + b[3]);
}
WW_INLINE float vreduce_max(Vec v) {
  float best = v.v[0];
  for (int i = 1; i < 16; ++i) best = v.v[i] > best ? v.v[i] : best;
  return best;
}
WW_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
