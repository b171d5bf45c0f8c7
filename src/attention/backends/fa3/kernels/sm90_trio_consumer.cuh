// A multiplying warpgroup of the Hopper prefill kernel (sm90_extend.cuh) where three share a tile.
#pragma once

#include "attention/backends/fa3/kernels/sm90_consumer.cuh"

namespace warpweave::cuda {

// One warpgroup's 64 rows. S of the next block and O of the last one are multiplied together, in turns with the other
// two warpgroups; this one finds its probabilities while theirs run. O is complete by then, so that it follows the
// maxima at once. (kOutFirst: first O, then S, in the registers of P.) Each warpgroup passes over the blocks that none
// of its rows sees. No overlap across tiles.
template <class C>
class Sm90TrioConsumer : Sm90Consumer<C> {
 public:
  WW_DEVICE Sm90TrioConsumer(const AttentionParams& p, const Sm90Shared<C>& shared) : Base(p, shared) {}

  WW_DEVICE void run() {
    float s[kScores];
    Probability probability;
    if (group_ == C::kConsumers - 1) hand_over();  // warpgroup 0 goes first
    for (;;) {
      ptx::mbarrier_wait(shared_.q_full(q_ring_.at()), q_ring_.phase());
      if (tile().request < 0) return;
      start_rows();
      clear_out();
      int block = tile().block_end - 1;
      for (const int end = span().end; block >= end; --block) pass();
      const int begin = span().begin;
      const bool any = block >= begin;
      if (any) {
        multiply_first(s);
        see_tile();
        clear_tail(block);
        masked_exponentials(block, s, probability);
        for (--block; block >= begin; --block) {
          start_both(s, probability);
          const bool whole = plain(block);  // while the WGMMAs run
          finish_both(s);
          if (whole) {
            expected_exponentials(s, probability);
            release_k();
          } else {
            release_k();
            masked_exponentials(block, s, probability);
          }
        }
        multiply_last(probability);
      }
      const Left left = leave_rows();
      const int stop = tile().block_begin;
      release(shared_.q_empty(q_ring_.at()));
      q_ring_.advance();
      ptx::wgmma_wait<0>();
      fence_registers(out_);
      if (any) release_v();
      for (; block >= stop; --block) pass();
      write(left);
    }
  }

 private:
  using Base = Sm90Consumer<C>;
  using typename Base::E;
  using typename Base::Pv;
  using Base::kScores, Base::kOut, Base::kLn2, Base::kLog2e;
  using Base::p_, Base::shared_, Base::tile_, Base::q_ring_, Base::k_ring_, Base::v_ring_, Base::out_, Base::group_,
      Base::scale_log2_;
  using Base::wait_k, Base::wait_v, Base::release, Base::release_v, Base::release_k,
      Base::multiply_qk, Base::multiply_alone, Base::mask, Base::clear_out, Base::clear_tail, Base::token_of,
      Base::rows_of, Base::out_of;
  using Probability = ptx::u32[kScores / 8][4];

  WW_DEVICE const Sm90Tile& tile() const { return shared_.tiles[q_ring_.at()]; }
  // Kept in registers only where it is read: they are short.
  WW_DEVICE void see_tile() { tile_ = tile(); }

  // Past the tile's last token: those of a request's first tile may be less than kTileRows (Sm90Tiles).
  WW_DEVICE int end_token() const {
    const int first = tile().first_token;
    return first > 0 ? first + C::kTileRows : (tile().q_len - 1) % C::kTileRows + 1;
  }

  struct Span {
    int begin, end;              // blocks that some row of the warpgroup sees
    int plain_begin, plain_end;  // those that every row sees whole
  };
  WW_DEVICE Span span() const {
    const Sm90Tile& t = tile();
    const int row = t.first_token + group_ * 64, rows = min(64, end_token() - row);
    const int first = t.kv_len - t.q_len + row;  // position
    int end = p_.causal ? min(max(first + rows, 0), t.kv_len) : t.kv_len;
    if (rows <= 0) end = 0;
    int plain_end = p_.causal ? min(max(first + 1, 0), t.kv_len) : t.kv_len;
    if (p_.softcap > 0) plain_end = 0;
    Span out = {t.block_begin, (end + C::kBlockTokens - 1) / C::kBlockTokens, 0, plain_end / C::kBlockTokens};
    if (p_.window_left >= 0) {
      out.begin = max(out.begin, max(0, first - p_.window_left) / C::kBlockTokens);
      out.plain_begin = (max(0, first + 63 - p_.window_left) + C::kBlockTokens - 1) / C::kBlockTokens;
    }
    out.end = min(t.block_end, max(out.end, t.block_begin));
    return out;
  }

  // A block that is not for this warpgroup.
  WW_DEVICE void pass() {
    wait_k();
    release_k();
    wait_v();
    release_v();
    take_turn();
    hand_over();
  }

  WW_DEVICE bool plain(int block) const {
    const Span own = span();
    return block >= own.plain_begin && block < own.plain_end;
  }

  WW_DEVICE void multiply_first(float (&s)[kScores]) {
    const ptx::u32 at = stages();
    wait_k();
    take_turn();
    ptx::wgmma_fence();
    multiply_qk(s, query_descriptor(at), key_descriptor(at));
    ptx::wgmma_commit();
    if (C::kOutFirst) hand_over();
    ptx::wgmma_wait<0>();
    if (!C::kOutFirst) hand_over();
    fence_registers(s);
    release_k();
  }

  // S of the next block and O of the last one. The turn is handed over when S is there or, where O is complete by
  // then, as soon as all WGMMAs are issued.
  WW_DEVICE void start_both(float (&s)[kScores], const Probability& probability) {
    const ptx::u32 at = stages();
    wait_k();
    wait_v();
    take_turn();
    ptx::wgmma_fence();
    if constexpr (C::kOutFirst) {
      multiply_pv(probability, at);
      ptx::wgmma_commit();
      finish_out();
      ptx::wgmma_fence();
    }
    multiply_qk(s, query_descriptor(at), key_descriptor(at));
    if constexpr (!C::kOutFirst) multiply_pv(probability, at);
    ptx::wgmma_commit();
    if (C::kOutFirst) hand_over();
  }
  WW_DEVICE void finish_out() {
    ptx::wgmma_wait<0>();
    fence_registers(out_);
    release_v();
  }
  WW_DEVICE void finish_both(float (&s)[kScores]) {
    ptx::wgmma_wait<0>();
    if (!C::kOutFirst) hand_over();
    fence_registers(s);
    if (C::kOutFirst) return;
    fence_registers(out_);
    release_v();
  }

  WW_DEVICE void multiply_last(const Probability& probability) {
    const ptx::u32 at = stages();
    wait_v();
    ptx::wgmma_fence();
    multiply_pv(probability, at);
    ptx::wgmma_commit();
  }

  WW_DEVICE void masked_exponentials(int block, float (&s)[kScores], Probability& probability) {
    see_tile();
    mask(block, s);
    maxima(s);
    exponentials(s, probability);
  }

  WW_DEVICE void take_turn() const { ptx::named_barrier_sync(8 + group_, 256); }
  WW_DEVICE void hand_over() const {
    ptx::named_barrier_arrive(8 + (group_ == C::kConsumers - 1 ? 0 : group_ + 1), 256);
  }

  // Where the warpgroup stands in the rings and in Q, in a uniform register, as descriptors are read from those.
  WW_DEVICE ptx::u32 stages() const {
    return uniform(k_ring_.at() | v_ring_.at() << 8 |
                   (q_ring_.at() * C::kConsumers * C::kColumnBlocks + group_) << 16);
  }
  WW_DEVICE ptx::u32 query_descriptor(ptx::u32 stages) const {
    return ptx::wgmma_advance(ptx::wgmma_descriptor(shared_.q, 16), (stages >> 16) * 64 * 128);
  }
  WW_DEVICE ptx::u32 key_descriptor(ptx::u32 stages) const {
    return ptx::wgmma_advance(ptx::wgmma_descriptor(shared_.k, 16), (stages & 255) * C::kBlockBytes);
  }
  WW_DEVICE void multiply_pv(const Probability& probability, ptx::u32 stages) {
    const ptx::u32 v = ptx::wgmma_advance(ptx::wgmma_descriptor(shared_.v, C::kBlockTokens * 128),
                                          (stages >> 8 & 255) * C::kBlockBytes);
#pragma unroll
    for (int step = 0; step < C::kBlockTokens / 16; ++step) {
      Pv::pv(out_, probability[step], ptx::wgmma_advance(v, step * 16 * 128), 1);
    }
  }

  WW_DEVICE void start_rows() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      maximum_[row] = -INFINITY;
      sum_[row] = 0;
    }
  }

  // As the other consumer does it, but O is complete and follows at once; nothing but the maxima is kept.
  WW_DEVICE void maxima(const float (&s)[kScores]) {
    const float threshold = __fdividef(C::kRescaleThreshold, scale_log2_);
    const float bound[2] = {maximum_[0] + threshold, maximum_[1] + threshold};
    float top[2];
    find_maxima(s, top);
    if (!__any_sync(~0u, top[0] > bound[0] || top[1] > bound[1])) return;
    float factor[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float m = top[row];
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      factor[row] = 1;
      if (m > bound[row]) {
        factor[row] = ptx::exp2_approx((maximum_[row] - m) * scale_log2_);
        maximum_[row] = m;
        sum_[row] *= factor[row];
      }
    }
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] *= factor[i / 2 % 2];
  }

  // The sums are too great where no maximum is known and the row sees something.
  WW_DEVICE float2 turn_into_probabilities(float (&s)[kScores], Probability& probability) const {
    float shift[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) shift[row] = fminf(-maximum_[row] * scale_log2_, 1e30f);
    return Base::turn_into_probabilities(s, shift, probability);
  }

  WW_DEVICE void exponentials(float (&s)[kScores], Probability& probability) {
    const float2 sums = turn_into_probabilities(s, probability);
    sum_[0] += sums.x;
    sum_[1] += sums.y;
  }

  // With the maxima as they stand, as the other consumer's.
  WW_DEVICE void expected_exponentials(float (&s)[kScores], Probability& probability) {
    const float2 sums = turn_into_probabilities(s, probability);
    if (__any_sync(~0u, !(sums.x <= C::kMostExpected && sums.y <= C::kMostExpected))) {
      multiply_alone(s);
      maxima(s);
      exponentials(s, probability);
      return;
    }
    sum_[0] += sums.x;
    sum_[1] += sums.y;
  }

  // What writing a thread's two rows takes.
  struct Left {
    char* out[2];  // null: past the tile's end
    float scale[2];
  };
  WW_DEVICE Left leave_rows() const {
    const auto t = rows_of(tile());
    const int end = end_token();
    Left left;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = sum_[row];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const bool empty = maximum_[row] == -INFINITY;
      float top = maximum_[row] * scale_log2_;
      float factor = 1.0f;
      if (p_.sinks != nullptr && !empty) {
        const float sink = p_.sinks[t.head] * kLog2e;
        const float higher = fmaxf(top, sink);
        factor = ptx::exp2_approx(top - higher);
        sum = sum * factor + ptx::exp2_approx(sink - higher);
        top = higher;
      }
      const int token = token_of(t, row);
      left.scale[row] = empty ? 0.0f : __fdividef(factor, sum);
      left.out[row] = token < end ? out_of(t, token) : nullptr;
      if (p_.lse != nullptr && threadIdx.x % 4 == 0 && token < end) {
        p_.lse[(static_cast<int64_t>(t.q_begin) + token) * p_.num_q_heads + t.head] =
            empty ? -INFINITY : (top + ptx::log2_approx(sum)) * kLn2;
      }
    }
    return left;
  }

  WW_DEVICE void write(const Left& left) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) store_row<E>(out_, row, left.scale[row], left.out[row], left.out[row] != nullptr);
  }

  float maximum_[2], sum_[2];
};

}  // namespace warpweave::cuda
