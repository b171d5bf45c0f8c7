// Shared memory and barriers of the Hopper MLA kernel (sm90_mla.cuh).
#pragma once

#include <cuda.h>

#include <cstddef>

#include "attention/cuda/mla/mla_run.cuh"
#include "attention/cuda/split_in_place.cuh"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

// A KV tile is copied, waited for and released in parts, so that the next one's first part is on its way while the last
// one is still multiplied: the rope columns, which S alone reads, then the right and the left half of the latent ones.
enum MlaPart { kMlaRopePart = 0, kMlaRightPart = 1, kMlaLeftPart = 2, kMlaParts = 3 };
constexpr int mla_first_column(int part) { return part == kMlaRopePart ? 8 : part == kMlaRightPart ? 4 : 0; }
constexpr int mla_columns(int part) { return part == kMlaRopePart ? 1 : 4; }

template <class Element_, MlaFormat kFormat_, bool kBoxes_, bool kPaired_, MlaMerging kMerging_>
struct Sm90MlaConfig {
  using Element = Element_;
  static constexpr MlaFormat kFormat = kFormat_;
  static constexpr bool kBoxes = kBoxes_;    // TMA takes boxes of the pool; else threads gather
  static constexpr bool kPaired =
      kPaired_;  // two CTAs of a cluster, a row tile each, copy half of each KV tile for both
  static_assert(kFormat == MlaFormat::same16 || !kBoxes);
  static constexpr bool kMerges = kMerging_ != MlaMerging::by_kernel;  // in place (split_in_place.cuh)
  static constexpr bool kShares = kMerging_ == MlaMerging::shares;  // of one row tile, so that there are no pairs
  static_assert(!kShares || !kPaired);
  // A segment's queries are asked for while the one before ends. Measured where pieces are merged in place alone.
  static constexpr bool kQueriesAhead = kMerges;
  static constexpr bool kExchanges = kPaired && !kBoxes;  // what a CTA has gathered goes to the other one
  static constexpr int kProducers = kFormat == MlaFormat::same16 ? 128 : 256;  // threads that copy
  static constexpr int kGatherers = kExchanges ? 64 : kProducers;              // and those that gather
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
  static constexpr int kBarrierBytes = 256;  // and flags
  static constexpr int kCursorBytes = 3 * sizeof(MlaCursor) + 2 * sizeof(SplitCuts);
  static constexpr int kSmemBytes = 3 * kTileBytes + kProbabilityBytes + 128 * 8 + kBarrierBytes + kCursorBytes + 1024;
  static_assert(kSmemBytes <= 227 * 1024);
  static constexpr float kRescaleThreshold = 8;
  // Where codes are widened, widening is slower than freeing a tile's memory, so S of the next tile is computed ahead.
  static constexpr bool kScoresAhead = kFormat != MlaFormat::same16;
};

// Named, of a multiplying warpgroup's own: the leader's, and the follower's behind it.
inline constexpr int kSm90MlaOwnBarrier = 3;

WW_DEVICE void mla_store_16(ptx::u32 smem, const uint4& w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
               : "memory");
}

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
  SplitCuts* cuts;     // [2]: the leader's, the follower's

  WW_DEVICE explicit Sm90MlaShared(char* base) {
    constexpr int kFactors = (1 + C::kStages) * C::kTileBytes + C::kProbabilityBytes;
    q = ptx::smem_address(base);
    kv = q + C::kTileBytes;
    probability = kv + C::kStages * C::kTileBytes;
    factors = q + kFactors;
    barriers = factors + 128 * 8;
    cursors = reinterpret_cast<MlaCursor*>(base + kFactors + 128 * 8 + C::kBarrierBytes);
    cuts = reinterpret_cast<SplitCuts*>(cursors + 3);
    static_assert(C::kStages * (kMlaParts * 16 + C::kColumnBlocks * 8) + 16 <= C::kBarrierBytes);
  }
  WW_DEVICE ptx::u32 full(MlaRing ring, int part) const {
    return barriers + (ring.stage() * kMlaParts + part) * 16;
  }
  WW_DEVICE ptx::u32 empty(MlaRing ring, int part) const { return full(ring, part) + 8; }
  // Of 64 columns of the tokens that this CTA gathers for both (kExchanges).
  WW_DEVICE ptx::u32 gathered(MlaRing ring, int column) const {
    return barriers + C::kStages * kMlaParts * 16 + (ring.stage() * C::kColumnBlocks + column) * 8;
  }
  // 8 bytes of a multiplying warpgroup's own.
  WW_DEVICE ptx::u32 flag(int half) const { return barriers + C::kBarrierBytes - 16 + half * 8; }
  // `bytes` of shared memory to the same address in the other CTA of the cluster, whose barrier at the address of
  // `barrier` hears of them. What threads have written there needs a fence first.
  static WW_DEVICE void send(ptx::u32 smem, ptx::u32 barrier, int bytes) {
    asm volatile(
        "{\n.reg .b32 to, bar;\n"
        "mapa.shared::cluster.u32 to, %0, %3;\n"
        "mapa.shared::cluster.u32 bar, %1, %3;\n"
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %2, [bar];\n}\n"
        ::"r"(smem), "r"(barrier), "r"(bytes), "r"((blockIdx.x % 2) ^ 1)
        : "memory");
  }
  // Of a tile's tokens, those that this CTA brings.
  static constexpr int kOwnTokens = C::kPaired ? C::kTokens / 2 : C::kTokens;
  static WW_DEVICE int first_own() { return C::kPaired ? static_cast<int>(blockIdx.x % 2) * kOwnTokens : 0; }

  // Where a part of the tile stands: block after block of 64 columns.
  WW_DEVICE ptx::u32 part(MlaRing ring, int part) const {
    return kv + ring.stage() * C::kTileBytes + mla_first_column(part) * C::kColumnBytes;
  }

  WW_DEVICE void init_barriers() const {
    for (int i = 0; i < C::kStages * kMlaParts; ++i) {
      ptx::mbarrier_init(barriers + i * 16, C::kBoxes || C::kExchanges ? 1 : C::kProducers);
      ptx::mbarrier_init(barriers + i * 16 + 8, C::kPaired ? 8 : 4);  // warps of one warpgroup of each CTA
    }
    if constexpr (C::kExchanges) {
      for (int i = 0; i < C::kStages * C::kColumnBlocks; ++i)
        ptx::mbarrier_init(barriers + C::kStages * kMlaParts * 16 + i * 8, C::kGatherers);
    }
    ptx::mbarrier_init_fence();
  }
};

}  // namespace warpweave::cuda
