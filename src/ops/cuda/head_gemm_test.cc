// The kernel of the heads' GEMMs, run on the host: sizes of DeepSeek's heads, rows that fill no block, strides as the
// mixer has them; nothing beside the results is written, and a row's bits do not depend on the number of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/float16.h"
#include "device/cuda/testing/host_cta.h"

#include "ops/cuda/head_gemm.cuh"
#undef __shared__
#define __shared__
#include "ops/cuda/head_gemm_wide.cuh"

namespace warpweave::gpu {

alignas(128) char head_smem[kWideSmemBytes];

namespace {

struct Problem {
  int rows, heads, in_dim, out_dim;
  std::vector<uint16_t> weight, x, y;
  static constexpr uint16_t kUnwritten = 0xffff;

  Problem(int rows, int heads, int in_dim, int out_dim)
      : rows(rows), heads(heads), in_dim(in_dim), out_dim(out_dim), weight(static_cast<size_t>(heads) * weight_head_stride()),
        x(static_cast<size_t>(rows) * x_stride()), y(static_cast<size_t>(rows) * y_stride(), kUnwritten) {
    std::mt19937 random(in_dim);
    std::normal_distribution<float> normal;
    for (std::vector<uint16_t>* values : {&weight, &x}) {
      for (uint16_t& value : *values) value = f32_to_bf16(normal(random));
    }
  }
  int weight_head_stride() const { return (out_dim + 8) * in_dim; }
  int x_head_stride() const { return in_dim + 64; }
  int y_head_stride() const { return out_dim + 64; }
  int x_stride() const { return heads * x_head_stride() + 8; }
  int y_stride() const { return heads * y_head_stride() + 8; }

  // Of the first `taken` rows.
  template <int kRowBlocks>
  std::vector<uint16_t> run(int taken, host_cta::Order order) {
    const HeadGemmArgs args = {weight.data(), weight_head_stride(), x.data(), y.data(), x_stride(), x_head_stride(), y_stride(),
                               y_head_stride(), taken, in_dim, out_dim};
    std::fill(y.begin(), y.end(), kUnwritten);
    const int row_blocks = (taken + 16 * kRowBlocks - 1) / (16 * kRowBlocks), columns = out_dim / kHeadCols;
    for (int head = 0; head < heads; ++head) {
      for (int block = 0; block < row_blocks * columns; ++block) {
        host_cta::run(32 * kHeadWarps, order, [&] { head_gemm_kernel<ptx::Bf16, kRowBlocks>(args); },
                      {.x = static_cast<unsigned>(block), .y = static_cast<unsigned>(head)});
      }
    }
    return y;
  }

  std::vector<uint16_t> run_wide(int taken, host_cta::Order order) {
    const HeadGemmArgs args = {weight.data(), weight_head_stride(), x.data(), y.data(), x_stride(), x_head_stride(), y_stride(),
                               y_head_stride(), taken, in_dim, out_dim};
    std::fill(y.begin(), y.end(), kUnwritten);
    const int blocks = (taken + kWideRows - 1) / kWideRows * (out_dim / kWideCols);
    for (int head = 0; head < heads; ++head) {
      for (int block = 0; block < blocks; ++block) {
        ptx::set_shared_memory(head_smem, sizeof head_smem, 32 * kHeadWarps);
        host_cta::run(32 * kHeadWarps, order, [&] { head_gemm_wide_kernel<ptx::Bf16>(args); },
                      {.x = static_cast<unsigned>(block), .y = static_cast<unsigned>(head)});
      }
    }
    return y;
  }

  double expected(int row, int head, int column) const {
    double sum = 0;
    for (int k = 0; k < in_dim; ++k) {
      sum += double{bf16_to_f32(weight[static_cast<size_t>(head) * weight_head_stride() + column * in_dim + k])} *
             bf16_to_f32(x[static_cast<size_t>(row) * x_stride() + head * x_head_stride() + k]);
    }
    return sum;
  }

  void check(const std::vector<uint16_t>& got, int taken) const {
    for (size_t i = 0; i < got.size(); ++i) {
      const int row = static_cast<int>(i / y_stride()), at = static_cast<int>(i % y_stride());
      const int head = at / y_head_stride(), column = at % y_head_stride();
      if (row >= taken || head >= heads || column >= out_dim) {
        ASSERT_EQ(got[i], kUnwritten) << "row " << row << " at " << at;
        continue;
      }
      const double wanted = expected(row, head, column);
      ASSERT_NEAR(bf16_to_f32(got[i]), wanted, 0.02 + 0.01 * std::abs(wanted)) << row << " " << head << " " << column;
    }
  }
};

TEST(HeadGemm, EveryRowOfEveryHead) {
  for (const int rows : {1, 8, 17}) {
    Problem into(rows, 3, 128, 64), from(rows, 2, 512, 32);
    into.check(into.run<1>(rows, host_cta::Order::ascending), rows);
    from.check(from.run<2>(rows, host_cta::Order::random), rows);
  }
  Problem many(70, 2, 128, 64);
  many.check(many.run<4>(70, host_cta::Order::descending), 70);
}

TEST(HeadGemm, ARowsBitsDoNotDependOnTheOthers) {
  Problem p(40, 2, 1024, 32);  // more steps than are asked for ahead
  const std::vector<uint16_t> few = p.run<1>(3, host_cta::Order::ascending);
  const std::vector<uint16_t> all = p.run<4>(40, host_cta::Order::ascending);
  EXPECT_EQ(std::memcmp(few.data(), all.data(), sizeof(uint16_t) * 3 * p.y_stride()), 0);
}

TEST(HeadGemm, ManyRowsHaveTheBitsOfFew) {
  for (const auto& [in_dim, order] : {std::pair{128, host_cta::Order::descending}, {384, host_cta::Order::random}}) {
    Problem p(70, 1, in_dim, 64);
    const std::vector<uint16_t> wanted = p.run<4>(70, host_cta::Order::ascending);
    EXPECT_EQ(p.run_wide(70, order), wanted) << in_dim;
    p.check(wanted, 70);
  }
}

}  // namespace
}  // namespace warpweave::gpu
