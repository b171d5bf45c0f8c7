// The GEMMs of compressed panels on AMX tiles (kernels/linear_int8_tiles.h): on every CPU with the tile instructions
// written out in C++, on one with AMX by its own. Both must give the bits of the tier without tiles.
#include "ops/kernels/linear_int8_tiles.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/float16.h"
#include "device/cpu/cpu_info.h"

namespace warpweave {
namespace {

struct Pair {
  const Int8Kernels* tiles;
  const Int8Kernels* plain;
};

void expect_same_bits(Int8TileFn tiles, Int8TileFn plain, Int8Tile t) {
  const int64_t columns = t.panels * kPanelCols;
  std::vector<float> got(t.rows * columns + 16, 7.0f), want = got;
  t.acc_stride = columns;
  t.acc = got.data();
  tiles(t);
  t.acc = want.data();
  plain(t);
  for (int64_t i = 0; i < t.rows * columns; ++i) ASSERT_TRUE(std::isfinite(want[i]));
  ASSERT_EQ(0, std::memcmp(got.data(), want.data(), got.size() * sizeof(float)))
      << t.rows << " rows, " << t.panels << " panels, k = " << t.k;
}

// Random codes and small scales of `count` blocks.
template <class Panel>
std::vector<Panel> random_blocks(int64_t count, std::mt19937& rng) {
  std::vector<Panel> blocks(count);
  auto* const bytes = reinterpret_cast<unsigned char*>(blocks.data());
  for (size_t i = 0; i < count * sizeof(Panel); ++i) bytes[i] = static_cast<unsigned char>(rng());
  std::uniform_real_distribution<float> scale(0.001f, 0.01f);
  const auto set = [&](uint16_t* at, float sign) {
    for (int i = 0; i < 16; ++i) at[i] = f32_to_f16(sign * scale(rng));
  };
  for (Panel& block : blocks) {
    set(block.d, 1);
    if constexpr (requires { block.m; }) set(block.m, -1);
    if constexpr (requires { block.dmin; }) set(block.dmin, 1);
  }
  return blocks;
}

template <class Panel>
void expect_same_bits_of_shapes(Int8TileFn tiles, Int8TileFn plain) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 1);
  for (const int64_t blocks : {1, 2, 7, 19}) {
    const int64_t k = blocks * Panel::kElements, row_bytes = int8_row_bytes(k);
    for (const int panels : {1, 4, 7}) {
      const std::vector<Panel> weights = random_blocks<Panel>(blocks * panels, rng);
      for (const int rows : {1, 11, 12, 15, 16, 17, 40}) {
        std::vector<float> x(k);
        std::vector<unsigned char> codes(rows * row_bytes);
        for (int r = 0; r < rows; ++r) {
          for (float& value : x) value = normal(rng);
          kInt8Scalar.quantize(x.data(), k, &codes[r * row_bytes]);
        }
        ASSERT_NO_FATAL_FAILURE(
            expect_same_bits(tiles, plain,
                             {.x = codes.data(),
                              .x_stride_bytes = row_bytes,
                              .rows = rows,
                              .k = k,
                              .weights = reinterpret_cast<const unsigned char*>(weights.data()),
                              .panel_bytes = static_cast<int64_t>(blocks * sizeof(Panel)),
                              .panels = panels}));
      }
    }
  }
}

void expect_same_bits_of_formats(const Pair& p) {
  const auto check = [&]<class Panel>(Int8TileFn Int8Kernels::* format, const Panel*) {
    expect_same_bits_of_shapes<Panel>(p.tiles->*format, p.plain->*format);
  };
  check(&Int8Kernels::q8_0, static_cast<const PanelQ8_0*>(nullptr));
  check(&Int8Kernels::q4_0, static_cast<const PanelQ4_0*>(nullptr));
  check(&Int8Kernels::q4_1, static_cast<const PanelQ4_1*>(nullptr));
  check(&Int8Kernels::q4_k, static_cast<const PanelQ4K*>(nullptr));
  check(&Int8Kernels::q5_k, static_cast<const PanelQ5K*>(nullptr));
  check(&Int8Kernels::q6_k, static_cast<const PanelQ6K*>(nullptr));
  check(&Int8Kernels::iq4_nl, static_cast<const PanelIQ4NL*>(nullptr));
  check(&Int8Kernels::iq4_xs, static_cast<const PanelIQ4XS*>(nullptr));
}

TEST(Int8Tiles, WrittenOutGiveTheBitsOfThePlainTier) {
  const Int8Kernels emulated = int8_tile_kernels();
  expect_same_bits_of_formats({&emulated, &kInt8Scalar});
}

#if defined(__x86_64__)
TEST(Int8Tiles, OfTheCpuGiveTheBitsOfVnni) {
  if (!cpu_info().amx_int8) GTEST_SKIP() << "this CPU has no AMX with int8, or the system did not grant its tiles";
  expect_same_bits_of_formats({&kInt8Amx, &kInt8Vnni});
}
#endif

}  // namespace
}  // namespace warpweave
