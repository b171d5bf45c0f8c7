// The gated short convolution on the host against a reference in f64.
#include "linear/short_conv.h"

#include <gtest/gtest.h>

#include "linear/testing/short_conv_problem.h"

namespace warpweave {
namespace {

using testing_linear::ShortConvCase;
using testing_linear::ShortConvProblem;

TEST(ShortConv, GivesTheReference) {
  ThreadTeam team(2);
  for (const ShortConvCase& c : testing_linear::short_conv_cases()) {
    ShortConvProblem problem(c);
    const ShortConvCall call = problem.call();
    const Status status = check_short_conv_call(call);
    ASSERT_TRUE(status.ok()) << c.name << ": " << status.message();
    run_short_conv(call, team);
    EXPECT_LE(problem.error(), 2e-6) << c.name;
  }
}

TEST(ShortConv, RefusesWhatItCannotRun) {
  ShortConvProblem problem({.name = "", .lengths = {3}});
  const auto field = [&](const auto& change) {
    ShortConvCall call = problem.call();
    LinearAttnBatch batch = *call.batch;
    call.batch = &batch;
    change(call, batch);
    return check_short_conv_call(call).field();
  };
  const int32_t some[4] = {};
  EXPECT_EQ(field([](ShortConvCall& call, LinearAttnBatch&) { call.channels = 24; }), "channels");
  EXPECT_EQ(field([](ShortConvCall& call, LinearAttnBatch&) { call.conv.width = 9; }), "conv.width");
  EXPECT_EQ(field([](ShortConvCall& call, LinearAttnBatch&) { call.conv.silu = true; }), "conv.silu");
  EXPECT_EQ(field([](ShortConvCall& call, LinearAttnBatch&) { call.conv.x.token_stride = 100; }), "conv.x");
  EXPECT_EQ(field([](ShortConvCall& call, LinearAttnBatch&) { call.conv.slot_stride = 95; }), "conv.slot_stride");
  EXPECT_EQ(field([](ShortConvCall& call, LinearAttnBatch&) { call.conv.state_dtype = DType::f16; }), "conv.state_dtype");
  EXPECT_EQ(field([](ShortConvCall& call, LinearAttnBatch&) { call.out = nullptr; }), "out");
  EXPECT_EQ(field([](ShortConvCall& call, LinearAttnBatch&) { call.phase = LinearAttnPhase::commit; }), "batch.accepted");
  EXPECT_EQ(field([](ShortConvCall& call, LinearAttnBatch&) { call.phase = LinearAttnPhase::target_verify; }),
            "batch.max_q_tokens");
  EXPECT_EQ(field([&](ShortConvCall&, LinearAttnBatch& batch) { batch.parents = some; }), "batch.parents");
  EXPECT_EQ(field([&](ShortConvCall& call, LinearAttnBatch& batch) {
              call.phase = LinearAttnPhase::decode;
              batch.checkpoint_indptr = some;
            }),
            "batch.checkpoint_indptr");
}

}  // namespace
}  // namespace warpweave
