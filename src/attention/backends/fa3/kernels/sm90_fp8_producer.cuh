// The copying and transposing warpgroup of the fp8 prefill kernel (sm90_fp8_extend.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_fp8_shared.cuh"
#include "attention/cuda/page_lookup.cuh"
#include "attention/cuda/plan.h"

namespace warpweave::cuda {

// Warp 0 finds the units of work and starts the copies of K and V; the other three transpose V. What a warp does here
// is long chains of dependent instructions, so that copies and transposition in one warp take longer than the
// WGMMAs of a block.
template <class C>
class Sm90Fp8Producer {
 public:
  WW_DEVICE Sm90Fp8Producer(const AttentionParams& p, const Sm90Maps& maps, const Sm90Fp8Shared<C>& shared,
                            int box_tokens)
      : p_(p), maps_(maps), shared_(shared), box_tokens_(box_tokens) {}

  WW_DEVICE void run(const ExtendWorklist& work) {
    if (warp() == 0) {
      copy_tiles(work);
    } else {
      transpose_tiles();
    }
  }

 private:
  static WW_DEVICE int lane() { return threadIdx.x % 32; }
  static WW_DEVICE int warp() { return threadIdx.x / 32; }
  WW_DEVICE const Sm90Fp8Tile& tile() const { return shared_.tiles[tile_]; }
  WW_DEVICE void advance_tile() { tile_ = (tile_ + 1) % C::kTiles; }

  // ---- warp 0
  WW_DEVICE void copy_tiles(const ExtendWorklist& work) {
    for (int unit = blockIdx.x;;) {
      publish(work, unit);
      if (tile().request < 0) return finish(work);
      const int begin = tile().block_begin;
      int block = tile().block_end - 1, next = 0;
      if (block < begin) next = ask(work);
      else find_pages(block);
#pragma unroll 1
      for (; block >= begin; --block) {
        if (block == begin) next = ask(work);
        copy_block();
        if (block > begin) find_pages(block - 1);
      }
      unit = __shfl_sync(~0u, next, 0);
      advance_tile();
    }
  }

  // Units go to whichever CTA is done first: taken in turn, the longest CTA would have 3 % more than the mean, with
  // tiles of 192 rows 5 to 9 %. The answer takes as long as a read from memory, so it is asked for before the last
  // block is copied. The counters are zero again when the last CTA has finished.
  static WW_DEVICE int ask(const ExtendWorklist& work) {
    return lane() == 0 ? atomicAdd(&work.header->units_taken, 1) + static_cast<int>(gridDim.x) : 0;
  }
  static WW_DEVICE void finish(const ExtendWorklist& work) {
    if (lane() != 0) return;
    if (atomicAdd(&work.header->ctas_done, 1) + 1 != static_cast<int>(gridDim.x)) return;
    work.header->units_taken = 0;
    work.header->ctas_done = 0;
  }

  // Lets the others have a unit.
  WW_DEVICE void publish(const ExtendWorklist& work, int unit) {
    const int stage = tile_ % C::kTileStages;
    ptx::mbarrier_wait(shared_.tile_empty(stage), (tile_ / C::kTileStages % 2) ^ 1);
    if (lane() == 0) shared_.tiles[tile_] = tile_of(work, unit);
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(shared_.tile_full(stage));
    prefetch_query(tile());
  }

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
    t.end_token = min(t.q_len, t.first_token + C::kTileRows);
    if constexpr (C::kTrio) {
      // The tile that is not full is the first, as that sees least.
      t.end_token = t.q_len - ((t.q_len - 1) / C::kTileRows - item.tile) * C::kTileRows;
      t.first_token = max(0, t.end_token - C::kTileRows);
    }
    const int last_token = t.end_token - 1;
    const int end = p_.causal ? t.kv_len - t.q_len + last_token + 1 : t.kv_len;
    const int begin = first_visible(t.kv_len, t.q_len - t.first_token, p_.window_left);
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
    for (int row = lane(); row < tile.end_token - tile.first_token; row += 32) {
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

  // A lane finds the page of one of the block's boxes; boxes past the end get page -1, which TMA fills with zeros.
  WW_DEVICE void find_pages(int block) {
    const int token = block * C::kBlockTokens + lane() * box_tokens_;
    page_ = -1;
    in_page_ = 0;
    if (lane() * box_tokens_ >= C::kBlockTokens || token >= tile().kv_len) return;
    const int index = page_index(p_, token);
    in_page_ = token - index * p_.page_size;
    page_ = page_at(p_, tile().request, index);
  }

  // Each lane copies its box of K and V.
  WW_DEVICE void copy_block() {
    const ptx::u32 k_full = shared_.k_full(k_ring_.stage), raw_full = shared_.raw_full(raw_ring_.stage);
    ptx::mbarrier_wait(shared_.k_empty(k_ring_.stage), k_ring_.parity ^ 1);
    ptx::mbarrier_wait(shared_.raw_empty(raw_ring_.stage), raw_ring_.parity ^ 1);
    if (lane() == 0) {
      ptx::mbarrier_arrive_expect_tx(k_full, C::kBlockBytes);
      ptx::mbarrier_arrive_expect_tx(raw_full, C::kBlockBytes);
    }
    __syncwarp();
    const int offset = lane() * box_tokens_ * C::kDim;
    if (offset < C::kBlockBytes) {
      const int head = tile().kv_head;
      ptx::tma_load_4d(shared_.k + k_ring_.stage * C::kBlockBytes + offset, &maps_.k, k_full, 0, in_page_, head, page_);
      ptx::tma_load_4d(shared_.raw + raw_ring_.stage * C::kBlockBytes + offset, &maps_.v, raw_full, 0, in_page_, head,
                       page_);
    }
    __syncwarp();
    k_ring_.advance();
    raw_ring_.advance();
  }

  // ---- warps 1 to 3
  WW_DEVICE void transpose_tiles() {
    for (;;) {
      const int stage = tile_ % C::kTileStages;
      ptx::mbarrier_wait(shared_.tile_full(stage), tile_ / C::kTileStages % 2);
      if (tile().request < 0) return;
      const int begin = tile().block_begin;
      int tokens = tile().kv_len - (tile().block_end - 1) * C::kBlockTokens;  // of the block and after it
      int block = tile().block_end - 1;
      __syncwarp();
      if (lane() == 0) ptx::mbarrier_arrive(shared_.tile_empty(stage));
#pragma unroll 1
      for (; block >= begin; --block) {
        transpose_block(tokens);
        tokens += C::kBlockTokens;
      }
      advance_tile();
    }
  }

  WW_DEVICE void transpose_block(int tokens) {
    ptx::mbarrier_wait(shared_.raw_full(raw_ring_.stage), raw_ring_.parity);
    ptx::mbarrier_wait(shared_.v_empty(v_ring_.stage), v_ring_.parity ^ 1);
    if (tokens >= C::kBlockTokens) transpose_units<false>(tokens);
    else transpose_units<true>(tokens);
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(shared_.raw_empty(raw_ring_.stage));
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(shared_.v_full(v_ring_.stage));
    raw_ring_.advance();
    v_ring_.advance();
  }

  // A unit is 16 tokens of half of the dims; a warp takes every third. Byte 4t + c of a unit's 16 in a row of V^T is
  // token 2t + c % 2 + c / 2 * 8, the order in which a thread of the consumers holds P. A matrix of 16-bit pairs, read
  // transposed, gives a thread two tokens of two neighbouring dims; half of the lanes store the odd dim first,
  // which spreads the banks.
  template <bool kTail>
  WW_DEVICE void transpose_units(int tokens) {
    constexpr int kPairs = C::kDim / 64;  // of chunks of 16 dims
    constexpr int kWarps = Sm90Fp8Shared<C>::kTransposers, kGroups = C::kBlockTokens / 16;
    constexpr int kAtOnce = 2;            // units, for the latency; of one after the other group of tokens
    static_assert(kAtOnce == 2);
    const bool odd_first = lane() >= 16;
    const ptx::u32 first_bytes = odd_first ? 0x7531 : 0x6420, second_bytes = odd_first ? 0x6420 : 0x7531;
    // The row that a lane stores: of the matrices (first, second dims) of the first chunk, then the next's.
    const int matrix_row = lane() % 8;
    const int row = lane() / 16 * 16 + matrix_row * 2 + ((matrix_row >= 4) != (lane() / 8 % 2 == 1) ? 1 : 0);
    int first_group[kAtOnce];
    ptx::u32 source[kAtOnce][kPairs], target[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int unit = warp() - 1 + u * kWarps, half = unit % 2;
      first_group[u] = unit / 2;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        source[u][i] = (shared_.raw + raw_ring_.stage * C::kBlockBytes +
                        sm90_fp8_swizzled<C>(lane() % 16, i * 2 + lane() / 16) ^ half * (C::kDim / 2)) +
                       first_group[u] * (16 * C::kDim);
      }
      target[u] = shared_.v + v_ring_.stage * C::kBlockBytes + (row + half * (C::kDim / 2)) * 128 + row % 8 * 16;
    }
#pragma unroll
    for (int step = 0; step < kGroups; step += kWarps) {
      ptx::u32 pair[kAtOnce][kPairs][4];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (step + kWarps > kGroups && first_group[u] + step >= kGroups) continue;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          ptx::ldmatrix_x4_trans(pair[u][i], source[u][i] + step * (16 * C::kDim));
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int group = first_group[u] + step;
        if (step + kWarps > kGroups && group >= kGroups) continue;
        const ptx::u32 keep = kTail ? kept_bytes(tokens - group * 16) : ~0u;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          const ptx::u32 (&p)[4] = pair[u][i];
          const ptx::u32 out[4] = {
              __byte_perm(p[0], p[1], first_bytes) & keep, __byte_perm(p[0], p[1], second_bytes) & keep,
              __byte_perm(p[2], p[3], first_bytes) & keep, __byte_perm(p[2], p[3], second_bytes) & keep};
          ptx::stmatrix_x4((target[u] ^ group * 16) + i * (32 * 128), out);
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
  int tile_ = 0;  // its place in the ring of tiles
  RingPosition<C::kStages> k_ring_, v_ring_;
  RingPosition<C::kRawStages> raw_ring_;  // of V as it is stored
  int page_ = -1, in_page_ = 0;           // of the lane's box in the block that is copied next
};

}  // namespace warpweave::cuda
