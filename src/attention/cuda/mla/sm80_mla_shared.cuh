// Sizes and shared memory of the mma.sync MLA kernel (sm80_mla.cuh).
#pragma once

#include <type_traits>

#include "attention/cuda/kv_fragment.h"
#include "attention/cuda/mla/mla_run.cuh"
#include "attention/cuda/mla/mla_variants.h"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

template <class Element_, MlaFormat kFormat_, int kRowBlocks_>
struct Sm80MlaConfig {
  using Element = Element_;
  static constexpr MlaFormat kFormat = kFormat_;
  static constexpr bool kCodes = kFormat != MlaFormat::same16;
  static constexpr bool kFp4 = kFormat == MlaFormat::fp4;
  // What the MMAs multiply: codes are exact in f16, which one instruction makes of e4m3 ones, and P has three bits more
  // in it than in bf16. The rotated numbers of packed tokens stay what they are.
  using Operand = std::conditional_t<kCodes, ptx::F16, Element>;
  // e2m1 codes times their scales come out so many times smaller (fp4_fragment.h).
  static constexpr float kWidenedScale = kFp4 ? 0x1p14f : 1.0f;
  static constexpr int kRowBlocks = kRowBlocks_;  // of 16 rows
  static constexpr int kRows = 16 * kRowBlocks;
  static constexpr int kThreads = 256;
  static constexpr int kTokens = kCodes && kRowBlocks == 1 ? 64 : 32;  // a step
  static constexpr int kSteps = kDecodeTileTokens / kTokens;          // a tile of the plan
  static constexpr int kTokenBytes = mla_token_bytes(kFormat);
  // 16-bit numbers stand as TMA brings them: blocks of 64 columns, and in a token's 128 bytes of one the 16-byte units
  // swapped so that eight tokens' stand in different banks.
  static constexpr bool kSwizzled = kFormat == MlaFormat::same16;
  static constexpr int kBlockBytes = kTokens * 128;
  // Of codes: an odd number of 16-byte units, likewise. Of e2m1 codes so few are read that having two tokens in a bank
  // costs less than copying tokens one by one.
  static constexpr int kTokenPitch =
      kSwizzled || kFp4 || kTokenBytes / 16 % 2 == 1 ? kTokenBytes : kTokenBytes + 16;
  static constexpr int kStageBytes = kTokens * kTokenPitch;
  // Two CTAs of 16 rows have an SM of Hopper's 227 KB, one an older one's 163 KB.
  static constexpr int kCtasPerSm = sm80_mla_ctas_per_sm(kRows);
  static constexpr int kStages = kRowBlocks == 1 ? (kFp4 ? 3 : 2) : kCodes ? 6 : 3;
  static constexpr int kPartPitch = kTokens + 8;          // floats: a row of S, of a quarter of the columns
  static constexpr int kProbabilityPitch = kTokens * 2 + 16;  // bytes
  static constexpr int kPartBytes = 4 * kRows * kPartPitch * 4;
  static constexpr int kProbabilityBytes = kRows * kProbabilityPitch;
  static constexpr int kLandedBytes = (kStages * 8 + 15) / 16 * 16;
  static constexpr int kSmemBytes = kStages * kStageBytes + kPartBytes + kProbabilityBytes + kRows * 8 +
                                    2 * kTokens * 8 + kLandedBytes + static_cast<int>(sizeof(MlaCursor));
  static_assert(kSmemBytes <= (kCtasPerSm == 2 ? 113 : 163) * 1024);
  static constexpr float kRescaleThreshold = 8;  // log2 units
  // P is 2^this where a score is the greatest: in f16 it then reaches from 2^15 (kRescaleThreshold above) to 2^-24.
  static constexpr float kProbabilityLog2 = kCodes ? 7 : 0;
};

// Where in a stage the 16-byte `unit` of a block's 128 bytes of a token stands (kSwizzled).
template <class C>
WW_DEVICE int sm80_mla_at(int block, int token, int unit) {
  return block * C::kBlockBytes + token * 128 + (unit ^ token % 8) * 16;
}

template <class C>
struct Sm80MlaShared {
  ptx::u32 stages, probability;
  float* parts;       // [4][rows][kPartPitch]
  float* factors;     // [rows]
  float* query_units;  // [rows]; of codes: what a row of Q was divided by, a power of two
  MlaCursor* cursor;
  int64_t* offsets;   // [2][kTokens] of tokens in the pool; -1: past the last
  ptx::u32 landed;    // [kStages] mbarriers of the stages that bulk copies fill

  WW_DEVICE explicit Sm80MlaShared(char* base) {
    stages = ptx::smem_address(base);
    char* at = base + C::kStages * C::kStageBytes;
    parts = reinterpret_cast<float*>(at);
    at += C::kPartBytes;
    offsets = reinterpret_cast<int64_t*>(at);
    at += 2 * C::kTokens * 8;
    landed = ptx::smem_address(at);
    at += C::kLandedBytes;
    probability = ptx::smem_address(at);
    at += C::kProbabilityBytes;
    factors = reinterpret_cast<float*>(at);
    query_units = factors + C::kRows;
    cursor = reinterpret_cast<MlaCursor*>(at + C::kRows * 8);
  }
};

}  // namespace warpweave::cuda
