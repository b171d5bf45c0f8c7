// A divisor that the host knows: a division on the device is two instructions then, where it is some 25 otherwise.
#pragma once

#include <cstdint>

#include "device/cuda/ptx.h"

namespace warpweave::cuda {

// divide(x), x / value rounded down: for x from 0 on with (x + 1) * value up to 2^32.
struct Divisor {
  int value;
  uint32_t reciprocal;

  explicit Divisor(int divisor) : value(divisor), reciprocal(~uint32_t{0} / static_cast<uint32_t>(divisor)) {}
  WW_DEVICE int divide(int x) const {
    return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(x) + 1) * reciprocal >> 32);
  }
};

}  // namespace warpweave::cuda
