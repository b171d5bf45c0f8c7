// Which tiles a CTA of the Hopper prefill kernel takes, and how its warps learn of them (sm90_extend.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_shared.cuh"
#include "attention/cuda/page_lookup.cuh"
#include "attention/cuda/plan.h"

namespace warpweave::cuda {

template <class C>
class Sm90Tiles {
 public:
  WW_DEVICE Sm90Tiles(const AttentionParams& p, const ExtendWorklist& work)
      : p_(p), work_(work), units_(work.header->num_items * p.num_q_heads),
        section_heads_(work.header->section_kv_heads * p.group) {}

  // A unit is a tile of a q head: sections of heads outermost, then the items, then the heads of a section. Past the
  // end: request -1. The second of two heads that share a tile: request kSkipped.
  static constexpr int kSkipped = -2;
  WW_DEVICE Sm90Tile of(int unit) const {
    Sm90Tile t;
    t.request = -1;
    t.block_begin = t.block_end = 0;
    t.paired = false;
    if (unit >= units_) return t;
    const int section_units = units_ / p_.num_q_heads * section_heads_;
    const int in_section = unit % section_units;
    const ExtendItem item = work_.items[in_section / section_heads_];
    t.request = item.request;
    t.head = unit / section_units * section_heads_ + in_section % section_heads_;
    t.q_begin = p_.q_indptr[t.request];
    t.q_len = p_.q_indptr[t.request + 1] - t.q_begin;
    t.kv_len = p_.kv_lens[t.request];
    t.first_token = item.tile * C::kTileRows;
    if (C::kPairs && p_.group % 2 == 0 && t.q_len - t.first_token <= 64) {
      t.paired = true;
      if (t.head % 2 == 1) t.request = kSkipped;
    }
    int last_token = min(t.q_len, t.first_token + C::kTileRows) - 1;
    if constexpr (C::kTrio) {
      // The tile that is not full is the first, as that sees least.
      last_token = t.q_len - 1 - ((t.q_len - 1) / C::kTileRows - item.tile) * C::kTileRows;
      t.first_token = max(0, last_token + 1 - C::kTileRows);
    }
    const int end = p_.causal ? t.kv_len - t.q_len + last_token + 1 : t.kv_len;
    const int begin = first_visible(t.kv_len, t.q_len - t.first_token, p_.window_left);
    t.block_end = (min(end, t.kv_len) + C::kBlockTokens - 1) / C::kBlockTokens;
    t.block_begin = begin / C::kBlockTokens;
    return t;
  }

  // Units go to whichever CTA is done first: taken in turn, the CTAs that got the longer tile of every turn would end
  // a long tile late in every section. ask(), next() and finish(): by one warp. The answer takes as long as a read
  // from memory, so it is asked for ahead. The counters are zero again when the last CTA has finished.
  WW_DEVICE void ask() {
    if (threadIdx.x % 32 == 0) asked_ = atomicAdd(&work_.header->units_taken, 1) + static_cast<int>(gridDim.x);
  }
  WW_DEVICE Sm90Tile next() {
    for (;;) {
      const Sm90Tile t = of(__shfl_sync(~0u, asked_, 0));
      if (!C::kPairs || t.request != kSkipped) return t;
      ask();
    }
  }
  WW_DEVICE Sm90Tile first() {
    const Sm90Tile t = of(blockIdx.x);
    if (!C::kPairs || t.request != kSkipped) return t;
    ask();
    return next();
  }

  WW_DEVICE void finish() const {
    constexpr int kWarps = C::kCopiesHere ? 3 : 1;  // those that copy finish, too
    if (threadIdx.x % 32 != 0) return;
    if (C::kCopiesHere) __threadfence();
    if (atomicAdd(&work_.header->ctas_done, 1) + 1 != kWarps * static_cast<int>(gridDim.x)) return;
    work_.header->units_taken = 0;
    work_.header->ctas_done = 0;
    if constexpr (C::kCopiesHere) {
      work_.header->pieces_taken = 0;
      for (int head = 0; head < p_.num_kv_heads; ++head) work_.copies.ready[head] = 0;
    }
  }

 private:
  const AttentionParams& p_;
  const ExtendWorklist& work_;
  const int units_, section_heads_;
  int asked_ = 0;
};

// What both ways of copying share; `tile_` is the tile being copied.
template <class C>
class Sm90ProducerBase {
 public:
  WW_DEVICE Sm90ProducerBase(const AttentionParams& p, const Sm90Maps& maps, const Sm90Shared<C>& shared)
      : p_(p), maps_(maps), shared_(shared) {}

 protected:
  static WW_DEVICE int lane() { return threadIdx.x % 32; }
  static WW_DEVICE int warp() { return threadIdx.x / 32; }

  // The blocks that need no masking, by any row of the tile.
  WW_DEVICE void find_plain(Sm90Tile& t) const {
    const int first = t.kv_len - t.q_len + t.first_token;
    const int begin = p_.window_left < 0 ? 0 : max(0, first + C::kTileRows - 1 - p_.window_left);
    const int end = p_.softcap > 0 ? 0 : max(0, p_.causal ? min(first + 1, t.kv_len) : t.kv_len);
    t.plain_begin = (begin + C::kBlockTokens - 1) / C::kBlockTokens;
    t.plain_end = end / C::kBlockTokens;
  }

  // The tile's description and its Q.
  WW_DEVICE void publish() {
    const int stage = q_ring_.stage;
    const ptx::u32 full = shared_.q_full(stage);
    ptx::mbarrier_wait(shared_.q_empty(stage), q_ring_.parity ^ 1);
    q_ring_.advance();
    if (lane() == 0) {
      shared_.tiles[stage] = tile_;
      find_plain(shared_.tiles[stage]);
      if constexpr (!C::kGather) ptx::mbarrier_arrive(shared_.tile_full(stage));
      if (tile_.request < 0) {
        ptx::mbarrier_arrive(full);
      } else {
        ptx::mbarrier_arrive_expect_tx(full, C::kQueryBytes);
        for (int c = 0; c < C::kColumnBlocks; ++c) {
          for (int part = 0; part < C::kConsumers; ++part) {
            const ptx::u32 target = shared_.q + stage * C::kQueryBytes + (c * C::kTileRows + part * 64) * 128;
            const int token = tile_.q_begin + tile_.first_token + (tile_.paired ? 0 : part * 64);
            ptx::tma_load_4d(target, &maps_.q, full, c * 64, token, tile_.head + (tile_.paired ? part : 0), 0);
          }
        }
      }
    }
    __syncwarp();
  }

  WW_DEVICE int page_of(int token, int& in_page) const { return page_of_token(p_, tile_.request, token, in_page); }

  const AttentionParams& p_;
  const Sm90Maps& maps_;
  const Sm90Shared<C>& shared_;
  Sm90Tile tile_;
  RingPosition<C::kKeyStages> k_ring_;
  RingPosition<C::kValueStages> v_ring_;
  RingPosition<C::kQueryStages> q_ring_;
};

}  // namespace warpweave::cuda
