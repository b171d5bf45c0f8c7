// What a chunk's tokens are to each other, for every chunk at once (the WY form of Yang, Wang et al. 2024, in the variant whose
// inverse meets V - K S when the state is known): ChunkWork's t, p and factors, or KDA's operands in their place. A draft tree
// is a chunk in which a token follows its ancestors only.
//
// No exponent is positive. In KDA, where the decay between two tokens is another one per channel, two tokens meet through one that
// stands between them. Of sub-chunks of 16 a warp each, rows i of one meet rows j of an earlier one through the tokens m before i's
// and n at the end of j's: 2^(G_i - G_m) 2^(G_m - G_n) 2^(G_n - G_j). Within a sub-chunk the later half of 16 and of 8 tokens meets
// the earlier one through its own first token, and the tokens of each four meet one after the other, without tensor cores.
//
// GDN: block (x, k head) makes chunk x of all v heads of that k head. KDA: block (x, v head).
#pragma once

#include "linear/cuda/chunk_inverse.cuh"
#include "linear/cuda/chunk_list.cuh"
#include "linear/cuda/tile.cuh"

namespace warpweave::linear {

template <class Element_, int kDim_, bool kKda_>
struct PrepareConfig {
  using Element = Element_;
  static constexpr int kDim = kDim_;  // of k, at least
  static constexpr bool kKda = kKda_;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = kDim > 128 ? 1 : kKda || kDim == 64 ? 3 : 4;  // at once on a multiprocessor, at least
  static constexpr int kTileBytes = kDim / 64 * kBlockBytes;
  static constexpr int kDecayStride = kDim + 8;  // floats
  // Tiles of K and Q; KDA: G. When they are done with, the inverse's scratch and P.
  static constexpr int kPStride = 72;
  static constexpr int kScratchBytes = static_cast<int>(sizeof(InverseScratch)) + 64 * kPStride * 2;
  static constexpr int kTilesBytes = 2 * kTileBytes + (kKda ? 64 * kDecayStride * 4 : 0);
  static constexpr int kUnionBytes = (kTilesBytes > kScratchBytes ? kTilesBytes : kScratchBytes) + 15 & ~15;
  struct Tokens {
    ptx::u64 ancestors[64];
    float log2_decay[64], beta[64], k_norm[64], q_norm[64], qk[64];
    float2 fours[kKda ? 64 : 1][4];  // k k and q k of a token with those before it of its four
    int parent[64];
  };
  static constexpr int kSmemBytes = kUnionBytes + static_cast<int>(sizeof(Tokens)) + 1024;
};

template <class C>
class ChunkPrepare {
  using E = typename C::Element;
  using u32 = ptx::u32;
  static constexpr int kStepsAtOnce = 2;  // of 16 channels: registers hold no more

 public:
  WW_DEVICE ChunkPrepare(const LinearParams& p, char* shared, const Chunk& chunk)
      : p_(p), shared_(shared), tokens_(*reinterpret_cast<typename C::Tokens*>(shared + C::kUnionBytes)), chunk_(chunk),
        k_(ptx::smem_address(shared)), q_(k_ + C::kTileBytes), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32),
        row_(16 * warp_ + lane_ / 4), column_(lane_ % 4 * 2) {}

  WW_DEVICE void run(int head) {
    const int k_head = C::kKda ? head / p_.heads_per_k : head;
    __syncthreads();  // what the last chunk left has been read
    copy(k_, p_.k, k_head);
    copy(q_, p_.q, k_head);
    ptx::cp_async_commit();
    find_ancestors();
    if constexpr (C::kKda) {
      ask_gates(head);
      put_decays(head);
      put_beta();
    } else {
      ask_gates(head * p_.heads_per_k);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    if constexpr (C::kKda) {
      norms();
      sum_decays();
      write_operands(head);
      __syncthreads();
      multiply_kda();
      __syncthreads();
      finish(head);
    } else {
      multiply();
      for (int v_head = head * p_.heads_per_k; v_head < (head + 1) * p_.heads_per_k; ++v_head) {
        __syncthreads();
        sum_scalars(v_head);
        write_factors(v_head);
        finish(v_head);
      }
    }
  }

 private:
  // ---- loads
  WW_DEVICE void copy(u32 tile, const LinearAttnRows& rows, int head) const {
    const auto* const from = static_cast<const unsigned short*>(rows.data) + chunk_.first * rows.token_stride + head * rows.head_stride;
    copy_tile<C::kDim, C::kThreads>(tile, from, rows.token_stride, chunk_.tokens, p_.k_dim);
  }
  // A token's gates, a thread each; asked for one head ahead.
  WW_DEVICE void ask_gates(int head) {
    const int i = threadIdx.x;
    if (i < chunk_.tokens) gates_ = load_gates(p_, chunk_.first + i, head, C::kKda);
  }
  WW_DEVICE void put_beta() {
    const int i = threadIdx.x;
    if (i < 64) tokens_.beta[i] = i < chunk_.tokens ? beta_of(p_, gates_) : 0.0f;
  }
  WW_DEVICE float* decays() const { return reinterpret_cast<float*>(shared_ + 2 * C::kTileBytes); }
  WW_DEVICE float& decay(int token, int channel) const { return decays()[token * C::kDecayStride + channel]; }
  WW_DEVICE void put_decays(int head) {
    constexpr int kFours = C::kDim / 4, kAtOnce = 4;  // loads under way
    const float slope = p_.has_gates ? p_.gates.a_log[head] : 0.0f;
    const int channel = threadIdx.x % kFours * 4;
    for (int first = threadIdx.x / kFours; first < 64; first += kAtOnce * C::kThreads / kFours) {
      DecayBits bits[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = first + i * (C::kThreads / kFours);
        if (token < chunk_.tokens && channel < p_.k_dim) load_decays(bits[i], p_, chunk_.first + token, head, channel);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int token = first + i * (C::kThreads / kFours);
        float four[4] = {};
        if (token < chunk_.tokens && channel < p_.k_dim) log2_decays_of(four, p_, bits[i], slope);
        *reinterpret_cast<float4*>(&decay(token, channel)) = make_float4(four[0], four[1], four[2], four[3]);
      }
    }
  }

  // ---- which tokens a token follows
  WW_DEVICE bool is_tree() const { return p_.batch.parents != nullptr; }
  WW_DEVICE bool follows(int i, int j) const { return is_tree() ? tokens_.ancestors[i] >> j & 1 : j < i; }
  WW_DEVICE int parent_of(int i) const { return is_tree() && i < chunk_.tokens ? p_.batch.parents[chunk_.first + i] : i - 1; }
  // By doubling: what the parent's ancestors are after n rounds, up to 2^n generations off.
  WW_DEVICE void find_ancestors() {
    if (!is_tree()) return;
    const int i = threadIdx.x;
    int parent = -1;
    ptx::u64 ancestors = 0;
    if (i < 64) {
      parent = i < chunk_.tokens ? parent_of(i) : -1;
      ancestors = parent < 0 ? 0 : ptx::u64{1} << parent;
      tokens_.parent[i] = parent;
      tokens_.ancestors[i] = ancestors;
    }
    for (int round = 0; round < 6; ++round) {
      __syncthreads();
      const ptx::u64 more = parent < 0 ? 0 : tokens_.ancestors[parent];
      const int next = parent < 0 ? -1 : tokens_.parent[parent];
      __syncthreads();
      if (i < 64) {
        tokens_.ancestors[i] = ancestors |= more;
        tokens_.parent[i] = parent = next;
      }
    }
    __syncthreads();
  }

  // ---- GDN: a decay per token
  // G of every token.
  WW_DEVICE void sum_scalars(int head) {
    const int i = threadIdx.x;
    put_beta();
    float sum = 0;
    if (i < 64) {
      sum = i < chunk_.tokens ? log2_decay_of(p_, gates_) : 0.0f;
      tokens_.log2_decay[i] = sum;
    }
    if (head + 1 < p_.v_heads) ask_gates(head + 1);
    if (!is_tree()) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(~0u, sum, step);
        if (lane_ >= step) sum += before;
      }
      if (i < 32) tokens_.log2_decay[i] = sum;
      __syncthreads();
      if (i >= 32 && i < 64) tokens_.log2_decay[i] = sum + tokens_.log2_decay[31];
    } else {
      __syncthreads();
      const float own = sum;
      if (i < 64) {
        for (int j = 0; j < i; ++j) sum += follows(i, j) ? tokens_.log2_decay[j] : 0.0f;
      }
      __syncthreads();
      if (i < 64) tokens_.log2_decay[i] = i < chunk_.tokens ? sum : own;
    }
    __syncthreads();
  }
  WW_DEVICE void write_factors(int head) const {
    const int i = threadIdx.x;
    if (i >= chunk_.tokens) return;
    const float sum = tokens_.log2_decay[i], last = tokens_.log2_decay[chunk_.tokens - 1];
    const float decay = ptx::exp2_approx(sum);
    reinterpret_cast<float4*>(p_.work.factors)[head * p_.work.rows + chunk_.first + i] =
        make_float4(tokens_.k_norm[i] * decay, p_.scale * tokens_.q_norm[i] * decay,
                    tokens_.k_norm[i] * ptx::exp2_approx(fminf(last - sum, 0)), ptx::exp2_approx(last));
  }
  // K K^T and Q K^T of this warp's rows, as far as they are not above the diagonal; norms.
  WW_DEVICE void multiply() {
    float kk_sum[2] = {}, qq_sum[2] = {};
    clear();
#pragma unroll
    for (int step = 0; step < C::kDim / 16; ++step) {
      u32 k[4], q[4];
      load_left(k, k_, 16 * warp_, step);
      load_left(q, q_, 16 * warp_, step);
      add_squares(kk_sum, k, k);
      add_squares(qq_sum, q, q);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n > warp_) continue;
        u32 b[4];
        load_right_rows(b, k_, 16 * n, step);
        add(kk_, 2 * n, k, b[0], b[1]);
        add(kk_, 2 * n + 1, k, b[2], b[3]);
        add(qk_, 2 * n, q, b[0], b[1]);
        add(qk_, 2 * n + 1, q, b[2], b[3]);
      }
    }
    put_norms(kk_sum, qq_sum);
  }
  WW_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < 32; ++i) kk_[i] = 0, qk_[i] = 0;
  }
  static WW_DEVICE void add(float (&d)[32], int tile, const u32 (&a)[4], u32 b0, u32 b1) {
    E::mma(*reinterpret_cast<float(*)[4]>(&d[4 * tile]), a, b0, b1);
  }
  // Of rows lane / 4 and lane / 4 + 8, this lane's columns.
  static WW_DEVICE void add_squares(float (&sum)[2], const u32 (&a)[4], const u32 (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i % 2] += E::low(a[i]) * E::low(b[i]) + E::high(a[i]) * E::high(b[i]);
  }
  static WW_DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }
  WW_DEVICE void put_norms(float (&kk)[2], float (&qq)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float k = row_sum(kk[i]), q = row_sum(qq[i]);
      if (column_ == 0) {
        tokens_.k_norm[row_ + 8 * i] = p_.l2norm ? rsqrtf(k + p_.l2norm_eps) : 1.0f;
        tokens_.q_norm[row_ + 8 * i] = p_.l2norm ? rsqrtf(q + p_.l2norm_eps) : 1.0f;
      }
    }
  }
  // An element of A and one of P.
  WW_DEVICE float2 element_of_gdn(int row, int column, int at) const {
    const float decay = ptx::exp2_approx(fminf(tokens_.log2_decay[row] - tokens_.log2_decay[column], 0)) * tokens_.k_norm[column];
    const bool before = follows(row, column);
    return make_float2(before ? kk_[at] * tokens_.beta[row] * tokens_.k_norm[row] * decay : 0.0f,
                       before || row == column ? qk_[at] * p_.scale * tokens_.q_norm[row] * decay : 0.0f);
  }

  // ---- KDA: a decay per token and channel
  // Of k and q; q k of a token.
  WW_DEVICE void norms() {
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
  // G of every token and channel.
  WW_DEVICE void sum_decays() {
    for (int channel = threadIdx.x; channel < C::kDim; channel += C::kThreads) {
      float sum = 0;
      if (!is_tree()) {
#pragma unroll 16
        for (int i = 0; i < 64; ++i) decay(i, channel) = sum += decay(i, channel);
      } else {
        for (int i = 0; i < chunk_.tokens; ++i) {
          const int parent = parent_of(i);
          if (parent >= 0) decay(i, channel) += decay(parent, channel);
        }
      }
    }
    __syncthreads();
  }
  // Rows `row` and + 8 of a tile times 2^exponent, this lane's columns of `step`; zero where `keep` is false.
  struct Scales {
    float2 low[2], high[2];  // of columns 2 (lane % 4) and 8 further on, of the two rows
  };
  WW_DEVICE Scales scales(const int (&row)[2], const int (&reference)[2], const bool (&later)[2], int step) const {
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
  static WW_DEVICE u32 scaled(u32 pair, float2 by) { return E::pack(E::low(pair) * by.x, E::high(pair) * by.y); }
  static WW_DEVICE void scale(u32 (&r)[4], const Scales& s) {
    r[0] = scaled(r[0], s.low[0]);
    r[1] = scaled(r[1], s.low[1]);
    r[2] = scaled(r[2], s.high[0]);
    r[3] = scaled(r[3], s.high[1]);
  }
  // Of kStepsAtOnce steps, this warp's rows as those that meet earlier sub-chunks, in left_ and in Q's tile, and as those that later
  // ones meet, in K's.
  WW_DEVICE void turn_to_others(int first_step) {
    const int own[2] = {row_, row_ + 8};
    const int before[2] = {16 * warp_ - 1, 16 * warp_ - 1}, last[2] = {16 * warp_ + 15, 16 * warp_ + 15};
    const bool later[2] = {true, true}, earlier[2] = {false, false};
#pragma unroll
    for (int i = 0; i < kStepsAtOnce; ++i) {
      const int step = first_step + i;
      u32 k[4];
      load_left(k, k_, 16 * warp_, step);
      if (warp_ > 0) {
        const Scales s = scales(own, before, later, step);
        u32 q[4];
        load_left(q, q_, 16 * warp_, step);
        scale(q, s);
        put_left(q_, q, step);
#pragma unroll
        for (int r = 0; r < 4; ++r) left_[i][r] = k[r];
        scale(left_[i], s);
      }
      if (warp_ < 3) {
        scale(k, scales(own, last, earlier, step));
        put_left(k_, k, step);
      }
    }
  }
  // Where load_left has them from.
  WW_DEVICE void put_left(u32 tile, const u32 (&r)[4], int step) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::store_shared_4(tile + piece_offset(row_ + i % 2 * 8, 2 * step + i / 2) + lane_ % 4 * 4, r[i]);
  }
  // This warp's rows against an earlier sub-chunk; kNext: the one right before.
  template <int kBlock, bool kNext>
  WW_DEVICE void multiply_block(int first_step) {
    const float* const from = &decay(16 * warp_ - 1, 16 * first_step + column_);
    const float* const to = &decay(16 * kBlock + 15, 16 * first_step + column_);
#pragma unroll
    for (int i = 0; i < kStepsAtOnce; ++i) {
      u32 k[4], q[4], b[4];
      load_left(q, q_, 16 * warp_, first_step + i);
      load_left(b, k_, 16 * kBlock, first_step + i);
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
  WW_DEVICE void multiply_others() {
    for (int step = 0; step < C::kDim / 16; step += kStepsAtOnce) {
      turn_to_others(step);
      __syncthreads();
      if (warp_ == 1) multiply_block<0, true>(step);
      if (warp_ == 2) multiply_block<0, false>(step), multiply_block<1, true>(step);
      if (warp_ == 3) multiply_block<0, false>(step), multiply_block<1, false>(step), multiply_block<2, true>(step);
    }
  }
  // Fours of tokens within this warp's rows: eight lanes each, a piece of channels a lane at a time.
  WW_DEVICE void multiply_fours() {
    const int first = 16 * warp_ + lane_ / 8 * 4;
    float kk[6] = {}, qk[6] = {};  // (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)
    for (int piece = lane_ % 8; piece < C::kDim / 8; piece += 8) {
      u32 k[4][4], q[3][4];
      float before[8], from[3][8] = {};  // of the first three, decayed to the token at hand
      take_decays(before, first, piece);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::load_shared_16(k[i], k_ + piece_offset(first + i, piece));
        if (i > 0) ptx::load_shared_16(q[i - 1], q_ + piece_offset(first + i, piece));
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
  WW_DEVICE void take_decays(float (&to)[8], int token, int piece) const {
    const float4 low = *reinterpret_cast<const float4*>(&decay(token, 8 * piece)), high = *reinterpret_cast<const float4*>(&decay(token, 8 * piece + 4));
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w, to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  }
  static WW_DEVICE float element_of(const u32 (&w)[4], int e) { return e % 2 == 0 ? E::low(w[e / 2]) : E::high(w[e / 2]); }
  // To where accumulators have them.
  WW_DEVICE void take_fours() {
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
  WW_DEVICE void clear_cross() {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) cross_[0][n][e] = 0, cross_[1][n][e] = 0;
    }
  }
  // Within this warp's 16 rows: halves of kHalf rows.
  template <int kHalf>
  WW_DEVICE void multiply_within() {
    int own[2], reference[2];
    bool later[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane_ / 4 + 8 * i;
      own[i] = 16 * warp_ + row;
      later[i] = row / kHalf % 2 == 1;
      reference[i] = 16 * warp_ + (later[i] ? row / kHalf : row / kHalf + 1) * kHalf;
    }
    for (int step = 0; step < C::kDim / 16; ++step) {
      u32 k[4], q[4], left[4], right[4];
      load_left(k, k_, 16 * warp_, step);
      load_left(q, q_, 16 * warp_, step);
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
  WW_DEVICE void take_own() {
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
  WW_DEVICE void multiply_kda() {
    clear();
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
  WW_DEVICE float value(u32 tile, int row, int channel) const {
    const u32 pair = ptx::load_shared_4(tile + piece_offset(row, channel / 8) + channel % 8 / 2 * 4);
    return channel % 2 == 0 ? E::low(pair) : E::high(pair);
  }
  // Of a tree, pair by pair.
  WW_DEVICE void multiply_pairs() {
#pragma unroll
    for (int at = 0; at < 32; ++at) {
      const int row = row_ + at / 2 % 2 * 8, column = 8 * (at / 4) + column_ + at % 2;
      if (row >= chunk_.tokens || !follows(row, column)) continue;
      float kk = 0, qk = 0;
      for (int c = 0; c < p_.k_dim; ++c) {
        const float k = value(k_, column, c) * ptx::exp2_approx(decay(row, c) - decay(column, c));
        kk += value(k_, row, c) * k;
        qk += value(q_, row, c) * k;
      }
      kk_[at] = kk, qk_[at] = qk;
    }
  }
  WW_DEVICE float2 element_of_kda(int row, int column, int at) const {
    const float norm = tokens_.k_norm[column], q_norm = p_.scale * tokens_.q_norm[row] * norm;
    const bool before = follows(row, column);
    return make_float2(before ? kk_[at] * tokens_.beta[row] * tokens_.k_norm[row] * norm : 0.0f,
                       row == column ? tokens_.qk[row] * q_norm : before ? qk_[at] * q_norm : 0.0f);
  }
  WW_DEVICE void write_operands(int head) const {
    constexpr int kPieces = C::kDim / 8;
    const int last = chunk_.tokens - 1;
    for (int i = threadIdx.x; i < chunk_.tokens * kPieces; i += C::kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      if (piece * 8 >= p_.k_dim) continue;
      u32 k[4], q[4], kg[4], qg[4], kd[4];
      ptx::load_shared_16(k, k_ + piece_offset(row, piece));
      ptx::load_shared_16(q, q_ + piece_offset(row, piece));
      const float k_norm = tokens_.k_norm[row], q_norm = p_.scale * tokens_.q_norm[row];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int c = 8 * piece + 2 * pair;
        const float2 sum = *reinterpret_cast<const float2*>(&decay(row, c)), end = *reinterpret_cast<const float2*>(&decay(last, c));
        const float2 from = make_float2(ptx::exp2_approx(sum.x), ptx::exp2_approx(sum.y));
        const float2 to = make_float2(k_norm * ptx::exp2_approx(fminf(end.x - sum.x, 0)), k_norm * ptx::exp2_approx(fminf(end.y - sum.y, 0)));
        kg[pair] = scaled(k[pair], make_float2(k_norm * from.x, k_norm * from.y));
        qg[pair] = scaled(q[pair], make_float2(q_norm * from.x, q_norm * from.y));
        kd[pair] = scaled(k[pair], to);
      }
      const int64_t at = (head * p_.work.rows + chunk_.first + row) * p_.k_dim + 8 * piece;
      store_16(p_.work.kg, at, kg);
      store_16(p_.work.qg, at, qg);
      store_16(p_.work.kd, at, kd);
    }
    for (int c = threadIdx.x; c < p_.k_dim; c += C::kThreads) {
      p_.work.decay[(head * p_.work.capacity + chunk_.index) * p_.k_dim + c] = ptx::exp2_approx(decay(last, c));
    }
  }

  // ---- A and P to what is kept
  WW_DEVICE void finish(int head) {
    // The tiles, or the last head's scratch, are done with: run() and finish() wait for all before.
    InverseScratch& scratch = *reinterpret_cast<InverseScratch*>(shared_);
    auto* const p = reinterpret_cast<unsigned short*>(shared_ + sizeof(InverseScratch));
    BlockInverse inverse(scratch);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        u32* const to = reinterpret_cast<u32*>(&p[(row_ + 8 * i) * C::kPStride + 8 * n + column_]);
        if (n / 2 > warp_) {
          *to = 0;
          continue;
        }
        const float2 left = element(row_ + 8 * i, 8 * n + column_, 4 * n + 2 * i);
        const float2 right = element(row_ + 8 * i, 8 * n + column_ + 1, 4 * n + 2 * i + 1);
        *to = E::pack(left.y, right.y);
        inverse.put_pair(n, i, left.x, right.x);
      }
    }
    inverse.run();
    for (int i = threadIdx.x; i < chunk_.tokens * 8; i += C::kThreads) {
      const int row = i / 8, piece = i % 8;
      const int64_t at = (head * p_.work.rows + chunk_.first + row) * kChunk + 8 * piece;
      u32 w[4];
      ptx::load_shared_16(w, ptx::smem_address(&p[row * C::kPStride + 8 * piece]));
      store_16(p_.work.p, at, w);
      if (piece / 2 > row / 16) {
        w[0] = w[1] = w[2] = w[3] = 0;
      } else {
        ptx::load_shared_16(w, ptx::smem_address(&scratch.t[row][8 * piece]));
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          const float* const beta = &tokens_.beta[8 * piece + 2 * pair];
          w[pair] = E::pack(ptx::F16::low(w[pair]) * beta[0], ptx::F16::high(w[pair]) * beta[1]);
        }
      }
      store_16(p_.work.t, at, w);
    }
  }
  WW_DEVICE float2 element(int row, int column, int at) const {
    if constexpr (C::kKda) return element_of_kda(row, column, at);
    else return element_of_gdn(row, column, at);
  }
  static WW_DEVICE void store_16(void* to, int64_t at, const u32 (&w)[4]) {
    *reinterpret_cast<uint4*>(static_cast<unsigned short*>(to) + at) = make_uint4(w[0], w[1], w[2], w[3]);
  }

  const LinearParams& p_;
  char* const shared_;
  typename C::Tokens& tokens_;
  const Chunk chunk_;
  const u32 k_, q_;
  const int warp_, lane_, row_, column_;  // row_, column_: the first ones of this thread in accumulators
  GateBits gates_;
  float kk_[32], qk_[32];
  float cross_[2][2][4];
  u32 left_[kStepsAtOnce][4];
};

template <class C>
WW_DEVICE void chunk_prepare(const LinearParams& p, char* shared) {
  const Segment& segment = p.work.segment;
  const bool in_segments = segment.index >= 0;
  if (segment.index == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
    for (int i = threadIdx.x; i < kMostScanBlocks; i += C::kThreads) p.work.handed_over[i] = 0;
  }
  const int base = in_segments ? chunk_from(p, segment.begin) : 0;
  for (int index = base + blockIdx.x;; index += p.work.grid_chunks) {
    Chunk chunk;
    const bool found = find_chunk(p, index, chunk);
    if (found && (!in_segments || chunk.first - first_row(p.batch, 0) < segment.end)) ChunkPrepare<C>(p, shared, chunk).run(blockIdx.y);
    else if (found || p.work.list == nullptr || index >= p.work.list_first[p.batch.num_requests]) return;
    if (p.work.list == nullptr) return;
  }
}

}  // namespace warpweave::linear
