// What tokens of a KDA chunk are to each other where it forgets too much for chunk_prepare_kda.cuh's short way, in half precision, and
// in trees.
//
// Two tokens meet through one that stands between them, so that no exponent is positive. Of sub-chunks of 16 tokens, a warp each
// for K K^T and for Q K^T, rows i of one meet rows j of an earlier one through the tokens m before i's and n at the end of j's:
// 2^(G_i - G_m) 2^(G_m - G_n) 2^(G_n - G_j). Within a sub-chunk the later half of 16 and of 8 tokens meets the earlier one through
// its own first token, and the tokens of each four meet one after the other, without tensor cores. In a tree: pair by pair.
#pragma once

#include "linear/cuda/chunk_prepare.cuh"

namespace warpweave::linear {

// What two rows of a tile are multiplied by, in this lane's columns of `step`: 2^(G_row - G_reference) of a row that is `later` than
// its reference, 2^(G_reference - G_row) of an earlier one.
template <class C>
WW_DEVICE typename ChunkPrepare<C>::Scales ChunkPrepare<C>::scales(const int (&row)[2], const int (&reference)[2], const bool (&later)[2], int step) const {
  Scales s;
  const int c = 16 * step + column_;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 own0 = *reinterpret_cast<const float2*>(&decay(row[i], c)), own1 = *reinterpret_cast<const float2*>(&decay(row[i], c + 8));
    const float2 ref0 = *reinterpret_cast<const float2*>(&decay(reference[i], c));
    const float2 ref1 = *reinterpret_cast<const float2*>(&decay(reference[i], c + 8));
    const float sign = later[i] ? 1.0f : -1.0f;
    s.low[i] = make_float2(ptx::exp2_approx(sign * (own0.x - ref0.x)), ptx::exp2_approx(sign * (own0.y - ref0.y)));
    s.high[i] = make_float2(ptx::exp2_approx(sign * (own1.x - ref1.x)), ptx::exp2_approx(sign * (own1.y - ref1.y)));
  }
  return s;
}

template <class C>
WW_DEVICE ptx::u32 ChunkPrepare<C>::scaled(u32 pair, float2 by) { return E::pack(E::low(pair) * by.x, E::high(pair) * by.y); }

template <class C>
WW_DEVICE void ChunkPrepare<C>::scale(u32 (&r)[4], const Scales& s) {
  r[0] = scaled(r[0], s.low[0]);
  r[1] = scaled(r[1], s.low[1]);
  r[2] = scaled(r[2], s.high[0]);
  r[3] = scaled(r[3], s.high[1]);
}

// Of kStepsAtOnce steps, this warp's rows as those that meet earlier sub-chunks, in left_, and of K as those that later ones meet, in
// its tile.
template <class C>
WW_DEVICE void ChunkPrepare<C>::turn_to_others(int first) {
  const int own[2] = {row_, row_ + 8};
  const int before[2] = {16 * warp_ - 1, 16 * warp_ - 1}, last[2] = {16 * warp_ + 15, 16 * warp_ + 15};
  const bool later[2] = {true, true}, earlier[2] = {false, false};
#pragma unroll
  for (int i = 0; i < kStepsAtOnce; ++i) {
    const int step = first + i, of_all = first_step() + step;
    u32 k[4];
    load_left(k, own_tile(), 16 * warp_, of_all);
    if (warp_ > 0) {
#pragma unroll
      for (int r = 0; r < 4; ++r) left_[i][r] = k[r];
      scale(left_[i], scales(own, before, later, step));
    }
    if (!has_k() || warp_ == 3) continue;
    scale(k, scales(own, last, earlier, step));
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 4; ++r) ptx::store_shared_4(k_ + piece_offset(row_ + r % 2 * 8, 2 * of_all + r / 2) + lane_ % 4 * 4, k[r]);
  }
}

// This warp's rows against an earlier sub-chunk; kNext: the one right before.
template <class C>
template <int kBlock, bool kNext>
WW_DEVICE void ChunkPrepare<C>::multiply_block(int first) {
  const float* const from = &decay(16 * warp_ - 1, 16 * first + column_);
  const float* const to = &decay(16 * kBlock + 15, 16 * first + column_);
#pragma unroll
  for (int i = 0; i < kStepsAtOnce; ++i) {
    u32 a[4], b[4];
    load_left(b, k_, 16 * kBlock, first_step() + first + i);
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = left_[i][r];
    if constexpr (!kNext) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 g = *reinterpret_cast<const float2*>(from + 16 * i + 8 * half);
        const float2 r = *reinterpret_cast<const float2*>(to + 16 * i + 8 * half);
        const float2 by = make_float2(ptx::exp2_approx(g.x - r.x), ptx::exp2_approx(g.y - r.y));
        a[2 * half] = scaled(a[2 * half], by), a[2 * half + 1] = scaled(a[2 * half + 1], by);
      }
    }
    add(kk_, 2 * kBlock, a, b[0], b[2]);
    add(kk_, 2 * kBlock + 1, a, b[1], b[3]);
  }
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_others() {
#pragma unroll 1
  for (int step = 0; step < C::kPart / 16; step += kStepsAtOnce) {
    turn_to_others(step);
    __syncthreads();
    if (warp_ == 1) multiply_block<0, true>(step);
    if (warp_ == 2) multiply_block<0, false>(step), multiply_block<1, true>(step);
    if (warp_ == 3) multiply_block<0, false>(step), multiply_block<1, false>(step), multiply_block<2, true>(step);
  }
}

// Fours of tokens within this warp's rows: eight lanes each, four channels a lane at a time.
template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_fours() {
  const int first = 16 * warp_ + lane_ / 8 * 4;
  float sums[6] = {};  // (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)
  for (int channel = lane_ % 8 * 4; channel < C::kPart; channel += 32) {
    const int of_all = 16 * first_step() + channel;
    const auto four = [&](float(&to)[4], u32 tile, int token) {
      const uint2 w = ptx::load_shared_8(tile + piece_offset(token, of_all / 8) + of_all % 8 * 2);
      to[0] = E::low(w.x), to[1] = E::high(w.x), to[2] = E::low(w.y), to[3] = E::high(w.y);
    };
    float from[3][4];  // k of the first three, decayed to the token at hand
    float before[4];
    take_four(before, &decay(first, channel));
    four(from[0], k_, first);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      float now[4], own[4], by[4];
      take_four(now, &decay(first + i, channel));
      four(own, own_tile(), first + i);
#pragma unroll
      for (int e = 0; e < 4; ++e) by[e] = ptx::exp2_approx(now[e] - before[e]), before[e] = now[e];
#pragma unroll
      for (int j = 0; j < i; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) from[j][e] *= by[e], sums[i * (i - 1) / 2 + j] += own[e] * from[j][e];
      }
      if (i < 3) four(from[i % 3], k_, first + i);
    }
  }
#pragma unroll
  for (int i = 1; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < i; ++j) {
      const int at = i * (i - 1) / 2 + j;
      const float sum = eight_sum(sums[at]);
      if (lane_ % 8 == at) tokens_.fours[!has_k()][first + i][j] = sum;
    }
  }
  __syncwarp();
}

// To where accumulators have them.
template <class C>
WW_DEVICE void ChunkPrepare<C>::take_fours() {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = lane_ / 4 + e / 2 * 8, column = 8 * n + column_ + e % 2;
      if (row / 4 == column / 4 && column < row) cross_[n][e] = tokens_.fours[!has_k()][16 * warp_ + row][column % 4];
    }
  }
  take_own();
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::clear_cross() {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) cross_[n][e] = 0;
  }
}

// Within this warp's 16 rows: halves of kHalf rows.
template <class C>
template <int kHalf>
WW_DEVICE void ChunkPrepare<C>::multiply_within() {
  int own[2], reference[2];
  bool later[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane_ / 4 + 8 * i;
    own[i] = 16 * warp_ + row;
    later[i] = row / kHalf % 2 == 1;
    reference[i] = 16 * warp_ + (later[i] ? row / kHalf : row / kHalf + 1) * kHalf;
  }
#pragma unroll 1
  for (int step = 0; step < C::kPart / 16; ++step) {
    u32 left[4], right[4];
    load_left(right, k_, 16 * warp_, first_step() + step);
    load_left(left, own_tile(), 16 * warp_, first_step() + step);
    const Scales s = scales(own, reference, later, step);
    scale(left, s);
    scale(right, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) left[i] = later[i % 2] ? left[i] : 0, right[i] = later[i % 2] ? 0 : right[i];
    E::mma(cross_[0], left, right[0], right[2]);
    if constexpr (kHalf < 8) E::mma(cross_[1], left, right[1], right[3]);
  }
  // What rows of other pairs of halves gave is dropped.
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = lane_ / 4 + e / 2 * 8, column = 8 * n + column_ + e % 2;
      if (row / (2 * kHalf) != column / (2 * kHalf)) cross_[n][e] = 0;
    }
  }
  take_own();
}

// To the blocks on the diagonal.
template <class C>
WW_DEVICE void ChunkPrepare<C>::take_own() {
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    if (block != warp_) continue;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) kk_[8 * block + 4 * n + e] += cross_[n][e];
    }
  }
  clear_cross();
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_far() {
  if (!is_tree()) multiply_fours();
  if (first_step() == 0) clear();
  if (is_tree()) return multiply_pairs();
  clear_cross();
  multiply_within<8>();
  multiply_within<4>();
  take_fours();
  __syncthreads();  // now K may be turned
  multiply_others();
}

template <class C>
WW_DEVICE float ChunkPrepare<C>::value(u32 tile, int row, int channel) const {
  const u32 pair = ptx::load_shared_4(tile + piece_offset(row, channel / 8) + channel % 8 / 2 * 4);
  return channel % 2 == 0 ? E::low(pair) : E::high(pair);
}

// Of a tree, pair by pair.
template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_pairs() {
  u32 wanted = 0;
#pragma unroll
  for (int at = 0; at < 32; ++at) {
    const int row = row_ + at / 2 % 2 * 8, column = 8 * (at / 4) + column_ + at % 2;
    if (row < chunk_.tokens && follows(row, column)) wanted |= 1u << at;
  }
  const int first = 16 * first_step(), end = min(C::kPart, p_.k_dim - first);
#pragma unroll 1
  for (int c = 0; c < end; ++c) {
    const float own[2] = {value(own_tile(), row_, first + c), value(own_tile(), row_ + 8, first + c)};
    const float sums[2] = {decay(row_, c), decay(row_ + 8, c)};
#pragma unroll
    for (int pair = 0; pair < 16; ++pair) {
      const int column = 8 * (pair / 2) + column_ + pair % 2;
      const float k = value(k_, column, first + c), sum = decay(column, c);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * (pair / 2) + 2 * i + pair % 2;
        const float product = own[i] * (k * ptx::exp2_approx(sums[i] - sum));
        kk_[at] += wanted >> at & 1 ? product : 0.0f;
      }
    }
  }
}

}  // namespace warpweave::linear
