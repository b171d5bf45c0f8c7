// A matrix of made-up weights as a rule: element i is uniform in +-scale, from a hash of `base` + i, so that the host
// and a GPU make the same bits.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define WW_HOST_DEVICE __host__ __device__
#else
#define WW_HOST_DEVICE
#endif

namespace warpweave {

struct RandomMatrix {
  uint64_t base = 0;
  float scale = 0;
};

WW_HOST_DEVICE inline uint64_t mixed_bits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// In [-1, 1), a multiple of 2^-23: both operations are exact.
WW_HOST_DEVICE inline float random_unit(uint64_t base, uint64_t i) {
  return 2 * (static_cast<float>(mixed_bits(base + i) >> 40) * 0x1.0p-24f) - 1;
}

}  // namespace warpweave
