// The copying warpgroup of the Hopper prefill kernel (sm90_extend.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_shared.cuh"
#include "attention/cuda/plan.h"

namespace warpweave::cuda {

// The warpgroup that copies. Copies run as far ahead as the rings allow, across tiles. All four warps
// copy K and V, since issuing a copy takes a warp longer than the engine; warp 0 does the rest.
template <class C>
class Sm90Producer {
 public:
  WW_DEVICE Sm90Producer(const AttentionParams& p, const Sm90Maps& maps, const Sm90Shared<C>& shared, int box_tokens)
      : p_(p), maps_(maps), shared_(shared), box_tokens_(box_tokens) {}

  WW_DEVICE void run(const ExtendWorklist& work) {
    // A warp without a box of its own would only wait.
    if (!C::kGather && threadIdx.x / 32 * box_tokens_ >= C::kBlockTokens) return;
    units_ = work.header->num_items * p_.num_q_heads;
    section_heads_ = work.header->section_kv_heads * p_.group;
    tile_ = tile_of(work, blockIdx.x);
    for (int unit = blockIdx.x + gridDim.x;; unit += gridDim.x) {
      if (threadIdx.x < 32) publish();
      if (tile_.request < 0) return;
      Sm90Tile next;
      bool found = false;  // `next`, which takes several dependent loads: while the first block is copied
      int block = tile_.block_end - 1;
      if (block >= tile_.block_begin) find_pages(block);
      for (; block >= tile_.block_begin; --block) {
        if constexpr (C::kGather) {
          gather_block(block);
        } else {
          load_block(maps_.k, shared_.k, shared_.k_full(0), shared_.k_empty(0), k_ring_);
          load_block(maps_.v, shared_.v, shared_.v_full(0), shared_.v_empty(0), v_ring_);
          if (block > tile_.block_begin) find_pages(block - 1);
        }
        if constexpr (!C::kGather) {
          if (!found) next = tile_of(work, unit);
          found = true;
        }
      }
      tile_ = found ? next : tile_of(work, unit);
    }
  }

 private:
  static WW_DEVICE int lane() { return threadIdx.x % 32; }

  // Sections of heads outermost, then the items, then the heads of a section.
  WW_DEVICE Sm90Tile tile_of(const ExtendWorklist& work, int unit) const {
    Sm90Tile t;
    t.request = -1;
    if (unit >= units_) return t;
    const int section_units = units_ / p_.num_q_heads * section_heads_;
    const int in_section = unit % section_units;
    const ExtendItem item = work.items[in_section / section_heads_];
    t.request = item.request;
    t.head = unit / section_units * section_heads_ + in_section % section_heads_;
    t.q_begin = p_.q_indptr[t.request];
    t.q_len = p_.q_indptr[t.request + 1] - t.q_begin;
    t.kv_len = p_.kv_lens[t.request];
    t.first_token = item.tile * C::kTileRows;
    const int last_token = min(t.q_len, t.first_token + C::kTileRows) - 1;
    const int end = p_.causal ? t.kv_len - t.q_len + last_token + 1 : t.kv_len;
    const int begin = first_visible(t.kv_len, t.q_len - t.first_token, p_.window_left, p_.causal);
    t.block_end = (min(end, t.kv_len) + C::kBlockTokens - 1) / C::kBlockTokens;
    t.block_begin = begin / C::kBlockTokens;
    return t;
  }

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
      if (tile_.request < 0) {
        ptx::mbarrier_arrive(full);
      } else {
        ptx::mbarrier_arrive_expect_tx(full, C::kQueryBytes);
        for (int c = 0; c < C::kColumnBlocks; ++c) {
          for (int part = 0; part < C::kConsumers; ++part) {
            const ptx::u32 target = shared_.q + stage * C::kQueryBytes + (c * C::kTileRows + part * 64) * 128;
            ptx::tma_load_4d(target, &maps_.q, full, c * 64, tile_.q_begin + tile_.first_token + part * 64, tile_.head, 0);
          }
        }
      }
    }
    __syncwarp();
  }

  static constexpr int kWarpRows = C::kBlockTokens / 4;  // kGather: of each warp

  // A lane finds the page of one box of this warp; boxes past the end get page -1, which the engine
  // fills with zeros.
  WW_DEVICE void find_pages(int block) {
    const int place = C::kGather ? threadIdx.x / 32 * kWarpRows + lane() : (lane() * 4 + threadIdx.x / 32) * box_tokens_;
    const int token = block * C::kBlockTokens + place;
    page_ = -1;
    in_page_ = 0;
    if (C::kGather && lane() >= kWarpRows) return;
    if (token < min(tile_.kv_len, (block + 1) * C::kBlockTokens)) page_ = page_of(token, in_page_);
  }

  WW_DEVICE int page_of(int token, int& in_page) const {
    const int index = p_.page_shift >= 0 ? token >> p_.page_shift : token / p_.page_size;
    in_page = token - index * p_.page_size;
    return __ldg(p_.page_table + static_cast<int64_t>(tile_.request) * p_.page_table_stride + index);
  }

  // `full`, `empty`: the barriers of the ring's first stage.
  template <int kStages>
  WW_DEVICE void load_block(const CUtensorMap& map, ptx::u32 memory, ptx::u32 full, ptx::u32 empty,
                            RingPosition<kStages>& ring) {
    full += ring.stage * 8;
    ptx::mbarrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
    const ptx::u32 target = memory + ring.stage * C::kBlockBytes;
    ring.advance();
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(full, C::kBlockBytes);
    __syncwarp();
    const int kv_head = tile_.head / p_.group;
    for (int i = 0; i * 4 * box_tokens_ < C::kBlockTokens; ++i) {
      const int page = __shfl_sync(~0u, page_, i), in_page = __shfl_sync(~0u, in_page_, i);
      const int row = (i * 4 + threadIdx.x / 32) * box_tokens_;
      if (lane() != 0 || row >= C::kBlockTokens) continue;
#pragma unroll
      for (int c = 0; c < C::kColumnBlocks; ++c) {
        ptx::tma_load_4d(target + (c * C::kBlockTokens + row) * 128, &map, full, c * 64, in_page, kv_head, page);
      }
    }
    __syncwarp();
  }

  // kGather: a warp copies a quarter of the rows, a lane knows where one of them is. The copies arrive on
  // the barrier by themselves, so that waiting for them holds nothing up.
  WW_DEVICE void gather_block(int block) {
    const int64_t head_offset = tile_.head / p_.group * p_.head_stride;
    const int64_t offset = page_ < 0 ? -1 : (page_ * p_.page_stride + in_page_ * p_.token_stride + head_offset) * 2;
    if (block > tile_.block_begin) find_pages(block - 1);
    gather(p_.k, shared_.k, shared_.k_full(0), shared_.k_empty(0), offset, k_ring_);
    gather(p_.v, shared_.v, shared_.v_full(0), shared_.v_empty(0), offset, v_ring_);
  }

  // The engine's layout by hand: column blocks of 128-byte rows, 16-byte chunks permuted by the row.
  template <int kStages>
  WW_DEVICE void gather(const void* pool, ptx::u32 memory, ptx::u32 full, ptx::u32 empty, int64_t offset,
                        RingPosition<kStages>& ring) {
    constexpr int kChunks = C::kDim / 8, kRowsAtOnce = 32 / kChunks;
    const int chunk = lane() % kChunks;
    const char* base = static_cast<const char*>(pool) + chunk * 16;
    const int first = threadIdx.x / 32 * kWarpRows;
    const ptx::u32 column = memory + ring.stage * C::kBlockBytes + (chunk / 8 * C::kBlockTokens + first) * 128;
    ptx::mbarrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
#pragma unroll (C::kDim == 256 ? 2 : 8)
    for (int i = 0; i < kWarpRows / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + lane() / kChunks;
      const int64_t at = __shfl_sync(~0u, offset, row);
      ptx::cp_async_16(column + row * 128 + (chunk % 8 ^ row % 8) * 16, base + (at < 0 ? 0 : at), at < 0 ? 0 : 16);
    }
    ptx::cp_async_mbarrier_arrive_noinc(full + ring.stage * 8);
    ring.advance();
  }

  const AttentionParams& p_;
  const Sm90Maps& maps_;
  const Sm90Shared<C>& shared_;
  const int box_tokens_;
  Sm90Tile tile_;
  RingPosition<C::kKeyStages> k_ring_;
  RingPosition<C::kValueStages> v_ring_;
  RingPosition<C::kQueryStages> q_ring_;
  int units_ = 0, section_heads_ = 1;
  int page_ = -1, in_page_ = 0;
};

}  // namespace warpweave::cuda
