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
  // Of part of a matrix: rows of `cols` (a multiple of 8) that stand row_step apart, columns col_step; cols 0: of all
  // of it.
  int64_t cols = 0, row_step = 0, col_step = 1;

  // The rule of [.., cols] from (first_row, first_col) of a matrix with of_cols columns, whose rule this is.
  constexpr RandomMatrix piece(int64_t first_row, int64_t first_col, int64_t piece_cols, int64_t of_cols) const {
    RandomMatrix out = {base + static_cast<uint64_t>(first_row * of_cols + first_col), scale};
    if (piece_cols != of_cols) out.cols = piece_cols, out.row_step = of_cols;
    return out;
  }
  // The rule of what has for rows every step-th column, from first_col on, of rows [first_row, first_row + rows) of a
  // matrix with of_cols columns, whose rule this is.
  constexpr RandomMatrix transposed(int64_t first_row, int64_t rows, int64_t first_col, int64_t step,
                                    int64_t of_cols) const {
    return {base + static_cast<uint64_t>(first_row * of_cols + first_col), scale, rows, step, of_cols};
  }
  // Of element i of the piece in the whole, from where the piece begins.
  WW_HOST_DEVICE constexpr int64_t index(int64_t i) const {
    return cols == 0 ? i : i / cols * row_step + i % cols * col_step;
  }
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
