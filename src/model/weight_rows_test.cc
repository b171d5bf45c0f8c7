#include "model/weight_rows.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/float16.h"

namespace warpweave {
namespace {

LinearPart part_of(const std::vector<float>& values, int64_t rows) {
  const auto cols = static_cast<int64_t>(values.size()) / rows;
  return {.weight = {.data = values.data(), .dtype = DType::f32, .rank = 2, .shape = {rows, cols}}, .bias = {}};
}

std::vector<float> numbers(int64_t count) {
  std::vector<float> out(count);
  std::iota(out.begin(), out.end(), 1.0f);
  return out;
}

TEST(WeightRows, AreConverted) {
  const std::vector<float> values = numbers(6);
  std::vector<uint16_t> out(6);
  write_rows(part_of(values, 2), 0, 2, {reinterpret_cast<std::byte*>(out.data()), 6, DType::bf16});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(bf16_to_f32(out[i]), values[i]);
}

TEST(WeightRows, CodesStayCodesAndAreWidenedByTheirScalesForOthers) {
  const std::vector<uint8_t> codes = {0x38, 0x40, 0x48, 0xb8};  // 1, 2, 4, -1
  const WeightScales scales = {.values = {0.5f, 3.0f}, .block_rows = 1, .block_cols = 2, .stride = 1};
  const LinearPart part = {.weight = {.data = codes.data(), .dtype = DType::fp8_e4m3, .rank = 2, .shape = {2, 2}}, .bias = {},
                           .scales = &scales};
  for (const int64_t begin : {0, 1}) {
    std::vector<uint8_t> out(12, 0xff);
    write_rows(part, begin, 3, {reinterpret_cast<std::byte*>(out.data()), 2, DType::fp8_e4m3});
    std::vector<uint8_t> wanted(codes.begin() + begin * 2, codes.end());
    wanted.resize((3 - begin) * 2, 0);
    wanted.resize(out.size(), 0xff);
    EXPECT_EQ(out, wanted) << begin;
  }
  std::vector<float> wide(4);
  write_rows(part, 0, 2, {reinterpret_cast<std::byte*>(wide.data()), 2 * sizeof(float), DType::f32});
  EXPECT_EQ(wide, (std::vector<float>{0.5f, 1, 12, -3}));
}

TEST(WeightRows, ZerosFillUpColumnsAndRows) {
  const std::vector<float> values = numbers(6);
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const int64_t begin : {0, 1, 2, 3}) {
      std::vector<float> out(16, -1);
      const size_t row_bytes = 4 * dtype_info(dtype).block_bytes;
      write_rows(part_of(values, 2), begin, 4, {reinterpret_cast<std::byte*>(out.data()), row_bytes, dtype});
      for (int64_t row = begin; row < 4; ++row) {
        for (int64_t col = 0; col < 4; ++col) {
          const int64_t at = (row - begin) * 4 + col;
          const float got = dtype == DType::f32 ? out[at] : f16_to_f32(reinterpret_cast<const uint16_t*>(out.data())[at]);
          EXPECT_EQ(got, row < 2 && col < 3 ? values[row * 3 + col] : 0.0f) << row << ", " << col;
        }
      }
    }
  }
}

TEST(WeightRows, EverySecondRowFromTheFirstAskedFor) {
  const std::vector<float> values = numbers(12);
  LinearPart part = part_of(values, 6);
  part.first_row = 1;
  part.row_step = 2;
  EXPECT_EQ(rows_of(part), 2);
  part.rows = 3;
  EXPECT_EQ(rows_of(part), 3);
  std::vector<float> out(8);
  write_rows(part, 0, 4, {reinterpret_cast<std::byte*>(out.data()), 2 * sizeof(float), DType::f32});
  EXPECT_EQ(out, (std::vector<float>{3, 4, 7, 8, 11, 12, 0, 0}));
}

}  // namespace
}  // namespace warpweave
