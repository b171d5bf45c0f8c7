// The copying and transposing warpgroup of the fp8 prefill kernel (sm90_fp8_extend.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_fp8_shared.cuh"
#include "attention/cuda/plan.h"

namespace warpweave::cuda {

// All four warps find the units of work, start copies of K and V, kAhead blocks ahead, and transpose V.
template <class C>
class Sm90Fp8Producer {
 public:
  WW_DEVICE Sm90Fp8Producer(const AttentionParams& p, const Sm90Maps& maps, const Sm90Fp8Shared<C>& shared,
                            int box_tokens)
      : p_(p), maps_(maps), shared_(shared), box_tokens_(box_tokens) {}

  WW_DEVICE void run(const ExtendWorklist& work) {
    int unit = blockIdx.x;
    publish(0, work, unit);
    enter(0);
    while (tile().request >= 0) {
      int ctas;
      asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(ctas));  // here, lest it takes a register all along
      unit += ctas;
      int block = tile().block_end - 1;
      do {
        const bool first = block == tile().block_end - 1;
        if (block >= tile().block_begin) {
          while (ahead_ <= C::kAhead && load_next(first ? tile_ : next_tile())) ++ahead_;
          transpose_block(block);
          --ahead_;
        }
        // Here, where consumers have work, since it takes several dependent loads.
        if (first) publish(next_tile(), work, unit);
      } while (--block >= tile().block_begin);
      tile_ = next_tile();
    }
  }

 private:
  static WW_DEVICE int lane() { return threadIdx.x % 32; }
  static WW_DEVICE int warp() { return threadIdx.x / 32; }

  // Finds a unit and lets the consumers have it. Each warp writes the same.
  WW_DEVICE void publish(int place, const ExtendWorklist& work, int unit) {
    const int stage = place % C::kTileStages;
    ptx::mbarrier_wait(shared_.tile_empty(stage), (place / C::kTileStages % 2) ^ 1);
    if (lane() == 0) shared_.tiles[place] = tile_of(work, unit);
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(shared_.tile_full(stage));
    prefetch_query(shared_.tiles[place]);
  }
  WW_DEVICE const Sm90Fp8Tile& tile() const { return shared_.tiles[tile_]; }
  WW_DEVICE int next_tile() const { return (tile_ + 1) % C::kTiles; }
  WW_DEVICE const Sm90Fp8Tile& load_tile() const { return shared_.tiles[load_tile_]; }

  // Sections of heads outermost, then the items, then the heads of a section.
  WW_DEVICE Sm90Fp8Tile tile_of(const ExtendWorklist& work, int unit) const {
    Sm90Fp8Tile t = {};
    t.request = -1;
    const int items = work.header->num_items, section_heads = work.header->section_kv_heads * p_.group;
    if (unit >= items * p_.num_q_heads) return t;
    const int section_units = items * section_heads;
    const int in_section = unit % section_units;
    const ExtendItem item = work.items[in_section / section_heads];
    t.request = item.request;
    t.head = unit / section_units * section_heads + in_section % section_heads;
    t.kv_head = t.head / p_.group;
    t.q_begin = p_.q_indptr[item.request];
    t.q_len = p_.q_indptr[item.request + 1] - t.q_begin;
    t.kv_len = p_.kv_lens[item.request];
    t.first_token = item.tile * C::kTileRows;
    const int last_token = min(t.q_len, t.first_token + C::kTileRows) - 1;
    const int end = p_.causal ? t.kv_len - t.q_len + last_token + 1 : t.kv_len;
    const int begin = first_visible(t.kv_len, t.q_len - t.first_token, p_.window_left, p_.causal);
    t.block_end = (min(end, t.kv_len) + C::kBlockTokens - 1) / C::kBlockTokens;
    t.block_begin = begin / C::kBlockTokens;
    find_plain(t);
    return t;
  }

  // The blocks that need no masking, by any row of the tile.
  WW_DEVICE void find_plain(Sm90Fp8Tile& t) const {
    const int first = t.kv_len - t.q_len + t.first_token;
    const int begin = p_.window_left < 0 ? 0 : max(0, first + C::kTileRows - 1 - p_.window_left);
    const int end = p_.softcap > 0 ? 0 : max(0, p_.causal ? min(first + 1, t.kv_len) : t.kv_len);
    t.plain_begin = (begin + C::kBlockTokens - 1) / C::kBlockTokens;
    t.plain_end = end / C::kBlockTokens;
  }

  // Into the L2 cache.
  WW_DEVICE void prefetch_query(const Sm90Fp8Tile& tile) const {
    if (tile.request < 0) return;
    for (int row = threadIdx.x; row < min(C::kTileRows, tile.q_len - tile.first_token); row += 128) {
#pragma unroll
      for (int line = 0; line < C::kDim / 64; ++line) {
        ptx::prefetch_l2(query_of(tile, row) + line * 128);
      }
    }
  }

  WW_DEVICE const char* query_of(const Sm90Fp8Tile& tile, int row) const {
    return static_cast<const char*>(p_.q) +
           ((static_cast<int64_t>(tile.q_begin) + tile.first_token + row) * p_.q_token_stride +
            static_cast<int64_t>(tile.head) * C::kDim) * 2;
  }

  // A lane finds the page of one of this warp's boxes in the next block; boxes past the end get page -1,
  // which the engine fills with zeros.
  WW_DEVICE void find_pages() {
    const int box = lane() * 4 + warp();
    const int token = next_block_ * C::kBlockTokens + box * box_tokens_;
    page_ = -1;
    in_page_ = 0;
    const Sm90Fp8Tile& tile = load_tile();
    if (next_block_ < tile.block_begin || box * box_tokens_ >= C::kBlockTokens || token >= tile.kv_len) return;
    const int index = p_.page_shift >= 0 ? token >> p_.page_shift : token / p_.page_size;
    in_page_ = token - index * p_.page_size;
    page_ = __ldg(p_.page_table + static_cast<int64_t>(tile.request) * p_.page_table_stride + index);
  }

  // Goes on to a tile that is published.
  WW_DEVICE void enter(int place) {
    load_tile_ = place;
    next_block_ = load_tile().block_end - 1;
    find_pages();
  }

  // Copies the next block, if it is of a tile up to `known`, and looks up the pages of the one after it.
  WW_DEVICE bool load_next(int known) {
    while (next_block_ < load_tile().block_begin) {
      if (load_tile_ == known) return false;
      enter((load_tile_ + 1) % C::kTiles);
    }
    load(maps_.k, shared_.k + k_ring_.stage * C::kBlockBytes, shared_.k_full(k_ring_.stage),
         shared_.k_empty(k_ring_.stage), k_ring_.parity ^ 1);
    k_ring_.advance();
    load(maps_.v, shared_.raw + load_ring_.stage * C::kBlockBytes, shared_.raw_full(load_ring_.stage),
         shared_.raw_empty(load_ring_.stage), load_ring_.parity ^ 1);
    load_ring_.advance();
    --next_block_;
    find_pages();
    return true;
  }

  WW_DEVICE void load(const CUtensorMap& map, ptx::u32 target, ptx::u32 full, ptx::u32 empty, int parity) const {
    if (warp() * box_tokens_ >= C::kBlockTokens) return;
    ptx::mbarrier_wait(empty, parity);
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(full, C::kBlockBytes);
    __syncwarp();
    for (int i = 0; i * 4 * box_tokens_ < C::kBlockTokens; ++i) {
      const int page = __shfl_sync(~0u, page_, i), in_page = __shfl_sync(~0u, in_page_, i);
      const int row = (i * 4 + warp()) * box_tokens_;
      if (lane() != 0 || row >= C::kBlockTokens) continue;
      ptx::tma_load_4d(target + row * C::kDim, &map, full, 0, in_page, load_tile().kv_head, page);
    }
    __syncwarp();
  }

  WW_DEVICE void transpose_block(int block) {
    ptx::mbarrier_wait(shared_.raw_full(raw_ring_.stage), raw_ring_.parity);
    ptx::mbarrier_wait(shared_.v_empty(v_ring_.stage), v_ring_.parity ^ 1);
    const int tokens = tile().kv_len - block * C::kBlockTokens;  // of the block and after it
    if (tokens >= C::kBlockTokens) transpose_units<false>(tokens);
    else transpose_units<true>(tokens);
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(shared_.raw_empty(raw_ring_.stage));
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(shared_.v_full(v_ring_.stage));
    raw_ring_.advance();
    v_ring_.advance();
  }

  // A unit is 16 tokens of half of the dims; a warp takes every fourth, and so always the same half. Byte 4t + c of
  // a unit's 16 in a row of V^T is token 2t + c % 2 + c / 2 * 8, the order in which a thread of the consumers
  // holds P. A matrix of 16-bit pairs, read transposed, gives a thread two tokens of two neighbouring dims; half
  // of the lanes store the odd dim first, which spreads the banks. Addresses of units differ in constants alone: a
  // warp is all that a scheduler has for this, and the consumers wait for it.
  template <bool kTail>
  WW_DEVICE void transpose_units(int tokens) {
    constexpr int kPairs = C::kDim / 64;  // of chunks of 16 dims
    const int first_group = warp() / 2, chunk = warp() % 2 * kPairs * 2;
    ptx::u32 source[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      source[i] = shared_.raw + raw_ring_.stage * C::kBlockBytes +
                  sm90_fp8_swizzled<C>(first_group * 16 + lane() % 16, chunk + i * 2 + lane() / 16);
    }
    const bool odd_first = lane() >= 16;
    const ptx::u32 first_bytes = odd_first ? 0x7531 : 0x6420, second_bytes = odd_first ? 0x6420 : 0x7531;
    // The row that a lane stores: of the matrices (first, second dims) of the first chunk, then the next's.
    const int matrix_row = lane() % 8;
    const int row = chunk * 16 + lane() / 16 * 16 + matrix_row * 2 +
                    ((matrix_row >= 4) != (lane() / 8 % 2 == 1) ? 1 : 0);
    const ptx::u32 target =
        shared_.v + v_ring_.stage * C::kBlockBytes + row * 128 + ((first_group ^ row % 8) * 16);
    constexpr int kAtOnce = 2;  // units, for the latency
#pragma unroll
    for (int step = 0; step < C::kBlockTokens / 32; step += kAtOnce) {
      ptx::u32 pair[kAtOnce][kPairs][4];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) ptx::ldmatrix_x4_trans(pair[u][i], source[i] + (step + u) * (32 * C::kDim));
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const ptx::u32 keep = kTail ? kept_bytes(tokens - (first_group + (step + u) * 2) * 16) : ~0u;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          const ptx::u32 (&p)[4] = pair[u][i];
          const ptx::u32 out[4] = {
              __byte_perm(p[0], p[1], first_bytes) & keep, __byte_perm(p[0], p[1], second_bytes) & keep,
              __byte_perm(p[2], p[3], first_bytes) & keep, __byte_perm(p[2], p[3], second_bytes) & keep};
          ptx::stmatrix_x4((target ^ (step + u) * 32) + i * (32 * 128), out);
        }
      }
    }
  }

  // Ones in the bytes of a word that hold tokens before `tail`: NaN past it would survive a zero probability.
  static WW_DEVICE ptx::u32 kept_bytes(int tail) {
    ptx::u32 keep = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (lane() % 4 * 2 + c % 2 + c / 2 * 8 < tail) keep |= 0xffu << (8 * c);
    }
    return keep;
  }

  const AttentionParams& p_;
  const Sm90Maps& maps_;
  const Sm90Fp8Shared<C>& shared_;
  const int box_tokens_;
  // Places in the ring of tiles: of the one whose V is being transposed, and whose K and V are being copied.
  int tile_ = 0, load_tile_ = 0;
  int ahead_ = 0;  // blocks whose copies have been started, but whose V has not been transposed
  RingPosition<C::kStages> k_ring_, v_ring_;
  RingPosition<C::kRawStages> load_ring_, raw_ring_;  // of V as it is stored: to be copied, to be transposed
  int next_block_ = -1;  // to be copied
  int page_ = -1, in_page_ = 0;
};

}  // namespace warpweave::cuda
