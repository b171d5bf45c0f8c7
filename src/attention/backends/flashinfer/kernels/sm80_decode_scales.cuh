// fp4: the block scales of a thread's tokens of a step of the decode kernel (sm80_decode.cuh): of K two rows, of V
// four in every 16 tokens; every other block of a row, byte c being that of 16-byte chunk c in half of the lanes. With
// d 256, for want of registers, they are read 128 dims at a time, where they are needed.
#pragma once

#include "attention/backends/flashinfer/kernels/sm80_decode_loader.cuh"

namespace warpweave::cuda {

template <class C>
struct DecodeBlockScales {
  static constexpr bool kHere = C::kFp4 && C::kDim <= 128;
  u32 k[kHere ? C::kGroups : 1][C::kHeads][2];
  u32 v[kHere ? C::kGroups : 1][C::kHeads][2][2];  // two rows' in turn: chunks 0 and 1, then 2 and 3

  // Rows of the step; where the codes of V begin, those of K beginning at `codes`.
  static WW_DEVICE int k_row(int group, int i) { return group * 16 + threadIdx.x % 32 / 4 + 8 * i; }
  static WW_DEVICE int v_row(int group, int i) { return group * 16 + threadIdx.x % 4 * 2 + i % 2 + i / 2 * 8; }
  static WW_DEVICE u32 v_codes(u32 codes) { return codes + C::kValueCodesOffset; }

  // Those of K, with those of V where one word says where both stand; then those of V.
  WW_DEVICE void load_k(u32 codes) {
    if constexpr (kFixedPlaces) {
      read_k(codes, [](int) { return 0u; });
    } else {
      load_placed(codes);
    }
  }
  WW_DEVICE void load_v(u32 codes) {
    if constexpr (kFixedPlaces) read_v(v_codes(codes), [](int) { return 0u; });
  }

 private:
  static constexpr bool kFixedPlaces = C::kHeads * C::kDim == 256;

  WW_DEVICE void load_placed(u32 codes) {
    const uint2 places = ptx::load_shared_8(codes + C::kStageBytes - C::kCodesOffset - 16);
    if (places.x + 1 < 2 && places.y + 1 < 2) {  // one place for all rows
      const u32 place = place_of(places, 0);
      read_k(codes + place, [](int) { return 0u; });
      read_v(v_codes(codes) + place, [](int) { return 0u; });
    } else {
      read_k(codes, [&](int row) { return place_of(places, row); });
      read_v(v_codes(codes), [&](int row) { return place_of(places, row); });
    }
  }

  // Where in its 16 bytes a row's scales stand; `places` are DecodeLoader's.
  static WW_DEVICE u32 place_of(const uint2& places, int row) {
    u32 place = (places.x >> row & 1) * 8;
    if constexpr (C::kDim < 128) place += (places.y >> row & 1) * 4;
    return place;
  }

  template <class Place>
  WW_DEVICE void read_k(u32 rows, Place place) {
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
#pragma unroll
      for (int head = 0; head < C::kHeads; ++head) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = k_row(group, i);
          k[group][head][i] = scale_codes<C::kDim>(rows + row * 16 + place(row) + head * 8, threadIdx.x & 2);
        }
      }
    }
  }
  template <class Place>
  WW_DEVICE void read_v(u32 rows, Place place) {
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
#pragma unroll
      for (int head = 0; head < C::kHeads; ++head) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = v_row(group, 2 * i);
          const u32 codes = rows + row * 16 + head * 8;
          pair_codes<C::kDim>(codes + place(row), codes + 16 + place(row + 1), threadIdx.x & 16, v[group][head][i]);
        }
      }
    }
  }
};

}  // namespace warpweave::cuda
