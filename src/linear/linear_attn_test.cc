// What a call and a batch may look like.
#include "linear/linear_attn.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace warpweave {
namespace {

float g_memory[16];

LinearAttnRows rows(int64_t token_stride, int64_t head_stride) {
  return {g_memory, DType::f32, token_stride, head_stride};
}

// 2 k heads, 4 v heads, dims 64 and 32; nothing is read.
LinearAttnCall sound_call(const LinearAttnBatch& batch) {
  LinearAttnCall call;
  call.shape = {LinearAttnKind::gdn, 2, 4, 64, 32};
  call.batch = &batch;
  call.q = call.k = rows(128, 64);
  call.v = rows(128, 32);
  call.g = call.beta = rows(4, 1);
  call.state = {g_memory, DType::f32, 4 * 64 * 32, 64 * 32};
  call.out = g_memory;
  call.out_token_stride = 128;
  return call;
}

LinearAttnConv sound_conv() {
  LinearAttnConv conv;
  conv.x = rows(2 * 128 + 128, 0);
  conv.weight = g_memory;
  conv.state = g_memory;
  conv.slot_stride = 3 * (2 * 128 + 128);
  return conv;
}

TEST(LinearAttnCall, EveryBrokenMemberIsNamed) {
  const LinearAttnBatch batch;
  ASSERT_TRUE(check_linear_attn_call(sound_call(batch)).ok()) << check_linear_attn_call(sound_call(batch)).message();
  struct Row { std::string_view member; std::function<void(LinearAttnCall&)> breaks; };
  for (const Row& row : std::vector<Row>{
           {"shape.k_dim", [](auto& c) { c.shape.k_dim = 72; }},
           {"shape.k_dim", [](auto& c) { c.shape.k_dim = 272; }},
           {"shape.v_dim", [](auto& c) { c.shape.v_dim = 0; }},
           {"shape.k_heads", [](auto& c) { c.shape.k_heads = 0; }},
           {"shape.v_heads", [](auto& c) { c.shape.v_heads = 5; }},
           {"batch", [](auto& c) { c.batch = nullptr; }},
           {"q", [](auto& c) { c.q.data = nullptr; }},
           {"q", [](auto& c) { c.q.head_stride = 63; }},
           {"k", [](auto& c) { c.k.token_stride = 127; }},
           {"v", [](auto& c) { c.v.dtype = DType::q8_0; }},
           {"g", [](auto& c) { c.g.dtype = DType::bf16; }},
           {"g", [](auto& c) { c.shape.kind = LinearAttnKind::kda; }},
           {"beta", [](auto& c) { c.beta = {}; }},
           {"state", [](auto& c) { c.state.data = nullptr; }},
           {"state.dtype", [](auto& c) { c.state.dtype = DType::f16; }},
           {"state.head_stride", [](auto& c) { c.state.head_stride = 1; }},
           {"state.slot_stride", [](auto& c) { c.state.slot_stride = 4 * 64 * 32 - 1; }},
           {"out", [](auto& c) { c.out = nullptr; }},
           {"out_dtype", [](auto& c) { c.out_dtype = DType::i8; }},
           {"out_token_stride", [](auto& c) { c.out_token_stride = 127; }}}) {
    LinearAttnCall call = sound_call(batch);
    row.breaks(call);
    const Status status = check_linear_attn_call(call);
    ASSERT_FALSE(status.ok()) << row.member;
    EXPECT_EQ(status.field(), row.member) << status.message();
  }
}

TEST(LinearAttnCall, OptionalPartsReplaceWhatTheyCompute) {
  const LinearAttnBatch batch;
  LinearAttnCall call = sound_call(batch);
  LinearAttnConv conv = sound_conv();
  call.conv = &conv;
  EXPECT_EQ(check_linear_attn_call(call).field(), "q");
  call.q = call.k = call.v = {};
  EXPECT_TRUE(check_linear_attn_call(call).ok()) << check_linear_attn_call(call).message();
  conv.width = 9;
  EXPECT_EQ(check_linear_attn_call(call).field(), "conv.width");
  conv.width = 4;
  conv.slot_stride -= 1;
  EXPECT_EQ(check_linear_attn_call(call).field(), "conv.slot_stride");
  conv = sound_conv();
  LinearAttnGates gates{rows(4, 1), rows(4, 1), g_memory, nullptr};
  call.gates = &gates;
  EXPECT_EQ(check_linear_attn_call(call).field(), "g");
  call.g = call.beta = {};
  EXPECT_TRUE(check_linear_attn_call(call).ok()) << check_linear_attn_call(call).message();
  gates.a_log = nullptr;
  EXPECT_EQ(check_linear_attn_call(call).field(), "gates.a_log");
  gates.a_log = g_memory;
  LinearAttnNorm norm;
  call.norm = &norm;
  EXPECT_EQ(check_linear_attn_call(call).field(), "norm.weight");
  norm.weight = g_memory;
  norm.z = rows(128, 31);
  EXPECT_EQ(check_linear_attn_call(call).field(), "norm.z");
}

// Two requests of 3 and 2 tokens, and a padded one.
struct TestBatch {
  std::vector<int32_t> indptr{0, 3, 5, 6}, slots{4, 0, -1}, initial{-1, 2, -1};
  std::vector<int32_t> checkpoint_indptr{0, 2, 3, 3}, checkpoint_tokens{1, 3, 2}, checkpoint_slots{5, 6, 7};
  std::vector<int32_t> parents{-1, 0, 0, -1, -1, -1}, accepted{2, -1, -1};
  bool end_chunks = false;
  LinearAttnBatch view() const {
    LinearAttnBatch batch;
    batch.num_requests = 3;
    batch.num_tokens = 6;
    batch.max_q_tokens = 3;
    batch.q_indptr = indptr.data();
    batch.slots = slots.data();
    batch.initial_slots = initial.data();
    batch.checkpoint_indptr = checkpoint_indptr.data();
    batch.checkpoint_tokens = checkpoint_tokens.data();
    batch.checkpoint_slots = checkpoint_slots.data();
    batch.checkpoints_end_chunks = end_chunks;
    batch.parents = parents.data();
    batch.accepted = accepted.data();
    return batch;
  }
};

TEST(LinearAttnBatch, EveryBrokenArrayIsNamed) {
  ASSERT_TRUE(check_linear_attn_batch(TestBatch().view(), 8).ok()) << check_linear_attn_batch(TestBatch().view(), 8).message();
  struct Row { std::string_view member; std::function<void(TestBatch&)> breaks; };
  for (const Row& row : std::vector<Row>{
           {"batch.q_indptr", [](TestBatch& b) { b.indptr[1] = 6; }},
           {"batch.q_indptr", [](TestBatch& b) { b.indptr[3] = 7; }},
           {"batch.q_indptr", [](TestBatch& b) { b.indptr[0] = -1; }},
           {"batch.max_q_tokens", [](TestBatch& b) { b.indptr = {0, 0, 4, 4}, b.parents = {-1, 0, 1, 2}, b.slots[0] = -1, b.accepted[0] = -1; }},
           {"batch.slots", [](TestBatch& b) { b.slots[1] = 4; }},
           {"batch.slots", [](TestBatch& b) { b.slots[0] = 8; }},
           {"batch.slots", [](TestBatch& b) { b.slots[0] = -2; }},
           {"batch.initial_slots", [](TestBatch& b) { b.initial[0] = 8; }},
           {"batch.initial_slots", [](TestBatch& b) { b.initial[0] = 0; }},
           {"batch.initial_slots", [](TestBatch& b) { b.initial[1] = 6; }},
           {"batch.checkpoint_tokens", [](TestBatch& b) { b.checkpoint_tokens[1] = 1; }},
           {"batch.checkpoint_tokens", [](TestBatch& b) { b.checkpoint_tokens[1] = 4; }},
           {"batch.checkpoint_tokens", [](TestBatch& b) { b.checkpoint_tokens[0] = 0; }},
           {"batch.checkpoint_slots", [](TestBatch& b) { b.checkpoint_slots[2] = 5; }},
           {"batch.checkpoint_slots", [](TestBatch& b) { b.checkpoint_slots[2] = -1; }},
           {"batch.checkpoints_end_chunks", [](TestBatch& b) { b.end_chunks = true; }},
           {"batch.parents", [](TestBatch& b) { b.parents[1] = 1; }},
           {"batch.parents", [](TestBatch& b) { b.parents[4] = -2; }},
           {"batch.accepted", [](TestBatch& b) { b.accepted[0] = 3; }},
           {"batch.accepted", [](TestBatch& b) { b.accepted[1] = -2; }}}) {
    TestBatch broken;
    row.breaks(broken);
    const Status status = check_linear_attn_batch(broken.view(), 8);
    ASSERT_FALSE(status.ok()) << row.member;
    EXPECT_EQ(status.field(), row.member) << status.message();
  }
}

TEST(LinearAttnBatch, EachCallHasItsOwnLimits) {
  using Phase = LinearAttnPhase;
  const int32_t indptr[] = {0, kLinearAttnMaxVerifyNodes + 1}, slot = 0, accepted = 0;
  LinearAttnBatch batch;
  batch.num_requests = 1;
  batch.num_tokens = batch.max_q_tokens = indptr[1];
  batch.q_indptr = indptr;
  batch.slots = &slot;
  EXPECT_TRUE(check_linear_attn_batch(batch, 1, Phase::extend).ok());
  EXPECT_EQ(check_linear_attn_batch(batch, 1, Phase::decode).field(), "batch.q_indptr");
  EXPECT_EQ(check_linear_attn_batch(batch, 1, Phase::target_verify).field(), "batch.q_indptr");
  EXPECT_EQ(check_linear_attn_batch(batch, 1, Phase::commit).field(), "batch.accepted");
  batch.accepted = &accepted;
  EXPECT_EQ(check_linear_attn_batch(batch, 1, Phase::commit).field(), "batch.q_indptr");
}

TEST(LinearAttnBatch, ARequestMayContinueItsOwnSlotAndForksMayShareOne) {
  TestBatch test;
  test.initial = {4, 0, -1};
  EXPECT_TRUE(check_linear_attn_batch(test.view(), 8).ok());
  test.initial = {2, 2, -1};
  EXPECT_TRUE(check_linear_attn_batch(test.view(), 8).ok());
}

}  // namespace
}  // namespace warpweave
