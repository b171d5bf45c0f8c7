// S of a tile to P, by a warpgroup that has 64 rows (wgmma's accumulators): for kernels that stream KV tiles.
//
// A thread has two rows' share of a tile: lane / 4 and lane / 4 + 8 of its warp's 16. Maxima move, and O's factor with
// them, only when a row's has grown by more than the threshold: P then reaches 2^threshold, and the sums use the same
// maximum.
#pragma once

#include "device/cuda/wgmma_registers.cuh"

namespace warpweave::cuda {

struct RowSoftmax {
  static constexpr float kNone = -1e30f;  // the maximum of no scores; differences with it are finite
  float maximum[2], sum[2];  // in units of S; of this thread's share
  float factor[2];           // what O is due to be multiplied with, where `moved`
  bool moved = false;

  WW_DEVICE void begin() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      maximum[i] = kNone;
      sum[i] = 0;
    }
  }

  // `scale_log2`: of S, to exponents of 2; `threshold`: in units of S.
  template <int kScores>
  WW_DEVICE void turn_into_probabilities(float (&s)[kScores], float scale_log2, float threshold) {
    float tops[2];
    find_maxima(s, tops);
    moved = __any_sync(~0u, tops[0] > maximum[0] + threshold || tops[1] > maximum[1] + threshold);
    if (moved) move_maxima(tops, scale_log2, threshold);
    const float shift[2] = {-maximum[0] * scale_log2, -maximum[1] * scale_log2};
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = ptx::exp2_approx(__fmaf_rn(s[i], scale_log2, shift[i / 2 % 2]));
    float sums[4];
#pragma unroll
    for (int i = 0; i < kScores; ++i) sums[i % 4] = i < 4 ? s[i] : sums[i % 4] + s[i];
    sum[0] += sums[0] + sums[1];
    sum[1] += sums[2] + sums[3];
  }

 private:
  WW_DEVICE void move_maxima(const float (&tops)[2], float scale_log2, float threshold) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float m = tops[row];
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      if (!(m > maximum[row] + threshold)) m = maximum[row];
      factor[row] = ptx::exp2_approx((maximum[row] - m) * scale_log2);
      maximum[row] = m;
      sum[row] *= factor[row];
    }
  }
};

// P of a tile as the A operand of O's WGMMAs.
template <class Element, int kScores>
WW_DEVICE void pack_probabilities(const float (&s)[kScores], ptx::u32 (&probability)[kScores / 8][4]) {
#pragma unroll
  for (int i = 0; i < kScores; i += 2) probability[i / 8][i / 2 % 4] = Element::pack(s[i], s[i + 1]);
}

}  // namespace warpweave::cuda
