// Shared memory and barriers of the Hopper MLA kernel (sm90_mla.cuh).
#pragma once

#include <cuda.h>

#include <cstddef>

#include "attention/cuda/mla/mla_run.cuh"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

// A KV tile is copied, waited for and released in parts, so that the next one's first part is on its way while the last
// one is still multiplied: the rope columns, which S alone reads, then the right and the left half of the latent ones.
enum MlaPart { kMlaRopePart = 0, kMlaRightPart = 1, kMlaLeftPart = 2, kMlaParts = 3 };
constexpr int mla_first_column(int part) { return part == kMlaRopePart ? 8 : part == kMlaRightPart ? 4 : 0; }
constexpr int mla_columns(int part) { return part == kMlaRopePart ? 1 : 4; }

template <class Element_, MlaFormat kFormat_, bool kBoxes_, bool kPaired_>
struct Sm90MlaConfig {
  using Element = Element_;
  static constexpr MlaFormat kFormat = kFormat_;
  static constexpr bool kBoxes = kBoxes_;    // TMA takes boxes of the pool; else threads gather
  static constexpr bool kPaired =
      kPaired_;  // two CTAs of a cluster, a row tile each, copy half of each KV tile for both
  static_assert(kBoxes || !kPaired);
  static_assert(kFormat == MlaFormat::same16 || !kBoxes);
  static constexpr int kProducers = kFormat == MlaFormat::same16 ? 128 : 256;  // threads that copy
  static constexpr int kThreads = 256 + kProducers;
  // Their sum over the warpgroups is what the launch allocates (504 or 512), or setmaxnreg never returns.
  static constexpr int kLeaderRegisters = kFormat == MlaFormat::same16 ? 240 : 208;
  static constexpr int kFollowerRegisters = kFormat == MlaFormat::same16 && kBoxes ? 216 : 176;
  static constexpr int kProducerRegisters = kProducers == 128 ? 504 - kLeaderRegisters - kFollowerRegisters
                                                              : (512 - kLeaderRegisters - kFollowerRegisters) / 2;
  static constexpr int kRows = 64;           // of Q
  static constexpr int kTokens = kDecodeTileTokens;
  static constexpr int kColumnBlocks = kMlaDim / 64;
  static constexpr int kColumnBytes = kTokens * 128;  // of 64 columns, in the 128-byte swizzle; of Q as of KV
  static constexpr int kTileBytes = kColumnBlocks * kColumnBytes;
  static constexpr int kStages = 2;
  static constexpr int kProbabilityBytes = kRows * kTokens * 2;
  static constexpr int kSmemBytes = 3 * kTileBytes + kProbabilityBytes + 128 * 8 + 512 + 1024;
  static_assert(kSmemBytes <= 227 * 1024);
  static constexpr float kRescaleThreshold = 8;
  // Where codes are widened, room for a tile is not what is waited for.
  static constexpr bool kScoresAhead = kFormat != MlaFormat::same16;
};

// The n-th KV tile of a CTA stands in stage n % 2, in round n / 2.
struct MlaRing {
  int count = 0;
  WW_DEVICE int stage() const { return count & 1; }
  WW_DEVICE int phase() const { return count >> 1 & 1; }
};

template <class C>
struct Sm90MlaShared {
  ptx::u32 q, kv, probability, factors, barriers;
  MlaCursor* cursors;  // [3]: the leader's, the follower's, the copying ones'

  WW_DEVICE explicit Sm90MlaShared(char* base) {
    constexpr int kFactors = (1 + C::kStages) * C::kTileBytes + C::kProbabilityBytes;
    q = ptx::smem_address(base);
    kv = q + C::kTileBytes;
    probability = kv + C::kStages * C::kTileBytes;
    factors = q + kFactors;
    barriers = factors + 128 * 8;
    cursors = reinterpret_cast<MlaCursor*>(base + kFactors + 128 * 8 + 128);
    static_assert(128 + 3 * sizeof(MlaCursor) <= 512 && 2 * C::kStages * kMlaParts * 8 <= 128);
  }
  WW_DEVICE ptx::u32 full(MlaRing ring, int part) const {
    return barriers + (ring.stage() * kMlaParts + part) * 16;
  }
  WW_DEVICE ptx::u32 empty(MlaRing ring, int part) const { return full(ring, part) + 8; }
  // Where a part of the tile stands: block after block of 64 columns.
  WW_DEVICE ptx::u32 part(MlaRing ring, int part) const {
    return kv + ring.stage() * C::kTileBytes + mla_first_column(part) * C::kColumnBytes;
  }

  WW_DEVICE void init_barriers() const {
    for (int i = 0; i < C::kStages * kMlaParts; ++i) {
      ptx::mbarrier_init(barriers + i * 16, C::kBoxes ? 1 : C::kProducers);
      ptx::mbarrier_init(barriers + i * 16 + 8, C::kPaired ? 8 : 4);  // warps of one warpgroup of each CTA
    }
    ptx::mbarrier_init_fence();
  }
};

}  // namespace warpweave::cuda
