// Rows that stand at three positions each on the GPU (M-RoPE, ops/rope.h).
#pragma once

#include <cstdint>
#include <span>

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

struct RopePlaces {
  static constexpr int kMostFrequencies = 256;

  const int32_t* positions = nullptr;         // [3, rows]; null: QkvRowsCall::positions turn every frequency
  uint32_t axes[kMostFrequencies / 16] = {};  // which of the three turns a frequency: two bits each

  // `of`: rope_axes(), at most kMostFrequencies.
  void set_axes(std::span<const uint8_t> of) {
    for (size_t i = 0; i < of.size(); ++i) axes[i / 16] |= uint32_t{of[i]} << 2 * (i % 16);
  }
};

// norm_rope_write_kv() of a call without dual chunks. Like the call's positions, these were written before the step's
// kernels. With three equal positions a row has the bits that it has without.
void norm_rope_write_kv(const QkvRowsCall& call, const RopePlaces& places, Stream stream);

}  // namespace warpweave::gpu
