// The kernels of adapters, run on the host: adapters of several ranks, rows of none, parts that an adapter leaves as they
// are, widths that fill no block; a row's bits do not depend on the others or on who sums its slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "base/float16.h"
#include "device/cuda/testing/host_cta.h"

#include "ops/cuda/lora.cuh"

namespace warpweave::gpu {
namespace {

struct Adapter {
  std::array<int, kLoraParts> rank;  // 0: it leaves the part as it is
  std::vector<uint16_t> shrink;
  std::array<std::vector<uint16_t>, kLoraParts> expand;
};

struct Problem {
  static constexpr int64_t kBeyond = 10;  // columns of no part
  LoraSiteShape shape;
  std::vector<Adapter> adapters;
  std::vector<LoraSiteWeights> sites;
  std::vector<uint16_t> x;
  int rows;
  int64_t y_stride = 0;
  int max_ranks;

  Problem(int rows, LoraSiteShape of, const std::vector<std::array<int, kLoraParts>>& ranks) : shape(of), rows(rows) {
    std::mt19937 random(rows);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<uint16_t>& values, int64_t count, float size) {
      values.resize(count);
      for (uint16_t& value : values) value = f32_to_bf16(size * normal(random));
    };
    fill(x, rows * shape.in_features, 1);
    int largest = 0;
    for (const auto& rank : ranks) {
      Adapter& adapter = adapters.emplace_back();
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
    for (const Adapter& adapter : adapters) {
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

  // What the rows of `slots` get, from zeros; NaN stands where nothing may be read.
  std::vector<float> run(const std::vector<int32_t>& slots, bool slices_apart, host_cta::Order order, bool by_place = false) const {
    std::vector<LoraTile> tiles(max_lora_tiles(rows, static_cast<int>(adapters.size())));
    std::vector<int32_t> places(rows);
    fill_lora_tiles(slots, tiles, places);
    const int num_slices = static_cast<int>((shape.in_features + kLoraSlice - 1) / kLoraSlice);
    const int slices = slices_apart ? num_slices : 1, rank_blocks = (max_ranks + kLoraRanks - 1) / kLoraRanks;
    std::vector<float> sums(slices * tiles.size() * kLoraTileRows * max_ranks, NAN), y(rows * y_stride, 0), placed(tiles.size() * kLoraTileRows * y_stride, NAN);
    const LoraArgs args = {sites.data(), 1, tiles.data(), static_cast<int>(tiles.size()), x.data(), shape.in_features, slices,
                           max_ranks, rank_blocks, sums.data(), by_place ? placed.data() : y.data(), y_stride, by_place, shape};
    int column_blocks = 0;
    for (int part = 0; part < shape.num_parts; ++part) column_blocks += (static_cast<int>(shape.columns[part]) + kLoraColumns - 1) / kLoraColumns;
    for (unsigned tile = 0; tile < tiles.size(); ++tile) {
      for (int block = 0; block < slices * rank_blocks; ++block) {
        host_cta::run(kLoraThreads, order, [&] { lora_shrink_kernel<ptx::Bf16>(args); }, {.x = tile, .y = static_cast<unsigned>(block)});
      }
    }
    for (unsigned tile = 0; tile < tiles.size(); ++tile) {
      for (int block = 0; block < column_blocks; ++block) {
        host_cta::run(kLoraThreads, order, [&] { lora_expand_kernel<ptx::Bf16, float, kLoraMostRanks>(args); }, {.x = tile, .y = static_cast<unsigned>(block)});
      }
    }
    for (int row = 0; by_place && row < rows; ++row) {
      if (places[row] < 0) continue;
      std::copy_n(placed.begin() + places[row] * y_stride, y_stride - kBeyond, y.begin() + row * y_stride);
    }
    return y;
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
    const Adapter& adapter = adapters[slot];
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

LoraSiteShape qkv(int64_t in_features) { return {in_features, 3, {0, 320, 400}, {320, 80, 48}}; }

std::vector<int32_t> mixed(int rows, int adapters) {
  std::vector<int32_t> out(rows);
  for (int i = 0; i < rows; ++i) out[i] = (i * 5 + i / 3) % (adapters + 1) - 1;
  return out;
}

TEST(LoraKernels, EveryRowGetsWhatItsAdapterAdds) {
  for (const auto order : {host_cta::Order::ascending, host_cta::Order::descending, host_cta::Order::random}) {
    const Problem p(45, qkv(712), {{8, 16, 4}, {64, 0, 40}, {0, 16, 16}});
    const std::vector<int32_t> slots = mixed(45, 3);
    p.check(slots, p.run(slots, true, order));
    p.check(slots, p.run(slots, true, order, /*by_place=*/true));
  }
  const Problem one(20, {1536, 1, {6}, {530}}, {{16}, {80}});
  const std::vector<int32_t> slots = mixed(20, 2);
  one.check(slots, one.run(slots, false, host_cta::Order::random));
}

TEST(LoraKernels, ARowsBitsDependOnNothingElse) {
  const Problem p(40, qkv(1400), {{16, 16, 16}, {32, 32, 32}});
  const std::vector<int32_t> slots = mixed(40, 2);
  const std::vector<float> all = p.run(slots, false, host_cta::Order::ascending);
  for (const int row : {1, 7, 38}) {
    std::vector<int32_t> alone(40, -1);
    alone[row] = slots[row];
    const std::vector<float> got = p.run(alone, true, host_cta::Order::ascending);
    for (int64_t i = row * p.y_stride; i < (row + 1) * p.y_stride; ++i) ASSERT_EQ(got[i], all[i]) << row;
  }
}

}  // namespace
}  // namespace warpweave::gpu
