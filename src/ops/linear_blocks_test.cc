// PackedLinear with weights in GGUF blocks, against a scalar f64 reference, for every tier this CPU can run.
#include <algorithm>
#include <array>
#include <utility>

#include "ops/gguf_blocks.h"
#include "ops/linear.h"
#include "ops/linear_testing.h"

namespace warpweave {
namespace {

using namespace linear_testing;

// All codes of the blocks become this byte; their scales stay.
void fill_codes(Weight& w, unsigned char byte) {
  const size_t block_bytes = dtype_info(w.dtype).block_bytes;
  const auto [begin, count] = [&]() -> std::pair<size_t, size_t> {
    switch (w.dtype) {
      case DType::q4_1: return {4, 16};
      case DType::q4_k: return {16, 128};
      case DType::q5_k: return {16, 160};  // fifth bits, too
      case DType::q6_k: return {0, 192};
      case DType::iq4_xs: return {8, 128};
      case DType::q8_0: return {2, 32};
      default: return {2, 16};  // q4_0, iq4_nl
    }
  }();
  for (size_t at = 0; at < w.bytes.size(); at += block_bytes) std::fill_n(&w.bytes[at + begin], count, byte);
  dequantize_row_reference(w.dtype, w.bytes.data(), w.rows * w.cols, w.values.data());
}

class BlockDtype : public testing::TestWithParam<DType> {};

TEST_P(BlockDtype, MatchesReference) {
  ThreadTeam team(2);
  const int64_t block = dtype_info(GetParam()).block_elements;
  const int64_t rows[] = {1, 2, 8, 9, 37};
  for (const Shape shape : {Shape{1, block}, {17, 3 * block}, {70, 768}}) {
    ASSERT_NO_FATAL_FAILURE(
        expect_gemms(make_weight(GetParam(), shape.n, shape.k, 5), rows, team));
  }
}

// The largest sums of products that a format has: tiers that add them up in 16 bits must not run over.
TEST_P(BlockDtype, CodesAtTheirEdgesDoNotRunOver) {
  ThreadTeam team(1);
  constexpr int64_t kInputs = 512, kRows = 4;
  for (const int code : {0x00, 0x77, 0x7f, 0x80, 0x81, 0xff}) {
    Weight w = make_weight(GetParam(), 16, kInputs, 5);
    fill_codes(w, static_cast<unsigned char>(code));
    Activations x(kRows, kInputs, 11);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kInputs; ++c) {
        const float value = r < 2 ? (r == 0 ? 1.0f : -1.0f) : ((c >> (r - 2)) % 2 ? 1.0f : -1.0f);
        x.f32[r * x.stride + c] = value;
        x.bf16[r * x.stride + c] = f32_to_bf16(value);
      }
    }
    const std::vector<Dot> want = reference_gemm(w, rounded_to_int8(x, DType::f32), DType::f32);
    for (const CpuTier tier : tiers()) {
      SCOPED_TRACE(testing::Message() << "code " << code << ", tier " << static_cast<int>(tier));
      const PackedLinear linear = packed(w, ComputeMode::bf16, tier, team);
      if (!linear.rounds_to_int8()) continue;
      ASSERT_NO_FATAL_FAILURE(expect_gemm(linear, w, {x, DType::f32}, want, team));
    }
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
    EXPECT_EQ(packed(w, ComputeMode::bf16, tier, team).rounds_to_int8(),
              tier != CpuTier::amx_bf16 || cpu_info().amx_int8);
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

// From widen_from_rows on a GEMM has the errors of bf16 operands, not those of 8 bits; below it nothing changes.
TEST_P(BlockDtype, AreWidenedFromTheRowsThatWereNamed) {
  if (cpu_info().tier < CpuTier::avx512_bf16) GTEST_SKIP() << "this CPU has no bf16 unit";
  constexpr int64_t kFrom = 40;
  ThreadTeam team(2);
  const Weight w = make_weight(GetParam(), 70, 768, 5);
  const LinearPart part = {.weight = w.view(), .bias = {}};
  const PackedLinear integers = packed(w, ComputeMode::bf16, cpu_info().tier, team);
  auto linear = PackedLinear::pack({&part, 1}, {.compute = ComputeMode::bf16, .widen_from_rows = kFrom}, team);
  ASSERT_TRUE(linear.ok());
  if (!integers.rounds_to_int8()) GTEST_SKIP() << "this CPU widens GEMMs of any number of rows";

  const Activations few(kFrom - 1, w.cols, 11), many(kFrom, w.cols, 11);
  const auto multiply = [&](const PackedLinear& of, const Activations& x, DType in) {
    std::vector<float> y(x.rows * w.rows);
    of.forward(x.input(in), {.data = y.data(), .row_stride = w.rows}, team);
    return y;
  };
  for (const DType in : {DType::f32, DType::bf16}) {
    EXPECT_EQ(multiply(*linear, few, in), multiply(integers, few, in));
    const std::vector<float> got = multiply(*linear, many, in), rounded = multiply(integers, many, in);
    EXPECT_NE(got, rounded);
    const std::vector<Dot> want = reference_gemm(w, many, in);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i].sum, tolerance(want[i], in == DType::f32, true)) << i;
  }
  // Side by side with one of few rows, the bits are the same.
  std::vector<float> first(many.rows * w.rows), second(few.rows * w.rows);
  PackedLinear::forward_all(
      std::array{LinearTask{&*linear, many.input(DType::f32), {.data = first.data(), .row_stride = w.rows}},
                 LinearTask{&*linear, few.input(DType::f32), {.data = second.data(), .row_stride = w.rows}}},
      team);
  EXPECT_EQ(first, multiply(*linear, many, DType::f32));
  EXPECT_EQ(second, multiply(*linear, few, DType::f32));
}

INSTANTIATE_TEST_SUITE_P(All, BlockDtype,
                         testing::Values(DType::q8_0, DType::q4_0, DType::q4_1, DType::q4_k,
                                         DType::q5_k, DType::q6_k, DType::iq4_nl, DType::iq4_xs),
                         [](const auto& info) { return std::string(dtype_info(info.param).name); });

// Blocks of any bytes but a d that is a number.
TEST(GgufBlocks, Q5AsQ8HasTheSameValues) {
  constexpr int kBlocks = 9, kElements = kBlocks * BlockQ5_0::kElements;
  std::vector<uint8_t> blocks(kBlocks * sizeof(BlockQ5_0));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint8_t>(37 * i + 11);
  for (int b = 0; b < kBlocks; ++b) blocks[b * sizeof(BlockQ5_0) + 1] &= 0x3f;
  std::vector<uint8_t> wider(kBlocks * sizeof(BlockQ8_0));
  q5_0_to_q8_0(blocks.data(), kElements, wider.data());
  std::vector<float> from(kElements), to(kElements);
  dequantize_row_reference(DType::q5_0, blocks.data(), kElements, from.data());
  dequantize_row_reference(DType::q8_0, wider.data(), kElements, to.data());
  EXPECT_EQ(to, from);
  EXPECT_GT(std::count_if(from.begin(), from.end(), [](float x) { return x != 0; }), kElements / 2);
}

// Values of blocks whose byte i is 37 i + 11, with d = 0.01, by the gguf package's dequantize().
TEST(GgufBlocks, Iq4HasTheValuesOfTheGgufPackage) {
  struct Expected {
    DType dtype;
    std::vector<std::pair<int, float>> values;
    double sum;
  };
  const Expected all[] = {
      {DType::iq4_nl,
       {{0, -0.35007477f}, {1, 0.2500534f}, {15, -1.2702713f}, {16, -0.35007477f}, {31, 0.010002136f}},
       -2.570549},
      {DType::iq4_xs,
       {{0, 0.65013885f},
        {17, 0.35007477f},
        {31, 0.35007477f},
        {32, 4.550972f},
        {77, 5.8812561f},
        {128, -5.8512497f},
        {200, 11.402435f},
        {255, -0.16003418f}},
       -110.073509}};
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

TEST(PackedLinear, BlockGemmsTogetherGiveTheBitsOfEachAlone) {
  ThreadTeam team(2);
  const Activations x(9, 512, 3);
  const auto make = [&](DType dtype) {
    return packed(make_weight(dtype, 64, 512, 5), ComputeMode::bf16, cpu_info().tier, team);
  };
  const PackedLinear a = make(DType::q4_0), b = make(DType::q6_k);
  std::vector<float> alone(9 * 128), together(9 * 128);  // a's columns, then b's
  const LinearInput in = x.input(a.preferred_input());
  const auto half = [](std::vector<float>& y, int at) {
    return LinearOutput{.data = y.data() + at, .row_stride = 128};
  };
  a.forward(in, half(alone, 0), team);
  b.forward(in, half(alone, 64), team);
  PackedLinear::forward_all(std::array{LinearTask{&a, in, half(together, 0)}, LinearTask{&b, in, half(together, 64)}},
                            team);
  EXPECT_EQ(together, alone);
}

// Ties (equal weight rows), NaN rows and rows of -inf included, over jobs of several members.

}  // namespace
}  // namespace warpweave
