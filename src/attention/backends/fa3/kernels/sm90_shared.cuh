// Tile sizes, shared memory and barriers of the Hopper prefill kernel (sm90_extend.cuh).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "attention/backends/fa3/kernels/sm90_variants.h"
#include "attention/cuda/attention_params.h"
#include "device/cuda/ptx.h"
#include "device/cuda/wgmma_registers.cuh"

namespace warpweave::cuda {

template <class Element_, int kDim_, int kConsumers_, int kBlockTokens_, int kKeyStages_, int kValueStages_,
          Sm90Source kSource_, bool kPairs_ = false, int kValueDim_ = kDim_>
struct Sm90Config {
  using Element = Element_;
  static constexpr int kDim = kDim_;                  // of Q and K
  static constexpr int kValueDim = kValueDim_;        // of V and O
  static constexpr int kConsumers = kConsumers_;      // warpgroups of 64 rows
  static constexpr int kTileRows = 64 * kConsumers_;
  static constexpr bool kTrio = kConsumers_ == 3;     // Sm90TrioConsumer
  static constexpr int kBlockTokens = kBlockTokens_;
  static constexpr int kKeyStages = kKeyStages_;
  static constexpr int kValueStages = kValueStages_;
  static constexpr bool kGather = kSource_ == Sm90Source::gather;
  static constexpr bool kCopies = kSource_ == Sm90Source::copies;
  // Three warpgroups leave the copying one no registers to copy from the pools beside them: a kernel before does.
  static constexpr bool kCopiesHere = kCopies && !kTrio;
  static constexpr bool kLatent = kDim_ != kValueDim_;  // Sm90LatentConsumer
  // In blocks that every row sees whole the maxima stand as they are until a sum exceeds kMostExpected, and a
  // warpgroup hands its turn over when its WGMMAs are done.
  static constexpr bool kExpectMaxima = !kLatent && kDim <= 128;  // above, registers do not suffice
  // Far below what float32 holds, and for f16 what P may be.
  static constexpr float kMostExpected = std::is_same_v<Element_, ptx::F16> ? 0x1p14f : 0x1p30f;
  static constexpr bool kOverlapTiles = kDim <= 128;  // else registers and shared memory do not suffice
  static constexpr int kQueryStages = kOverlapTiles ? 2 : 1;
  // O of a block is complete before S of the next is begun, which takes the registers of P.
  static constexpr bool kOutFirst = kTrio && kDim == 128;
  static constexpr bool kCompactRings = kOutFirst;    // in the multiplying warpgroups
  static constexpr int kThreads = 128 * (kConsumers_ + 1);
  // Their sum over all threads is what the launch allocates (168 a thread, kTrio: 128), or setmaxnreg never returns.
  static constexpr int kProducerRegisters = kTrio ? 32 : kDim == 64 ? 72 : 56;
  static constexpr int kConsumerRegisters = kTrio ? 160 : kDim == 64 ? 216 : 224;
  static constexpr int kColumnBlocks = kDim / 64;     // of 128 bytes
  static constexpr int kValueColumnBlocks = kValueDim / 64;
  static constexpr int kQueryBytes = kTileRows * kDim * 2;
  static constexpr int kBlockBytes = kBlockTokens * kDim * 2;  // of K; of V where the dims are equal
  static constexpr int kValueBlockBytes = kBlockTokens * kValueDim * 2;
  static_assert(!kLatent || (kSource_ == Sm90Source::boxes && kConsumers_ == 2));
  static constexpr int kRingBytes =
      kQueryStages * kQueryBytes + kKeyStages * kBlockBytes + kValueStages * kValueBlockBytes;
  static constexpr int kSmemBytes = kRingBytes + 1024 + 512;
  // The largest power of two of tokens that a box may hold.
  static constexpr int kBoxTokens = kBlockTokens & -kBlockTokens;
  static constexpr bool kPingPong = kDim <= 128 && !kTrio;
  // A tile of 64 tokens or fewer is of two q heads, a warpgroup each, where a kv head has an even number.
  static constexpr bool kPairs = kPairs_;
  static_assert(!kPairs || kConsumers_ == 2);
  static_assert(kConsumers_ == 2 || kTrio);
  static constexpr float kRescaleThreshold = 8;
};

struct Sm90Maps {
  CUtensorMap q, k, v;
};

// One unit of work, written by warp 0 of the producer, read by its other warps and the consumers.
struct Sm90Tile {
  int request;  // -1: no more
  int head;
  int q_begin, q_len, kv_len;
  int first_token;              // of the tile, within the request
  int block_begin, block_end;   // KV blocks
  int plain_begin, plain_end;   // those that every row sees whole
  bool paired;                  // its rows are those of `head` and of the next head
};

struct Sm90Barriers {
  ptx::u64 tile_full[2], q_full[2], q_empty[2];
  ptx::u64 k_full[4], k_empty[4], v_full[4], v_empty[4];
};

template <class C>
struct Sm90Shared {
  ptx::u32 q, k, v, barriers;
  Sm90Tile* tiles;      // [kQueryStages]

  WW_DEVICE Sm90Shared(char* base) {
    q = ptx::smem_address(base);
    k = q + C::kQueryStages * C::kQueryBytes;
    v = k + C::kKeyStages * C::kBlockBytes;
    barriers = q + C::kRingBytes;
    tiles = reinterpret_cast<Sm90Tile*>(base + C::kRingBytes + sizeof(Sm90Barriers));
  }
  WW_DEVICE ptx::u32 tile_full(int s) const { return barriers + offsetof(Sm90Barriers, tile_full) + s * 8; }
  WW_DEVICE ptx::u32 q_full(int s) const { return barriers + offsetof(Sm90Barriers, q_full) + s * 8; }
  WW_DEVICE ptx::u32 q_empty(int s) const { return barriers + offsetof(Sm90Barriers, q_empty) + s * 8; }
  WW_DEVICE ptx::u32 k_full(int s) const { return barriers + offsetof(Sm90Barriers, k_full) + s * 8; }
  WW_DEVICE ptx::u32 k_empty(int s) const { return barriers + offsetof(Sm90Barriers, k_empty) + s * 8; }
  WW_DEVICE ptx::u32 v_full(int s) const { return barriers + offsetof(Sm90Barriers, v_full) + s * 8; }
  WW_DEVICE ptx::u32 v_empty(int s) const { return barriers + offsetof(Sm90Barriers, v_empty) + s * 8; }

  // Warps of the producer that learn of a tile by warp 0.
  static WW_DEVICE int followers(int box_tokens) {
    return C::kGather ? 0 : C::kCopies || box_tokens >= C::kBlockTokens ? 1 : 3;
  }

  WW_DEVICE void init_barriers(int box_tokens) const {
    static_assert(sizeof(Sm90Barriers) + C::kQueryStages * sizeof(Sm90Tile) <= 512);
    constexpr int kWarps = 4 * C::kConsumers;
    for (int s = 0; s < C::kQueryStages; ++s) {
      ptx::mbarrier_init(tile_full(s), 1);
      ptx::mbarrier_init(q_full(s), 1);
      ptx::mbarrier_init(q_empty(s), kWarps + followers(box_tokens));
    }
    for (int s = 0; s < C::kKeyStages; ++s) {
      ptx::mbarrier_init(k_full(s), C::kGather ? 128 : 1);
      ptx::mbarrier_init(k_empty(s), kWarps);
    }
    for (int s = 0; s < C::kValueStages; ++s) {
      ptx::mbarrier_init(v_full(s), C::kGather ? 128 : 1);
      ptx::mbarrier_init(v_empty(s), kWarps);
    }
    ptx::mbarrier_init_fence();
  }
};

// A stage of the ring and the parity of its current round.
template <int kStages>
struct RingPosition {
  int stage = 0, parity = 0;
  WW_DEVICE int at() const { return stage; }
  WW_DEVICE int phase() const { return parity; }
  WW_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The same in one register, for a power of two of stages.
template <int kStages>
struct CompactRingPosition {
  static_assert((kStages & (kStages - 1)) == 0);
  int count = 0;
  WW_DEVICE int at() const { return count & (kStages - 1); }
  WW_DEVICE int phase() const { return count / kStages & 1; }
  WW_DEVICE void advance() { count = (count + 1) & (2 * kStages - 1); }
};

}  // namespace warpweave::cuda
