// Rows rounded to blocks: how far values move, and what becomes of the ones that are no numbers.
#include "ops/block_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/float16.h"
#include "ops/gguf_blocks.h"

namespace warpweave {
namespace {

std::vector<float> there_and_back(const std::vector<float>& x, DType format) {
  std::vector<std::byte> blocks(x.size() / 32 * dtype_info(format).block_bytes);
  std::vector<float> out(x.size());
  round_to_blocks(x.data(), static_cast<int64_t>(x.size()), format, blocks.data());
  dequantize_row_reference(format, blocks.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

std::vector<float> bell(int64_t count, float width) {
  std::mt19937 random(7);
  std::normal_distribution<float> values(0, width);
  std::vector<float> out(count);
  for (float& x : out) x = values(random);
  return out;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double off = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    off += (x[i] - y[i]) * (x[i] - y[i]);
    all += x[i] * x[i];
  }
  return std::sqrt(off / all);
}

TEST(BlockRows, MovesValuesLittle) {
  for (const float width : {1e-3f, 0.02f, 30.0f}) {
    const std::vector<float> x = bell(32 * 256, width);
    EXPECT_LT(relative_error(x, there_and_back(x, DType::q8_0)), 0.006) << width;
    EXPECT_LT(relative_error(x, there_and_back(x, DType::iq4_nl)), 0.08) << width;
  }
}

TEST(BlockRows, KeepsWhatBlocksHold) {
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[i] = static_cast<float>(i * 8 - 127) / 4;
  x[31] = 127.0f / 4;
  EXPECT_EQ(there_and_back(x, DType::q8_0), x);
  EXPECT_EQ(there_and_back(std::vector<float>(64, 0.0f), DType::q8_0), std::vector<float>(64, 0.0f));
  EXPECT_EQ(there_and_back(std::vector<float>(64, 0.0f), DType::iq4_nl), std::vector<float>(64, 0.0f));
}

TEST(BlockRows, TakesWhatIsNoNumberForZero) {
  std::vector<float> x(32, 0.5f);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  x[9] = std::numeric_limits<float>::infinity();
  for (const DType format : {DType::q8_0, DType::iq4_nl}) {
    const std::vector<float> back = there_and_back(x, format);
    EXPECT_NEAR(back[0], 0.5f, 0.01f);
    EXPECT_NEAR(back[3], 0, 0.01f);
    EXPECT_NEAR(back[9], 0, 0.01f);
  }
}

TEST(BlockRows, RoundsAMatrixRowByRow) {
  const std::vector<float> x = bell(3 * 64, 1);
  std::vector<uint16_t> narrow;
  std::vector<float> rounded;
  for (const float value : x) {
    narrow.push_back(f32_to_bf16(value));
    rounded.push_back(bf16_to_f32(narrow.back()));
  }
  ThreadTeam team(2);
  const TensorView matrix = {.data = narrow.data(), .dtype = DType::bf16, .rank = 2, .shape = {3, 64}};
  const std::vector<std::byte> blocks = matrix_in_blocks(matrix, DType::q8_0, team);
  std::vector<std::byte> expected(blocks.size());
  round_to_blocks(rounded.data(), static_cast<int64_t>(rounded.size()), DType::q8_0, expected.data());
  EXPECT_EQ(blocks, expected);
}

}  // namespace
}  // namespace warpweave
