// What a lane of the copying warpgroups (sm90_mla_code_producer.cuh) has of a piece of a 416-byte token: of its two
// blocks of 64 columns, a share of neighbouring columns.
#pragma once

#include "attention/cuda/mla/mla_fp4.cuh"
#include "attention/cuda/mla/sm90_mla_shared.cuh"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

// kLanes lanes, 4 or 8, have the piece.
template <int kLanes>
struct Sm90MlaFp4Piece {
  static constexpr int kValues = 128 / kLanes, kWords = kValues / 8, kScales = kValues / kFp4BlockElements;
  static_assert(kLanes == 4 || kLanes == 8);

  u32 codes[kWords];
  u32 scales;

  // `block`: of 64 columns, the piece's first.
  WW_DEVICE void load(const char* token, int block, int lane) {
    const int first = block * 64 + lane * kValues;
    const char* const from = token + first / 2;
    const char* const scale = token + kFp4MlaScaleAt + first / kFp4BlockElements;
    if constexpr (kLanes == 4) {
      const uint4 w = ptx::load_once_16(from);
      codes[0] = w.x;
      codes[1] = w.y;
      codes[2] = w.z;
      codes[3] = w.w;
      scales = *reinterpret_cast<const uint16_t*>(scale);
    } else {
      const uint2 w = *reinterpret_cast<const uint2*>(from);
      codes[0] = w.x;
      codes[1] = w.y;
      scales = *reinterpret_cast<const uint8_t*>(scale);
    }
  }

  // `line`: the token's row of the piece's first block, `block_bytes` before that of the second one; `flip`: of its
  // 16-byte units. Lanes of the second block store theirs in another order, so that neighbours use all banks.
  WW_DEVICE void store(u32 line, int block_bytes, int flip, int lane) const {
    const int second = lane / (kLanes / 2), first_unit = lane % (kLanes / 2) * kWords;
    const u32 halves = halves_of_e4m3<false>(scales), row = line + second * block_bytes;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const u32 word = second != 0 ? codes[i ^ kWords / 2] : codes[i];
      const bool upper = kScales == 2 && (i >= kWords / 2) != (second != 0);
      const float scale = upper ? ptx::F16::high(halves) : ptx::F16::low(halves);
      u32 pairs[4];
      MlaFp4::widen(word, MlaFp4Factors(scale), pairs);
      const int unit = first_unit + (i ^ second * (kWords / 2));
      mla_store_16(row + (unit ^ flip) * 16, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
  }
};

}  // namespace warpweave::cuda
