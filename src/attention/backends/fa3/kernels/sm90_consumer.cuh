// A multiplying warpgroup of the Hopper prefill kernel (sm90_extend.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_shared.cuh"
#include "attention/cuda/wgmma_softmax.cuh"
#include "device/cuda/wgmma.h"

namespace warpweave::cuda {

// One warpgroup's 64 rows. A thread holds rows lane / 4 and lane / 4 + 8 of its warp's 16.
template <class C>
class Sm90Consumer {
 public:
  WW_DEVICE Sm90Consumer(const AttentionParams& p, const Sm90Shared<C>& shared)
      : p_(p), shared_(shared), group_(__shfl_sync(~0u, threadIdx.x / 128, 0) - 1),
        threshold_(C::kRescaleThreshold / (p.softcap > 0 ? kLog2e : p.scale * kLog2e)),
        scale_log2_(p.softcap > 0 ? kLog2e : p.scale * kLog2e) {
    if (C::kPingPong && group_ == 1) hand_over();  // warpgroup 0 goes first
  }

  WW_DEVICE void run() {
    float s[kScores];
    ptx::u32 probability[kScores / 8][4];
    for (bool more = next_tile(); more;) {
      int block = tile_.block_end - 1;
      begin_tile(block, s);
      exponentials(s, probability);
      while (true) {
        // P of `block` is ready, its WGMMA with V is due.
        for (--block; block >= tile_.block_begin; --block) {
          if (block >= tile_.plain_begin && block < tile_.plain_end) step<false>(block, s, probability);
          else step<true>(block, s, probability);
        }
        const RowsOf done = rows_of(tile_);
        release(shared_.q_empty(q_ring_.at()));
        q_ring_.advance();
        if constexpr (!C::kOverlapTiles) finish(done, probability);
        more = next_tile();
        if constexpr (!C::kOverlapTiles) break;
        if (!more) {
          finish(done, probability);
          break;
        }
        // The same step across two tiles: S of the next one's first block, O of this one's last.
        block = tile_.block_end - 1;
        issue(s, probability);
        hand_over();
        const Rows old = rows_;
        start_rows();
        finish_scores<true>(block, s);
        finish_out();
        write(done, old);
        clear_out();
        clear_tail(block);
        exponentials(s, probability);
      }
    }
  }

 protected:
  using E = typename C::Element;
  using Qk = ptx::Wgmma<E, C::kBlockTokens>;
  using Pv = ptx::Wgmma<E, C::kValueDim>;
  static constexpr int kScores = C::kBlockTokens / 2;  // registers of S
  static constexpr int kOut = C::kValueDim / 2;             // and of O
  template <int kStages>
  using Position =
      std::conditional_t<C::kCompactRings, CompactRingPosition<C::kCompactRings ? kStages : 1>, RingPosition<kStages>>;
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr float kLn2 = 0.6931471805599453f;

  // ---- turns of the two warpgroups at the tensor cores
  WW_DEVICE void take_turn() const {
    if (C::kPingPong) ptx::named_barrier_sync(2 + group_, 256);
  }
  WW_DEVICE void hand_over() const {
    if (C::kPingPong) ptx::named_barrier_arrive(2 + (group_ ^ 1), 256);
  }
  static WW_DEVICE void release(ptx::u32 barrier) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
  }

  // P of a tile's first block, with nothing to overlap.
  WW_DEVICE void begin_tile(int block, float (&s)[kScores]) {
    start_rows();
    clear_out();
    wait_k();
    ptx::wgmma_fence();
    multiply_qk(s, query_descriptor(), key_descriptor());
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    fence_registers(s);
    release_k();
    mask(block, s);
    maxima(s);
    clear_tail(block);
  }

  template <bool kMasked>
  WW_DEVICE void step(int block, float (&s)[kScores], ptx::u32 (&probability)[kScores / 8][4]) {
    issue(s, probability);
    if constexpr (!kMasked && C::kExpectMaxima) {
      // Only now, or the other warpgroup's first WGMMAs would run between this one's last.
      ptx::wgmma_wait<0>();
      hand_over();
      fence_registers(s);
      fence_registers(out_);
      release_v();
      expected_exponentials(s, probability);
      release_k();
    } else {
      hand_over();
      finish_scores<kMasked>(block, s);
      finish_out();
      exponentials(s, probability);
    }
  }

  // Starts S of the next block and O of the last one; the turn is to be handed over after.
  WW_DEVICE void issue(float (&s)[kScores], const ptx::u32 (&probability)[kScores / 8][4]) {
    wait_k();
    const ptx::u32 q = query_descriptor(), k = key_descriptor();
    take_turn();
    ptx::wgmma_fence();
    multiply_qk(s, q, k);
    ptx::wgmma_commit();
    wait_v();
    rescale();
    ptx::wgmma_fence();
    multiply_pv(probability);
    ptx::wgmma_commit();
  }

  // Finds the maxima of S, while the rest of O is being multiplied. (Issuing WGMMAs waits for the tensor
  // cores, so that little of O is left by then.) Blocks that every row sees whole are not masked.
  template <bool kMasked>
  WW_DEVICE void finish_scores(int block, float (&s)[kScores]) {
    ptx::wgmma_wait<1>();
    fence_registers(s);
    release_k();
    if constexpr (kMasked) mask(block, s);
    maxima(s);
  }

  WW_DEVICE void finish_out() {
    ptx::wgmma_wait<0>();
    fence_registers(out_);
    release_v();
  }

  // O of a tile's last block, with nothing to overlap.
  template <class Done>
  WW_DEVICE void finish(const Done& done, const ptx::u32 (&probability)[kScores / 8][4]) {
    take_turn();
    wait_v();
    rescale();
    ptx::wgmma_fence();
    multiply_pv(probability);
    ptx::wgmma_commit();
    hand_over();
    finish_out();
    write(done, rows_);
  }

  WW_DEVICE void clear_out() {
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] = 0;
  }

  struct Rows {
    float maximum[2], sum[2];
  };

  // What writing a tile's rows takes.
  struct RowsOf {
    int head, q_begin, q_len, first_token;
  };
  static WW_DEVICE RowsOf rows_of(const Sm90Tile& t) { return {t.head, t.q_begin, t.q_len, t.first_token}; }

  // Waits for the next tile that has KV blocks; those without are written on the way.
  WW_DEVICE bool next_tile() {
    for (;;) {
      ptx::mbarrier_wait(shared_.q_full(q_ring_.at()), q_ring_.phase());
      tile_ = shared_.tiles[q_ring_.at()];
      if (tile_.request < 0) return false;
      if (C::kPairs) {  // the tile as far as it is this warpgroup's
        tile_.head += tile_.paired ? group_ : 0;
        tile_.first_token += tile_.paired ? 0 : group_ * 64;
      }
      if (tile_.block_begin < tile_.block_end) return true;
      release(shared_.q_empty(q_ring_.at()));
      q_ring_.advance();
      write_empty();
    }
  }

  template <class Tile>
  WW_DEVICE int first_of(const Tile& tile) const {
    return tile.first_token + (C::kPairs ? 0 : group_ * 64);
  }
  template <class Tile>
  WW_DEVICE int token_of(const Tile& tile, int row) const {
    return first_of(tile) + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + row * 8;
  }

  WW_DEVICE void start_rows() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows_.maximum[i] = -INFINITY;
      rows_.sum[i] = 0;
      bound_[i] = -INFINITY;
      shift_[i] = 0;
      limit_[i] = -1;
    }
  }

  WW_DEVICE void wait_v() {
    ptx::mbarrier_wait(shared_.v_full(v_ring_.at()), v_ring_.phase());
    see_gathered();
  }
  WW_DEVICE void wait_k() {
    ptx::mbarrier_wait(shared_.k_full(k_ring_.at()), k_ring_.phase());
    see_gathered();
  }
  // What threads have copied is not seen by the tensor cores without a fence.
  static WW_DEVICE void see_gathered() {
    if constexpr (C::kGather) ptx::fence_proxy_async();
  }
  WW_DEVICE void release_k() {
    release(shared_.k_empty(k_ring_.at()));
    k_ring_.advance();
  }
  WW_DEVICE void release_v() {
    release(shared_.v_empty(v_ring_.at()));
    v_ring_.advance();
  }

  WW_DEVICE ptx::u32 query_descriptor() const {
    return uniform(ptx::wgmma_descriptor(shared_.q + q_ring_.at() * C::kQueryBytes + group_ * 64 * 128, 16));
  }
  WW_DEVICE ptx::u32 key_descriptor() const {
    return uniform(ptx::wgmma_descriptor(shared_.k + k_ring_.at() * C::kBlockBytes, 16));
  }

  WW_DEVICE void multiply_qk(float (&s)[kScores], ptx::u32 q, ptx::u32 k) const {
#pragma unroll
    for (int step = 0; step < C::kDim / 16; ++step) {
      const int column = step / 4, within = step % 4 * 32;
      Qk::qk(s, ptx::wgmma_advance(q, column * C::kTileRows * 128 + within),
             ptx::wgmma_advance(k, column * C::kBlockTokens * 128 + within), step > 0);
    }
  }

  WW_DEVICE void multiply_pv(const ptx::u32 (&probability)[kScores / 8][4]) {
    const ptx::u32 v =
        uniform(ptx::wgmma_descriptor(shared_.v + v_ring_.at() * C::kValueBlockBytes, C::kBlockTokens * 128));
#pragma unroll
    for (int step = 0; step < C::kBlockTokens / 16; ++step) {
      Pv::pv(out_, probability[step], ptx::wgmma_advance(v, step * 16 * 128), 1);
    }
  }

  WW_DEVICE void mask(int block, float (&s)[kScores]) const {
    if (p_.softcap > 0) {
      const float inner = p_.scale / p_.softcap;
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = p_.softcap * ptx::tanh_approx(s[i] * inner);
    }
    // Most blocks are seen whole by all 64 rows.
    const int begin = block * C::kBlockTokens;
    const int first = tile_.kv_len - tile_.q_len + first_of(tile_);
    const int whole_end = p_.causal ? min(first + 1, tile_.kv_len) : tile_.kv_len;
    const int whole_begin = p_.window_left < 0 ? 0 : first + 63 - p_.window_left;
    if (begin >= whole_begin && begin + C::kBlockTokens <= whole_end) return;
    const int column = begin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int position = tile_.kv_len - tile_.q_len + token_of(tile_, row);
      Elements seen = first_elements((p_.causal ? min(position + 1, tile_.kv_len) : tile_.kv_len) - column);
      if (p_.window_left >= 0) seen &= ~first_elements(position - p_.window_left - column);
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        if ((seen & Elements{1} << i) == 0) s[i / 2 * 4 + row * 2 + i % 2] = -INFINITY;
      }
    }
  }

  // One bit for each element of a thread's row that stands in the row's first `columns` columns.
  using Elements = std::conditional_t<(kScores > 64), ptx::u64, ptx::u32>;
  static WW_DEVICE Elements first_elements(int columns) {
    constexpr int kBits = sizeof(Elements) * 8;
    static_assert(kScores / 2 <= kBits);
    const int count = columns <= 0 ? 0 : columns / 8 * 2 + min(columns % 8, 2);
    return count >= kBits ? ~Elements{0} : (Elements{1} << count) - 1;
  }

  // Moves the maxima, and with them the sums, where a row's has grown by more than the threshold; O's
  // pending factor is in factor_. While S and O share the tensor cores with the other warpgroup, a warp
  // has a scheduler almost to itself, so nothing hides the latency of dependent instructions: both
  // rows go side by side, in two chains each, and lanes exchange maxima only when one of them moves.
  WW_DEVICE void maxima(const float (&s)[kScores]) {
    // Floats order as integers do where the greatest is not negative, and an instruction takes three of those.
    int top_bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) top_bits[i] = __float_as_int(bound_[i % 2]);
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      int& bits = top_bits[i / 2 % 4];
      bits = __vimax3_s32(bits, __float_as_int(s[i]), __float_as_int(s[i + 1]));
    }
    float top[2];
    bool negative = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int bits = max(top_bits[row], top_bits[row + 2]);
      negative |= bits < 0;
      top[row] = __int_as_float(bits);
    }
    moved_ = __any_sync(~0u, negative || top[0] > bound_[0] || top[1] > bound_[1]);
    if (!moved_) return;
    if (__any_sync(~0u, negative)) find_maxima(s, top);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float m = top[row];
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      factor_[row] = 1;
      if (m > bound_[row]) {
        factor_[row] = ptx::exp2_approx((rows_.maximum[row] - m) * scale_log2_);
        rows_.maximum[row] = m;
        rows_.sum[row] *= factor_[row];
        bound_[row] = m + threshold_;
        shift_[row] = -m * scale_log2_;
        limit_[row] = C::kMostExpected;
      }
    }
  }

  // Returns what a row's sums grow by. `shift`: of a row's exponents, by its maximum.
  WW_DEVICE float2 turn_into_exponentials(float (&s)[kScores], const float (&shift)[2]) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = ptx::exp2_approx(__fmaf_rn(s[i], scale_log2_, shift[i / 2 % 2]));
    float sum[4];
#pragma unroll
    for (int i = 0; i < kScores; ++i) sum[i % 4] = i < 4 ? s[i] : sum[i % 4] + s[i];
    return {sum[0] + sum[1], sum[2] + sum[3]};
  }
  // O is complete here, so P may replace the last one.
  WW_DEVICE float2 turn_into_probabilities(float (&s)[kScores], const float (&shift)[2],
                                           ptx::u32 (&probability)[kScores / 8][4]) const {
    const float2 sums = turn_into_exponentials(s, shift);
    pack_probabilities<E>(s, probability);
    return sums;
  }

  WW_DEVICE void exponentials(float (&s)[kScores], ptx::u32 (&probability)[kScores / 8][4]) {
    const float2 sums = turn_into_probabilities(s, shift_, probability);
    rows_.sum[0] += sums.x;
    rows_.sum[1] += sums.y;
  }

  // With the maxima as they stand: rows seldom meet a score that is greater by so much that it matters. The sums tell
  // (NaN, too), and then S is multiplied once more.
  WW_DEVICE void expected_exponentials(float (&s)[kScores], ptx::u32 (&probability)[kScores / 8][4]) {
    moved_ = false;
    const float2 sums = turn_into_probabilities(s, shift_, probability);
    if (__any_sync(~0u, !(sums.x <= limit_[0] && sums.y <= limit_[1]))) {
      multiply_alone(s);
      maxima(s);
      exponentials(s, probability);
      return;
    }
    rows_.sum[0] += sums.x;
    rows_.sum[1] += sums.y;
  }

  // S of the block whose K is still held, by mma.sync on this warp's 16 rows: S is then in the same registers as
  // after wgmma.
  WW_DEVICE void multiply_alone(float (&s)[kScores]) const {
    const int lane = threadIdx.x % 32, row = group_ * 64 + threadIdx.x % 128 / 32 * 16 + lane % 16;
    const ptx::u32 q = shared_.q + q_ring_.at() * C::kQueryBytes + row * 128;
    const ptx::u32 k = shared_.k + k_ring_.at() * C::kBlockBytes + (lane % 8 + lane / 16 * 8) * 128;
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = 0;
#pragma unroll 1
    for (int step = 0; step < C::kDim / 16; ++step) {
      const int column = step / 4, chunk = step % 4 * 2;
      ptx::u32 a[4];
      ptx::ldmatrix_x4(a, q + column * C::kTileRows * 128 + ((chunk + lane / 16) ^ lane % 8) * 16);
#pragma unroll
      for (int i = 0; i < C::kBlockTokens / 16; ++i) {
        ptx::u32 b[4];
        ptx::ldmatrix_x4(b, k + (column * C::kBlockTokens + i * 16) * 128 + ((chunk + lane / 8 % 2) ^ lane % 8) * 16);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float (&d)[4] = *reinterpret_cast<float (*)[4]>(s + i * 8 + half * 4);
          E::mma(d, a, b[half * 2], b[half * 2 + 1]);
        }
      }
    }
  }

  WW_DEVICE void rescale() {
    if (!moved_) return;
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] *= factor_[i / 2 % 2];
  }

  // Zeroes V's rows past the last token: NaN there would survive a zero probability. Both warpgroups
  // write the same zeros, each before its own WGMMA.
  WW_DEVICE void clear_tail(int block) const {
    const int first = tile_.kv_len - block * C::kBlockTokens;
    if (first >= C::kBlockTokens) return;
    ptx::mbarrier_wait(shared_.v_full(v_ring_.at()), v_ring_.phase());
    const ptx::u32 v = shared_.v + v_ring_.at() * C::kValueBlockBytes;
    for (int i = first * 8 + threadIdx.x % 128; i < C::kBlockTokens * 8; i += 128) {
#pragma unroll
      for (int c = 0; c < C::kValueColumnBlocks; ++c) {
        ptx::clear_shared_16(v + c * C::kBlockTokens * 128 + i * 16);
      }
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(4 + group_, 128);
  }

  WW_DEVICE void write(const RowsOf& tile, const Rows& rows) const {
    float scale[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = rows.sum[row];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const bool empty = rows.maximum[row] == -INFINITY;
      float top = rows.maximum[row] * scale_log2_;
      float factor = 1.0f;
      if (p_.sinks != nullptr && !empty) {
        const float sink = p_.sinks[tile.head] * kLog2e;
        const float higher = fmaxf(top, sink);
        factor = ptx::exp2_approx(top - higher);
        sum = sum * factor + ptx::exp2_approx(sink - higher);
        top = higher;
      }
      scale[row] = empty ? 0.0f : __fdividef(factor, sum);
      const int token = token_of(tile, row);
      if (p_.lse != nullptr && threadIdx.x % 4 == 0 && token < tile.q_len) {
        p_.lse[(static_cast<int64_t>(tile.q_begin) + token) * p_.num_q_heads + tile.head] =
            empty ? -INFINITY : (top + ptx::log2_approx(sum)) * kLn2;
      }
    }
    write_out(tile, scale);
  }

  WW_DEVICE char* out_of(const RowsOf& tile, int token) const {
    return static_cast<char*>(p_.out) + ((static_cast<int64_t>(tile.q_begin) + token) * p_.out_token_stride +
                                         static_cast<int64_t>(tile.head) * C::kValueDim) * 2;
  }

  WW_DEVICE void write_out(const RowsOf& tile, const float (&scale)[2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int token = token_of(tile, row);
      store_row<E>(out_, row, scale[row], out_of(tile, token), token < tile.q_len);
    }
  }

  // Rows that see nothing.
  WW_DEVICE void write_empty() const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int token = token_of(tile_, row);
      if (token >= tile_.q_len) continue;
      char* out = out_of(rows_of(tile_), token);
      for (int i = threadIdx.x % 4; i < C::kValueDim / 8; i += 4)
        reinterpret_cast<uint4*>(out)[i] = make_uint4(0, 0, 0, 0);
      if (p_.lse != nullptr && threadIdx.x % 4 == 0) {
        p_.lse[(static_cast<int64_t>(tile_.q_begin) + token) * p_.num_q_heads + tile_.head] = -INFINITY;
      }
    }
  }

  const AttentionParams& p_;
  const Sm90Shared<C>& shared_;
  const int group_;
  Sm90Tile tile_;
  Position<C::kQueryStages> q_ring_;
  Position<C::kKeyStages> k_ring_;
  Position<C::kValueStages> v_ring_;
  float out_[kOut];
  Rows rows_;
  float bound_[2], shift_[2];
  float limit_[2];               // what a thread's part of a row may sum to in a block; -1: no maximum is known
  bool moved_ = false;
  float factor_[2];              // what O is due to be multiplied with
  const float threshold_;
  const float scale_log2_;
};

}  // namespace warpweave::cuda
