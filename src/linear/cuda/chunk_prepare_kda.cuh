// KDA's part of chunk_prepare.cuh, where a decay is another one per token and channel: sums of decays, what each two tokens of a
// chunk are to each other, and the operands that chunk_scan reads.
//
// Where a chunk forgets little (is_near()), all tokens meet through its middle one, m: 2^(G_i - G_m) 2^(G_m - G_j). One of the
// two exponents may be positive, but is at most kMostNearHalf, so that no wanted pair overflows; pairs of a later token j can,
// and are not read. Only for bf16, whose exponents reach as far as those of f32. Else, and in trees: chunk_prepare_far.cuh.
//
// Loops are not unrolled where that only makes code longer: blocks of a multiprocessor are at different places of it, and what the
// instruction cache has no room for takes longer to fetch than to run.
#pragma once

#include <type_traits>

#include "linear/cuda/chunk_prepare_far.cuh"

namespace warpweave::linear {

// Log2 of the most that a chunk forgets, and from its middle to an end, in multiply_near().
inline constexpr float kMostNearDecay = 120, kMostNearHalf = 60;

// Whether decays come to shared memory as they are, each token's to its row of the decays' place.
template <class C>
WW_DEVICE bool ChunkPrepare<C>::copies_decays() const {
  const LinearAttnRows& rows = decay_rows();
  const uint64_t bytes = reinterpret_cast<uint64_t>(rows.data) | 2 * rows.token_stride | 2 * rows.head_stride | 2 * p_.k_dim;
  return rows.dtype == (std::is_same_v<E, ptx::Bf16> ? DType::bf16 : DType::f16) && bytes % 16 == 0;
}
template <class C>
WW_DEVICE void ChunkPrepare<C>::copy_decays(int head) const {
  constexpr int kPieces = C::kPart / 8, kRows = C::kThreads / kPieces;
  const LinearAttnRows& rows = decay_rows();
  const int piece = threadIdx.x % kPieces, first = 16 * first_step() + 8 * piece;
  const auto* const data = static_cast<const unsigned short*>(rows.data);
  const unsigned short* const from = data + chunk_.first * rows.token_stride + head * rows.head_stride + first;
  for (int row = threadIdx.x / kPieces; row < 64; row += kRows) {
    const bool there = row < chunk_.tokens && first < p_.k_dim;
    ptx::cp_async_16(ptx::smem_address(&decay(row, 0)) + piece * 16, there ? from + row * rows.token_stride : data, there ? 16 : 0);
  }
}

// Log2 decays of this thread's run; where there is no tree their sums from the run's first token on.
template <class C>
WW_DEVICE void ChunkPrepare<C>::start_sums(int head) const {
  const LinearAttnRows& rows = decay_rows();
  const float times = p_.has_gates ? -expf(p_.gates.a_log[head]) : kLog2e;
  const int of_all = 16 * first_step() + run_channel();
  const bool there = of_all < p_.k_dim, copied = copies_decays();
  const int64_t from = (chunk_.first + run_token()) * rows.token_stride + head * rows.head_stride + of_all;
  float bias[4] = {}, sum[4] = {};
  if (there && p_.has_gates && p_.gates.dt_bias != nullptr) {
#pragma unroll
    for (int e = 0; e < 4; ++e) bias[e] = p_.gates.dt_bias[head * p_.k_dim + of_all + e];
  }
#pragma unroll 1
  for (int i = 0; i < C::kRunTokens; ++i) {
    const int token = run_token() + i;
    float four[4] = {};
    if (there && token < chunk_.tokens) {
      if (copied) {
        const uint2 w = ptx::load_shared_8(ptx::smem_address(&decay(token, 0)) + 2 * run_channel());
        four[0] = E::low(w.x), four[1] = E::high(w.x), four[2] = E::low(w.y), four[3] = E::high(w.y);
      } else {
        u32 w[4];
        load_four_bits(w, rows.data, from + i * rows.token_stride, rows.dtype, p_.vectors);
        four_values(four, w, rows.dtype);
      }
      if (p_.has_gates) {
#pragma unroll
        for (int e = 0; e < 4; ++e) four[e] = softplus_log2(four[e] + bias[e]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) four[e] = bounded_log2(four[e] * times);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = is_tree() ? four[e] : sum[e] + four[e];
    __syncwarp();  // which is done with the row as it came
    put_four(&decay(token, run_channel()), sum);
  }
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::take_four(float (&to)[4], const float* from) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
template <class C>
WW_DEVICE void ChunkPrepare<C>::put_four(float* to, const float (&x)[4]) { *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]); }
template <class C>
WW_DEVICE void ChunkPrepare<C>::put_four(u32 to, const float (&x)[4]) { ptx::store_shared_8(to, E::pack(x[0], x[1]), E::pack(x[2], x[3])); }
template <class C>
WW_DEVICE void ChunkPrepare<C>::store_four(void* to, int64_t at, const float (&x)[4]) {
  *reinterpret_cast<uint2*>(static_cast<unsigned short*>(to) + at) = make_uint2(E::pack(x[0], x[1]), E::pack(x[2], x[3]));
}

// Of k and q; q k of a token.
template <class C>
WW_DEVICE void ChunkPrepare<C>::norms() {
  float squares[2] = {}, qk[2] = {};
#pragma unroll 1
  for (int step = 0; step < C::kDim / 16; ++step) {
    u32 own[4], k[4];
    load_left(own, own_tile(), 16 * warp_, step);
    add_squares(squares, own, own);
    if (has_k()) continue;
    load_left(k, k_, 16 * warp_, step);
    add_squares(qk, own, k);
  }
  put_norms(has_k() ? tokens_.k_norm : tokens_.q_norm, squares);
  if (has_k()) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = row_sum(qk[i]);
    if (column_ == 0) tokens_.qk[row_ + 8 * i] = sum;
  }
}

// When all threads have come here, nobody needs another's part of the decays' place, but what sums are of a tree.
template <class C>
WW_DEVICE void ChunkPrepare<C>::finish_sums(Sums& sums) {
  bool far = is_tree() || !kWideExponents<E>;
#pragma unroll
  for (int e = 0; e < 4; ++e) sums.before[e] = sums.middle[e] = sums.end[e] = 0;
  if (is_tree()) {
    sum_tree(sums);
  } else {
#pragma unroll 4
    for (int run = 0; run < C::kRuns; ++run) {
      float last[4];
      take_four(last, &decay((run + 1) * C::kRunTokens - 1, run_channel()));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums.end[e] += last[e];
        if ((run + 1) * C::kRunTokens == run_token()) sums.before[e] = sums.end[e];
        if (2 * (run + 1) == C::kRuns) sums.middle[e] = sums.end[e];
      }
    }
    float first[4];
    take_four(first, &decay(run_token(), run_channel()));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float middle = sums.middle[e], end = sums.end[e];
      far = far || end < -kMostNearDecay || sums.before[e] + first[e] - middle > kMostNearHalf || middle - end > kMostNearHalf;
    }
  }
  far = __any_sync(~0u, far);
  if (lane_ == 0) tokens_.far[threadIdx.x / 32] = far;
  __syncthreads();
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::sum_tree(Sums& sums) {
  if (threadIdx.x < C::kPart) {
    for (int i = 0; i < chunk_.tokens; ++i) {
      const int parent = parent_of(i);
      if (parent >= 0) decay(i, threadIdx.x) += decay(parent, threadIdx.x);
    }
  }
  __syncthreads();
  take_four(sums.end, &decay(chunk_.tokens - 1, run_channel()));
}

template <class C>
WW_DEVICE bool ChunkPrepare<C>::is_near() const {
  const uint2 far = *reinterpret_cast<const uint2*>(tokens_.far);
  return (far.x | far.y) == 0;
}

// Pieces of k 2^(G_middle - G) stand where the decays of their token did.
template <class C>
WW_DEVICE ptx::u32 ChunkPrepare<C>::near_address(u32 row, u32 piece) const {
  return ptx::smem_address(&decay(row, 0)) + (piece ^ (row / 4 % 2)) * 16;
}

// What chunk_scan reads, of this thread's tokens and channels. kNear: and in shared memory, in place of K and Q, k and q
// 2^(G - G_middle), and what near_address() says; else G. A row is one warp's.
template <class C>
template <bool kNear>
WW_DEVICE void ChunkPrepare<C>::write_operands(const Sums& sums, int head) const {
  const int channel = run_channel(), of_all = 16 * first_step() + channel;
  const bool there = of_all < p_.k_dim;
  float from_start[4], to_end[4];  // 2^G_middle, 2^(G_last - G_middle)
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if constexpr (kNear) from_start[e] = ptx::exp2_approx(sums.middle[e]), to_end[e] = ptx::exp2_approx(sums.end[e] - sums.middle[e]);
  }
  if (run_token() == 0 && there) {
    float decays[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) decays[e] = ptx::exp2_approx(sums.end[e]);
    put_four(p_.work.decay + (head * p_.work.capacity + chunk_.index) * p_.k_dim + of_all, decays);
  }
  const u32 first = run_token(), piece = of_all / 8 % 8, column = of_all / 64 * kBlockBytes + of_all % 8 * 2;
  int64_t to = (head * p_.work.rows + chunk_.first + first) * p_.k_dim + of_all;
#pragma unroll 1
  for (u32 i = 0; i < C::kRunTokens; ++i, to += p_.k_dim) {
    const u32 row = first + i, at = column + row * 128 + (piece ^ row % 8) * 16;  // as piece_offset() has it
    float sum[4], kg[4], qg[4], kd[4];
    take_four(sum, &decay(row, channel));
    const uint2 k = ptx::load_shared_8(k_ + at), q = ptx::load_shared_8(q_ + at);
    const float k_norm = tokens_.k_norm[row], q_norm = p_.scale * tokens_.q_norm[row];
    const float own_k[4] = {E::low(k.x), E::high(k.x), E::low(k.y), E::high(k.y)};
    const float own_q[4] = {E::low(q.x), E::high(q.x), E::low(q.y), E::high(q.y)};
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] += sums.before[e];
    __syncwarp();
    if constexpr (kNear) {
      float later_k[4], later_q[4], earlier_k[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float later = ptx::exp2_approx(sum[e] - sums.middle[e]), earlier = ptx::exp2_approx(sums.middle[e] - sum[e]);
        later_k[e] = own_k[e] * later, later_q[e] = own_q[e] * later, earlier_k[e] = own_k[e] * earlier;
        kg[e] = later_k[e] * (from_start[e] * k_norm), qg[e] = later_q[e] * (from_start[e] * q_norm);
        kd[e] = earlier_k[e] * (to_end[e] * k_norm);
      }
      put_four(k_ + at, later_k), put_four(q_ + at, later_q);
      put_four(near_address(row, channel / 8) + channel % 8 * 2, earlier_k);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float from = ptx::exp2_approx(sum[e]), to = ptx::exp2_approx(fminf(sums.end[e] - sum[e], 0));
        kg[e] = own_k[e] * (k_norm * from), qg[e] = own_q[e] * (q_norm * from), kd[e] = own_k[e] * (k_norm * to);
      }
      put_four(&decay(row, channel), sum);
    }
    if (!there || static_cast<int>(row) >= chunk_.tokens) continue;
    store_four(p_.work.kg, to, kg);
    store_four(p_.work.qg, to, qg);
    store_four(p_.work.kd, to, kd);
  }
}

// K K^T, or Q K^T, of what write_operands<true>() left.
template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_near() {
#pragma unroll 2
  for (int step = 0; step < C::kPart / 16; ++step) {
    u32 a[4];
    load_left(a, own_tile(), 16 * warp_, first_step() + step);
    const u32 near = near_address(lane_ % 8 + lane_ / 16 * 8, 2 * step + lane_ / 8 % 2);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n > warp_) continue;
      u32 b[4];
      ptx::ldmatrix_x4(b, near + n * 16 * C::kDecayStride * 4);
      add(kk_, 2 * n, a, b[0], b[1]);
      add(kk_, 2 * n + 1, a, b[2], b[3]);
    }
  }
}

// A part's share of K K^T and Q K^T, and its operands.
template <class C>
WW_DEVICE void ChunkPrepare<C>::multiply_part(int head) {
  if (copies_decays()) copy_decays(head);
  ptx::cp_async_commit();
  if (part_ == 0) put_beta();
  ptx::cp_async_wait<0>();
  __syncthreads();
  start_sums(head);
  if (part_ == 0) norms();
  __syncthreads();
  Sums sums;
  finish_sums(sums);
  if (kWideExponents<E> && is_near()) {
    write_operands<true>(sums, head);
    __syncthreads();
    if (part_ == 0) clear();
    multiply_near();
  } else {
    write_operands<false>(sums, head);
    __syncthreads();
    multiply_far();
  }
  __syncthreads();
}

template <class C>
WW_DEVICE void ChunkPrepare<C>::finish_kda(Inverse& inverse, int head) const {
  if (has_k()) {
    is_tree() ? put_products<true, true>(inverse) : put_products<true, false>(inverse);
    inverse.run();
  } else {
    is_tree() ? put_products<false, true>(inverse) : put_products<false, false>(inverse);
    ptx::named_barrier_sync(kBarrierOfP, 128);
  }
  const int piece = threadIdx.x % 8;
  const float4* const beta = reinterpret_cast<const float4*>(&tokens_.beta[8 * piece]);
  const float4 low = beta[0], high = beta[1];
  int row = threadIdx.x % 128 / 8;
  int64_t at = (head * p_.work.rows + chunk_.first + row) * kChunk + 8 * piece;
#pragma unroll 1
  for (; row < chunk_.tokens; row += 16, at += 16 * kChunk) has_k() ? store_t(row, piece, at, low, high) : store_p(row, piece, at);
}

// Elements of A, to be inverted, or of P.
template <class C>
template <bool kOfK, bool kTree>
WW_DEVICE void ChunkPrepare<C>::put_products(Inverse& inverse) const {
  float of_row[2], qk[2];
  ptx::u64 ancestors[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = row_ + 8 * i;
    if constexpr (kTree) ancestors[i] = tokens_.ancestors[row];
    of_row[i] = kOfK ? tokens_.beta[row] * tokens_.k_norm[row] : p_.scale * tokens_.q_norm[row];
    qk[i] = tokens_.qk[row];
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int column = 8 * n + column_;
    u32* const to = reinterpret_cast<u32*>(&p_rows()[row_ * C::kPStride + column]);
    if (n / 2 > warp_) {
      if constexpr (!kOfK) to[0] = to[4 * C::kPStride] = 0;
      continue;
    }
    const float2 norm = *reinterpret_cast<const float2*>(&tokens_.k_norm[column]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_ + 8 * i, at = 4 * n + 2 * i;
      float x = kk_[at], y = kk_[at + 1];
      x = (kTree ? ancestors[i] >> column & 1 : column < row) ? x : 0.0f;
      y = (kTree ? ancestors[i] >> (column + 1) & 1 : column + 1 < row) ? y : 0.0f;
      if constexpr (!kOfK) x = column == row ? qk[i] : x, y = column + 1 == row ? qk[i] : y;
      x *= of_row[i] * norm.x, y *= of_row[i] * norm.y;
      if constexpr (kOfK) inverse.put_pair(n, i, x, y);
      else to[i * 4 * C::kPStride] = E::pack(x, y);
    }
  }
}

}  // namespace warpweave::linear
