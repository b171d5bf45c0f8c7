// One small vocabulary of sixteen f32 lanes, so that a kernel is written once and compiled for
// each CPU tier. Everything here has internal linkage: the same inline function compiled for two
// tiers must never be merged by the linker. Include it from kernel files only.
#pragma once

#if defined(__AVX512F__)
#include "ops/kernels/simd16_avx512.h"
#elif defined(__AVX2__)
#include "ops/kernels/simd16_avx2.h"
#else
#include "ops/kernels/simd16_scalar.h"
#endif

namespace {

// bf16 from and to f32; to nearest even, NaN stays NaN (quiet).
WW_INLINE Vec vload_bf16(const uint16_t* p) { return vfrom_bits(ishl<16>(iload_u16(p))); }
WW_INLINE void vstore_bf16(uint16_t* p, Vec v) {
  const IVec bits = vbits(v);
  const IVec magnitude = iand(bits, iset1(0x7fffffff));
  const IVec odd = iand(ishr<16>(bits), iset1(1));
  const IVec rounded = ishr<16>(iadd(bits, iadd(odd, iset1(0x7fff))));
  const IVec quiet = ior(ishr<16>(bits), iset1(0x40));
  istore_u16(p, iselect_gt(magnitude, iset1(0x7f800000), quiet, rounded));
}

// exp(x), relative error below 1e-6 (a degree-6 polynomial on [-ln2/2, ln2/2]); 0 below -87.3
// (exactly 0 for -inf), saturates near 2.9e38 above 88.3, NaN stays NaN.
WW_INLINE Vec vexp(Vec x) {
  const Vec low = vset1(-87.33654f);
  const Vec clamped = vmin(vset1(88.376f), vmax(low, x));
  const Vec magic = vset1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = vfma(clamped, vset1(1.44269504088896341f), magic);
  const Vec n = vsub(shifted, magic);
  Vec r = vfma(n, vset1(-0.693145751953125f), clamped);
  r = vfma(n, vset1(-1.428606820309417e-6f), r);
  Vec p = vset1(1.3888889e-3f);
  p = vfma(p, r, vset1(8.3333333e-3f));
  p = vfma(p, r, vset1(4.1666668e-2f));
  p = vfma(p, r, vset1(1.6666667e-1f));
  p = vfma(p, r, vset1(0.5f));
  p = vfma(p, r, vset1(1.0f));
  p = vfma(p, r, vset1(1.0f));
  const Vec scale = vfrom_bits(ishl<23>(iadd(vto_int(n), iset1(127))));
  return vselect_lt(x, low, vzero(), vmul(p, scale));
}

WW_INLINE Vec vsigmoid(Vec x) {
  return vdiv(vset1(1.0f), vadd(vset1(1.0f), vexp(vsub(vzero(), x))));
}

// tanh(x): an odd polynomial near 0, where 1 - 2 / (exp(2x) + 1) would cancel.
WW_INLINE Vec vtanh(Vec x) {
  const Vec z = vmul(x, x);
  Vec p = vset1(-5.70498872745e-3f);
  p = vfma(p, z, vset1(2.06390887954e-2f));
  p = vfma(p, z, vset1(-5.37397155531e-2f));
  p = vfma(p, z, vset1(1.33314422036e-1f));
  p = vfma(p, z, vset1(-3.33332819422e-1f));
  const Vec near = vfma(vmul(p, z), x, x);
  const Vec magnitude = vabs(x);
  const Vec e = vexp(vadd(magnitude, magnitude));
  const Vec far_magnitude =
      vsub(vset1(1.0f), vdiv(vset1(2.0f), vadd(e, vset1(1.0f))));
  const Vec far = vselect_lt(x, vzero(), vsub(vzero(), far_magnitude), far_magnitude);
  return vselect_lt(magnitude, vset1(0.625f), near, far);
}

WW_INLINE Vec vsilu(Vec x) { return vmul(x, vsigmoid(x)); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
WW_INLINE Vec vgelu_tanh(Vec x) {
  const Vec inner = vfma(vmul(vmul(x, x), x), vset1(0.044715f), x);
  return vmul(x, vsigmoid(vmul(inner, vset1(1.5957691216057308f))));
}

// x * (the normal distribution's mass below x). The mass of the tail is erfc(z) / 2 = t / 2 exp(-z^2 + p(t)), t = 1 /
// (1 + z / 2), with the Chebyshev fit p of Press et al. (Numerical Recipes), whose relative error is below 1.2e-7.
WW_INLINE Vec vgelu(Vec x) {
  const Vec z = vmul(vabs(x), vset1(0.70710678118654752f));
  const Vec t = vdiv(vset1(1.0f), vfma(z, vset1(0.5f), vset1(1.0f)));
  Vec p = vset1(0.17087277f);
  p = vfma(p, t, vset1(-0.82215223f));
  p = vfma(p, t, vset1(1.48851587f));
  p = vfma(p, t, vset1(-1.13520398f));
  p = vfma(p, t, vset1(0.27886807f));
  p = vfma(p, t, vset1(-0.18628806f));
  p = vfma(p, t, vset1(0.09678418f));
  p = vfma(p, t, vset1(0.37409196f));
  p = vfma(p, t, vset1(1.00002368f));
  p = vfma(p, t, vset1(-1.26551223f));
  const Vec tail = vmul(vmul(t, vset1(0.5f)), vexp(vsub(p, vmul(z, z))));
  const Vec cut = vmul(x, tail);
  return vselect_lt(x, vzero(), cut, vsub(x, cut));
}

// gpt-oss: gate at most 7, up within [-7, 7]; (up + 1) * gate * sigmoid(1.702 gate).
WW_INLINE Vec vswiglu_oai(Vec gate, Vec up) {
  gate = vmin(vset1(7.0f), gate);
  up = vmin(vset1(7.0f), vmax(vset1(-7.0f), up));
  const Vec swish = vmul(gate, vsigmoid(vmul(gate, vset1(1.702f))));
  return vmul(vadd(up, vset1(1.0f)), swish);
}

}  // namespace
