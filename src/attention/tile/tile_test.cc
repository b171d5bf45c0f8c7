// Configurations, grids, and the two lane layouts against each other on an OpenCL CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "attention/tile/tile_call.h"
#include "attention/tile/tile_spec.h"

namespace warpweave::tile {
namespace {

TEST(TileSpec, EveryTileFitsItsDevice) {
  for (size_t local : {size_t{48} << 10, size_t{99} << 10, size_t{1} << 20}) {
    for (LaneKind lanes : {LaneKind::vector, LaneKind::threads, LaneKind::dpas, LaneKind::mma}) {
      for (int dim : {13, 64, 80, 128, 192, 256, 512}) {
        for (int rows : {1, 3, 8, 40, 1 << 20}) {
          TileShape shape;
          shape.head_dim = shape.v_head_dim = dim;
          const auto spec = choose_tile(shape, rows, {.lanes = lanes, .local_memory_bytes = local});
          if (!spec.ok()) {
            EXPECT_GT(dim, 64) << "local memory " << local;
            continue;
          }
          EXPECT_LE(local_bytes(*spec), local);
          EXPECT_EQ(spec->tile_m % spec->warps, 0);
          EXPECT_EQ(spec->tile_m / spec->warps % spec->row_block, 0);
          EXPECT_EQ(spec->warps % spec->column_warps, 0);
          EXPECT_EQ(spec->tile_n % 16, 0);
          EXPECT_EQ(spec->split_tokens % spec->tile_n, 0);
        }
      }
    }
  }
}

// Rows of 576 values, the first 512 of which are V, stand in local memory once, and two warps share 16 rows.
TEST(TileSpec, LatentRowsRunOnMatrixUnits) {
  TileShape shape;
  shape.head_dim = 576;
  shape.v_head_dim = 512;
  shape.q_dtype = DType::bf16;
  const TileDevice hopper = {.lanes = LaneKind::mma, .local_memory_bytes = 227 << 10};
  const auto apart = choose_tile(shape, 16, hopper);
  shape.latent = true;
  const auto few = choose_tile(shape, 16, hopper), many = choose_tile(shape, 1 << 20, hopper);
  ASSERT_TRUE(apart.ok() && few.ok() && many.ok());
  EXPECT_EQ(few->lanes, LaneKind::mma);
  EXPECT_EQ(few->column_warps, 2);
  EXPECT_EQ(few->tile_m, 16);
  EXPECT_EQ(few->warps, 2);
  EXPECT_EQ(many->tile_m, 64);
  EXPECT_EQ(many->warps, 8);
  EXPECT_EQ(local_bytes(*apart) - local_bytes(*few), 2 * 2 * few->tile_n * (512u + 8)) << "V of two stages";
  shape.kv_format = KvFormat::f32;
  const auto plain = choose_tile(shape, 1 << 20, hopper);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->lanes, LaneKind::threads);
}

// What equal bits in prefill and decode rest on.
TEST(TileSpec, PrefillAndDecodeWalkTheSameBlocks) {
  for (int dim : {64, 128, 256, 512}) {
    TileShape shape;
    shape.head_dim = shape.v_head_dim = dim;
    const TileDevice device = {.lanes = LaneKind::vector, .local_memory_bytes = 512 << 10};
    const auto prefill = choose_tile(shape, 1 << 20, device), decode = choose_tile(shape, 4, device);
    ASSERT_TRUE(prefill.ok() && decode.ok());
    EXPECT_EQ(prefill->tile_n, decode->tile_n);
    EXPECT_EQ(prefill->kv_chunk, decode->split_tokens);
  }
}

TEST(TileSpec, RefusesWhatNoTileFits) {
  TileShape shape;
  shape.head_dim = shape.v_head_dim = 512;
  const auto spec = choose_tile(shape, 1, {.lanes = LaneKind::vector, .local_memory_bytes = 32 << 10});
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(spec.status().message().find("32768"), std::string::npos) << spec.status().message();
}

TEST(TileSpec, TheSourceHoldsEveryPartOnce) {
  const std::string lanes = tile_source(LaneKind::vector), mma = tile_source(LaneKind::mma);
  for (const std::string& text : {lanes, mma, tile_source(LaneKind::dpas)}) {
    const size_t first = text.find("typedef struct TileArgs");
    ASSERT_NE(first, std::string::npos);
    EXPECT_EQ(text.find("typedef struct TileArgs", first + 1), std::string::npos);
    EXPECT_NE(text.find("void merge_splits"), std::string::npos);
  }
  EXPECT_EQ(lanes.find("mma.sync.aligned"), std::string::npos);
  EXPECT_NE(mma.find("mma.sync.aligned"), std::string::npos);
}

// The rule by which kernels/rows.cl finds the request of a tile, for ragged requests.
TEST(TileGrid, RaggedTilesCoverEveryRowOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    TileSpec spec;
    spec.tile_m = 1 << random() % 7;
    TileArgs args = {};
    args.group = 1 + random() % 9;
    args.num_kv_heads = 1;
    args.num_reqs = 1 + random() % 20;
    std::vector<int> q_indptr = {0};
    for (int r = 0; r < args.num_reqs; ++r) q_indptr.push_back(q_indptr.back() + random() % 90);
    args.num_tokens = q_indptr.back();
    const TileGrid grid = plan_grid(spec, 0, args);
    ASSERT_EQ(grid.tiles, args.num_tiles);
    std::vector<int> covered(args.num_reqs, 0);
    for (int index = 0; index < grid.tiles; ++index) {
      int request = 0;
      auto first_tile = [&](int r) { return q_indptr[r] * args.group / spec.tile_m + r; };
      while (request + 1 < args.num_reqs && first_tile(request + 1) <= index) ++request;
      const int begin = (index - first_tile(request)) * spec.tile_m;
      const int rows = (q_indptr[request + 1] - q_indptr[request]) * args.group;
      if (begin < rows) covered[request] += std::min(spec.tile_m, rows - begin);
    }
    for (int r = 0; r < args.num_reqs; ++r) {
      EXPECT_EQ(covered[r], (q_indptr[r + 1] - q_indptr[r]) * args.group);
    }
  }
}

}  // namespace
}  // namespace warpweave::tile
