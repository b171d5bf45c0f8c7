// The CPU kernels of every tier that this machine has, on every case; what the cases do not show.
#include "linear/cpu/cpu_linear_attn.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "linear/testing/suite.h"
#include "ops/aligned_buffer.h"

namespace warpweave::testing_linear {
namespace {

std::vector<CpuTier> tiers() {
  std::vector<CpuTier> list;
  for (CpuTier tier : kCpuLinearTiers) {
    if (tier <= cpu_info().tier) list.push_back(tier);
  }
  return list;
}

TEST(CpuLinearAttn, EveryCaseOnEveryTier) {
  ThreadTeam team(3);
  for (CpuTier tier : tiers()) {
    const auto kernel = make_cpu_linear_attn(team, tier);
    double largest = 0;
    std::string at;
    for (const LinearAttnCase& c : linear_attn_cases()) {
      ASSERT_TRUE(runs_case(kernel->caps(), c)) << c.name;
      const CaseResult result = run_case(*kernel, c);
      EXPECT_TRUE(result.passed()) << cpu_tier_name(tier) << ", " << c.name << ": " << result.text;
      if (result.largest_share > largest) largest = result.largest_share, at = c.name;
    }
    std::printf("%s: largest share of a bound %.3f in %s\n", std::string(cpu_tier_name(tier)).c_str(), largest, at.c_str());
    EXPECT_GT(largest, 0.2) << "a bound that is never approached proves little";
  }
}

// A random draw of everything that a case can say.
LinearAttnCase random_case(uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u;
  const auto draw = [&state](int below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state >> 33) % below);
  };
  LinearAttnCase c;
  c.name = "random " + std::to_string(seed);
  c.seed = seed;
  const int phase = draw(3);
  c.phase = phase == 0 ? LinearAttnPhase::decode : phase == 1 ? LinearAttnPhase::extend : LinearAttnPhase::target_verify;
  const int k_heads = 1 + draw(3);
  c.shape = {draw(2) ? LinearAttnKind::kda : LinearAttnKind::gdn, k_heads, k_heads * (1 + draw(4)), 16 * (1 + draw(8)),
             16 * (1 + draw(8))};
  const int longest[] = {1, 150, 64};
  for (int r = 1 + draw(6); r > 0; --r) c.lengths.push_back((draw(5) ? 1 : -1) * (1 + draw(longest[phase])));
  c.decay = static_cast<Decay>(draw(4));
  c.start = static_cast<Start>(draw(3));
  c.tree = static_cast<Tree>(draw(3));
  c.conv = draw(2);
  c.conv_bias = draw(2);
  c.conv_width = 2 + draw(7);
  c.gates = draw(2);
  c.norm = draw(2);
  c.norm_gate = static_cast<LinearAttnNormGate>(draw(2));
  c.l2norm = draw(3) != 0;
  c.alike_keys = draw(3) == 0;
  c.checkpoints = c.phase == LinearAttnPhase::extend && draw(2);
  c.strided = draw(2);
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  c.activation = types[draw(3)];
  c.out = types[draw(3)];
  c.state = types[draw(2)];
  return c;
}

TEST(CpuLinearAttn, RandomDraws) {
  ThreadTeam team(2);
  const auto kernel = make_cpu_linear_attn(team);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const LinearAttnCase c = random_case(seed);
    const CaseResult result = run_case(*kernel, c);
    EXPECT_TRUE(result.passed()) << c.name << ": " << result.text;
  }
}

// The errors of 100,000 tokens that forget next to nothing.
TEST(CpuLinearAttn, LongSequencesDoNotDrift) {
  ThreadTeam team(1);
  const auto kernel = make_cpu_linear_attn(team);
  for (LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    for (Decay decay : {Decay::near_one, Decay::mixed}) {
      const LinearAttnCase c{.name = "long", .shape = {kind, 1, 1, 16, 32}, .lengths = {100000}, .decay = decay};
      const CaseResult result = run_case(*kernel, c);
      EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << ": " << result.text;
    }
  }
}

AlignedBuffer workspace_for(const LinearAttnKernelBase& kernel, LinearAttnCall& call) {
  const LinearAttnLimits limits{call.batch->num_requests, call.batch->num_tokens,
                                call.conv != nullptr ? call.conv->width : 0};
  call.workspace_bytes = kernel.workspace_bytes(call.shape, limits);
  AlignedBuffer buffer = AlignedBuffer::allocate(call.workspace_bytes);
  call.workspace = buffer.data();
  return buffer;
}

// Decode after decode ends where one extend does, within what both may be off.
TEST(CpuLinearAttn, DecodeContinuesAsExtendDoes) {
  ThreadTeam team(1);
  const auto kernel = make_cpu_linear_attn(team);
  for (LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    LinearAttnCase c{.name = "steps", .shape = {kind, 1, 2, 32, 32}, .lengths = {500}};
    c.conv = c.gates = c.norm = true;
    LinearAttnProblem at_once(c), by_steps(c);
    LinearAttnCall call = at_once.call();
    AlignedBuffer workspace = workspace_for(*kernel, call);
    kernel->extend(call);
    LinearAttnBatch batch = *by_steps.call().batch;
    batch.q_indptr = nullptr;
    batch.num_tokens = batch.max_q_tokens = 1;
    for (int t = 0; t < 500; ++t) {
      LinearAttnCall step = by_steps.call();
      LinearAttnConv conv = *step.conv;
      LinearAttnGates gates = *step.gates;
      LinearAttnNorm norm = *step.norm;
      for (LinearAttnRows* rows : {&conv.x, &gates.a, &gates.b, &norm.z}) {
        rows->data = static_cast<const float*>(rows->data) + t * rows->token_stride;
      }
      step.batch = &batch;
      step.conv = &conv;
      step.gates = &gates;
      step.norm = &norm;
      step.out = static_cast<float*>(step.out) + t * step.out_token_stride;
      step.workspace = call.workspace;
      step.workspace_bytes = call.workspace_bytes;
      kernel->decode(step);
    }
    for (int t = 0; t < 500; ++t) {
      for (int i = 0; i < 64; ++i) {
        ASSERT_NEAR(at_once.out_at(t, i), by_steps.out_at(t, i), 2e-4) << linear_attn_kind_name(kind) << ", token " << t;
      }
    }
  }
}

// What speculation in deterministic mode rests on.
TEST(CpuLinearAttn, DraftedNodesHaveDecodesBits) {
  ThreadTeam team(2);
  for (const CpuTier tier : tiers()) {
    const auto kernel = make_cpu_linear_attn(team, tier);
    for (const LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
      for (const LinearAttnCase& c : testing_linear::chains_cases(kind)) {
        if (c.state != DType::f32) continue;  // rounded once a call
        const auto result = testing_linear::run_drafted_and_decoded(*kernel, c);
        EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << " " << c.name << ": " << result.text;
      }
    }
  }
}

TEST(CpuLinearAttn, CheckpointsAreTheStatesOfCallsThatEndThere) {
  ThreadTeam team(2);
  const auto kernel = make_cpu_linear_attn(team);
  for (LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
    const CaseResult result = run_in_pieces(*kernel, checkpoints_case(kind));
    EXPECT_TRUE(result.passed()) << linear_attn_kind_name(kind) << ": " << result.text;
  }
}

// Alone, in a batch, on one thread or on three: the same bits.
TEST(CpuLinearAttn, BitsDoNotDependOnTheBatch) {
  ThreadTeam one(1), three(3);
  for (LinearAttnPhase phase : {LinearAttnPhase::extend, LinearAttnPhase::target_verify}) {
    for (LinearAttnKind kind : {LinearAttnKind::gdn, LinearAttnKind::kda}) {
      LinearAttnCase c{.name = "bits", .phase = phase, .shape = {kind, 2, 4, 32, 48}, .lengths = {33, 5, 64, 17}, .tree = Tree::random};
      c.conv = c.gates = c.norm = true;
      LinearAttnProblem together(c);
      LinearAttnCall call = together.call();
      const auto kernel = make_cpu_linear_attn(three);
      AlignedBuffer workspace = workspace_for(*kernel, call);
      phase == LinearAttnPhase::extend ? kernel->extend(call) : kernel->target_verify(call);
      for (int r = 0; r < 4; ++r) {
        LinearAttnProblem alone(c);
        LinearAttnBatch batch = *alone.call().batch;
        batch.num_requests = 1;
        batch.q_indptr += r;
        batch.slots += r;
        LinearAttnCall own = alone.call();
        own.batch = &batch;
        const auto single = make_cpu_linear_attn(one);
        AlignedBuffer own_workspace = workspace_for(*single, own);
        phase == LinearAttnPhase::extend ? single->extend(own) : single->target_verify(own);
        for (int t = batch.q_indptr[0]; t < batch.q_indptr[1]; ++t) {
          for (int i = 0; i < 4 * 48; ++i) ASSERT_EQ(together.out_at(t, i), alone.out_at(t, i)) << "request " << r;
        }
        EXPECT_EQ(together.recurrent(batch.slots[0]), alone.recurrent(batch.slots[0]));
        EXPECT_EQ(together.conv_state(batch.slots[0]), alone.conv_state(batch.slots[0]));
      }
    }
  }
}

}  // namespace
}  // namespace warpweave::testing_linear
