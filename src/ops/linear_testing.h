// PackedLinear's tests: random weights of every dtype, activations, and f64 references of their GEMMs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "base/float16.h"
#include "ops/gguf_blocks.h"
#include "ops/linear.h"

namespace warpweave::linear_testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::vector<CpuTier> tiers() {
  std::vector<CpuTier> all;
  for (int t = 0; t <= static_cast<int>(cpu_info().tier); ++t) all.push_back(static_cast<CpuTier>(t));
  return all;
}

// A random weight of any dtype: its bytes and its values.
struct Weight {
  DType dtype;
  int64_t rows, cols;
  std::vector<unsigned char> bytes;
  std::vector<float> values;

  TensorView view() const {
    TensorView v;
    v.data = bytes.data();
    v.dtype = dtype;
    v.rank = 2;
    v.shape = {rows, cols};
    return v;
  }
};

inline void put_half(unsigned char* at, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(at, &bits, 2);
}

// Random codes, with sane scales where the format keeps its f16 fields.
inline void fill_blocks(Weight& w, std::mt19937& rng) {
  const DTypeInfo& info = dtype_info(w.dtype);
  for (unsigned char& b : w.bytes) b = static_cast<unsigned char>(rng());
  std::uniform_real_distribution<float> scale(0.001f, 0.01f);
  for (size_t at = 0; at < w.bytes.size(); at += info.block_bytes) {
    unsigned char* block = &w.bytes[at];
    switch (w.dtype) {
      case DType::q4_1: put_half(block + 2, -8 * scale(rng)); [[fallthrough]];
      case DType::q8_0:
      case DType::q4_0: put_half(block, scale(rng)); break;
      case DType::q4_k: case DType::q5_k:
        put_half(block, scale(rng) / 16);
        put_half(block + 2, scale(rng) / 16);
        break;
      case DType::iq4_nl: put_half(block, scale(rng) / 16); break;
      case DType::iq4_xs: put_half(block, scale(rng) / 512); break;
      case DType::q6_k: put_half(block + 208, scale(rng) / 64); break;
      default: break;
    }
  }
}

inline Weight make_weight(DType dtype, int64_t rows, int64_t cols, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  Weight w{dtype, rows, cols, {}, std::vector<float>(rows * cols)};
  w.bytes.resize(bytes_of_elements(dtype, rows * cols));
  if (is_quantized(dtype)) {
    fill_blocks(w, rng);
    dequantize_row_reference(dtype, w.bytes.data(), rows * cols, w.values.data());
    return w;
  }
  for (int64_t i = 0; i < rows * cols; ++i) {
    float value = normal(rng);
    if (dtype == DType::f32) {
      std::memcpy(&w.bytes[i * 4], &value, 4);
    } else {
      const uint16_t bits = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
      std::memcpy(&w.bytes[i * 2], &bits, 2);
      value = dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    }
    w.values[i] = value;
  }
  return w;
}

// Rows of x stand in NaN so that a read past a row's end shows.
struct Activations {
  int64_t rows, cols, stride;
  std::vector<float> f32;
  std::vector<uint16_t> bf16;

  Activations(int64_t rows, int64_t cols, unsigned seed)
      : rows(rows), cols(cols), stride(cols + 3),
        f32(rows * stride + 64, kNan), bf16(rows * stride + 64, 0x7fc0) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, 1);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        bf16[r * stride + c] = f32_to_bf16(f32[r * stride + c] = normal(rng));
      }
    }
  }
  LinearInput input(DType dtype) const {
    LinearInput in;
    in.data = dtype == DType::f32 ? static_cast<const void*>(f32.data()) : bf16.data();
    in.dtype = dtype;
    in.rows = rows;
    in.row_stride = stride;
    return in;
  }
  double at(DType dtype, int64_t r, int64_t c) const {
    const int64_t i = r * stride + c;
    return dtype == DType::f32 ? f32[i] : bf16_to_f32(bf16[i]);
  }
};

// What int8 GEMMs make of the rows: the nearest of 255 multiples of a group's largest magnitude / 127.
inline Activations rounded_to_int8(const Activations& x, DType in) {
  Activations out = x;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t g = 0; g < x.cols; g += 32) {
      float top = 0;
      for (int64_t c = g; c < g + 32; ++c) top = std::max(top, std::abs(static_cast<float>(x.at(in, r, c))));
      for (int64_t c = g; c < g + 32; ++c) {
        const float code = std::nearbyint(static_cast<float>(x.at(in, r, c)) * (127.0f / top));
        out.f32[r * x.stride + c] = code * (top * (1.0f / 127.0f));
      }
    }
  }
  return out;
}

// Sum and sum of magnitudes: the error bound is relative to the latter.
struct Dot {
  double sum = 0, magnitude = 0;
};
inline Dot reference_dot(const Activations& x, DType x_dtype, int64_t r, const Weight& w, int64_t n) {
  Dot dot;
  for (int64_t c = 0; c < w.cols; ++c) {
    const double product = x.at(x_dtype, r, c) * w.values[n * w.cols + c];
    dot.sum += product;
    dot.magnitude += std::abs(product);
  }
  return dot;
}

// f32 sums of exact products, or of operands rounded to bf16 (8 bits each, errors averaging out).
inline double tolerance(const Dot& dot, bool rounded_x, bool rounded_w) {
  return dot.magnitude * (1e-6 + (rounded_x ? 1.0 / 256 : 0) + (rounded_w ? 1.0 / 256 : 0)) + 1e-7;
}

inline PackedLinear packed(const Weight& w, ComputeMode compute, CpuTier tier, ThreadTeam& team) {
  LinearPart part;
  part.weight = w.view();
  auto linear = PackedLinear::pack({&part, 1}, {.compute = compute, .tier = tier}, team);
  EXPECT_TRUE(linear.ok()) << linear.status().message();
  return std::move(linear).value();
}

// Every feature of a few rows, or a sample of the features of many rows: f64 sums are slow.
inline std::vector<Dot> reference_gemm(const Weight& w, const Activations& x, DType x_dtype) {
  std::vector<Dot> dots(x.rows * w.rows);
  const int64_t step = x.rows > 64 ? 37 : 1;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t n = r % step; n < w.rows; n += step) {
      dots[r * w.rows + n] = reference_dot(x, x_dtype, r, w, n);
    }
  }
  return dots;
}

struct Input {
  const Activations& rows;
  DType dtype;
};

inline void expect_gemm(const PackedLinear& linear, const Weight& w, const Input& input, const std::vector<Dot>& want,
                        ThreadTeam& team) {
  const auto& [x, x_dtype] = input;
  const int64_t stride = w.rows + 5;
  std::vector<float> y(x.rows * stride + 1, kNan);
  linear.forward(x.input(x_dtype), {.data = y.data(), .row_stride = stride}, team);
  const bool bf16 = linear.preferred_input() == DType::bf16;
  const int64_t step = x.rows > 64 ? 37 : 1;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t n = r % step; n < w.rows; n += step) {
      const Dot& dot = want[r * w.rows + n];
      const double int8_sums = linear.rounds_to_int8() ? 1e-5 * dot.magnitude : 0;
      ASSERT_NEAR(y[r * stride + n], dot.sum,
                  int8_sums + tolerance(dot, bf16 && x_dtype == DType::f32, bf16 && is_quantized(w.dtype)))
          << "row " << r << " of " << x.rows << ", feature " << n << " of " << w.rows << ", k "
          << w.cols;
    }
    for (int64_t n = w.rows; n < stride; ++n) ASSERT_TRUE(std::isnan(y[r * stride + n]));
  }
}

// The GEMM of every tier and mode with each row count and input dtype.
inline void expect_gemms(const Weight& w, std::span<const int64_t> row_counts, ThreadTeam& team) {
  std::vector<PackedLinear> linears;
  for (const CpuTier tier : tiers()) {
    for (const ComputeMode mode : {ComputeMode::f32, ComputeMode::bf16}) {
      linears.push_back(packed(w, mode, tier, team));
    }
  }
  for (const int64_t rows : row_counts) {
    const Activations x(rows, w.cols, 11);
    for (const DType in : {DType::f32, DType::bf16}) {
      const std::vector<Dot> want = reference_gemm(w, x, in);
      const bool blocks = is_quantized(w.dtype);
      const auto want_int8 = blocks ? reference_gemm(w, rounded_to_int8(x, in), DType::f32) : std::vector<Dot>();
      for (size_t i = 0; i < linears.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "tier " << i / 2 << ", mode " << i % 2);
        const std::vector<Dot>& sums = linears[i].rounds_to_int8() ? want_int8 : want;
        ASSERT_NO_FATAL_FAILURE(expect_gemm(linears[i], w, {x, in}, sums, team));
      }
    }
  }
}

struct Shape {
  int64_t n, k;
};

}  // namespace warpweave::linear_testing
