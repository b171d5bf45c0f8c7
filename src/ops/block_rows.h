// Plain rows rounded to GGUF blocks (gguf_blocks.h), for weights that may lose bits: a draft model's.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "warpweave/tensor.h"

namespace warpweave {

// n elements (a multiple of 32) as `format`, q8_0 or iq4_nl. q8_0: the largest magnitude of a block becomes 127.
// iq4_nl: of two scales, by which the largest magnitude meets either end of kIQ4Values, each fitted once more to its
// codes by least squares, the one with the smaller squared error. Values that are not finite count as 0.
void round_to_blocks(const float* x, int64_t n, DType format, void* out);

// Rows of a matrix in f32, bf16, f16, their width a multiple of 32.
std::vector<std::byte> matrix_in_blocks(const TensorView& matrix, DType format, ThreadTeam& team);

}  // namespace warpweave
