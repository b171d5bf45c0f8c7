// The output head that a draft head reads in place of the target's: some of its rows, or all of them, in the model's
// type or rounded to e4m3 with a scale a row. Guesses made by it are checked by the target as any are.
// Only for builds with GPU kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "device/cuda/memory.h"
#include "ops/cuda/gemm.h"

namespace warpweave {

struct GpuHeadCopy {
  DeviceBuffer rows, scales;
  gpu::GpuLinear linear;               // over them; empty: there is no copy
};

// Whether so many rows of `whole` can be rounded and multiplied on this GPU: of 16 bits, without a bias.
bool rounds_head(const gpu::GpuLinear& whole, int64_t rows);

// `tokens`: whose rows are copied; empty: all are. `in_8_bits` needs rounds_head(). Waits for the stream. Errors:
// `unsupported` for tokens of a head that is quantized or has a bias, `resource_exhausted`.
Result<GpuHeadCopy> copy_head(const gpu::GpuLinear& whole, std::span<const int32_t> tokens, bool in_8_bits,
                              cudaStream_t stream);

}  // namespace warpweave
