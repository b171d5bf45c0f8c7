// Shared memory, barriers and rows of the Hopper kernel for short requests (sm90_short.cuh).
#pragma once

#include <cuda.h>

#include <cstddef>

#include "attention/backends/fa3/kernels/sm90_variants.h"
#include "attention/cuda/divisor.h"
#include "attention/cuda/split_run.cuh"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

WW_DEVICE int split_max_q_len(const AttentionParams& p) { return p.decode_q_len; }
WW_DEVICE int split_page_row(const AttentionParams&, int request) { return request; }
// Tiles stand at multiples of their size, so that no box crosses a page.
WW_DEVICE int split_first_token(const AttentionParams& p, int kv_len, int q_len, int tile_tokens) {
  return first_visible(kv_len, q_len, p.window_left) / tile_tokens * tile_tokens;
}

// As many as shared memory holds.
constexpr int short_stages(int head_dim, int consumers, int tile_tokens) {
  if (head_dim == 256) return 2;
  if (head_dim == 64) return 4;
  return consumers == 2 && tile_tokens == 64 ? 6 : 3;
}

template <class Element_, int kDim_, int kConsumers_, bool kBoxes_, bool kPaired_>
struct Sm90ShortConfig {
  using Element = Element_;
  static constexpr int kDim = kDim_;
  static constexpr int kConsumers = kConsumers_;  // warpgroups of 64 rows
  static constexpr bool kBoxes = kBoxes_;         // of pages; else of tokens side by side, and threads gather others
  // Two CTAs of a cluster, with neighbouring row tiles of a kv head, copy half of each KV tile for both.
  static constexpr bool kPaired = kPaired_;
  static_assert(!kPaired || kConsumers == 2);
  static constexpr int kTileRows = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kCtasPerSm = kConsumers == 1 ? 2 : 1;
  // Their sum is what the launch allocates (168 a thread, of two CTAs 128), or setmaxnreg never returns.
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = kConsumers == 1 ? 200 : 224;
  static constexpr int kTokens = short_tile_tokens(kDim, kConsumers);
  static constexpr int kColumnBlocks = kDim / 64;     // of 128 bytes, in the 128-byte swizzle
  static constexpr int kColumnBytes = kTokens * 128;  // of a tile of K or V
  static constexpr int kTileBytes = kColumnBlocks * kColumnBytes;
  static constexpr int kQueryColumnBytes = 64 * 128;  // of a warpgroup's rows
  static constexpr int kQueryBytes = kConsumers * kColumnBlocks * kQueryColumnBytes;
  static constexpr int kStages = short_stages(kDim, kConsumers, kTokens);  // of K and V each
  static constexpr int kRingBytes = kQueryBytes + kStages * 2 * kTileBytes;
  static constexpr int kPlacesBytes = kBoxes ? 0 : 2 * kTokens * 4;
  static constexpr int kSmemBytes = kRingBytes + 512 + kPlacesBytes;
  static_assert(kCtasPerSm * (kSmemBytes + 1024) <= 228 * 1024);
  static constexpr float kRescaleThreshold = 8;
};

enum ShortPart { kShortKeys = 0, kShortValues = 1, kShortParts = 2 };

template <class C>
struct Sm90ShortShared {
  ptx::u32 q, kv, barriers;
  SplitCursor<C::kTokens>* cursors;  // [kConsumers]
  int* pages;                        // [2][kTokens] of every second tile's tokens, where kBoxes is not

  // `base` at a multiple of 1024.
  WW_DEVICE explicit Sm90ShortShared(char* base) {
    q = ptx::smem_address(base);
    kv = q + C::kQueryBytes;
    barriers = q + C::kRingBytes;
    cursors = reinterpret_cast<SplitCursor<C::kTokens>*>(base + C::kRingBytes + 256);
    pages = reinterpret_cast<int*>(base + C::kRingBytes + 512);
    static_assert(2 * C::kStages * kShortParts * 8 <= 256 && C::kConsumers * sizeof(SplitCursor<C::kTokens>) <= 256);
  }
  WW_DEVICE ptx::u32 full(int stage, int part) const { return barriers + (stage * kShortParts + part) * 8; }
  WW_DEVICE ptx::u32 empty(int stage, int part) const {
    return barriers + ((C::kStages + stage) * kShortParts + part) * 8;
  }
  WW_DEVICE ptx::u32 tile(int stage, int part) const { return kv + (stage * kShortParts + part) * C::kTileBytes; }
  WW_DEVICE ptx::u32 query(int consumer) const { return q + consumer * C::kColumnBlocks * C::kQueryColumnBytes; }

  WW_DEVICE void init_barriers() const {
    for (int stage = 0; stage < C::kStages; ++stage) {
      for (int part = 0; part < kShortParts; ++part) {
        ptx::mbarrier_init(full(stage, part), C::kBoxes ? 1 : 128);
        ptx::mbarrier_init(empty(stage, part), 4 * C::kConsumers * (C::kPaired ? 2 : 1));  // warps
      }
    }
    ptx::mbarrier_init_fence();
  }
};

// Where the n-th KV tile of a CTA stands.
template <class C>
struct Sm90ShortRing {
  int stage = 0, phase = 0;
  WW_DEVICE void advance() {
    if (++stage == C::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  WW_DEVICE Sm90ShortRing next() const {
    Sm90ShortRing after = *this;
    after.advance();
    return after;
  }
};

// A cut unit's piece stands as split_work.h has it, but in halves: each row is divided by the power of two that its
// largest number is of, and so is its sum; its maximum is that much larger. Halves are 8 times closer than what the
// output is rounded to.
template <class C>
WW_DEVICE uint2* short_piece(const SplitWork& work, int slot, int row_block, int column_block) {
  return reinterpret_cast<uint2*>(work.partial_out) +
         (static_cast<int64_t>(slot) * (C::kTileRows / 16) + row_block) * (C::kDim / 8 * 32) + column_block * 32;
}

// What a launch knows beside its parameters.
struct ShortLaunch {
  int box_tokens;     // of TMA
  Divisor group;      // q heads of a kv head
  Divisor row_tiles;  // units of a kv head
  Divisor lockstep;   // of the work
};

struct ShortCall {
  const AttentionParams& p;
  const SplitWork& work;
  const ShortLaunch& launch;
};

// A unit is so many rows (query token, q head of the group) of one kv head; the row tiles of a kv head are neighbours.
template <class C>
struct ShortUnit {
  int kv_head, first_row,
      rows;         // first_row: of the request and kv head; rows: that it has, none or fewer if the request is shorter
  bool has_copies;  // whether its KV tiles are copied: it has rows, or the CTA of the cluster that shares them may

  WW_DEVICE ShortUnit(const ShortLaunch& launch, int unit, int q_len) {
    kv_head = launch.row_tiles.divide(unit);
    first_row = (unit - kv_head * launch.row_tiles.value) * C::kTileRows;
    rows = min(C::kTileRows, q_len * launch.group.value - first_row);
    has_copies = rows + (C::kPaired ? static_cast<int>(blockIdx.x % 2) * C::kTileRows : 0) > 0;
  }
};

}  // namespace warpweave::cuda
