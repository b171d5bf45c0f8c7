// PackedLinear against a scalar f64 reference, for every tier this CPU can run.
#include "ops/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "ops/gguf_blocks.h"

namespace warpweave {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<CpuTier> tiers() {
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

void put_half(unsigned char* at, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(at, &bits, 2);
}

// Random codes, with sane scales where the format keeps its f16 fields.
void fill_blocks(Weight& w, std::mt19937& rng) {
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

Weight make_weight(DType dtype, int64_t rows, int64_t cols, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  const DTypeInfo& info = dtype_info(dtype);
  Weight w{dtype, rows, cols, {}, std::vector<float>(rows * cols)};
  w.bytes.resize(rows * cols / info.block_elements * info.block_bytes);
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

// What int8 products make of the rows: the nearest of 255 multiples of a group's largest magnitude / 127.
Activations rounded_to_int8(const Activations& x, DType in) {
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
Dot reference_dot(const Activations& x, DType x_dtype, int64_t r, const Weight& w, int64_t n) {
  Dot dot;
  for (int64_t c = 0; c < w.cols; ++c) {
    const double product = x.at(x_dtype, r, c) * w.values[n * w.cols + c];
    dot.sum += product;
    dot.magnitude += std::abs(product);
  }
  return dot;
}

// f32 sums of exact products, or of operands rounded to bf16 (8 bits each, errors averaging out).
double tolerance(const Dot& dot, bool rounded_x, bool rounded_w) {
  return dot.magnitude * (1e-6 + (rounded_x ? 1.0 / 256 : 0) + (rounded_w ? 1.0 / 256 : 0)) + 1e-7;
}

PackedLinear packed(const Weight& w, ComputeMode compute, CpuTier tier, ThreadTeam& team) {
  LinearPart part;
  part.weight = w.view();
  auto linear = PackedLinear::pack({&part, 1}, {.compute = compute, .tier = tier}, team);
  EXPECT_TRUE(linear.ok()) << linear.status().message();
  return std::move(linear).value();
}

// Every feature of a few rows, or a sample of the features of many rows: f64 sums are slow.
std::vector<Dot> reference_product(const Weight& w, const Activations& x, DType x_dtype) {
  std::vector<Dot> dots(x.rows * w.rows);
  const int64_t step = x.rows > 64 ? 37 : 1;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t n = r % step; n < w.rows; n += step) {
      dots[r * w.rows + n] = reference_dot(x, x_dtype, r, w, n);
    }
  }
  return dots;
}

void expect_product(const PackedLinear& linear, const Weight& w, const Activations& x,
                    DType x_dtype, const std::vector<Dot>& want, ThreadTeam& team) {
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

// The product of every tier and mode with each row count and input dtype.
void expect_products(const Weight& w, std::span<const int64_t> row_counts, ThreadTeam& team) {
  std::vector<PackedLinear> linears;
  for (const CpuTier tier : tiers()) {
    for (const ComputeMode mode : {ComputeMode::f32, ComputeMode::bf16}) {
      linears.push_back(packed(w, mode, tier, team));
    }
  }
  for (const int64_t rows : row_counts) {
    const Activations x(rows, w.cols, 11);
    for (const DType in : {DType::f32, DType::bf16}) {
      const std::vector<Dot> want = reference_product(w, x, in);
      const bool blocks = is_quantized(w.dtype);
      const auto want_int8 = blocks ? reference_product(w, rounded_to_int8(x, in), DType::f32) : std::vector<Dot>();
      for (size_t i = 0; i < linears.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "tier " << i / 2 << ", mode " << i % 2);
        const std::vector<Dot>& sums = linears[i].rounds_to_int8() ? want_int8 : want;
        ASSERT_NO_FATAL_FAILURE(expect_product(linears[i], w, x, in, sums, team));
      }
    }
  }
}

struct Shape {
  int64_t n, k;
};

class PlainDtype : public testing::TestWithParam<DType> {};

TEST_P(PlainDtype, MatchesReferenceOnOddShapes) {
  ThreadTeam team(3);
  const int64_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 33, 63, 519};
  for (const Shape shape : {Shape{1, 1}, {7, 3}, {16, 32}, {17, 33}, {100, 97}, {64, 256},
                            {130, 640}}) {
    ASSERT_NO_FATAL_FAILURE(
        expect_products(make_weight(GetParam(), shape.n, shape.k, 7), rows, team));
  }
}
INSTANTIATE_TEST_SUITE_P(All, PlainDtype, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(dtype_info(info.param).name); });

class BlockDtype : public testing::TestWithParam<DType> {};

TEST_P(BlockDtype, MatchesReference) {
  ThreadTeam team(2);
  const int64_t block = dtype_info(GetParam()).block_elements;
  const int64_t rows[] = {1, 2, 8, 9, 37};
  for (const Shape shape : {Shape{1, block}, {17, 3 * block}, {70, 768}}) {
    ASSERT_NO_FATAL_FAILURE(
        expect_products(make_weight(GetParam(), shape.n, shape.k, 5), rows, team));
  }
}

TEST_P(BlockDtype, WeightRowsComeBackExactly) {
  ThreadTeam team(1);
  const Weight w = make_weight(GetParam(), 19, 512, 5);
  const PackedLinear linear = packed(w, ComputeMode::f32, CpuTier::scalar, team);
  std::vector<float> row(w.cols);
  for (int64_t r = 0; r < w.rows; ++r) {
    linear.weight_row(r, row.data());
    EXPECT_EQ(0, std::memcmp(row.data(), &w.values[r * w.cols], w.cols * sizeof(float)));
  }
}
// Every tier but that of AMX without bytes multiplies blocks as integers where it may round, and none where it may not.
TEST_P(BlockDtype, AreMultipliedAsIntegersUnderBf16) {
  ThreadTeam team(1);
  const Weight w = make_weight(GetParam(), 19, 512, 5);
  for (const CpuTier tier : tiers()) {
    EXPECT_EQ(packed(w, ComputeMode::bf16, tier, team).rounds_to_int8(), tier != CpuTier::amx_bf16 || cpu_info().amx_int8);
    EXPECT_FALSE(packed(w, ComputeMode::f32, tier, team).rounds_to_int8());
  }
}
TEST_P(BlockDtype, RowsOfNoNumberShowAndRowsOfNothingAreZero) {
  ThreadTeam team(1);
  const Weight w = make_weight(GetParam(), 19, 512, 5);
  for (const CpuTier tier : tiers()) {
    const PackedLinear linear = packed(w, ComputeMode::bf16, tier, team);
    if (!linear.rounds_to_int8()) continue;
    std::vector<float> x(5 * 512, 0.0f), y(5 * 19, 7.0f);
    std::fill_n(x.begin(), 512, 2.0f);
    x[512 + 100] = kNan;
    x[2 * 512 + 7] = std::numeric_limits<float>::infinity();
    x[3 * 512 + 40] = 1e-38f;  // too small to be rounded
    linear.forward({.data = x.data(), .rows = 5, .row_stride = 512}, {.data = y.data(), .row_stride = 19}, team);
    for (int n = 0; n < 19; ++n) {
      EXPECT_TRUE(std::isfinite(y[n]) && y[n] != 0);
      EXPECT_TRUE(std::isnan(y[19 + n]) && std::isnan(y[2 * 19 + n]));
      EXPECT_TRUE(y[3 * 19 + n] == 0 && y[4 * 19 + n] == 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockDtype,
                         testing::Values(DType::q8_0, DType::q4_0, DType::q4_1, DType::q4_k,
                                         DType::q5_k, DType::q6_k, DType::iq4_nl, DType::iq4_xs),
                         [](const auto& info) { return std::string(dtype_info(info.param).name); });

// Values of blocks whose byte i is 37 i + 11, with d = 0.01, by the gguf package's dequantize().
TEST(GgufBlocks, Iq4HasTheValuesOfTheGgufPackage) {
  struct Expected {
    DType dtype;
    std::vector<std::pair<int, float>> values;
    double sum;
  };
  const Expected all[] = {
      {DType::iq4_nl, {{0, -0.35007477f}, {1, 0.2500534f}, {15, -1.2702713f}, {16, -0.35007477f}, {31, 0.010002136f}}, -2.570549},
      {DType::iq4_xs, {{0, 0.65013885f}, {17, 0.35007477f}, {31, 0.35007477f}, {32, 4.550972f}, {77, 5.8812561f}, {128, -5.8512497f},
                       {200, 11.402435f}, {255, -0.16003418f}}, -110.073509}};
  for (const Expected& expected : all) {
    const DTypeInfo& info = dtype_info(expected.dtype);
    std::vector<unsigned char> block(info.block_bytes);
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<unsigned char>(37 * i + 11);
    put_half(block.data(), 0.01f);
    std::vector<float> values(info.block_elements);
    dequantize_row_reference(expected.dtype, block.data(), info.block_elements, values.data());
    double sum = 0;
    for (const float value : values) sum += value;
    EXPECT_NEAR(sum, expected.sum, 1e-4) << info.name;
    for (const auto& [at, value] : expected.values) EXPECT_FLOAT_EQ(values[at], value) << info.name << ", " << at;
  }
}

// The bits of a row do not depend on the batch around it, nor on the number of threads.
TEST(PackedLinear, IsBatchInvariant) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::q8_0, DType::q4_0, DType::q4_1,
                            DType::q4_k, DType::q5_k, DType::q6_k, DType::iq4_nl, DType::iq4_xs}) {
    const Weight w = make_weight(dtype, 150, 768, 9);
    for (const CpuTier tier : tiers()) {
      for (const ComputeMode mode : {ComputeMode::f32, ComputeMode::bf16}) {
        ThreadTeam team(1), wide_team(5);
        const PackedLinear linear = packed(w, mode, tier, team);
        const Activations x(530, w.cols, 2);
        std::vector<float> all(x.rows * w.rows);
        linear.forward(x.input(DType::f32), {.data = all.data(), .row_stride = w.rows}, wide_team);
        for (const int64_t count : {1, 2, 3, 5, 6, 7, 8, 9, 16, 17, 37}) {
          const int64_t first = 530 - count;
          LinearInput part = x.input(DType::f32);
          part.data = x.f32.data() + first * x.stride;
          part.rows = count;
          std::vector<float> some(count * w.rows);
          linear.forward(part, {.data = some.data(), .row_stride = w.rows}, team);
          ASSERT_EQ(0, std::memcmp(some.data(), &all[first * w.rows], some.size() * 4))
              << dtype_info(dtype).name << " " << cpu_tier_name(tier) << " rows " << count;
        }
      }
    }
  }
}

TEST(PackedLinear, BlockProductsTogetherGiveTheBitsOfEachAlone) {
  ThreadTeam team(2);
  const Activations x(9, 512, 3);
  const auto make = [&](DType dtype) { return packed(make_weight(dtype, 64, 512, 5), ComputeMode::bf16, cpu_info().tier, team); };
  const PackedLinear a = make(DType::q4_0), b = make(DType::q6_k);
  std::vector<float> alone(9 * 128), together(9 * 128);  // a's columns, then b's
  const LinearInput in = x.input(a.preferred_input());
  const auto half = [](std::vector<float>& y, int at) { return LinearOutput{.data = y.data() + at, .row_stride = 128}; };
  a.forward(in, half(alone, 0), team);
  b.forward(in, half(alone, 64), team);
  PackedLinear::forward_all(std::array{LinearTask{&a, in, half(together, 0)}, LinearTask{&b, in, half(together, 64)}}, team);
  EXPECT_EQ(together, alone);
}

// Ties (equal weight rows), NaN rows and rows of -inf included, over jobs of several members.
TEST(PackedLinear, FindsTheBestColumnOfEveryRow) {
  for (const int64_t columns : {16, 77, 1000}) {
    Weight w = make_weight(DType::f32, columns, 64, 21);
    for (const int64_t copy : {columns - 1, columns / 2}) {
      std::memcpy(&w.bytes[copy * 64 * 4], &w.bytes[3 * 64 * 4], 64 * 4);
    }
    for (const CpuTier tier : tiers()) {
      ThreadTeam team(3);
      const PackedLinear linear = packed(w, ComputeMode::f32, tier, team);
      std::vector<float> x(600 * 64);
      std::mt19937 rng(5);
      for (float& v : x) v = std::normal_distribution<float>()(rng);
      for (int i = 0; i < 64; ++i) {
        x[7 * 64 + i] = reinterpret_cast<const float*>(w.bytes.data())[3 * 64 + i];  // best: row 3
        x[8 * 64 + i] = kNan;
      }
      std::vector<float> y(600 * columns);
      std::vector<RowBest> best(600);
      linear.forward({.data = x.data(), .rows = 600, .row_stride = 64},
                     {.data = y.data(), .row_stride = columns, .best = best.data()}, team);
      EXPECT_EQ(best[7].column, 3);
      EXPECT_EQ(best[8].column, 0);
      for (int64_t r = 0; r < 600; ++r) {
        if (r == 8) continue;
        const auto row = y.begin() + r * columns;
        const auto top = std::max_element(row, row + columns);
        ASSERT_EQ(best[r].column, top - row) << cpu_tier_name(tier) << " row " << r;
        ASSERT_EQ(best[r].value, *top);
      }
    }
  }
}

double gated(GluActivation glu, double gate, double up) {
  switch (glu) {
    case GluActivation::silu: return gate / (1 + std::exp(-gate)) * up;
    case GluActivation::gelu_tanh:
      return 0.5 * gate *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    case GluActivation::gelu: return 0.5 * gate * std::erfc(-gate / std::sqrt(2.0)) * up;
    case GluActivation::swiglu_oai: {
      gate = std::min(gate, 7.0);
      up = std::clamp(up, -7.0, 7.0);
      return (up + 1) * gate / (1 + std::exp(-1.702 * gate));
    }
    case GluActivation::none: break;
  }
  return gate;
}

TEST(PackedLinear, FusesGatedActivationsWithBias) {
  ThreadTeam team(2);
  const int64_t ffn = 41, k = 96;
  const Weight w = make_weight(DType::f32, 2 * ffn, k, 4);  // gate and up rows alternate
  std::vector<float> bias(2 * ffn);
  for (int64_t i = 0; i < 2 * ffn; ++i) bias[i] = static_cast<float>(i % 7) * 2.5f - 7;
  LinearPart gate, up;
  gate.weight = w.view();
  gate.bias = {.data = bias.data(), .dtype = DType::f32, .rank = 1, .shape = {2 * ffn}};
  gate.row_step = 2;
  up = gate;
  up.first_row = 1;
  const LinearPart parts[] = {gate, up};
  for (const CpuTier tier : tiers()) {
    for (const auto glu :
         {GluActivation::silu, GluActivation::gelu_tanh, GluActivation::gelu, GluActivation::swiglu_oai}) {
      auto linear = PackedLinear::pack(parts, {.glu = glu, .tier = tier}, team);
      ASSERT_TRUE(linear.ok()) << linear.status().message();
      ASSERT_EQ(linear->out_features(), ffn);
      for (const int64_t rows : {1, 9}) {
        const Activations x(rows, k, 6);
        std::vector<float> y(rows * ffn, kNan);
        std::vector<uint16_t> y16(rows * ffn + 1, 0x7fc0);
        linear->forward(x.input(DType::f32), {.data = y.data(), .row_stride = ffn}, team);
        linear->forward(x.input(DType::f32),
                        {.data = y16.data(), .dtype = DType::bf16, .row_stride = ffn}, team);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t n = 0; n < ffn; ++n) {
            const double g = reference_dot(x, DType::f32, r, w, 2 * n).sum + bias[2 * n];
            const double u = reference_dot(x, DType::f32, r, w, 2 * n + 1).sum + bias[2 * n + 1];
            const double want = gated(glu, g, u);
            ASSERT_NEAR(y[r * ffn + n], want, 2e-5 * (1 + std::abs(want)));
            ASSERT_EQ(y16[r * ffn + n], f32_to_bf16(y[r * ffn + n]));
          }
        }
        ASSERT_EQ(y16[rows * ffn], 0x7fc0);
      }
    }
  }
}

TEST(PackedLinear, StacksPartsAndAccumulates) {
  ThreadTeam team(2);
  const Weight a = make_weight(DType::bf16, 20, 64, 1), b = make_weight(DType::bf16, 9, 64, 2);
  LinearPart parts[2];
  parts[0].weight = a.view();
  parts[1].weight = b.view();
  const uint16_t bias[9] = {0x3f80, 0, 0, 0, 0, 0, 0, 0, 0xc000};  // 1, 0, ..., -2 in bf16
  parts[1].bias = {.data = bias, .dtype = DType::bf16, .rank = 1, .shape = {9}};
  for (const CpuTier tier : tiers()) {
    auto linear = PackedLinear::pack(parts, {.tier = tier}, team);
    ASSERT_TRUE(linear.ok());
    const Activations x(3, 64, 8);
    std::vector<float> y(3 * 29, 10.0f);
    linear->forward(x.input(DType::f32), {.data = y.data(), .row_stride = 29, .accumulate = true},
                    team);
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t n = 0; n < 29; ++n) {
        const Dot dot = n < 20 ? reference_dot(x, DType::f32, r, a, n)
                               : reference_dot(x, DType::f32, r, b, n - 20);
        const double extra = n == 20 ? 1 : n == 28 ? -2 : 0;
        ASSERT_NEAR(y[r * 29 + n], 10 + extra + dot.sum, 1e-5);
      }
    }
    std::vector<float> row(64);
    linear->weight_row(21, row.data());
    EXPECT_EQ(0, std::memcmp(row.data(), &b.values[64], 64 * sizeof(float)));
  }
}

TEST(PackedLinear, ReadsUnalignedTensors) {
  ThreadTeam team(1);
  const Weight w = make_weight(DType::f32, 18, 40, 3);
  std::vector<unsigned char> shifted(w.bytes.size() + 1);
  std::memcpy(shifted.data() + 1, w.bytes.data(), w.bytes.size());
  LinearPart part;
  part.weight = w.view();
  part.weight.data = shifted.data() + 1;
  auto linear = PackedLinear::pack({&part, 1}, {}, team);
  ASSERT_TRUE(linear.ok());
  const Activations x(2, 40, 1);
  expect_product(*linear, w, x, DType::f32, reference_product(w, x, DType::f32), team);
}

TEST(PackedLinear, RefusesWeightsThatDoNotFit) {
  ThreadTeam team(1);
  const Weight w = make_weight(DType::f32, 8, 32, 3), other = make_weight(DType::f32, 8, 16, 3);
  const auto code = [&](std::vector<LinearPart> parts, LinearOptions options = {}) {
    return PackedLinear::pack(parts, options, team).status().code();
  };
  LinearPart good, narrow, fp8, outside, block, bias;
  good.weight = outside.weight = bias.weight = w.view();
  narrow.weight = other.view();
  fp8.weight = w.view();
  fp8.weight.dtype = DType::fp8_e4m3;
  outside.rows = 9;
  block.weight = w.view();
  block.weight.dtype = DType::q4_k;
  bias.bias = {.data = w.bytes.data(), .dtype = DType::f32, .rank = 1, .shape = {7}};
  EXPECT_EQ(code({}), StatusCode::invalid_argument);
  EXPECT_EQ(code({good, narrow}), StatusCode::invalid_argument);
  EXPECT_EQ(code({fp8}), StatusCode::unsupported);
  EXPECT_EQ(code({outside}), StatusCode::invalid_argument);
  EXPECT_EQ(code({block}), StatusCode::invalid_argument);
  EXPECT_EQ(code({bias}), StatusCode::invalid_argument);
  EXPECT_EQ(code({good}, {.glu = GluActivation::silu}), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace warpweave
