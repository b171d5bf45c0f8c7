// Adapters of several ranks for one GEMM, rows of a batch, and what double precision makes of them: for tests that run
// their kernels on the host.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "base/float16.h"
#include "ops/cuda/lora.h"

namespace warpweave::gpu {

struct TestAdapter {
  std::array<int, kLoraParts> rank;  // 0: it leaves the part as it is
  std::vector<uint16_t> shrink;
  std::array<std::vector<uint16_t>, kLoraParts> expand;
};

struct LoraProblem {
  static constexpr int64_t kBeyond = 10;  // columns of no part
  LoraSiteShape shape;
  std::vector<TestAdapter> adapters;
  std::vector<LoraSiteWeights> sites;
  std::vector<uint16_t> x;
  int rows;
  int64_t y_stride = 0;
  int max_ranks;

  LoraProblem(int rows, LoraSiteShape of, const std::vector<std::array<int, kLoraParts>>& ranks) : shape(of), rows(rows) {
    std::mt19937 random(rows);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<uint16_t>& values, int64_t count, float size) {
      values.resize(count);
      for (uint16_t& value : values) value = f32_to_bf16(size * normal(random));
    };
    fill(x, rows * shape.in_features, 1);
    int largest = 0;
    for (const auto& rank : ranks) {
      TestAdapter& adapter = adapters.emplace_back();
      adapter.rank = rank;
      largest = std::max(largest, *std::max_element(rank.begin(), rank.end()));
      for (int part = 0; part < shape.num_parts; ++part) {
        const int padded = padded_lora_rank(rank[part]);
        std::vector<uint16_t> a;
        fill(a, rank[part] * shape.in_features, 0.05f);
        a.resize(padded * shape.in_features);
        adapter.shrink.insert(adapter.shrink.end(), a.begin(), a.end());
        fill(adapter.expand[part], padded * shape.columns[part], 0.3f);
        for (size_t i = 0; i < adapter.expand[part].size(); ++i) {
          if (static_cast<int>(i % padded) >= rank[part]) adapter.expand[part][i] = 0;
        }
      }
    }
    max_ranks = padded_lora_rank(largest) * shape.num_parts;
    for (const TestAdapter& adapter : adapters) {
      LoraSiteWeights& site = sites.emplace_back();
      site.shrink = adapter.shrink.data();
      for (int part = 0; part < shape.num_parts; ++part) {
        site.first_rank[part] = site.ranks;
        site.rank[part] = padded_lora_rank(adapter.rank[part]);
        site.ranks += site.rank[part];
        site.scale[part] = 0.5f + static_cast<float>(part);
        if (adapter.rank[part] > 0) site.expand[part] = adapter.expand[part].data();
      }
    }
    for (int part = 0; part < shape.num_parts; ++part) y_stride = std::max(y_stride, shape.first_column[part] + shape.columns[part]);
    y_stride += kBeyond;
  }

  void check(const std::vector<int32_t>& slots, const std::vector<float>& y) const {
    std::vector<double> wanted(y_stride);
    for (int row = 0; row < rows; ++row) {
      std::fill(wanted.begin(), wanted.end(), 0);
      if (slots[row] >= 0) expected(row, slots[row], wanted);
      for (int64_t i = 0; i < y_stride; ++i) {
        ASSERT_NEAR(y[row * y_stride + i], wanted[i], 0.02 + 0.01 * std::abs(wanted[i])) << "row " << row << ", column " << i;
      }
    }
  }

  void expected(int row, int slot, std::vector<double>& out) const {
    const TestAdapter& adapter = adapters[slot];
    const LoraSiteWeights& site = sites[slot];
    for (int part = 0; part < shape.num_parts; ++part) {
      for (int r = 0; r < adapter.rank[part]; ++r) {
        double middle = 0;
        for (int64_t k = 0; k < shape.in_features; ++k) {
          middle += double{bf16_to_f32(x[row * shape.in_features + k])} *
                    bf16_to_f32(adapter.shrink[(site.first_rank[part] + r) * shape.in_features + k]);
        }
        const double rounded = bf16_to_f32(f32_to_bf16(static_cast<float>(site.scale[part] * middle)));
        for (int64_t c = 0; c < shape.columns[part]; ++c) {
          out[shape.first_column[part] + c] += rounded * bf16_to_f32(adapter.expand[part][c * site.rank[part] + r]);
        }
      }
    }
  }
};

inline LoraSiteShape qkv(int64_t in_features) { return {in_features, 3, {0, 320, 400}, {320, 80, 48}}; }

// Slots of all adapters and of none, in no order.
inline std::vector<int32_t> mixed(int rows, int adapters) {
  std::vector<int32_t> out(rows);
  for (int i = 0; i < rows; ++i) out[i] = (i * 5 + i / 3) % (adapters + 1) - 1;
  return out;
}

}  // namespace warpweave::gpu
