// A multiplying warpgroup of the Hopper prefill kernel (sm90_extend.cuh) for K of 192 and V of 128 dims.
#pragma once

#include "attention/backends/fa3/kernels/sm90_consumer.cuh"

namespace warpweave::cuda {

// One warpgroup's 64 rows. S of the next block and O of this one are issued together, as elsewhere, but in no turns
// with the other warpgroup: with a quarter more MMAs for each exponential than at head dim 128, the tensor cores do not
// idle either way. S becomes exponentials while the rest of O is multiplied, by the maxima as they stand where every
// row sees the whole block. No overlap across tiles.
template <class C>
class Sm90LatentConsumer : Sm90Consumer<C> {
 public:
  WW_DEVICE Sm90LatentConsumer(const AttentionParams& p, const Sm90Shared<C>& shared) : Base(p, shared) {}

  WW_DEVICE void run() {
    float s[kScores];
    ptx::u32 probability[kScores / 8][4];
    while (this->next_tile()) {
      int block = tile_.block_end - 1;
      this->begin_tile(block, s);
      this->exponentials(s, probability);
      for (--block; block >= tile_.block_begin; --block) {
        this->issue(s, probability);
        ptx::wgmma_wait<1>();
        fence_registers(s);
        if (block >= tile_.plain_begin && block < tile_.plain_end) expected_exponentials(s);
        else masked_exponentials(block, s);
        this->release_k();
        this->finish_out();
        pack_probabilities<E>(s, probability);
      }
      const auto done = this->rows_of(tile_);
      this->release(shared_.q_empty(q_ring_.at()));
      q_ring_.advance();
      this->finish(done, probability);
    }
  }

 private:
  using Base = Sm90Consumer<C>;
  using typename Base::E;
  using Base::kScores, Base::limit_, Base::moved_, Base::q_ring_, Base::rows_, Base::shared_, Base::shift_, Base::tile_;

  WW_DEVICE void masked_exponentials(int block, float (&s)[kScores]) {
    this->mask(block, s);
    this->maxima(s);
    add(this->turn_into_exponentials(s, shift_));
  }
  // A sum too great, or NaN, tells that the maxima do not do: S is multiplied once more, of the K that is still held.
  WW_DEVICE void expected_exponentials(float (&s)[kScores]) {
    moved_ = false;
    float2 sums = this->turn_into_exponentials(s, shift_);
    if (__any_sync(~0u, !(sums.x <= limit_[0] && sums.y <= limit_[1]))) {
      this->multiply_alone(s);
      this->maxima(s);
      sums = this->turn_into_exponentials(s, shift_);
    }
    add(sums);
  }
  WW_DEVICE void add(const float2& sums) {
    rows_.sum[0] += sums.x;
    rows_.sum[1] += sums.y;
  }
};

}  // namespace warpweave::cuda
