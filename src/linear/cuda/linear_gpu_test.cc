// The kernels of linear attention on the GPU: the cases that every kernel is held to, random shapes, repetition bit by bit, and
// long prompts against decode, token by token. Skipped without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "linear/cuda/cuda_device.h"
#include "linear/cuda/testing/gpu_adapter.h"
#include "linear/cuda/testing/slack.h"
#include "linear/testing/suite.h"

namespace warpweave::linear {
namespace {

using testing_linear::LinearAttnCase;

bool no_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) != cudaSuccess || count == 0;
}

class LinearGpu : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (no_gpu()) GTEST_SKIP() << "no GPU";
  }
  void expect_right(const LinearAttnCase& c) {
    GpuAdapter kernel(make_cuda_linear_kernel(GetParam()));
    const auto result = testing_linear::run_case(kernel, c, {.slack = gpu_slack(c)});
    EXPECT_TRUE(result.passed()) << c.name << ": " << result.text;
    largest_share_ = std::max(largest_share_, result.largest_share);
  }
  double largest_share_ = 0;
};

TEST_P(LinearGpu, EveryCase) {
  for (const LinearAttnCase& c : testing_linear::linear_attn_cases()) expect_right(c);
  std::printf("largest share of a bound: %.2f\n", largest_share_);
}

TEST_P(LinearGpu, DecodeOfF32States) {
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const LinearAttnCase& c : testing_linear::decode_cases(kind)) expect_right(c);
  }
}

TEST_P(LinearGpu, RandomShapes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  for (int draw = 0; draw < 24; ++draw) {
    LinearAttnCase c;
    const int k_heads = pick(1, 3);
    c.shape = {pick(0, 1) ? LinearAttnKind::kda : LinearAttnKind::gdn, k_heads, k_heads * pick(1, 3), 16 * pick(4, 16), 16 * pick(4, 16)};
    c.phase = static_cast<LinearAttnPhase>(pick(0, 2));
    const bool tree = c.phase == LinearAttnPhase::target_verify;
    for (int r = pick(1, 4); r > 0; --r) c.lengths.push_back(c.phase == LinearAttnPhase::decode ? 1 : tree ? pick(1, 24) : pick(0, 150));
    if (tree) c.tree = testing_linear::Tree::random;
    c.conv = pick(0, 1), c.gates = pick(0, 1), c.norm = pick(0, 1);
    c.checkpoints = c.phase == LinearAttnPhase::extend && pick(0, 1);
    c.start = static_cast<testing_linear::Start>(pick(0, 2));
    c.activation = c.out = pick(0, 1) ? DType::bf16 : DType::f16;
    c.state = pick(0, 1) ? DType::f32 : DType::bf16;
    c.seed = random();
    c.name = "draw " + std::to_string(draw) + ": " + std::string(linear_attn_kind_name(c.shape.kind)) + " k " +
             std::to_string(c.shape.k_dim) + " v " + std::to_string(c.shape.v_dim) + " phase " + std::to_string(static_cast<int>(c.phase));
    expect_right(c);
  }
}

// Prompts in the form that suits their batch: short ones, and alike ones of several chunks, with heads for all multiprocessors.
TEST_P(LinearGpu, AnyForm) {
  if (!GetParam()) GTEST_SKIP() << "of one form";
  for (LinearAttnCase c : testing_linear::linear_attn_cases()) {
    c.any_form = true;
    if (c.phase == LinearAttnPhase::extend && c.shape.kind == LinearAttnKind::gdn) expect_right(c);
  }
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto pick = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  for (int draw = 0; draw < 6; ++draw) {
    const bool alike = draw % 3 == 0;
    LinearAttnCase c;
    c.shape = {LinearAttnKind::gdn, 1, alike ? 3 : pick(1, 3), 128, 128};
    c.any_form = true;
    for (int r = alike ? 44 : pick(4, 16); r > 0; --r) c.lengths.push_back(alike ? pick(280, 300) : pick(0, 250));
    c.conv = pick(0, 1), c.gates = pick(0, 1), c.checkpoints = pick(0, 1);
    c.start = static_cast<testing_linear::Start>(pick(0, 2));
    c.activation = c.out = pick(0, 1) ? DType::bf16 : DType::f16;
    c.state = pick(0, 1) ? DType::f32 : DType::bf16;
    c.seed = random();
    c.name = "draw " + std::to_string(draw);
    expect_right(c);
  }
}

// Few heads and long prompts, which are scanned in pieces where the call permits it.
TEST_P(LinearGpu, PromptsInPieces) {
  if (!GetParam()) GTEST_SKIP() << "of one form";
  std::mt19937 random(17);
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const std::vector<int>& lengths : {std::vector<int>{3000}, {4096}, {2500, 0, 700}}) {
      for (const int k_dim : {128, 112}) {
        LinearAttnCase c{.name = "pieces", .shape = {kind, 1, 2, k_dim, k_dim == 112 ? 80 : 128}, .lengths = lengths};
        c.any_form = true;
        c.start = lengths.size() == 1 ? testing_linear::Start::own_slot : testing_linear::Start::elsewhere;
        c.activation = c.out = kind == LinearAttnKind::gdn ? DType::bf16 : DType::f16;
        c.checkpoints = c.whole_chunks = lengths.size() > 1;
        c.seed = random();
        expect_right(c);
      }
    }
  }
}

TEST_P(LinearGpu, LongPromptIsWhatDecodeGives) {
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (int tokens : {2000, kind == LinearAttnKind::gdn ? 9000 : 34000}) {  // the longer ones in segments
      EXPECT_LT(difference_from_decode(*make_cuda_linear_kernel(GetParam()), {kind, 4, 8, 128, 128}, tokens), 0.01)
          << linear_attn_kind_name(kind);
    }
    for (const int k_dim : {64, 192, 256}) {
      EXPECT_LT(difference_from_decode(*make_cuda_linear_kernel(GetParam()), {kind, 2, 4, k_dim, k_dim == 192 ? 256 : 96}, 2000), 0.01)
          << linear_attn_kind_name(kind) << " " << k_dim;
    }
  }
}

// Few and many rows of a thread in commit.
TEST_P(LinearGpu, DraftedNodesHaveDecodesBits) {
  GpuAdapter kernel(make_cuda_linear_kernel(GetParam()));
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (LinearAttnCase c : testing_linear::chains_cases(kind)) {
      if (c.shape.k_dim > 128) continue;  // on the host's emulation alone: a call a token takes long here
      if (c.shape.k_dim == 64) c.shape.v_heads = 96;
      const auto result = testing_linear::run_drafted_and_decoded(kernel, c);
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << c.name << ": " << result.text;
    }
  }
}

TEST_P(LinearGpu, CheckpointsAreTheStatesOfCallsThatEndThere) {
  GpuAdapter kernel(make_cuda_linear_kernel(GetParam()));
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const bool exact : {false, true}) {
      for (const int dim : {64, 128, 256}) {
        LinearAttnCase c = testing_linear::checkpoints_case(kind);
        c.shape.k_dim = c.shape.v_dim = dim;
        c.exact = exact;
        c.whole_chunks = dim == 128;
        c.activation = c.out = exact ? DType::f32 : DType::bf16;
        const auto result = testing_linear::run_in_pieces(kernel, c);
        EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << dim << " " << exact << ": " << result.text;
      }
    }
    LinearAttnCase alone = testing_linear::checkpoints_case(kind);  // in segments
    alone.lengths = {kind == LinearAttnKind::gdn ? 9000 : 34000};
    alone.shape.v_heads = 1;
    alone.activation = alone.out = DType::bf16;
    alone.conv = false;
    for (const bool whole_chunks : {false, true}) {
      alone.whole_chunks = whole_chunks;
      const auto result = testing_linear::run_in_pieces(kernel, alone);
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " alone " << whole_chunks << ": " << result.text;
    }
  }
}

TEST_P(LinearGpu, SameBitsAgain) {
  EXPECT_TRUE(repeats(*make_cuda_linear_kernel(GetParam()), {LinearAttnKind::gdn, 16, 32, 128, 128}, 8, 700)) << "many requests";
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    EXPECT_TRUE(repeats(*make_cuda_linear_kernel(GetParam()), {kind, 4, 8, 128, 128}, 3, 700)) << linear_attn_kind_name(kind);
    EXPECT_TRUE(repeats(*make_cuda_linear_kernel(GetParam()), {kind, 4, 8, 256, 192}, 3, 700)) << linear_attn_kind_name(kind) << " 256";
    EXPECT_TRUE(repeats(*make_cuda_linear_kernel(GetParam()), {kind, 16, 32, 128, 128}, 1, kind == LinearAttnKind::gdn ? 12000 : 34000)) << linear_attn_kind_name(kind);
  }
}

// 26 heads in one launch, the other 6 in two: as in two launches.
TEST_P(LinearGpu, HeadsSharedOutAmongForms) {
  const auto kernel = make_cuda_linear_kernel(GetParam());
  RandomCall call(*kernel, {LinearAttnKind::gdn, 16, 32, 128, 128}, {5, 3000, 5}, DType::f32);
  kernel->extend(call.call);
  const auto expected = call.out();
  const auto expected_state = call.state();
  call.forget();
  call.call.any_form = true;
  kernel->extend(call.call);
  EXPECT_LT(relative_difference(call.out(), expected), 0.01);
  EXPECT_LT(relative_difference(call.state(), expected_state), 0.01);
}

// 64 requests are of one form of the kernel, and the first of them alone of another.
TEST_P(LinearGpu, DecodeGivesARequestTheSameBitsInAnyBatch) {
  constexpr int kSteps = 3;
  const auto kernel = make_cuda_linear_kernel(GetParam());
  const auto same_bits = [&](const LinearAttnShape& shape, DType state_dtype, bool norm) {
    RandomCall all(*kernel, shape, {64, 1, 64}, state_dtype);
    const std::vector<float> ones(shape.v_dim, 1.0f);
    LinearAttnNorm of_outputs;
    of_outputs.weight = all.memory.copy(ones.data(), ones.size());
    if (norm) all.call.norm = &of_outputs;
    all.batch.q_indptr = nullptr;
    for (int step = 0; step < kSteps; ++step) kernel->decode(all.call);
    auto out = all.out();
    auto state = all.state_bytes();
    all.forget();
    all.batch.num_requests = all.batch.num_tokens = 1;
    for (int step = 0; step < kSteps; ++step) kernel->decode(all.call);
    const auto alone = all.out();
    out.resize(alone.size()), state.resize(all.call.state.slot_stride * bytes_of_type(state_dtype));
    auto state_alone = all.state_bytes();
    state_alone.resize(state.size());
    EXPECT_EQ(out, alone) << linear_attn_kind_name(shape.kind) << " " << shape.k_dim << " " << norm;
    EXPECT_TRUE(state == state_alone) << linear_attn_kind_name(shape.kind) << " " << shape.k_dim << " " << norm;
  };
  for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (const DType state : {DType::f32, DType::bf16}) {
      for (const bool norm : {false, true}) {
        for (const int k_dim : {64, 96, 128, 192, 256}) same_bits({kind, 16, 16, k_dim, 128}, state, norm);
        for (const int k_dim : {64, 128}) same_bits({kind, 16, 16, k_dim, 64}, state, norm), same_bits({kind, 16, 64, k_dim, 64}, state, norm);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LinearGpu, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "wgmma" : "tile"; });

}  // namespace
}  // namespace warpweave::linear
