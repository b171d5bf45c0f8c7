// The kernels of adapters, run on the host: adapters of several ranks, rows of none, parts that an adapter leaves as they
// are, widths that fill no block; a row's bits do not depend on the others or on who sums its slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "ops/cuda/lora.cuh"
#include "ops/cuda/testing/lora_problem.h"

namespace warpweave::gpu {
namespace {

// What the rows of `slots` get, from zeros; NaN stands where nothing may be read.
std::vector<float> run(const LoraProblem& p, const std::vector<int32_t>& slots, bool slices_apart, host_cta::Order order,
                       bool by_place = false) {
  std::vector<LoraTile> tiles(max_lora_tiles(p.rows, static_cast<int>(p.adapters.size())));
  std::vector<int32_t> places(p.rows);
  fill_lora_tiles(slots, tiles, places);
  const int num_slices = static_cast<int>((p.shape.in_features + kLoraSlice - 1) / kLoraSlice);
  const int slices = slices_apart ? num_slices : 1, rank_blocks = (p.max_ranks + kLoraRanks - 1) / kLoraRanks;
  std::vector<float> sums(slices * tiles.size() * kLoraTileRows * p.max_ranks, NAN), y(p.rows * p.y_stride, 0), placed(tiles.size() * kLoraTileRows * p.y_stride, NAN);
  const LoraArgs args = {p.sites.data(), 1, tiles.data(), static_cast<int>(tiles.size()), p.x.data(), p.shape.in_features, slices,
                         p.max_ranks, rank_blocks, sums.data(), by_place ? placed.data() : y.data(), p.y_stride, by_place, p.shape};
  int column_blocks = 0;
  for (int part = 0; part < p.shape.num_parts; ++part) column_blocks += (static_cast<int>(p.shape.columns[part]) + kLoraColumns - 1) / kLoraColumns;
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
  for (int row = 0; by_place && row < p.rows; ++row) {
    if (places[row] < 0) continue;
    std::copy_n(placed.begin() + places[row] * p.y_stride, p.y_stride - LoraProblem::kBeyond, y.begin() + row * p.y_stride);
  }
  return y;
}

TEST(LoraKernels, EveryRowGetsWhatItsAdapterAdds) {
  for (const auto order : {host_cta::Order::ascending, host_cta::Order::descending, host_cta::Order::random}) {
    const LoraProblem p(45, qkv(712), {{8, 16, 4}, {64, 0, 40}, {0, 16, 16}});
    const std::vector<int32_t> slots = mixed(45, 3);
    p.check(slots, run(p, slots, true, order));
    p.check(slots, run(p, slots, true, order, /*by_place=*/true));
  }
  const LoraProblem one(20, {1536, 1, {6}, {530}}, {{16}, {80}});
  const std::vector<int32_t> slots = mixed(20, 2);
  one.check(slots, run(one, slots, false, host_cta::Order::random));
}

TEST(LoraKernels, ARowsBitsDependOnNothingElse) {
  const LoraProblem p(40, qkv(1400), {{16, 16, 16}, {32, 32, 32}});
  const std::vector<int32_t> slots = mixed(40, 2);
  const std::vector<float> all = run(p, slots, false, host_cta::Order::ascending);
  for (const int row : {1, 7, 38}) {
    std::vector<int32_t> alone(40, -1);
    alone[row] = slots[row];
    const std::vector<float> got = run(p, alone, true, host_cta::Order::ascending);
    for (int64_t i = row * p.y_stride; i < (row + 1) * p.y_stride; ++i) ASSERT_EQ(got[i], all[i]) << row;
  }
}

}  // namespace
}  // namespace warpweave::gpu
