// The kernels as they are laid out for GPUs, where a lane is a thread, run on the host a work-group at a time
// (device/cuda/testing/host_cta.h): every case, and some of them in other orders of threads, which a missing barrier makes
// wrong. This file is one more dialect of the kernel text.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "device/cuda/testing/host_cta.h"
#include "linear/testing/suite.h"
#include "linear/tile/tile_call.h"

#define WW_HOST_LANES
#define KERNEL static
#define WORK_GROUP_SIZE
#define TILE_X ((int)blockIdx.x)
#define TILE_Y ((int)blockIdx.y)
#define TILE_Z group_z
#define THREAD ((int)threadIdx.x)
#define AS_F32(x) __uint_as_float(x)
#define AS_U32(x) __float_as_uint(x)
#define FMA(a, b, c) __fmaf_rn((a), (b), (c))
#define LOG2(x) log2f(x)
#define SQRT(x) std::sqrt(x)
#define BARRIER() __syncthreads()
#define WARP_BARRIER() __syncwarp()
#define SHUFFLE_XOR(x, mask) __shfl_xor_sync(0xffffffffu, (x), (mask))
#define DECLARE_LOCAL(base) char* base = local_storage
#define WARPS 2
#define STEP_ROWS 8
#define BLOCK 16
#define ROW_BLOCK 8

namespace warpweave::host_tile {
namespace {

int group_z = 0;  // of the work-group that runs
alignas(16) char local_storage[256 << 10];

// In this order.
// clang-format off
#include "attention/tile/kernels/dialect.cl"
#undef UNROLL
#define UNROLL
#include "attention/tile/kernels/values.cl"
#include "linear/tile/kernels/lanes.cl"
#include "linear/tile/kernels/requests.cl"
#include "linear/tile/kernels/prepare.cl"
#include "linear/tile/kernels/outputs.cl"
#include "linear/tile/kernels/steps.cl"
#include "linear/tile/kernels/chunks.cl"
// clang-format on

}  // namespace

void run_kernel(std::string_view name, const LinearTileArgs& args) {
  if (name == "prepare") return prepare(args);
  if (name == "conv_windows") return conv_windows(args);
  if (name == "norm_outputs") return norm_outputs(args);
  name == "steps" ? steps(args) : chunks(args);
}

}  // namespace warpweave::host_tile

namespace warpweave::testing_linear {
namespace {

constexpr LinearAttnKernelCaps kCaps = {.name = "host",
                                        .gdn = true,
                                        .kda = true,
                                        .decode = true,
                                        .extend = true,
                                        .verify_chain = true,
                                        .verify_tree = true,
                                        .bf16_state = true,
                                        .checkpoints = true,
                                        .deterministic = true};

class HostTiles : public LinearAttnKernelBase {
 public:
  explicit HostTiles(host_cta::Order order) : order_(order) {}

  const LinearAttnKernelCaps& caps() const override { return kCaps; }
  size_t workspace_bytes(const LinearAttnShape& shape, const LinearAttnLimits& limits) const override {
    return linear_tile::workspace_bytes(spec_of(shape), limits);
  }
  void decode(const LinearAttnCall& call) override { run(call, LinearAttnPhase::decode); }
  void extend(const LinearAttnCall& call) override { run(call, LinearAttnPhase::extend); }
  void target_verify(const LinearAttnCall& call) override { run(call, LinearAttnPhase::target_verify); }
  void commit(const LinearAttnCall& call) override { run(call, LinearAttnPhase::commit); }

 private:
  static linear_tile::TileSpec spec_of(const LinearAttnShape& shape) {
    const auto spec = linear_tile::choose_tile(shape, {.lanes = tile::LaneKind::threads,
                                                       .local_memory_bytes = sizeof(host_tile::local_storage)});
    EXPECT_TRUE(spec.ok() && spec->warps == WARPS && spec->block == BLOCK && spec->step_rows == STEP_ROWS);
    return *spec;
  }
  void run(const LinearAttnCall& call, LinearAttnPhase phase) {
    const linear_tile::TileSpec spec = spec_of(call.shape);
    const LinearTileArgs args = linear_tile::make_args(spec, call, phase);
    for (const linear_tile::Launch& launch : linear_tile::launches(spec, call, phase)) {
      for (int group = 0; group < launch.x * launch.y * launch.z; ++group) {
        const unsigned x = group % launch.x, y = group / launch.x % launch.y;
        host_tile::group_z = group / launch.x / launch.y;
        host_cta::run(spec.work_items(), order_, [&] { host_tile::run_kernel(launch.kernel, args); }, {x, y});
      }
    }
  }

  const host_cta::Order order_;
};

int tokens_of(const LinearAttnCase& c) {
  int tokens = 0;
  for (int length : c.lengths) tokens += std::abs(length);
  return tokens;
}

TEST(HostTiles, EveryCase) {
  HostTiles kernel(host_cta::Order::ascending);
  double largest = 0;
  std::string at;
  for (const LinearAttnCase& c : linear_attn_cases()) {
    if (tokens_of(c) > 150) continue;  // the same blocks again
    const CaseResult result = run_case(kernel, c);
    EXPECT_TRUE(result.passed()) << c.name << ": " << result.text;
    if (result.largest_share > largest) largest = result.largest_share, at = c.name;
  }
  std::printf("largest share of a bound %.3f in %s\n", largest, at.c_str());
}

TEST(HostTiles, NoBarrierIsMissing) {
  for (host_cta::Order order : {host_cta::Order::descending, host_cta::Order::random}) {
    HostTiles kernel(order);
    for (const LinearAttnCase& c : linear_attn_cases()) {
      if (!c.conv || tokens_of(c) > 90) continue;
      const CaseResult result = run_case(kernel, c);
      EXPECT_TRUE(result.passed()) << c.name << ": " << result.text;
    }
  }
}

}  // namespace
}  // namespace warpweave::testing_linear
