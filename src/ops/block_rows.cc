#include "ops/block_rows.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>

#include "base/float16.h"
#include "ops/elementwise.h"
#include "ops/gguf_blocks.h"
#include "ops/kernels/quant_panel.h"

namespace warpweave {
namespace {

constexpr int kBlock = 32;
using Values = std::array<float, kBlock>;
using Codes = std::array<int, kBlock>;

// A scale as the block keeps it.
float stored(float scale) { return f16_to_f32(f32_to_f16(scale)); }
float inverse_or_zero(float scale) { return scale != 0 ? 1 / scale : 0; }

BlockQ8_0 to_q8_0(const Values& x) {
  float top = 0;
  for (const float value : x) top = std::max(top, std::abs(value));
  const float scale = stored(top / 127), inverse = inverse_or_zero(scale);
  BlockQ8_0 out{.d = f32_to_f16(scale), .codes = {}};
  for (int i = 0; i < kBlock; ++i) {
    out.codes[i] = static_cast<int8_t>(std::clamp(std::nearbyint(x[i] * inverse), -127.0f, 127.0f));
  }
  return out;
}

// The nearest of kIQ4Values for each x / scale.
Codes nearest_codes(const Values& x, float scale) {
  const float inverse = inverse_or_zero(scale);
  Codes out{};
  for (int k = 0; k + 1 < 16; ++k) {
    const float middle = 0.5f * static_cast<float>(kIQ4Values[k] + kIQ4Values[k + 1]);
    for (int i = 0; i < kBlock; ++i) out[i] += x[i] * inverse > middle ? 1 : 0;
  }
  return out;
}

struct Fit {
  float scale = 0;
  Codes codes{};
  float error = 0;
};

Fit fit_of(const Values& x, float scale) {
  Fit out{.scale = stored(scale), .codes = nearest_codes(x, stored(scale))};
  for (int i = 0; i < kBlock; ++i) {
    const float off = x[i] - out.scale * static_cast<float>(kIQ4Values[out.codes[i]]);
    out.error += off * off;
  }
  return out;
}

float fitted_scale(const Values& x, const Codes& codes) {
  float products = 0, squares = 0;
  for (int i = 0; i < kBlock; ++i) {
    const auto value = static_cast<float>(kIQ4Values[codes[i]]);
    products += x[i] * value;
    squares += value * value;
  }
  return products / squares;
}

BlockIQ4NL to_iq4_nl(const Values& x) {
  const float top = *std::max_element(x.begin(), x.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  Fit best = fit_of(x, top / kIQ4Values[0]);
  const auto consider = [&](float scale) {
    const Fit fit = fit_of(x, scale);
    if (fit.error < best.error) best = fit;
  };
  consider(fitted_scale(x, best.codes));
  const Fit other = fit_of(x, top / kIQ4Values[15]);
  if (other.error < best.error) best = other;
  consider(fitted_scale(x, other.codes));
  BlockIQ4NL out{.d = f32_to_f16(best.scale), .codes = {}};
  for (int i = 0; i < kBlock / 2; ++i) {
    out.codes[i] = static_cast<uint8_t>(best.codes[i] | best.codes[i + kBlock / 2] << 4);
  }
  return out;
}

template <typename Block, typename Round>
void each_block(const float* x, int64_t n, void* out, Round round) {
  for (int64_t b = 0; b < n / kBlock; ++b) {
    Values values;
    for (int i = 0; i < kBlock; ++i) values[i] = std::isfinite(x[b * kBlock + i]) ? x[b * kBlock + i] : 0;
    const Block block = round(values);
    std::memcpy(static_cast<std::byte*>(out) + b * static_cast<int64_t>(sizeof(Block)), &block, sizeof(Block));
  }
}

}  // namespace

void round_to_blocks(const float* x, int64_t n, DType format, void* out) {
  assert(n % kBlock == 0 && (format == DType::q8_0 || format == DType::iq4_nl));
  if (format == DType::q8_0) return each_block<BlockQ8_0>(x, n, out, to_q8_0);
  each_block<BlockIQ4NL>(x, n, out, to_iq4_nl);
}

std::vector<std::byte> matrix_in_blocks(const TensorView& matrix, DType format, ThreadTeam& team) {
  const int64_t rows = matrix.shape[0], cols = matrix.shape[1];
  const int64_t row_bytes = bytes_of_elements(format, cols), from_bytes = bytes_of_elements(matrix.dtype, cols);
  std::vector<std::byte> out(rows * row_bytes);
  team.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> row(cols);
    for (int64_t r = begin; r < end; ++r) {
      dequantize_row(matrix.dtype, static_cast<const std::byte*>(matrix.data) + r * from_bytes, cols, row.data());
      round_to_blocks(row.data(), cols, format, out.data() + r * row_bytes);
    }
  });
  return out;
}

}  // namespace warpweave
