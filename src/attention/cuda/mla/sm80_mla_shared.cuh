// Sizes and shared memory of the mma.sync MLA kernel (sm80_mla.cuh).
#pragma once

#include "attention/cuda/kv_fragment.h"
#include "attention/cuda/mla/mla_run.cuh"
#include "attention/cuda/mla/mla_variants.h"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

template <class Element_, MlaFormat kFormat_, int kRowBlocks_>
struct Sm80MlaConfig {
  using Element = Element_;
  static constexpr MlaFormat kFormat = kFormat_;
  static constexpr bool kFp8 = kFormat != MlaFormat::same16;
  using Kv = KvFragment<Element, kFp8 ? KvStorage::e4m3 : KvStorage::same16>;
  static constexpr int kRowBlocks = kRowBlocks_;  // of 16 rows
  static constexpr int kRows = 16 * kRowBlocks;
  static constexpr int kThreads = 256;
  static constexpr int kTokens = kFp8 && kRowBlocks == 1 ? 64 : 32;  // a step
  static constexpr int kSteps = kDecodeTileTokens / kTokens;          // a tile of the plan
  static constexpr int kTokenBytes = mla_token_bytes(kFormat);
  // An odd number of 16-byte units: eight tokens' stand in different banks.
  static constexpr int kTokenPitch = kTokenBytes / 16 % 2 == 1 ? kTokenBytes : kTokenBytes + 16;
  static constexpr int kStageBytes = kTokens * kTokenPitch;
  // Two CTAs of 16 rows have an SM of Hopper's 227 KB, one an older one's 163 KB.
  static constexpr int kCtasPerSm = sm80_mla_ctas_per_sm(kRows);
  static constexpr int kStages = kRowBlocks == 1 ? 2 : kFp8 ? 6 : 3;
  static constexpr int kPartPitch = kTokens + 8;          // floats: a row of S, of a quarter of the columns
  static constexpr int kProbabilityPitch = kTokens * 2 + 16;  // bytes
  static constexpr int kPartBytes = 4 * kRows * kPartPitch * 4;
  static constexpr int kProbabilityBytes = kRows * kProbabilityPitch;
  static constexpr int kSmemBytes = kStages * kStageBytes + kPartBytes + kProbabilityBytes + kRows * 4 +
                                    2 * kTokens * 8 + static_cast<int>(sizeof(MlaCursor));
  static_assert(kSmemBytes <= (kCtasPerSm == 2 ? 113 : 163) * 1024);
  static constexpr float kRescaleThreshold = 8;  // log2 units
  // Q is multiplied by 2^kQueryLog2 and P by 2^kProbabilityLog2 (kv_fragment.h); what S and O then lack.
  static constexpr int kScoreLog2 = kFp8 ? Kv::kWidenedScaleLog2 - Kv::kQueryLog2 : 0;
  static constexpr int kOutLog2 = kFp8 ? Kv::kWidenedScaleLog2 - Kv::kProbabilityLog2 : 0;
};

template <class C>
struct Sm80MlaShared {
  ptx::u32 stages, probability;
  float* parts;       // [4][rows][kPartPitch]
  float* factors;     // [rows]
  MlaCursor* cursor;
  int64_t* offsets;   // [2][kTokens] of tokens in the pool; -1: past the last

  WW_DEVICE explicit Sm80MlaShared(char* base) {
    stages = ptx::smem_address(base);
    char* at = base + C::kStages * C::kStageBytes;
    parts = reinterpret_cast<float*>(at);
    at += C::kPartBytes;
    offsets = reinterpret_cast<int64_t*>(at);
    at += 2 * C::kTokens * 8;
    probability = ptx::smem_address(at);
    at += C::kProbabilityBytes;
    factors = reinterpret_cast<float*>(at);
    cursor = reinterpret_cast<MlaCursor*>(at + C::kRows * 4);
  }
};

constexpr float mla_power_of_two(int exponent) {
  float x = 1;
  for (int i = 0; i < exponent; ++i) x *= 2;
  return x;
}

}  // namespace warpweave::cuda
