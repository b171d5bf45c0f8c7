// Online softmax of one block, and merging of chunks, written once over a vector type V.
#pragma once

#include <stdint.h>
#include <string.h>

#include "attention/backends/intel_amx/kernels.h"

namespace warpweave::intel_amx {
namespace {

constexpr float kNegativeInfinity = -__builtin_huge_valf();

inline int padded_tokens(int count) {
  return (count + kTokenPadding - 1) / kTokenPadding * kTokenPadding;
}

// 2^x for x <= kMaxSlack or so: minimax polynomials of 2^r on [0, 1), exact at 0. Relative error
// 1.7e-7, or 3e-6 where the result is rounded to bf16 anyway.
template <typename V, bool kForBf16>
V exp2_of(V x) {
  const V r = V::fraction(x);
  V p;
  if constexpr (kForBf16) {
    p = V::fma(V::set1(0.013426688f), r, V::set1(0.0522424682f));
    p = V::fma(p, r, V::set1(0.241280208f));
    p = V::fma(p, r, V::set1(0.693044845f));
  } else {
    p = V::fma(V::set1(0.0018671305f), r, V::set1(0.00901702941f));
    p = V::fma(p, r, V::set1(0.0557999138f));
    p = V::fma(p, r, V::set1(0.24016445f));
    p = V::fma(p, r, V::set1(0.693151312f));
  }
  return V::scale_floor(V::fma(p, r, V::set1(1)), x);
}

// cap * tanh(s * factor). Near 0 an odd polynomial, else 1 - 2 / (e^2y + 1): both keep
// the relative error near one ulp, where the exponential form alone would lose digits for small s.
template <typename V>
V soft_cap(V s, V cap, V factor) {
  const V y = s * factor;
  const V a = V::abs(y);
  const V z = y * y;
  V poly = V::set1(-5.70498872745e-3f);
  poly = V::fma(poly, z, V::set1(2.06390887954e-2f));
  poly = V::fma(poly, z, V::set1(-5.37397155531e-2f));
  poly = V::fma(poly, z, V::set1(1.33314422036e-1f));
  poly = V::fma(poly, z, V::set1(-3.33332819422e-1f));
  const V small = V::fma(poly * z, y, y);
  const V limit = V::set1(20);  // tanh is 1 there, and the power stays finite
  const V bounded = V::select_less(a, limit, a, limit);
  const V e = exp2_of<V, false>(bounded * V::set1(2 * 1.44269504f));
  const V large = V::copysign(V::set1(1) - V::set1(2) / (e + V::set1(1)), y);
  return V::select_less(a, V::set1(0.625f), small, large) * cap;
}

struct SoftmaxArgs {
  float* s;
  uint32_t* p;              // pairs out; unused on f32 tiers
  int cols;                 // padded tokens of the block
  const uint64_t* visible;  // per row, or null
  int count;
  float scale;
  float softcap;
  float* m;
  float* l;
  float* rescale;
};

inline SoftmaxArgs softmax_args(const AttendArgs& args, const BlockView& block, float* s, uint32_t* p,
                                float* rescale) {
  return {s,          p,       padded_tokens(block.count), block.visible, block.count,
          args.scale, args.softcap, args.state.m, args.state.l, rescale};
}

template <typename V>
void cap_row(const SoftmaxArgs& args, float* s) {
  const V cap = V::set1(args.softcap), factor = V::set1(args.scale / args.softcap);
  for (int c = 0; c < args.cols; c += V::kWidth) V::store(s + c, soft_cap(V::load(s + c), cap, factor));
}

template <typename V>
void mask_row(float* s, int cols, uint64_t visible) {
  for (int c = 0; c < cols; c += V::kWidth) {
    V::store(s + c, V::keep_bits(static_cast<uint32_t>(visible >> c), V::load(s + c),
                                 V::set1(kNegativeInfinity)));
  }
}

// The row's maximum, moved if a lane of `top` exceeds it by more than the slack, and the factor for
// what it has accumulated. Most blocks move nothing, so the lanes are compared before they are reduced.
template <typename V>
float move_maximum(const SoftmaxArgs& args, int row, V top, float* rescale_log2) {
  const float old_max = args.m[row];
  *rescale_log2 = 0;
  if (!V::any_greater(top, V::set1(old_max + kMaxSlack))) return old_max;
  const float block_max = V::reduce_max(top);
  if (old_max != kNegativeInfinity) *rescale_log2 = old_max - block_max;
  args.m[row] = block_max;
  return block_max;
}

// Returns whether the row's o has to be multiplied by rescale[row].
template <typename V, bool kPairs>
bool softmax_row(const SoftmaxArgs& args, int row) {
  constexpr int W = V::kWidth;
  float* s = args.s + row * kBlockTokens;
  const float scale = args.softcap > 0 ? 1 : args.scale;
  if (args.softcap > 0) cap_row<V>(args, s);
  const uint64_t all = args.count == 64 ? ~uint64_t{0} : (uint64_t{1} << args.count) - 1;
  const uint64_t visible = args.visible ? args.visible[row] : all;
  if (visible != ~uint64_t{0}) mask_row<V>(s, args.cols, visible);
  V top = V::load(s);
  for (int c = W; c < args.cols; c += W) top = V::max(top, V::load(s + c));
  float rescale_log2;
  const float max = move_maximum(args, row, top * V::set1(scale), &rescale_log2);
  args.rescale[row] = 1;
  if (max == kNegativeInfinity) {
    // Nothing visible so far; also keeps -inf - -inf out of exp2.
    float* p = kPairs ? reinterpret_cast<float*>(args.p + row * (kBlockTokens / 2)) : s;
    for (int c = 0; c < (kPairs ? args.cols / 2 : args.cols); c += W) V::store(p + c, V::zero());
    return false;
  }
  float* l = args.l + row * kMaxLanes;
  V sum = V::load(l);
  if (rescale_log2 < 0) {
    const V shrink = exp2_of<V, kPairs>(V::set1(rescale_log2));
    args.rescale[row] = V::first(shrink);
    sum = sum * shrink;
  }
  const V offset = V::set1(-max), factor = V::set1(scale);
  if constexpr (kPairs) {
    uint32_t* p = args.p + row * (kBlockTokens / 2);
    for (int c = 0; c < args.cols; c += 2 * W) {
      const V e0 = exp2_of<V, true>(V::fma(V::load(s + c), factor, offset));
      const V e1 = exp2_of<V, true>(V::fma(V::load(s + c + W), factor, offset));
      sum = sum + e0;
      sum = sum + e1;
      V::store_pairs(p + c / 2, e0, e1);
    }
  } else {
    for (int c = 0; c < args.cols; c += W) {
      const V e = exp2_of<V, false>(V::fma(V::load(s + c), factor, offset));
      sum = sum + e;
      V::store(s + c, e);
    }
  }
  V::store(l, sum);
  return rescale_log2 < 0;
}

template <typename V, bool kPairs>
bool softmax_rows(const SoftmaxArgs& args, int begin, int end) {
  bool rescale = false;
  for (int row = begin; row < end; ++row) rescale |= softmax_row<V, kPairs>(args, row);
  return rescale;
}

template <typename V>
void sum_lanes(const float* l, int rows, float* sums) {
  for (int row = 0; row < rows; ++row) sums[row] = V::reduce_add(V::load(l + row * kMaxLanes));
}

template <typename V>
void merge(const MergeArgs& args) {
  constexpr int W = V::kWidth;
  for (int row = 0; row < args.rows; ++row) {
    const float m = args.m[row], total_m = args.total_m[row];
    if (m == kNegativeInfinity) continue;
    const float top = m > total_m ? m : total_m;
    const float from_chunk = V::first(exp2_of<V, false>(V::set1(m - top)));
    const float from_total =
        total_m == kNegativeInfinity ? 0.0f : V::first(exp2_of<V, false>(V::set1(total_m - top)));
    args.total_m[row] = top;
    args.total_l[row] = args.total_l[row] * from_total + args.l[row] * from_chunk;
    float* total_o = args.total_o + row * args.v_dim;
    const float* o = args.o + row * args.v_dim;
    for (int d = 0; d < args.v_dim; d += W) {
      V::store(total_o + d,
               V::fma(V::load(o + d), V::set1(from_chunk), V::load(total_o + d) * V::set1(from_total)));
    }
  }
}

}  // namespace
}  // namespace warpweave::intel_amx
