// Tile sizes, shared memory and barriers of the fp8 prefill kernel (sm90_fp8_extend.cuh).
#pragma once

#include "attention/backends/fa3/caps.h"
#include "attention/backends/fa3/kernels/sm90_shared.cuh"

namespace warpweave::cuda {

template <class Element_, int kDim_, int kConsumers_>
struct Sm90Fp8Config {
  using Element = Element_;
  static constexpr int kDim = kDim_;
  static constexpr int kConsumers = kConsumers_;  // warpgroups of 64 rows
  static_assert(kConsumers == 2 || kConsumers == 3);
  static constexpr bool kTrio = kConsumers == 3;  // Sm90Fp8TrioConsumer
  static constexpr bool kLateTurns = kDim == 64;  // of three: handed over when S is there, not when it is issued
  static constexpr int kTileRows = 64 * kConsumers;
  static constexpr int kBlockTokens = fa3::kFp8Mma.sum_tokens;
  static_assert(kBlockTokens == 128);            // a row of V^T, in the swizzle of 128 bytes
  static constexpr int kThreads = 128 * (kConsumers + 1);
  // Their sum over all threads is what the launch allocates, or setmaxnreg never returns.
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = kTrio ? 152 : 224;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 65536 / kThreads / 8 * 8 * (kConsumers + 1));
  static constexpr int kQueryBytes = kTileRows * kDim;
  static constexpr int kBlockBytes = kBlockTokens * kDim;
  static constexpr int kTileStages = 2;
  static constexpr int kTiles = 8;
  static constexpr int kStages = kTrio && kDim == 128 ? 3 : 4;  // of K, and of V^T
  static constexpr int kRawStages = 3;           // of V as it is stored
  static constexpr int kRingBytes = kQueryBytes + (2 * kStages + kRawStages) * kBlockBytes;
  static constexpr int kControlBytes = 640;           // barriers and tiles
  static constexpr int kScalesBytes = kTileRows;
  static constexpr int kRawQueryBytes = kQueryBytes * 2;  // as it is stored; then of the output
  static constexpr int kSmemBytes = kRingBytes + kRawQueryBytes + kScalesBytes + kControlBytes + 1024;
  static_assert(kSmemBytes <= 227 << 10);
  // P is stored times 2^kProbabilityLog2 and may reach 2^kRescaleThreshold times that: e4m3 ends at 448,
  // and has its full precision down to 2^-6.
  static constexpr int kProbabilityLog2 = fa3::kFp8Mma.p_scale_log2;
  static constexpr float kRescaleThreshold = 2.8f;
};

// One unit of work. It is read where it lies, since registers are short. The copying warp publishes unit u when
// all others have entered u - 2: consumers may still write their rows of u - 3 then, and need no older unit.
struct Sm90Fp8Tile {
  int request;  // -1: no more
  int head, kv_head;
  int q_begin, q_len, kv_len;
  int first_token, end_token;   // of the tile, within the request
  int block_begin, block_end;   // KV blocks
  int plain_begin, plain_end;   // those that every row sees whole
};

struct Sm90Fp8Barriers {
  ptx::u64 tile_full[2], tile_empty[2];
  ptx::u64 k_full[4], k_empty[4], raw_full[3], raw_empty[3], v_full[4], v_empty[4];
};

template <class C>
struct Sm90Fp8Shared {
  ptx::u32 q, k, raw, v, raw_q, barriers;
  unsigned char* q_exponents;  // [kTileRows], of the scales, as in a float
  Sm90Fp8Tile* tiles;  // [kTiles]
  static constexpr int kTransposers = 3;  // warps that transpose V

  WW_DEVICE Sm90Fp8Shared(char* base) {
    q = ptx::smem_address(base);
    k = q + C::kQueryBytes;
    raw = k + C::kStages * C::kBlockBytes;
    v = raw + C::kRawStages * C::kBlockBytes;
    raw_q = q + C::kRingBytes;
    constexpr int kScales = C::kRingBytes + C::kRawQueryBytes;
    q_exponents = reinterpret_cast<unsigned char*>(base + kScales);
    barriers = q + kScales + C::kScalesBytes;
    tiles = reinterpret_cast<Sm90Fp8Tile*>(base + kScales + C::kScalesBytes + sizeof(Sm90Fp8Barriers));
  }
  WW_DEVICE ptx::u32 tile_full(int s) const { return barriers + offsetof(Sm90Fp8Barriers, tile_full) + s * 8; }
  WW_DEVICE ptx::u32 tile_empty(int s) const { return barriers + offsetof(Sm90Fp8Barriers, tile_empty) + s * 8; }
  WW_DEVICE ptx::u32 k_full(int s) const { return barriers + offsetof(Sm90Fp8Barriers, k_full) + s * 8; }
  WW_DEVICE ptx::u32 k_empty(int s) const { return barriers + offsetof(Sm90Fp8Barriers, k_empty) + s * 8; }
  WW_DEVICE ptx::u32 raw_full(int s) const { return barriers + offsetof(Sm90Fp8Barriers, raw_full) + s * 8; }
  WW_DEVICE ptx::u32 raw_empty(int s) const { return barriers + offsetof(Sm90Fp8Barriers, raw_empty) + s * 8; }
  WW_DEVICE ptx::u32 v_full(int s) const { return barriers + offsetof(Sm90Fp8Barriers, v_full) + s * 8; }
  WW_DEVICE ptx::u32 v_empty(int s) const { return barriers + offsetof(Sm90Fp8Barriers, v_empty) + s * 8; }

  WW_DEVICE void init_barriers() const {
    static_assert(sizeof(Sm90Fp8Barriers) + C::kTiles * sizeof(Sm90Fp8Tile) <= C::kControlBytes);
    constexpr int kWarps = 4 * C::kConsumers;
    for (int s = 0; s < C::kTileStages; ++s) {
      ptx::mbarrier_init(tile_full(s), 1);
      ptx::mbarrier_init(tile_empty(s), kWarps + kTransposers);
    }
    for (int s = 0; s < C::kStages; ++s) {
      ptx::mbarrier_init(k_full(s), 1);
      ptx::mbarrier_init(k_empty(s), kWarps);
      ptx::mbarrier_init(v_full(s), 32 * kTransposers);
      ptx::mbarrier_init(v_empty(s), kWarps);
    }
    for (int s = 0; s < C::kRawStages; ++s) {
      ptx::mbarrier_init(raw_full(s), 1);
      ptx::mbarrier_init(raw_empty(s), kTransposers);
    }
    ptx::mbarrier_init_fence();
  }
};

// 16-byte chunk `chunk` of row `row` of a tile of kDim-byte rows, in TMA's swizzle.
template <class C>
WW_DEVICE ptx::u32 sm90_fp8_swizzled(int row, int chunk) {
  const int flip = C::kDim == 128 ? row & 7 : row >> 1 & 3;
  return static_cast<ptx::u32>(row * C::kDim + (chunk ^ flip) * 16);
}

}  // namespace warpweave::cuda
