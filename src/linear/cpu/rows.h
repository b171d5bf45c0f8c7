// The row-wise kernels of one tier: conversions, convolution, gates, norms. Included by kernels_<tier>.cc once.
#pragma once

#include "linear/cpu/kernels.h"
#include "ops/kernels/simd16.h"

namespace {

using namespace warpweave;

constexpr int kLanes = 16;

WW_INLINE Vec load16(const void* x, LinearCpuType type, int64_t at) {
  if (type == LinearCpuType::f32) return vload(static_cast<const float*>(x) + at);
  const uint16_t* half = static_cast<const uint16_t*>(x) + at;
  return type == LinearCpuType::bf16 ? vload_bf16(half) : vload_half(half);
}
WW_INLINE void store16(void* out, LinearCpuType type, int64_t at, Vec v) {
  if (type == LinearCpuType::f32) return vstore(static_cast<float*>(out) + at, v);
  uint16_t* half = static_cast<uint16_t*>(out) + at;
  type == LinearCpuType::bf16 ? vstore_bf16(half, v) : vstore_half(half, v);
}

// n is a multiple of 16 here and below.
void widen(const void* x, LinearCpuType type, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) vstore(out + i, load16(x, type, i));
}
void narrow(const float* x, int64_t n, LinearCpuType type, void* out) {
  for (int64_t i = 0; i < n; i += kLanes) store16(out, type, i, vload(x + i));
}

void conv(const LinearConvRows& r) {
  for (int i = 0; i < r.tokens; ++i) {
    const int32_t* sources = r.sources + i * r.width;
    for (int c = 0; c < r.dim; c += kLanes) {
      Vec sum = r.bias != nullptr ? vload(r.bias + c) : vzero();
      for (int j = 0; j < r.width; ++j) {
        sum = vfma(vload(r.weight + j * r.dim + c), vload(r.x + sources[j] * r.x_stride + c), sum);
      }
      vstore(r.out + i * r.out_stride + c, r.silu ? vsilu(sum) : sum);
    }
  }
}

float dot(const float* x, const float* y, int64_t n) {
  Vec sum = vzero();
  for (int64_t i = 0; i < n; i += kLanes) sum = vfma(vload(x + i), vload(y + i), sum);
  return vreduce_add(sum);
}

void multiply(const float* x, const float* y, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) vstore(out + i, vmul(vload(x + i), vload(y + i)));
}

void scale(const float* x, float by, int64_t n, float* out) {
  const Vec factor = vset1(by);
  for (int64_t i = 0; i < n; i += kLanes) vstore(out + i, vmul(vload(x + i), factor));
}

void l2norm(const LinearMatrix& to, bool normalize, float eps, float by) {
  float* x = to.x;
  for (int t = 0; t < to.rows; ++t, x += to.stride) {
    scale(x, normalize ? by / __builtin_sqrtf(dot(x, x, to.cols) + eps) : by, to.cols, x);
  }
}

void exp_row(const float* g, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) vstore(out + i, vexp(vload(g + i)));
}

// log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)); log1p(y) = 2 atanh(y / (2 + y)), an odd series in at most 1/3.
WW_INLINE Vec vsoftplus(Vec x) {
  const Vec y = vexp(vsub(vzero(), vabs(x)));
  const Vec s = vdiv(y, vadd(vset1(2.0f), y)), z = vmul(s, s);
  Vec p = vset1(1.0f / 15);
  for (int odd = 13; odd >= 3; odd -= 2) p = vfma(p, z, vset1(1.0f / static_cast<float>(odd)));
  p = vfma(vmul(p, z), s, s);
  return vadd(vmax(x, vzero()), vadd(p, p));
}

void decay_row(const float* a, const float* bias, float rate, int64_t n, float* out) {
  const Vec minus = vset1(-rate);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec x = bias != nullptr ? vadd(vload(a + i), vload(bias + i)) : vload(a + i);
    vstore(out + i, vexp(vmul(minus, vsoftplus(x))));
  }
}

void norm_gate(const LinearNormGate& row) {
  float* const o = row.o;
  const float by = 1.0f / __builtin_sqrtf(dot(o, o, row.dim) / static_cast<float>(row.dim) + row.eps);
  for (int i = 0; i < row.dim; i += kLanes) {
    Vec v = vmul(vmul(vload(o + i), vset1(by)), vload(row.weight + i));
    if (row.z != nullptr) {
      const Vec gate = vload(row.z + i);
      v = vmul(v, row.silu ? vsilu(gate) : vsigmoid(gate));
    }
    vstore(o + i, v);
  }
}

}  // namespace
