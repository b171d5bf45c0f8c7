// NVRTC compiles the kernel text for NVIDIA GPUs; none is needed. Skips where there is no NVRTC.
#include <gtest/gtest.h>

#include "device/cuda/nvrtc.h"
#include "linear/tile/tile_spec.h"

namespace warpweave::linear_tile {
namespace {

class LinearTileNvrtc : public testing::TestWithParam<LinearAttnKind> {};

TEST_P(LinearTileNvrtc, Compiles) {
  const auto nvrtc = Nvrtc::get();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
  for (const auto& [k_dim, v_dim] : {std::pair{64, 64}, {128, 128}, {208, 48}, {256, 256}}) {
    for (int compute_capability : {80, 90}) {
      const size_t local_bytes = size_t{compute_capability == 90 ? 227u : 163u} << 10;
      const auto spec = choose_tile({GetParam(), 1, 2, k_dim, v_dim},
                                    {.lanes = tile::LaneKind::threads, .local_memory_bytes = local_bytes});
      ASSERT_TRUE(spec.ok()) << spec.status().message();
      const auto cubin = (*nvrtc)->compile({tile_source(), tile_defines(*spec), compute_capability});
      EXPECT_TRUE(cubin.ok()) << k_dim << " " << v_dim << ": " << cubin.status().message();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LinearTileNvrtc, testing::Values(LinearAttnKind::gdn, LinearAttnKind::kda),
                         [](const auto& info) { return std::string(linear_attn_kind_name(info.param)); });

}  // namespace
}  // namespace warpweave::linear_tile
