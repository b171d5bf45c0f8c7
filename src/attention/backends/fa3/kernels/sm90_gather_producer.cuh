// The copying warpgroup of the Hopper prefill kernel where pages hold a few tokens (sm90_extend.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_tiles.cuh"

namespace warpweave::cuda {

// Threads copy K and V in 16-byte pieces, a warp a quarter of a block's rows, and run as far ahead as the rings allow,
// across tiles. Copying takes as long as the WGMMAs here, so each warp goes through the tiles on its own, CTAs
// taking them in turn; warp 0 publishes them and copies Q.
template <class C>
class Sm90GatherProducer : Sm90ProducerBase<C> {
 public:
  WW_DEVICE Sm90GatherProducer(const AttentionParams& p, const Sm90Maps& maps, const Sm90Shared<C>& shared, int)
      : Base(p, maps, shared) {}

  WW_DEVICE void run(const ExtendWorklist& work) {
    const Sm90Tiles<C> tiles(p_, work);
    for (int unit = blockIdx.x;; unit += gridDim.x) {
      tile_ = tiles.of(unit);
      if (warp() == 0) publish();
      if (tile_.request < 0) return;
      int block = tile_.block_end - 1;
      if (block >= tile_.block_begin) find_pages(block);
      for (; block >= tile_.block_begin; --block) gather_block(block);
    }
  }

 private:
  using Base = Sm90ProducerBase<C>;
  using Base::k_ring_, Base::lane, Base::maps_, Base::p_, Base::page_of, Base::publish, Base::q_ring_, Base::shared_,
      Base::tile_, Base::v_ring_, Base::warp;
  static constexpr int kWarpRows = C::kBlockTokens / 4;

  // A lane finds one row.
  WW_DEVICE void find_pages(int block) {
    const int token = block * C::kBlockTokens + warp() * kWarpRows + lane();
    page_ = -1;
    in_page_ = 0;
    if (lane() >= kWarpRows) return;
    if (token < min(tile_.kv_len, (block + 1) * C::kBlockTokens)) page_ = page_of(token, in_page_);
  }

  // The copies arrive on the barrier by themselves, so that waiting for them holds nothing up.
  WW_DEVICE void gather_block(int block) {
    const int64_t head_offset = tile_.head / p_.group * p_.head_stride;
    const int64_t offset = page_ < 0 ? -1 : (page_ * p_.page_stride + in_page_ * p_.token_stride + head_offset) * 2;
    if (block > tile_.block_begin) find_pages(block - 1);
    gather({p_.k, shared_.k, shared_.k_full(0), shared_.k_empty(0)}, offset, k_ring_);
    gather({p_.v, shared_.v, shared_.v_full(0), shared_.v_empty(0)}, offset, v_ring_);
  }

  // K or V: where from, and its ring's memory and barriers.
  struct Operand {
    const void* pool;
    ptx::u32 memory, full, empty;
  };

  // TMA's swizzled layout, written by threads: column blocks of 128-byte rows, 16-byte chunks permuted by the row.
  template <int kStages>
  WW_DEVICE void gather(const Operand& of, int64_t offset, RingPosition<kStages>& ring) {
    constexpr int kChunks = C::kDim / 8, kRowsAtOnce = 32 / kChunks;
    const int chunk = lane() % kChunks;
    const char* base = static_cast<const char*>(of.pool) + chunk * 16;
    const int first = warp() * kWarpRows;
    const ptx::u32 column = of.memory + ring.stage * C::kBlockBytes + (chunk / 8 * C::kBlockTokens + first) * 128;
    ptx::mbarrier_wait(of.empty + ring.stage * 8, ring.parity ^ 1);
#pragma unroll (C::kDim == 256 ? 2 : 8)
    for (int i = 0; i < kWarpRows / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + lane() / kChunks;
      const int64_t at = __shfl_sync(~0u, offset, row);
      ptx::cp_async_16(column + row * 128 + (chunk % 8 ^ row % 8) * 16, base + (at < 0 ? 0 : at), at < 0 ? 0 : 16);
    }
    ptx::cp_async_mbarrier_arrive_noinc(of.full + ring.stage * 8);
    ring.advance();
  }

  int page_ = -1, in_page_ = 0;
};

}  // namespace warpweave::cuda
