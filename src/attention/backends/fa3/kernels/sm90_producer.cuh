// The copying warpgroup of the Hopper prefill kernel (sm90_extend.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_copies.cuh"

namespace warpweave::cuda {

// The warpgroup that copies, as far ahead as the rings allow, across tiles. Warp 0 finds the tiles, publishes them to
// the other warps and to the consumers, and copies Q. K is copied by warps 0 and 1, V by 2 and 3, so that K, which
// is needed first, does not wait until the ring of V has room.
template <class C>
class Sm90Producer : Sm90ProducerBase<C> {
 public:
  WW_DEVICE Sm90Producer(const AttentionParams& p, const Sm90Maps& maps, const Sm90Shared<C>& shared, int box_tokens)
      : Base(p, maps, shared), box_tokens_(C::kCopies ? C::kBlockTokens : box_tokens) {}

  WW_DEVICE void run(const ExtendWorklist& work) {
    // A warp without a box of its own would only wait (Sm90Shared::followers).
    if (part() * box_tokens_ >= C::kBlockTokens) {
      if constexpr (C::kCopiesHere) {
        Sm90Copies<C>(p_, work).other_heads();
        Sm90Tiles<C>(p_, work).finish();
      }
      return;
    }
    if constexpr (C::kCopies) first_blocks_ = work.copies.first_blocks;
    const int warp_of_all_lanes = __shfl_sync(~0u, warp(), 0);  // which the compiler then knows
    if (warp_of_all_lanes == 0) lead(work);
    else if (warp_of_all_lanes == 1)
      follow<C::kColumnBlocks>(maps_.k, shared_.k, shared_.k_full(0), shared_.k_empty(0), k_ring_);
    else follow<C::kValueColumnBlocks>(maps_.v, shared_.v, shared_.v_full(0), shared_.v_empty(0), v_ring_);
  }

 private:
  using Base = Sm90ProducerBase<C>;
  using Base::k_ring_, Base::lane, Base::maps_, Base::p_, Base::page_of, Base::publish, Base::q_ring_, Base::shared_,
      Base::tile_, Base::v_ring_, Base::warp;
  static WW_DEVICE int part() { return warp() % 2; }  // of a block's boxes
  // Where there is room for one Q, it waits for the end of the tile before; the first block of K does not have to. (Not
  // measured at head dim 256.)
  static constexpr bool kKeysFirst = C::kQueryStages == 1 && C::kDim != C::kValueDim;

  WW_DEVICE void lead(const ExtendWorklist& work) {
    Sm90Tiles<C> tiles(p_, work);
    tile_ = tiles.first();
    find_pages(tile_.block_end - 1);
    for (;;) {
      if constexpr (C::kCopiesHere) wait_for_copies(work);
      if (kKeysFirst && tile_.block_begin < tile_.block_end) load_keys();
      publish();
      if (tile_.request < 0) break;
      tiles.ask();
      Sm90Tile next;
      bool found = false;  // `next`, which takes several dependent loads: while the first block is copied
      for (int block = tile_.block_end - 1; block >= tile_.block_begin; --block) {
        if (!kKeysFirst || block < tile_.block_end - 1) load_keys();
        if (!found) next = tiles.next();
        found = true;
        find_pages(block - 1);
      }
      tile_ = found ? next : tiles.next();
      find_pages(tile_.block_end - 1);
    }
    tiles.finish();
  }

  // Before the tile is published, so that no other warp needs to wait.
  WW_DEVICE void wait_for_copies(const ExtendWorklist& work) {
    if (tile_.request < 0 || tile_.head / p_.group == copied_head_) return;
    copied_head_ = tile_.head / p_.group;
    if (lane() == 0) Sm90Copies<C>(p_, work).wait(copied_head_);
    __syncwarp();
  }

  template <int kColumns, int kStages>
  WW_DEVICE void follow(const CUtensorMap& map, ptx::u32 memory, ptx::u32 full, ptx::u32 empty,
                        RingPosition<kStages>& ring) {
    for (;;) {
      ptx::mbarrier_wait(shared_.tile_full(q_ring_.stage), q_ring_.parity);
      tile_ = shared_.tiles[q_ring_.stage];
      __syncwarp();
      if (lane() == 0) ptx::mbarrier_arrive(shared_.q_empty(q_ring_.stage));
      q_ring_.advance();
      if (tile_.request < 0) return;
      if constexpr (C::kCopiesHere) ptx::fence_proxy_async_all();
      find_pages(tile_.block_end - 1);
      for (int block = tile_.block_end - 1; block >= tile_.block_begin; --block) {
        load_block<kColumns>(map, memory, full, empty, ring);
        find_pages(block - 1);
      }
    }
  }

  WW_DEVICE void load_keys() {
    load_block<C::kColumnBlocks>(maps_.k, shared_.k, shared_.k_full(0), shared_.k_empty(0), k_ring_);
  }

  // A lane finds the page of one box of this warp; boxes past the end get page -1, which TMA
  // fills with zeros.
  WW_DEVICE void find_pages(int block) {
    const int token = block * C::kBlockTokens + (lane() * 2 + part()) * box_tokens_;
    page_ = -1;
    in_page_ = 0;
    if (block < tile_.block_begin) return;
    kv_head_ = tile_.head / p_.group;  // here, ahead of the wait for room
    if (token >= min(tile_.kv_len, (block + 1) * C::kBlockTokens)) return;
    if constexpr (C::kCopies) {
      page_ = first_blocks_[tile_.request] + token / kCopyBlockTokens;
      in_page_ = token % kCopyBlockTokens;
    } else {
      page_ = page_of(token, in_page_);
    }
  }

  // `full`, `empty`: the barriers of the ring's first stage; `kColumns`: blocks of 128 bytes of a token.
  template <int kColumns, int kStages>
  WW_DEVICE void load_block(const CUtensorMap& map, ptx::u32 memory, ptx::u32 full, ptx::u32 empty,
                            RingPosition<kStages>& ring) {
    constexpr int kBytes = kColumns * C::kBlockTokens * 128;
    full += ring.stage * 8;
    ptx::mbarrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
    const ptx::u32 target = memory + ring.stage * kBytes;
    ring.advance();
    if (part() == 0 && lane() == 0) ptx::mbarrier_arrive_expect_tx(full, kBytes);
    __syncwarp();
    for (int i = 0; i * 2 * box_tokens_ < C::kBlockTokens; ++i) {
      const int page = __shfl_sync(~0u, page_, i), in_page = __shfl_sync(~0u, in_page_, i);
      const int row = (i * 2 + part()) * box_tokens_;
      if (lane() != 0 || row >= C::kBlockTokens) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        ptx::tma_load_4d(target + (c * C::kBlockTokens + row) * 128, &map, full, c * 64, in_page, kv_head_, page);
      }
    }
    __syncwarp();
  }

  const int box_tokens_;
  int page_ = -1, in_page_ = 0, kv_head_ = 0;
  const int32_t* first_blocks_ = nullptr;
  int copied_head_ = -1;
};

}  // namespace warpweave::cuda
