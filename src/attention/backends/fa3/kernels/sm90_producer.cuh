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
    for (int unit = blockIdx.x;; unit += gridDim.x) {
      tile_ = tile_of(work, unit);
      if (threadIdx.x < 32) publish();
      if (tile_.request < 0) return;
      if constexpr (C::kGather) {
        if (threadIdx.x < 64) gather_tile(p_.k, shared_.k, shared_.k_full(0), shared_.k_empty(0), k_ring_);
        else gather_tile(p_.v, shared_.v, shared_.v_full(0), shared_.v_empty(0), v_ring_);
        continue;
      }
      int block = tile_.block_end - 1;
      if (block >= tile_.block_begin) find_pages(block);
      for (; block >= tile_.block_begin; --block) {
        load_block(maps_.k, shared_.k, shared_.k_full(0), shared_.k_empty(0), k_ring_);
        load_block(maps_.v, shared_.v, shared_.v_full(0), shared_.v_empty(0), v_ring_);
        if (block > tile_.block_begin) find_pages(block - 1);
      }
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

  // The tile's description and its Q.
  WW_DEVICE void publish() {
    const int stage = q_ring_.stage;
    const ptx::u32 full = shared_.q_full(stage);
    ptx::mbarrier_wait(shared_.q_empty(stage), q_ring_.parity ^ 1);
    q_ring_.advance();
    if (lane() == 0) {
      shared_.tiles[stage] = tile_;
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

  // A lane finds the page of one box of this warp; boxes past the end get page -1, which the engine
  // fills with zeros.
  WW_DEVICE void find_pages(int block) {
    const int token = block * C::kBlockTokens + (lane() * 4 + threadIdx.x / 32) * box_tokens_;
    page_ = -1;
    in_page_ = 0;
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

  // kGather: two warps copy K, two copy V. A block is announced when the next one is under way, after
  // a fence that lets the tensor cores see what threads have written.
  template <int kStages>
  WW_DEVICE void gather_tile(const void* pool, ptx::u32 memory, ptx::u32 full, ptx::u32 empty,
                             RingPosition<kStages>& ring) {
    constexpr int kTokens = C::kBlockTokens / 64;  // whose pages a thread finds
    const int half = threadIdx.x / 64, thread = threadIdx.x % 64;
    long long* offsets = shared_.offsets + half * C::kBlockTokens;
    const int64_t head_offset = tile_.head / p_.group * p_.head_stride;
    int page[kTokens], in_page[kTokens];
    auto find = [&](int block) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const int token = block * C::kBlockTokens + thread + i * 64;
        page[i] = -1;
        in_page[i] = 0;
        if (token < tile_.kv_len) page[i] = page_of(token, in_page[i]);
      }
    };
    int announced = -1;
    find(tile_.block_end - 1);
    for (int block = tile_.block_end - 1; block >= tile_.block_begin; --block) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const int64_t offset = page[i] * p_.page_stride + in_page[i] * p_.token_stride + head_offset;
        offsets[thread + i * 64] = page[i] < 0 ? -1 : offset * 2;
      }
      ptx::named_barrier_sync(half == 0 ? 1 : 7, 64);
      if (block > tile_.block_begin) find(block - 1);
      ptx::mbarrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
      gather(pool, memory + ring.stage * C::kBlockBytes, offsets, thread);
      ptx::cp_async_commit();
      if (announced >= 0) announce<1>(full + announced * 8);
      announced = ring.stage;
      ring.advance();
      ptx::named_barrier_sync(half == 0 ? 1 : 7, 64);  // the offsets have been read
    }
    if (announced >= 0) announce<0>(full + announced * 8);
  }

  template <int kInFlight>
  static WW_DEVICE void announce(ptx::u32 full) {
    ptx::cp_async_wait<kInFlight>();
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(full);
  }

  // The engine's layout by hand: column blocks of 128-byte rows, 16-byte chunks permuted by the row.
  static WW_DEVICE void gather(const void* pool, ptx::u32 target, const long long* offsets, int thread) {
    constexpr int kChunks = C::kDim / 8;
    const int chunk = thread % kChunks;
    const char* base = static_cast<const char*>(pool) + chunk * 16;
    const ptx::u32 column = target + chunk / 8 * C::kBlockTokens * 128;
#pragma unroll 8
    for (int row = thread / kChunks; row < C::kBlockTokens; row += 64 / kChunks) {
      const long long offset = offsets[row];
      ptx::cp_async_16(column + row * 128 + (chunk % 8 ^ row % 8) * 16, base + (offset < 0 ? 0 : offset), offset < 0 ? 0 : 16);
    }
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
