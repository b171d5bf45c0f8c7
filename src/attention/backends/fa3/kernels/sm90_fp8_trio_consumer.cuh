// A multiplying warpgroup of the fp8 prefill kernel (sm90_fp8_extend.cuh) where three share a tile.
#pragma once

#include "attention/backends/fa3/kernels/sm90_fp8_consumer.cuh"

namespace warpweave::cuda {

// One warpgroup's 64 rows, with two thirds of the registers that it has where two multiply: nothing but O, the maxima
// and sums is kept from block to block, P takes the place of S, and O of a block is multiplied half of the columns at a
// time. O of a block and S of the next one are multiplied in turns with the other warpgroups; this one finds its
// probabilities while theirs run. Each skips the blocks that none of its rows sees. Across tiles only Q's copy
// overlaps.
template <class C>
class Sm90Fp8TrioConsumer : Sm90Fp8Consumer<C> {
 public:
  WW_DEVICE Sm90Fp8TrioConsumer(const AttentionParams& p, const Sm90Fp8Shared<C>& shared) : Base(p, shared) {}

  WW_DEVICE void run() {
    float s[kScores];
    if (group_ == C::kConsumers - 1) hand_over();  // warpgroup 0 goes first
    bool more = await_tile();
    if (more) copy_query(tile());
    while (more) {
      enter_tile();
      store_query();
      start_rows();
      clear_out();
      if (begin_ > last_) {
        write_empty();
        advance_tile();
        more = await_tile();
        if (more) copy_query(tile());
        continue;
      }
      pass_blocks();
      int block = last_;
      multiply_first(s, block > begin_);
      for (;;) {
        if (block < plain_begin_ || block >= plain_end_) {
          mask(block, s);
          fence_registers(s);
        }
        maxima(s);
        if (moved_) {
          move_maxima(s);
          rescale();
        }
        probabilities(s);
        if (block == begin_) break;
        --block;
        multiply_both(s, block > begin_);
      }
      multiply_last(s);
      const Sm90Fp8Tile& done = tile();
      advance_tile();
      more = await_tile();
      if (more) copy_query(tile());
      write(done);
    }
  }

 private:
  using Base = Sm90Fp8Consumer<C>;
  using typename Base::E;
  using typename Base::Qk;
  using typename Base::Ring;
  using Base::kScores, Base::kOut;
  using Base::p_, Base::shared_, Base::tile_, Base::ring_, Base::out_, Base::group_, Base::rows_, Base::moved_,
      Base::begin_, Base::last_, Base::plain_begin_, Base::plain_end_;
  using Base::release, Base::tile, Base::advance_tile, Base::copy_query, Base::store_query, Base::start_rows,
      Base::clear_out, Base::mask, Base::maxima, Base::move_maxima, Base::rescale, Base::exponentials,
      Base::finish_row, Base::write_empty, Base::token_of, Base::out_of;
  static constexpr int kSteps = kScores / 16;   // of 32 tokens
  // Where registers suffice: K is waited for ahead, and tiles of up to so many blocks have no turns.
  static constexpr bool kKeyAhead = C::kDim == 64;
  static constexpr int kTurnBlocks = C::kDim == 64 ? 8 : 0;

  WW_DEVICE bool await_tile() const {
    ptx::mbarrier_wait(shared_.tile_full(tile_ % C::kTileStages), tile_ / C::kTileStages % 2);
    return uniform(tile().request + 1) != 0;
  }
  WW_DEVICE void enter_tile() {
    Base::enter_tile();
    passes_ = 0;
    if (begin_ > last_) return;
    const int own = static_cast<int>(uniform(own_last()));
    passes_ = last_ - own;
    turns_ = last_ - begin_ >= kTurnBlocks;
    last_ = own;
  }
  // The last block that a row of the warpgroup sees, or the first of all.
  WW_DEVICE int own_last() const {
    const Sm90Fp8Tile& t = tile();
    if (!p_.causal) return last_;
    const int row = t.first_token + group_ * 64;
    if (row >= t.end_token) return begin_;
    const int position = t.kv_len - t.q_len + min(row + 64, t.end_token) - 1;
    return min(max(position / C::kBlockTokens, begin_), last_);
  }
  WW_DEVICE void pass_blocks() {
#pragma unroll 1
    for (int n = passes_; n > 0; --n) {
      wait_k();
      release(shared_.k_empty(ring_.stage));
      wait_v();
      release(shared_.v_empty(ring_.stage));
      ring_.advance();
      take_turn();
      hand_over();
    }
  }

  WW_DEVICE void take_turn() const {
    if (turns_) ptx::named_barrier_sync(8 + group_, 256);
  }
  WW_DEVICE void hand_over() const {
    if (turns_) ptx::named_barrier_arrive(8 + (group_ == C::kConsumers - 1 ? 0 : group_ + 1), 256);
  }

  // `more`: another block follows.
  WW_DEVICE void multiply_first(float (&s)[kScores], bool more) {
    wait_k();
    multiply_qk(s);
    finish_scores(s, more);
  }
  // O of the last block, then S of the next.
  WW_DEVICE void multiply_both(float (&s)[kScores], bool more) {
    const int stage = ring_.stage;
    ring_.advance();
    if constexpr (!kKeyAhead) wait_k();
    take_turn();
    multiply_pv(s, stage);
    multiply_qk(s);
    if constexpr (!C::kLateTurns) hand_over();
    finish_scores(s, more);
    if constexpr (C::kLateTurns) hand_over();
  }
  WW_DEVICE void multiply_last(float (&s)[kScores]) {
    const int stage = ring_.stage;
    ring_.advance();
    take_turn();
    multiply_pv(s, stage);
    hand_over();
  }

  WW_DEVICE void wait_k() const { ptx::mbarrier_wait(shared_.k_full(ring_.stage), ring_.parity); }
  WW_DEVICE void wait_v() const { ptx::mbarrier_wait(shared_.v_full(ring_.stage), ring_.parity); }
  WW_DEVICE void finish_scores(float (&s)[kScores], bool more) const {
    // Waiting costs nothing while the WGMMAs run.
    wait_v();
    if constexpr (kKeyAhead) {
      Ring next = ring_;
      next.advance();
      if (more) ptx::mbarrier_wait(shared_.k_full(next.stage), next.parity);
    }
    ptx::wgmma_wait<0>();
    fence_registers(s);
    release(shared_.k_empty(ring_.stage));
  }

  WW_DEVICE void multiply_qk(float (&s)[kScores]) const {
    const ptx::u32 k = ptx::wgmma_descriptor(shared_.k + ring_.stage * C::kBlockBytes, 16);
    const ptx::u32 q = ptx::wgmma_descriptor(shared_.q + group_ * 64 * C::kDim, 16);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::kDim / 32; ++step) {
      Qk::template ss<C::kDim>(s, ptx::wgmma_advance(q, step * 32), ptx::wgmma_advance(k, step * 32),
                               step > 0);
    }
    ptx::wgmma_commit();
  }

  // Added to O here, since sums of a block are kept apart (Sm90Fp8Consumer::multiply_pv).
  WW_DEVICE void multiply_pv(const float (&s)[kScores], int stage) {
    const ptx::u32 v = ptx::wgmma_descriptor(shared_.v + stage * C::kBlockBytes, 16);
#pragma unroll
    for (int half = 0; half < C::kDim / 64; ++half) {
      float part[32];
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::u32 probability[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) probability[i] = __float_as_uint(s[step * 4 + i]);
        ptx::WgmmaE4m3<64>::template rs<128>(part, probability, ptx::wgmma_advance(v, half * (64 * 128) + step * 32),
                                             step > 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      fence_registers(part);
#pragma unroll
      for (int i = 0; i < 32; ++i) out_[half * 32 + i] += part[i];
    }
    release(shared_.v_empty(stage));
  }

  // P from S, in the first quarter of its registers.
  WW_DEVICE void probabilities(float (&s)[kScores]) {
    float sum[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::u32 probability[4];
      exponentials(&s[step * 16], probability, sum);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[step * 4 + i] = __uint_as_float(probability[i]);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) rows_.sum[row] += sum[row * 2] + sum[row * 2 + 1];
  }

  // Not through the staging rows, which are the next Q's.
  WW_DEVICE void write(const Sm90Fp8Tile& tile) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float scale = finish_row(tile, rows_, row);
      const int token = token_of(tile, row);
      store_row<E>(out_, row, scale, out_of(tile, token), token < tile.end_token);
    }
  }

  int passes_ = 0;
  bool turns_ = true;
};

}  // namespace warpweave::cuda
