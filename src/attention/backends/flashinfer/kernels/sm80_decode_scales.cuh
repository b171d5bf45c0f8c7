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
  u32 v[kHere ? C::kGroups : 1][C::kHeads][4];

  // Rows of the step, and where the rows' codes begin in a stage.
  static WW_DEVICE int k_row(int group, int i) { return group * 16 + threadIdx.x % 32 / 4 + 8 * i; }
  static WW_DEVICE int v_row(int group, int i) { return group * 16 + threadIdx.x % 4 * 2 + i % 2 + i / 2 * 8; }
  static WW_DEVICE u32 k_codes(u32 stage) { return stage + 2 * C::kStepTokens * C::kRowBytes; }
  static WW_DEVICE u32 v_codes(u32 stage) { return k_codes(stage) + C::kStepTokens * 16; }

  // Those of K, with those of V where one word says where both stand; then those of V.
  WW_DEVICE void load_k(u32 stage) {
    if constexpr (kFixedPlaces) {
      read_k(k_codes(stage), [](int) { return 0u; });
    } else {
      load_placed(stage);
    }
  }
  WW_DEVICE void load_v(u32 stage) {
    if constexpr (kFixedPlaces) read_v(v_codes(stage), [](int) { return 0u; });
  }

 private:
  static constexpr bool kFixedPlaces = C::kHeads * C::kDim == 256;

  WW_DEVICE void load_placed(u32 stage) {
    uint2 places;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n"
                 : "=r"(places.x), "=r"(places.y)
                 : "r"(stage + C::kStageBytes - 16)
                 : "memory");
    if (places.x + 1 < 2 && places.y + 1 < 2) {  // one place for all rows
      const u32 place = place_of(places, 0);
      read_k(k_codes(stage) + place, [](int) { return 0u; });
      read_v(v_codes(stage) + place, [](int) { return 0u; });
    } else {
      read_k(k_codes(stage), [&](int row) { return place_of(places, row); });
      read_v(v_codes(stage), [&](int row) { return place_of(places, row); });
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
        for (int i = 0; i < 4; ++i) {
          const int row = v_row(group, i);
          v[group][head][i] = scale_codes<C::kDim>(rows + row * 16 + place(row) + head * 8, threadIdx.x & 16);
        }
      }
    }
  }
};

}  // namespace warpweave::cuda
