// KDA's part of chunk_prepare.cuh, where a decay is another one per token and channel: sums of decays, what each two tokens of a
// chunk are to each other, and the operands that chunk_scan reads.
//
// Two tokens meet through one that stands between them, so that no exponent is positive. Of sub-chunks of 16 tokens, a warp each,
// rows i of one meet rows j of an earlier one through the tokens m before i's and n at the end of j's:
// 2^(G_i - G_m) 2^(G_m - G_n) 2^(G_n - G_j). Within a sub-chunk the later half of 16 and of 8 tokens meets the earlier one through
// its own first token, and the tokens of each four meet one after the other, without tensor cores. In a tree: pair by pair.
//
// Where a chunk forgets little (is_near()), all tokens meet through its middle one, m: 2^(G_i - G_m) 2^(G_m - G_j). One of the
// two exponents may be positive, but is at most kMostNearHalf, so that no wanted pair overflows; pairs of a later token j can,
// and are not read. Only for bf16, whose exponents reach as far as those of f32.
#pragma once

#include "linear/cuda/chunk_prepare.cuh"

namespace warpweave::linear {

template <class Element>
inline constexpr bool kWideExponents = false;
template <>
inline constexpr bool kWideExponents<ptx::Bf16> = true;
// Log2 of the most that a chunk forgets, and from its middle to an end, in multiply_near().
inline constexpr float kMostNearDecay = 120, kMostNearHalf = 60;
inline constexpr int kNearToken = 31;

template <class C>
WW_DEVICE void ChunkPrepare<C>::put_decays(int head) {
  constexpr int kFours = C::kPart / 4, kAtOnce = 8, kRows = C::kThreads / kFours;  // kAtOnce: loads under way
  const LinearAttnRows& rows = p_.has_gates ? p_.gates.a : p_.g;
  const float slope = p_.has_gates ? p_.gates.a_log[head] : 0.0f;
  const int channel = threadIdx.x % kFours * 4, of_all = 16 * first_step() + channel;
  const bool there = of_all < p_.k_dim;
  const int64_t from = chunk_.first * rows.token_stride + head * rows.head_stride + of_all;
  DecayBits bits;
  if (there && p_.has_gates && p_.gates.dt_bias != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) bits.bias[i] = p_.gates.dt_bias[head * p_.k_dim + of_all + i];
  }
  for (int first = threadIdx.x / kFours; first < 64; first += kAtOnce * kRows) {
    u32 a[kAtOnce][4] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int token = first + i * kRows;
      if (there && token < chunk_.tokens) load_four_bits(a[i], rows.data, from + token * rows.token_stride, rows.dtype, p_.vectors);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int token = first + i * kRows;
      float four[4] = {};
#pragma unroll
      for (int e = 0; e < 4; ++e) bits.a[e] = a[i][e];
      if (there && token < chunk_.tokens) log2_decays_of(four, p_, bits, slope);
      *reinterpret_cast<float4*>(&decay(token, channel)) = make_float4(four[0], four[1], four[2], four[3]);
    }
  }
}

// Of k and q; q k of a token.
template <class C>
WW_DEVICE void ChunkPrepare<C>::norms() {
  float kk[2] = {}, qq[2] = {}, qk[2] = {};
#pragma unroll
  for (int step = 0; step < C::kDim / 16; ++step) {
    u32 k[4], q[4];
    load_left(k, k_, 16 * warp_, step);
    load_left(q, q_, 16 * warp_, step);
    add_squares(kk, k, k);
    add_squares(qq, q, q);
    add_squares(qk, q, k);
  }
  put_norms(kk, qq);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = row_sum(qk[i]);
    if (column_ == 0) tokens_.qk[row_ + 8 * i] = sum;
  }
}

// G of every token and channel of the part.
template <class C>
WW_DEVICE void ChunkPrepare<C>::sum_decays() {
  bool far = is_tree() || !kWideExponents<E>;
  for (int channel = threadIdx.x; channel < C::kPart; channel += C::kThreads) {
    float sum = 0;
    if (!is_tree()) {
#pragma unroll 16
      for (int i = 0; i < 64; ++i) decay(i, channel) = sum += decay(i, channel);
      const float middle = decay(kNearToken, channel);
      far = far || sum < -kMostNearDecay || decay(0, channel) - middle > kMostNearHalf || middle - sum > kMostNearHalf;
    } else {
      for (int i = 0; i < chunk_.tokens; ++i) {
        const int parent = parent_of(i);
        if (parent >= 0) decay(i, channel) += decay(parent, channel);
      }
    }
  }
  far = __any_sync(~0u, far);
  if (lane_ == 0) tokens_.far[warp_] = far;
  __syncthreads();
}

template <class C>
WW_DEVICE bool ChunkPrepare<C>::is_near() const {
  return !(tokens_.far[0] || tokens_.far[1] || tokens_.far[2] || tokens_.far[3]);
}

// Pieces of k 2^(G_middle - G) stand where the decays of their token did.
template <class C>
WW_DEVICE ptx::u32 ChunkPrepare<C>::near_address(int row, int piece) const {
  return ptx::smem_address(&decay(row, 0)) + (piece ^ (row / 4 % 2)) * 16;
}

// As multiply(), of what write_operands<true>() left.
template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_near() {
#pragma unroll
  for (int step = 0; step < C::kPart / 16; ++step) {
    u32 k[4], q[4];
    load_left(k, k_, 16 * warp_, first_step() + step);
    load_left(q, q_, 16 * warp_, first_step() + step);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n > warp_) continue;
      u32 b[4];
      ptx::ldmatrix_x4(b, near_address(16 * n + lane_ % 8 + lane_ / 16 * 8, 2 * step + lane_ / 8 % 2));
      add(kk_, 2 * n, k, b[0], b[1]);
      add(kk_, 2 * n + 1, k, b[2], b[3]);
      add(qk_, 2 * n, q, b[0], b[1]);
      add(qk_, 2 * n + 1, q, b[2], b[3]);
    }
  }
}

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

// Of kStepsAtOnce steps, this warp's rows as those that meet earlier sub-chunks, in left_ and in Q's tile, and as those that later
// ones meet, in K's.
template <class C>
WW_DEVICE void ChunkPrepare<C>::turn_to_others(int first) {
  const int own[2] = {row_, row_ + 8};
  const int before[2] = {16 * warp_ - 1, 16 * warp_ - 1}, last[2] = {16 * warp_ + 15, 16 * warp_ + 15};
  const bool later[2] = {true, true}, earlier[2] = {false, false};
#pragma unroll
  for (int i = 0; i < kStepsAtOnce; ++i) {
    const int step = first + i, of_all = first_step() + step;
    u32 k[4];
    load_left(k, k_, 16 * warp_, of_all);
    if (warp_ > 0) {
      const Scales s = scales(own, before, later, step);
      u32 q[4];
      load_left(q, q_, 16 * warp_, of_all);
      scale(q, s);
      put_left(q_, q, of_all);
#pragma unroll
      for (int r = 0; r < 4; ++r) left_[i][r] = k[r];
      scale(left_[i], s);
    }
    if (warp_ < 3) {
      scale(k, scales(own, last, earlier, step));
      put_left(k_, k, of_all);
    }
  }
}

// Where load_left has them from.
template <class C>
WW_DEVICE void ChunkPrepare<C>::put_left(u32 tile, const u32 (&r)[4], int step) const {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) ptx::store_shared_4(tile + piece_offset(row_ + i % 2 * 8, 2 * step + i / 2) + lane_ % 4 * 4, r[i]);
}

// This warp's rows against an earlier sub-chunk; kNext: the one right before.
template <class C>
template <int kBlock, bool kNext>
WW_DEVICE void ChunkPrepare<C>::multiply_block(int first) {
  const float* const from = &decay(16 * warp_ - 1, 16 * first + column_);
  const float* const to = &decay(16 * kBlock + 15, 16 * first + column_);
#pragma unroll
  for (int i = 0; i < kStepsAtOnce; ++i) {
    u32 k[4], q[4], b[4];
    load_left(q, q_, 16 * warp_, first_step() + first + i);
    load_left(b, k_, 16 * kBlock, first_step() + first + i);
#pragma unroll
    for (int r = 0; r < 4; ++r) k[r] = left_[i][r];
    if constexpr (!kNext) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 g = *reinterpret_cast<const float2*>(from + 16 * i + 8 * half);
        const float2 r = *reinterpret_cast<const float2*>(to + 16 * i + 8 * half);
        const float2 by = make_float2(ptx::exp2_approx(g.x - r.x), ptx::exp2_approx(g.y - r.y));
        k[2 * half] = scaled(k[2 * half], by), k[2 * half + 1] = scaled(k[2 * half + 1], by);
        q[2 * half] = scaled(q[2 * half], by), q[2 * half + 1] = scaled(q[2 * half + 1], by);
      }
    }
    add(kk_, 2 * kBlock, k, b[0], b[2]);
    add(kk_, 2 * kBlock + 1, k, b[1], b[3]);
    add(qk_, 2 * kBlock, q, b[0], b[2]);
    add(qk_, 2 * kBlock + 1, q, b[1], b[3]);
  }
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_others() {
  for (int step = 0; step < C::kPart / 16; step += kStepsAtOnce) {
    turn_to_others(step);
    __syncthreads();
    if (warp_ == 1) multiply_block<0, true>(step);
    if (warp_ == 2) multiply_block<0, false>(step), multiply_block<1, true>(step);
    if (warp_ == 3) multiply_block<0, false>(step), multiply_block<1, false>(step), multiply_block<2, true>(step);
  }
}

// Fours of tokens within this warp's rows: eight lanes each, a piece of channels a lane at a time.
template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_fours() {
  const int first = 16 * warp_ + lane_ / 8 * 4;
  float kk[6] = {}, qk[6] = {};  // (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)
  for (int piece = lane_ % 8; piece < C::kPart / 8; piece += 8) {
    u32 k[4][4], q[3][4];
    float before[8], from[3][8] = {};  // of the first three, decayed to the token at hand
    take_decays(before, first, piece);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::load_shared_16(k[i], k_ + piece_offset(first + i, 2 * first_step() + piece));
      if (i > 0) ptx::load_shared_16(q[i - 1], q_ + piece_offset(first + i, 2 * first_step() + piece));
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) from[0][e] = element_of(k[0], e);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      float now[8];
      take_decays(now, first + i, piece);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float by = ptx::exp2_approx(now[e] - before[e]), own_k = element_of(k[i], e), own_q = element_of(q[i - 1], e);
#pragma unroll
        for (int j = 0; j < i; ++j) {
          from[j][e] *= by;
          kk[i * (i - 1) / 2 + j] += own_k * from[j][e];
          qk[i * (i - 1) / 2 + j] += own_q * from[j][e];
        }
        if (i < 3) from[i % 3][e] = own_k;
        before[e] = now[e];
      }
    }
  }
#pragma unroll
  for (int i = 1; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < i; ++j) {
      const int at = i * (i - 1) / 2 + j;
      const float k_sum = eight_sum(kk[at]), q_sum = eight_sum(qk[at]);
      if (lane_ % 8 == at) tokens_.fours[first + i][j] = make_float2(k_sum, q_sum);
    }
  }
  __syncwarp();
  take_fours();
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::take_decays(float (&to)[8], int token, int piece) const {
  const float4 low = *reinterpret_cast<const float4*>(&decay(token, 8 * piece)), high = *reinterpret_cast<const float4*>(&decay(token, 8 * piece + 4));
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w, to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

template <class C>
WW_DEVICE float ChunkPrepare<C>::element_of(const u32 (&w)[4], int e) { return e % 2 == 0 ? E::low(w[e / 2]) : E::high(w[e / 2]); }

// To where accumulators have them.
template <class C>
WW_DEVICE void ChunkPrepare<C>::take_fours() {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = lane_ / 4 + e / 2 * 8, column = 8 * n + column_ + e % 2;
      if (row / 4 != column / 4 || column >= row) continue;
      const float2 sums = tokens_.fours[16 * warp_ + row][column % 4];
      cross_[0][n][e] = sums.x, cross_[1][n][e] = sums.y;
    }
  }
  take_own();
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::clear_cross() {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) cross_[0][n][e] = 0, cross_[1][n][e] = 0;
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
  for (int step = 0; step < C::kPart / 16; ++step) {
    u32 k[4], q[4], left[4], right[4];
    load_left(k, k_, 16 * warp_, first_step() + step);
    load_left(q, q_, 16 * warp_, first_step() + step);
    const Scales s = scales(own, reference, later, step);
    scale(k, s);
    scale(q, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left[i] = later[i % 2] ? k[i] : 0;
      right[i] = later[i % 2] ? 0 : k[i];
      q[i] = later[i % 2] ? q[i] : 0;
    }
    E::mma(cross_[0][0], left, right[0], right[2]);
    E::mma(cross_[1][0], q, right[0], right[2]);
    if constexpr (kHalf < 8) {
      E::mma(cross_[0][1], left, right[1], right[3]);
      E::mma(cross_[1][1], q, right[1], right[3]);
    }
  }
  // What rows of other pairs of halves gave is dropped.
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = lane_ / 4 + e / 2 * 8, column = 8 * n + column_ + e % 2;
      if (row / (2 * kHalf) != column / (2 * kHalf)) cross_[0][n][e] = 0, cross_[1][n][e] = 0;
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
      for (int e = 0; e < 4; ++e) kk_[8 * block + 4 * n + e] += cross_[0][n][e], qk_[8 * block + 4 * n + e] += cross_[1][n][e];
    }
  }
  clear_cross();
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_kda() {
  clear_cross();
  if (is_tree()) {
    multiply_pairs();
  } else {
    multiply_within<8>();
    multiply_within<4>();
    multiply_fours();
    multiply_others();
  }
}

template <class C>
WW_DEVICE float ChunkPrepare<C>::value(u32 tile, int row, int channel) const {
  const u32 pair = ptx::load_shared_4(tile + piece_offset(row, channel / 8) + channel % 8 / 2 * 4);
  return channel % 2 == 0 ? E::low(pair) : E::high(pair);
}

// Of a tree, pair by pair.
template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_pairs() {
#pragma unroll
  for (int at = 0; at < 32; ++at) {
    const int row = row_ + at / 2 % 2 * 8, column = 8 * (at / 4) + column_ + at % 2;
    if (row >= chunk_.tokens || !follows(row, column)) continue;
    float kk = 0, qk = 0;
    const int first = 16 * first_step(), end = min(C::kPart, p_.k_dim - first);
    for (int c = 0; c < end; ++c) {
      const float k = value(k_, column, first + c) * ptx::exp2_approx(decay(row, c) - decay(column, c));
      kk += value(k_, row, first + c) * k;
      qk += value(q_, row, first + c) * k;
    }
    kk_[at] += kk, qk_[at] += qk;
  }
}

// kNear: and in shared memory, in place of K and Q, k and q 2^(G - G_middle), and what near_address() says. A row's pieces are those
// of one warp.
template <class C>
template <bool kNear>
WW_DEVICE void ChunkPrepare<C>::write_operands(int head) const {
  constexpr int kPieces = C::kPart / 8, kRows = C::kThreads / kPieces;
  const int piece = threadIdx.x % kPieces, of_all = 2 * first_step() + piece;
  const bool there = of_all * 8 < p_.k_dim;
  float end[8], to_middle[8], from_middle[8];  // 2^-G_middle, 2^(G_middle - G_last)
  take_decays(end, 63, piece);
  if constexpr (kNear) {
    float middle[8];
    take_decays(middle, kNearToken, piece);
#pragma unroll
    for (int e = 0; e < 8; ++e) to_middle[e] = ptx::exp2_approx(-middle[e]), from_middle[e] = ptx::exp2_approx(middle[e] - end[e]);
    __syncthreads();
  }
  if (!kNear && is_tree()) take_decays(end, chunk_.tokens - 1, piece);
  if (threadIdx.x < kPieces && there) {
    float* const decays = p_.work.decay + (head * p_.work.capacity + chunk_.index) * p_.k_dim + 8 * of_all;
#pragma unroll
    for (int e = 0; e < 8; ++e) decays[e] = ptx::exp2_approx(end[e]);
  }
  for (int row = threadIdx.x / kPieces; row < 64; row += kRows) {
    u32 k[4], q[4], kg[4], qg[4], kd[4], near[4];
    float sum[8];
    ptx::load_shared_16(k, k_ + piece_offset(row, of_all));
    ptx::load_shared_16(q, q_ + piece_offset(row, of_all));
    take_decays(sum, row, piece);
    const float k_norm = tokens_.k_norm[row], q_norm = p_.scale * tokens_.q_norm[row];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const int e = 2 * pair;
      const float2 from = make_float2(ptx::exp2_approx(sum[e]), ptx::exp2_approx(sum[e + 1]));
      const float2 to = make_float2(ptx::exp2_approx(fminf(end[e] - sum[e], 0)), ptx::exp2_approx(fminf(end[e + 1] - sum[e + 1], 0)));
      const float2 own_k = make_float2(E::low(k[pair]), E::high(k[pair])), own_q = make_float2(E::low(q[pair]), E::high(q[pair]));
      kg[pair] = E::pack(own_k.x * (k_norm * from.x), own_k.y * (k_norm * from.y));
      qg[pair] = E::pack(own_q.x * (q_norm * from.x), own_q.y * (q_norm * from.y));
      kd[pair] = E::pack(own_k.x * (k_norm * to.x), own_k.y * (k_norm * to.y));
      if constexpr (kNear) {
        const float2 later = make_float2(from.x * to_middle[e], from.y * to_middle[e + 1]);
        k[pair] = E::pack(own_k.x * later.x, own_k.y * later.y);
        q[pair] = E::pack(own_q.x * later.x, own_q.y * later.y);
        near[pair] = E::pack(own_k.x * (to.x * from_middle[e]), own_k.y * (to.y * from_middle[e + 1]));
      }
    }
    if constexpr (kNear) {
      __syncwarp();
      store_shared_16(k_ + piece_offset(row, of_all), k);
      store_shared_16(q_ + piece_offset(row, of_all), q);
      store_shared_16(near_address(row, piece), near);
    }
    if (!there || row >= chunk_.tokens) continue;
    const int64_t at = (head * p_.work.rows + chunk_.first + row) * p_.k_dim + 8 * of_all;
    store_16(p_.work.kg, at, kg);
    store_16(p_.work.qg, at, qg);
    store_16(p_.work.kd, at, kd);
  }
}

// A part's share of K K^T and Q K^T, and its operands, from decays that are on their way to shared memory.
template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_part(int head) {
  sum_decays();
  if (is_near()) {
    write_operands<true>(head);
    __syncthreads();
    if (first_step() == 0) clear();
    multiply_near();
  } else {
    write_operands<false>(head);
    __syncthreads();
    if (first_step() == 0) clear();
    multiply_kda();
  }
  __syncthreads();
}

}  // namespace warpweave::linear
