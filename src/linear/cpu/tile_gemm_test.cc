// Products on tiles with the instructions written out in C++ (ops/kernels/amx_tiles.h), on every CPU: each product
// against f64, then every case of the suite. Then the code that is compiled for AMX, on every CPU with AVX-512.
#include "linear/cpu/tile_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "linear/cpu/cpu_linear_attn.h"
#include "linear/testing/amx_trap.h"
#include "linear/testing/suite.h"

namespace warpweave::testing_linear {
namespace {

constexpr float kUntouched = 777.0f;

struct Shape {
  int rows, cols, depth;
};

// A product of random matrices, c with a margin that nobody may write.
struct Product {
  Product(const Shape& shape, int parts, uint32_t seed)
      : a(size_t(shape.rows + 1) * a_row(shape)), b(size_t(shape.depth) * b_row(shape)),
        c(size_t(c_rows(shape)) * b_row(shape), kUntouched), scale(shape.rows),
        memory_a(linear_packed_elements(shape.rows, shape.depth, parts), 0xffff),
        memory_b(linear_packed_elements(shape.cols, shape.depth, parts), 0xffff),
        packed_a{memory_a.data(), parts, 1, false}, packed_b{memory_b.data(), parts, 1, false} {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* values : {&a, &b, &scale}) {
      for (float& x : *values) x = normal(random);
    }
    // Past the matrix stands what must not be read.
    for (size_t i = 0; i < a.size(); ++i) {
      if (int(i % a_row(shape)) >= shape.depth || int(i / a_row(shape)) >= shape.rows) a[i] = NAN;
    }
    for (int r = 0; r < shape.rows; ++r) {
      for (int col = 0; col < shape.cols; ++col) c[r * b_row(shape) + col] = normal(random);
    }
    gemm = {.a = a.data(),
            .a_row = a_row(shape),
            .a_depth = 1,
            .b = b.data(),
            .b_row = b_row(shape),
            .c = c.data(),
            .c_row = b_row(shape),
            .rows = shape.rows,
            .cols = shape.cols,
            .depth = shape.depth,
            .parts = parts,
            .packed_a = &packed_a,
            .packed_b = &packed_b};
  }
  static int a_row(const Shape& s) { return s.depth + 3; }
  static int b_row(const Shape& s) { return s.cols + 16; }
  static int c_rows(const Shape& s) { return (s.rows + 15) / 16 * 16 + 1; }

  void multiply() const {
    enter_tiles();
    ASSERT_TRUE(tile_gemm<true>(gemm));
    leave_tiles();
  }

  // The largest error against f64, relative to the sum of the products' magnitudes.
  double run() {
    const std::vector<float> before = c;
    multiply();
    EXPECT_TRUE(packed_a.ready && packed_b.ready);
    double largest = 0;
    for (int r = 0; r < c_rows({gemm.rows, gemm.cols, gemm.depth}); ++r) {
      for (int col = 0; col < gemm.c_row; ++col) {
        const float value = c[r * gemm.c_row + col], old = before[r * gemm.c_row + col];
        if (col >= gemm.cols || r >= (gemm.rows + 15) / 16 * 16) {
          EXPECT_EQ(value, kUntouched) << r << ", " << col;
        }
        EXPECT_TRUE(gemm.lower_c || std::isfinite(value)) << "row " << r << " has something from past the matrix";
        if (col >= gemm.cols || r >= gemm.rows || (gemm.lower_c && col > r)) continue;
        const double kept = gemm.keep_c ? double(old) * (gemm.scale_c != nullptr ? gemm.scale_c[r] : 1) : 0;
        double sum = kept, size = std::abs(kept);
        for (int k = 0; k < gemm.depth; ++k) {
          const double product = double(gemm.a[r * gemm.a_row + k]) * gemm.b[k * gemm.b_row + col];
          sum += product, size += std::abs(product);
        }
        largest = std::max(largest, std::abs(value - sum) / size);
      }
    }
    return largest;
  }

  std::vector<float> a, b, c, scale;
  std::vector<uint16_t> memory_a, memory_b;
  LinearPacked packed_a, packed_b;
  LinearGemm gemm;
};

double bound_of(int parts) { return parts == 3 ? 4e-7 : 3.1e-5; }

const std::vector<Shape> kShapes = {
    {64, 128, 128},
    {4, 16, 16},
    {16, 32, 32},
    {20, 48, 17},
    {36, 16, 33},
    {52, 80, 48},
    {64, 64, 1},
    {64, 64, 64},
    {208, 48, 31},
    {256, 256, 64},
    {60, 112, 208},
};

TEST(LinearTileGemm, ProductsOfEveryShapeAreRight) {
  for (int parts : {2, 3}) {
    double largest = 0;
    for (const Shape& shape : kShapes) {
      for (int form = 0; form < 3; ++form) {
        Product product(shape, parts, 7 * form + shape.depth);
        product.gemm.keep_c = form > 0;
        if (form == 2) product.gemm.scale_c = product.scale.data();
        const double error = product.run();
        EXPECT_LT(error, bound_of(parts)) << parts << " parts, " << shape.rows << " x " << shape.cols << " x "
                                          << shape.depth;
        largest = std::max(largest, error);
      }
    }
    std::printf("%d parts: largest error %.3g of the sum of magnitudes\n", parts, largest);
    EXPECT_GT(largest, bound_of(parts) / 20) << "a bound that is never approached proves little";
  }
}

TEST(LinearTileGemm, TrianglesAreRight) {
  for (int parts : {2, 3}) {
    for (int rows : {4, 12, 16, 20, 32, 36, 48, 52, 64}) {
      Product wanted({rows, (rows + 15) / 16 * 16, 128}, parts, rows);
      wanted.gemm.lower_c = true;
      EXPECT_LT(wanted.run(), bound_of(parts)) << rows;
      Product given({rows, 48, rows}, parts, rows);
      given.gemm.keep_c = given.gemm.lower_a = true;
      for (int r = 0; r < rows; ++r) {
        for (int k = r + 1; k < rows; ++k) given.a[r * given.gemm.a_row + k] = 0;
      }
      EXPECT_LT(given.run(), bound_of(parts)) << rows;
    }
  }
}

// Both operands packed by one product serve the next, which may use fewer of their parts.
TEST(LinearTileGemm, PackedOperandsAreReadAgain) {
  Product product({36, 48, 80}, 3, 1);
  EXPECT_LT(product.run(), bound_of(3));
  const std::vector<float> b = product.b;
  std::fill(product.b.begin(), product.b.end(), NAN);  // is not looked at
  product.gemm.parts = 2;
  product.multiply();
  for (int col = 0; col < 48; ++col) {
    double sum = 0;
    for (int k = 0; k < 80; ++k) sum += double(product.a[k]) * b[k * product.gemm.b_row + col];
    EXPECT_NEAR(product.c[col], sum, 1e-3);
  }
}

TEST(LinearTileGemm, ExtremeValues) {
  const float largest = std::numeric_limits<float>::max();
  for (int parts : {2, 3}) {
    Product product({4, 16, 16}, parts, 1);
    for (int k = 0; k < 16; ++k) product.a[k] = k == 3 ? 1 : 0;
    product.b[3 * product.gemm.b_row] = NAN;
    product.b[3 * product.gemm.b_row + 1] = INFINITY;
    product.b[3 * product.gemm.b_row + 2] = largest * 0.99f;
    product.b[3 * product.gemm.b_row + 3] = 1e-30f;
    product.b[3 * product.gemm.b_row + 4] = -0.0f;
    product.multiply();
    EXPECT_TRUE(std::isnan(product.c[0])) << "NaN must not become a number";
    EXPECT_FALSE(std::isfinite(product.c[1]));
    EXPECT_NEAR(product.c[2] / largest, 0.99f, 1e-4f);
    EXPECT_NEAR(product.c[3] / 1e-30f, 1.0f, 1e-4f);
    EXPECT_EQ(product.c[4], 0.0f);
  }
}

// Where the tiles' cycles, splitting among them, are fewer than those of f32.
TEST(LinearTileGemm, TilesAreUsedWhereTheyPay) {
  const auto pays = [](const Shape& shape, int parts, int uses) {
    LinearPacked a{nullptr, parts, uses, false}, b{nullptr, parts, uses, false};
    LinearGemm gemm{};
    gemm.rows = shape.rows, gemm.cols = shape.cols, gemm.depth = shape.depth, gemm.parts = parts;
    gemm.packed_a = &a, gemm.packed_b = &b;
    return tiles_pay(gemm);
  };
  for (int parts : {2, 3}) {
    EXPECT_TRUE(pays({64, 128, 128}, parts, 1)) << "a chunk with the state";
    EXPECT_TRUE(pays({128, 128, 64}, parts, 1)) << "the state's update";
    EXPECT_TRUE(pays({64, 128, 64}, parts, 1)) << "within the chunk";
    EXPECT_FALSE(pays({4, 128, 128}, parts, 2)) << "drafts";
    EXPECT_FALSE(pays({16, 16, 16}, parts, 1));
    EXPECT_FALSE(pays({128, 128, 4}, parts, 1));
  }
}

void expect_every_case_passes(const LinearCpuKernels& kernels, const char* what) {
  ThreadTeam team(2);
  const auto kernel = make_cpu_linear_attn(team, kernels);
  double largest = 0;
  std::string at;
  for (const LinearAttnCase& c : linear_attn_cases()) {
    const CaseResult result = run_case(*kernel, c);
    EXPECT_TRUE(result.passed()) << what << ", " << c.name << ": " << result.text;
    if (result.largest_share > largest) largest = result.largest_share, at = c.name;
  }
  std::printf("%s: largest share of a bound %.3f in %s\n", what, largest, at.c_str());
  EXPECT_GT(largest, 0.2) << "a bound that is never approached proves little";
}

TEST(LinearTileGemm, EveryCaseOnTilesWrittenOut) {
  constexpr LinearTileKernels by_rule = linear_tile_kernels(), always = linear_tile_kernels<true>();
  LinearCpuKernels kernels = cpu_linear_kernels(std::min(cpu_info().tier, CpuTier::avx512));
  kernels.tiles = &by_rule;
  expect_every_case_passes(kernels, "by rule");
  kernels.tiles = &always;
  expect_every_case_passes(kernels, "always");
}

// What the cases do not show: 100,000 tokens without drift, bits that neither the batch nor checkpoints change.
TEST(LinearTileGemm, LongSequencesAndBitsOnTilesWrittenOut) {
  constexpr LinearTileKernels always = linear_tile_kernels<true>();
  LinearCpuKernels kernels = cpu_linear_kernels(std::min(cpu_info().tier, CpuTier::avx512));
  kernels.tiles = &always;
  ThreadTeam team(2);
  const auto kernel = make_cpu_linear_attn(team, kernels);
  for (LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (Decay decay : {Decay::near_one, Decay::mixed}) {
      const LinearAttnCase c{.name = "long", .shape = {kind, 1, 1, 16, 32}, .lengths = {100000}, .decay = decay};
      const CaseResult result = run_case(*kernel, c);
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << ": " << result.text;
    }
    const CaseResult pieces = run_in_pieces(*kernel, checkpoints_case(kind));
    EXPECT_TRUE(pieces.passed()) << linear_attn_kind_name(kind) << ": " << pieces.text;
  }
  for (const LinearAttnCase& c : linear_attn_cases()) {
    const CaseResult alone = run_alone(*kernel, c);
    EXPECT_TRUE(alone.passed()) << c.name << ": " << alone.text;
  }
}

#if defined(__x86_64__)
// The code compiled for AMX: on the CPU's tiles, or on those of the trap where it has none.
TEST(LinearTileGemm, CodeForAmxGivesTheBitsOfTilesWrittenOut) {
  if (!cpu_info().avx512) GTEST_SKIP() << "this CPU has no AVX-512, which the code for AMX takes for granted";
  std::optional<AmxTrap> trap;
  if (!cpu_info().amx_bf16) trap.emplace();
  for (const Shape& shape : {Shape{64, 128, 128}, {128, 128, 64}, {36, 128, 128}, {64, 112, 208}}) {
    for (int parts : {2, 3}) {
      Product here(shape, parts, 5), there(shape, parts, 5);
      here.gemm.keep_c = there.gemm.keep_c = true;
      here.gemm.scale_c = here.scale.data(), there.gemm.scale_c = there.scale.data();
      here.packed_a.uses = there.packed_a.uses = here.packed_b.uses = there.packed_b.uses = 1000;
      here.multiply();
      kLinearAttnAmxTiles.enter();
      ASSERT_TRUE(kLinearAttnAmxTiles.gemm(there.gemm));
      kLinearAttnAmxTiles.leave();
      EXPECT_EQ(here.memory_a, there.memory_a);
      EXPECT_EQ(here.memory_b, there.memory_b);
      EXPECT_EQ(here.c, there.c);
    }
  }
  expect_every_case_passes(cpu_linear_kernels(CpuTier::amx_bf16), "compiled for AMX");
  if (trap) std::printf("%g instructions of AMX done by the trap\n", static_cast<double>(AmxTrap::instructions()));
}
#endif

}  // namespace
}  // namespace warpweave::testing_linear
