// The row-wise kernels of one tier, written on simd16.h. A tier's .cc includes this file once.
#pragma once

#include "ops/kernels/elementwise_kernels.h"
#include "ops/kernels/simd16.h"

namespace {

using namespace warpweave;

constexpr int kLanes = 16;

// Calls body(i, count) for runs of up to 16 elements; count is 16 except for the last run.
template <class Body>
WW_INLINE void each_run(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, static_cast<int>(n - i));
}
WW_INLINE Vec load_run(const float* p, int count, float fill = 0.0f) {
  return count == kLanes ? vload(p) : vload_first(p, count, fill);
}
WW_INLINE void store_run(float* p, Vec v, int count) {
  if (count == kLanes) vstore(p, v); else vstore_first(p, v, count);
}
WW_INLINE void store_run_bf16(uint16_t* p, Vec v, int count) {
  if (count == kLanes) {
    vstore_bf16(p, v);
    return;
  }
  uint16_t lanes[kLanes];
  vstore_bf16(lanes, v);
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

}  // namespace

#include "ops/kernels/quantize_rows.h"

namespace {

void rms_norm_row(const RmsNormRow& row) {
  Vec sums[2] = {vzero(), vzero()};
  int64_t i = 0;
  for (; i + 2 * kLanes <= row.cols; i += 2 * kLanes) {
    const Vec a = vload(row.x + i), b = vload(row.x + i + kLanes);
    sums[0] = vfma(a, a, sums[0]);
    sums[1] = vfma(b, b, sums[1]);
  }
  for (; i < row.cols; i += kLanes) {
    const int64_t left = row.cols - i;
    const Vec a = load_run(row.x + i, left < kLanes ? static_cast<int>(left) : kLanes);
    sums[0] = vfma(a, a, sums[0]);
  }
  const float mean = vreduce_add(vadd(sums[0], sums[1])) / static_cast<float>(row.cols);
  const Vec scale = vset1(1.0f / __builtin_sqrtf(mean + row.eps));
  const Vec offset = vset1(row.weight_offset);
  each_run(row.cols, [&](int64_t at, int count) __attribute__((always_inline)) {
    Vec v = vmul(load_run(row.x + at, count), scale);
    if (row.weight) v = vmul(v, vadd(load_run(row.weight + at, count), offset));
    if (row.out_is_bf16) {
      store_run_bf16(static_cast<uint16_t*>(row.out) + at, v, count);
    } else {
      float* out = static_cast<float*>(row.out) + at;
      store_run(out, row.accumulate ? vadd(load_run(out, count), v) : v, count);
    }
  });
}

void layer_norm_row(const LayerNormRow& row) {
  // Lanes past the end hold `mean`, so that their distance from it is zero.
  const auto sum_of = [&](float mean, bool squares) __attribute__((always_inline)) {
    Vec sum = vzero();
    const Vec shift = vset1(mean);
    each_run(row.cols, [&](int64_t at, int count) __attribute__((always_inline)) {
      const Vec d = vsub(load_run(row.x + at, count, mean), shift);
      sum = squares ? vfma(d, d, sum) : vadd(sum, d);
    });
    return vreduce_add(sum);
  };
  const float count = static_cast<float>(row.cols);
  const float mean = sum_of(0.0f, false) / count;
  const Vec scale = vset1(1.0f / __builtin_sqrtf(sum_of(mean, true) / count + row.eps));
  each_run(row.cols, [&](int64_t at, int n) __attribute__((always_inline)) {
    Vec v = vmul(vmul(vsub(load_run(row.x + at, n), vset1(mean)), scale), load_run(row.weight + at, n));
    if (row.bias) v = vadd(v, load_run(row.bias + at, n));
    if (row.out_is_bf16) {
      store_run_bf16(static_cast<uint16_t*>(row.out) + at, v, n);
    } else {
      store_run(static_cast<float*>(row.out) + at, v, n);
    }
  });
}

template <GluActivation kActivation>
void glu_row(const GluRow& row) {
  each_run(row.count, [&](int64_t at, int count) __attribute__((always_inline)) {
    const Vec g = load_run(row.gate + at, count), u = load_run(row.up + at, count);
    Vec v = g;
    if constexpr (kActivation == GluActivation::silu) v = vmul(vsilu(g), u);
    if constexpr (kActivation == GluActivation::gelu_tanh) v = vmul(vgelu_tanh(g), u);
    if constexpr (kActivation == GluActivation::gelu) v = vmul(vgelu(g), u);
    if constexpr (kActivation == GluActivation::swiglu_oai) v = vswiglu_oai(g, u);
    if (row.out_is_bf16) {
      store_run_bf16(static_cast<uint16_t*>(row.out) + at, v, count);
    } else {
      store_run(static_cast<float*>(row.out) + at, v, count);
    }
  });
}

void glu(GluActivation activation, const GluRow& row) {
  switch (activation) {
    case GluActivation::silu: glu_row<GluActivation::silu>(row); break;
    case GluActivation::gelu_tanh: glu_row<GluActivation::gelu_tanh>(row); break;
    case GluActivation::gelu: glu_row<GluActivation::gelu>(row); break;
    case GluActivation::swiglu_oai: glu_row<GluActivation::swiglu_oai>(row); break;
    case GluActivation::none: break;
  }
}

void add_row(float* x, const float* y, int64_t n) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    store_run(x + at, vadd(load_run(x + at, count), load_run(y + at, count)), count);
  });
}

void add_scaled_row(float* x, const float* y, float scale, int64_t n) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    store_run(x + at, vfma(vset1(scale), load_run(y + at, count), load_run(x + at, count)), count);
  });
}

void scale_row(float* x, float scale, int64_t n) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    store_run(x + at, vmul(load_run(x + at, count), vset1(scale)), count);
  });
}

void softcap_row(float* x, float cap, int64_t n) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    const Vec t = vtanh(vdiv(load_run(x + at, count), vset1(cap)));
    store_run(x + at, vmul(t, vset1(cap)), count);
  });
}

float max_row(const float* x, int64_t n) {
  // vmax returns its second operand when the first is NaN.
  Vec best = vset1(-__builtin_inff());
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    best = vmax(load_run(x + at, count, -__builtin_inff()), best);
  });
  return vreduce_max(best);
}

int64_t argmax_row(const float* x, int64_t n) {
  const float best = max_row(x, n);
  if (!(best > -__builtin_inff())) return 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    const uint32_t hits =
        vequal_bits(load_run(x + i, count, -__builtin_inff()), vset1(best));
    if (hits) return i + __builtin_ctz(hits);
  }
  return 0;
}

float sum_exp_row(const float* x, float shift, int64_t n) {
  Vec sums[2] = {vzero(), vzero()};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    sums[0] = vadd(sums[0], vexp(vsub(vload(x + i), vset1(shift))));
    sums[1] = vadd(sums[1], vexp(vsub(vload(x + i + kLanes), vset1(shift))));
  }
  for (; i < n; i += kLanes) {
    const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    sums[0] = vadd(sums[0], vexp(vsub(load_run(x + i, count, -__builtin_inff()), vset1(shift))));
  }
  return vreduce_add(vadd(sums[0], sums[1]));
}

void exp_scaled_row(const float* x, float shift, float scale, int64_t n, float* out) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    const Vec v = vmul(vsub(load_run(x + at, count), vset1(shift)), vset1(scale));
    store_run(out + at, vexp(v), count);
  });
}

void subtract_row(const float* x, float shift, int64_t n, float* out) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    store_run(out + at, vsub(load_run(x + at, count), vset1(shift)), count);
  });
}

void rope_head(float* head, const float* cos, const float* sin, int half, bool interleaved) {
  if (interleaved) {
    for (int i = 0; i < half; ++i) {
      const float a = head[2 * i], b = head[2 * i + 1];
      head[2 * i] = a * cos[i] - b * sin[i];
      head[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
  each_run(half, [&](int64_t at, int count) __attribute__((always_inline)) {
    const Vec c = load_run(cos + at, count), s = load_run(sin + at, count);
    const Vec a = load_run(head + at, count), b = load_run(head + half + at, count);
    store_run(head + at, vsub(vmul(a, c), vmul(b, s)), count);
    store_run(head + half + at, vadd(vmul(b, c), vmul(a, s)), count);
  });
}

void f32_to_bf16(const float* x, int64_t n, uint16_t* out) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    store_run_bf16(out + at, load_run(x + at, count), count);
  });
}

void f32_to_f16(const float* x, int64_t n, uint16_t* out) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    const Vec v = load_run(x + at, count);
    if (count == kLanes) {
      vstore_half(out + at, v);
      return;
    }
    uint16_t lanes[kLanes];
    vstore_half(lanes, v);
    for (int i = 0; i < count; ++i) out[at + i] = lanes[i];
  });
}

template <class Load>
WW_INLINE void widen_row(const uint16_t* x, int64_t n, float* out, Load load) {
  each_run(n, [&](int64_t at, int count) __attribute__((always_inline)) {
    if (count == kLanes) {
      vstore(out + at, load(x + at));
      return;
    }
    uint16_t lanes[kLanes] = {};
    for (int i = 0; i < count; ++i) lanes[i] = x[at + i];
    vstore_first(out + at, load(lanes), count);
  });
}
void bf16_to_f32(const uint16_t* x, int64_t n, float* out) {
  widen_row(x, n, out, [](const uint16_t* p) __attribute__((always_inline)) {
    return vload_bf16(p);
  });
}
void f16_to_f32(const uint16_t* x, int64_t n, float* out) {
  widen_row(x, n, out, [](const uint16_t* p) __attribute__((always_inline)) {
    return vload_half(p);
  });
}

constexpr ElementwiseKernels elementwise_kernels() {
  return {rms_norm_row, layer_norm_row, glu, add_row, add_scaled_row, scale_row, softcap_row, argmax_row, max_row,
          sum_exp_row, exp_scaled_row, subtract_row, rope_head, f32_to_bf16, bf16_to_f32, f32_to_f16,
          f16_to_f32, quantize_fp8<3, 7, 0x7e>, quantize_fp8<2, 15, 0x7b>, quantize_fp4};
}

}  // namespace
