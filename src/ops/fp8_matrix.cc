#include "ops/fp8_matrix.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "base/float8.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

constexpr int32_t kInfinityBits = 0x7f800000;

int32_t magnitude_bits(float x) { return std::bit_cast<int32_t>(x) & 0x7fffffff; }

// f32_to_e4m3 for finite values, without branches, so that loops over it become vector code.
uint8_t round_to_e4m3(float x) {
  const int32_t bits = magnitude_bits(x);
  constexpr int32_t kSmallestNormal = 121 << 23, kShifter = 141 << 23, kLargest = 0x7e;
  const int32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
  const int32_t subnormal =
      std::bit_cast<int32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(kShifter)) - kShifter;
  const int32_t is_normal = -static_cast<int32_t>(bits >= kSmallestNormal);
  const int32_t code = (normal & is_normal) | (subnormal & ~is_normal);
  const int32_t over = -static_cast<int32_t>(code > kLargest);
  return static_cast<uint8_t>((code & ~over) | (kLargest & over) | (std::bit_cast<int32_t>(x) >> 24 & 0x80));
}

// The rows and columns of one block.
struct Block {
  const float* from;
  uint8_t* to;
  int64_t rows, cols, stride;
};

// Its scale, or a negative number where an element is not finite.
float quantize_block(const Block& block) {
  int32_t largest = 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* row = block.from + r * block.stride;
    for (int64_t c = 0; c < block.cols; ++c) largest = std::max(largest, magnitude_bits(row[c]));
  }
  if (largest >= kInfinityBits) return -1;
  // A scale below the smallest normal number would lose bits of its own.
  constexpr float kSmallestScale = 0x1p-126f;
  const float scale = largest == 0 ? 1 : std::max(std::bit_cast<float>(largest) / kE4m3Max, kSmallestScale);
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* from = block.from + r * block.stride;
    uint8_t* to = block.to + r * block.stride;
    for (int64_t c = 0; c < block.cols; ++c) to[c] = round_to_e4m3(from[c] / scale);
  }
  return scale;
}

}  // namespace

Result<WeightScales> quantize_fp8(const TensorView& weight, int64_t block_rows, int64_t block_cols, uint8_t* codes,
                                  ThreadTeam& team) {
  const int64_t rows = weight.shape[0], cols = weight.shape[1];
  block_rows = std::min(block_rows, rows);
  block_cols = std::min(block_cols, cols);
  WeightScales out;
  out.block_rows = block_rows;
  out.block_cols = block_cols;
  out.stride = (cols + block_cols - 1) / block_cols;
  const int64_t bands = (rows + block_rows - 1) / block_rows;
  out.values.resize(bands * out.stride);
  const size_t row_bytes = weight.size_bytes() / rows;
  std::atomic<bool> finite = true;
  team.parallel_for(bands, std::max<int64_t>(1, 16 / block_rows), [&](int64_t begin, int64_t end) {
    std::vector<float> values(block_rows * cols);
    for (int64_t band = begin; band < end; ++band) {
      const int64_t first = band * block_rows, count = std::min(block_rows, rows - first);
      dequantize_row(weight.dtype, static_cast<const std::byte*>(weight.data) + first * row_bytes, count * cols,
                     values.data());
      for (int64_t c = 0; c < cols; c += block_cols) {
        const float scale = quantize_block({values.data() + c, codes + first * cols + c, count,
                                            std::min(block_cols, cols - c), cols});
        out.values[band * out.stride + c / block_cols] = scale;
        if (scale < 0) finite = false;
      }
    }
  });
  if (!finite) return Status::data_loss("a weight that is not finite cannot be stored in 8 bits");
  return out;
}

bool has_nan_e4m3(const TensorView& codes, ThreadTeam& team) {
  const auto* from = static_cast<const uint8_t*>(codes.data);
  std::atomic<bool> found = false;
  team.parallel_for(codes.elements(), int64_t{1} << 20, [&](int64_t begin, int64_t end) {
    uint8_t nans = 0;
    for (int64_t i = begin; i < end; ++i) nans |= static_cast<uint8_t>((from[i] & 0x7f) == 0x7f);
    if (nans != 0) found = true;
  });
  return found;
}

void widen_fp8_row(const TensorView& codes, const WeightScales& scales, int64_t row, float* out) {
  const float* table = codes.dtype == DType::fp8_e4m3 ? kE4m3Table.values : kE5m2Table.values;
  const int64_t cols = codes.shape[1];
  const auto* from = static_cast<const uint8_t*>(codes.data) + row * cols;
  for (int64_t first = 0; first < cols; first += scales.block_cols) {
    const float scale = scales.at(row, first);
    const int64_t last = std::min(cols, first + scales.block_cols);
    for (int64_t c = first; c < last; ++c) out[c] = table[from[c]] * scale;
  }
}

}  // namespace warpweave
