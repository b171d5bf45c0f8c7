#include "batch/batch_builder.h"

#include <gtest/gtest.h>

namespace warpweave {
namespace {

using Ints = std::vector<int32_t>;

Ints to_vector(std::span<const int32_t> values) { return {values.begin(), values.end()}; }

StepRow make_row(RequestId id, int start, const Ints& tokens, const Ints& pages) {
  StepRow row;
  row.id = id;
  row.start = start;
  row.num_tokens = static_cast<int>(tokens.size());
  row.input_ids = tokens.data();
  row.pages = pages.data();
  row.num_pages = static_cast<int>(pages.size());
  row.pages_version = 1;
  return row;
}

TEST(BatchBuilder, LaysOutAMixedStep) {
  const Ints prompt = {10, 11, 12}, unused = {0};
  const Ints pages_a = {7, 2}, pages_b = {5};
  Step step;
  step.rows.push_back(make_row(1, 3, prompt, pages_a));  // positions 3..5, pages of 4
  step.rows[0].prefill = true;
  step.rows[0].num_logits = 2;
  step.rows[0].sample_slot = 0;
  step.rows.push_back(make_row(2, 2, unused, pages_b));
  step.rows[1].input_ids = nullptr;
  step.rows[1].future_slot = 1;
  step.rows[1].num_logits = 1;
  step.rows[1].sample_slot = 1;
  step.num_tokens = 4;
  step.num_samples = 2;

  BatchBuilder builder({.page_size = 4});
  const ForwardBatch& batch = builder.build(step);
  EXPECT_EQ(batch.mode, ForwardMode::mixed);
  EXPECT_EQ(batch.num_reqs, 2);
  EXPECT_EQ(batch.num_tokens, 4);
  EXPECT_EQ(batch.max_q_len, 3);
  EXPECT_EQ(batch.max_kv_len, 6);
  EXPECT_EQ(to_vector(batch.positions), (Ints{3, 4, 5, 2}));
  EXPECT_EQ(to_vector(batch.kv_slots), (Ints{31, 8, 9, 22}));
  EXPECT_EQ(to_vector(batch.q_indptr), (Ints{0, 3, 4}));
  EXPECT_EQ(to_vector(batch.kv_lens), (Ints{6, 3}));
  EXPECT_EQ(to_vector(batch.logits_rows), (Ints{1, 2, 3}));
  EXPECT_EQ(to_vector(builder.sample_rows()), (Ints{1, 2}));
  EXPECT_EQ(batch.pages_of(0)[0], 7);
  EXPECT_EQ(batch.pages_of(0)[1], 2);
  EXPECT_EQ(batch.pages_of(1)[0], 5);
  ASSERT_EQ(builder.futures().size(), 1u);
  builder.patch_futures(Ints{98, 99});
  EXPECT_EQ(to_vector(batch.input_ids), (Ints{10, 11, 12, 99}));
}

TEST(BatchBuilder, NamesTheMode) {
  BatchBuilder builder({.page_size = 2});
  EXPECT_EQ(builder.build(Step{}).mode, ForwardMode::idle);
  const Ints one = {1}, two = {1, 2}, pages = {0, 1};
  Step step;
  step.rows.push_back(make_row(1, 0, two, pages));
  step.rows[0].prefill = true;
  step.num_tokens = 2;
  EXPECT_EQ(builder.build(step).mode, ForwardMode::extend);
  step.rows[0] = make_row(1, 2, one, pages);
  step.num_tokens = 1;
  EXPECT_EQ(builder.build(step).mode, ForwardMode::decode);
}

TEST(BatchBuilder, TellsAPromptOfOneTokenFromADecodeWhereBitsDiffer) {
  const Ints token = {10}, pages = {7};
  for (const bool prefill : {false, true}) {
    for (const bool apart : {false, true}) {
      Step step;
      step.rows.push_back(make_row(1, 3, token, pages));
      step.rows[0].prefill = prefill;
      step.num_tokens = 1;
      BatchBuilder builder({.page_size = 4, .prompts_apart = apart});
      EXPECT_EQ(builder.build(step).mode, prefill && apart ? ForwardMode::extend : ForwardMode::decode);
    }
  }
}

TEST(BatchBuilder, KeepsTableRowsRightWhenRequestsMoveGrowAndChangePages) {
  const Ints token = {1};
  BatchBuilder builder({.page_size = 1});
  const auto build = [&](std::vector<StepRow> rows) {
    Step step;
    step.rows = std::move(rows);
    step.num_tokens = static_cast<int>(step.rows.size());
    const ForwardBatch& batch = builder.build(step);
    for (int r = 0; r < batch.num_reqs; ++r) {
      const StepRow& row = step.rows[r];
      EXPECT_EQ(Ints(batch.pages_of(r), batch.pages_of(r) + row.num_pages),
                Ints(row.pages, row.pages + row.num_pages));
    }
  };
  Ints a = {3, 4}, b = {5, 6, 7};
  build({make_row(1, 1, token, a), make_row(2, 2, token, b)});
  a.push_back(8);
  build({make_row(1, 2, token, a), make_row(2, 2, token, b)});  // grows
  build({make_row(2, 2, token, b), make_row(1, 2, token, a)});  // rows swap
  a[0] = 9;                                                     // pages displaced
  StepRow changed = make_row(1, 2, token, a);
  changed.pages_version = 2;
  build({make_row(2, 2, token, b), changed});
  b.assign(500, 11);                                            // the stride grows
  build({make_row(2, 499, token, b), changed});
  build({changed});
}

// Node 0 with children 1 and 2, and 3 below 2; beside it a chain and a row without proposals.
TEST(BatchBuilder, LaysProposalsOutAsRowsThatSeeTheirAncestors) {
  const Ints a = {7}, b = {8}, c = {9}, pages = {0, 1, 2, 3, 4};
  Step step;
  step.rows = {make_row(1, 5, a, pages), make_row(2, 4, b, pages), make_row(3, 3, c, pages)};
  for (int i = 0; i < 3; ++i) {
    step.rows[i].sample_slot = i;
    step.rows[i].num_logits = 1;
    step.rows[i].max_proposals = 3;
  }
  step.num_tokens = step.num_samples = 3;
  BatchBuilder builder({.page_size = 2});
  const std::vector<Proposal> proposals = {{{70, 71, 72}, {0, 0, 2}}, {{80, 81}, {}}, {}};
  const ForwardBatch& batch = builder.build(step, proposals);
  EXPECT_EQ(batch.mode, ForwardMode::target_verify);
  EXPECT_EQ(Ints(batch.input_ids.begin(), batch.input_ids.end()), Ints({7, 70, 71, 72, 8, 80, 81, 9}));
  EXPECT_EQ(Ints(batch.positions.begin(), batch.positions.end()), Ints({5, 6, 6, 7, 4, 5, 6, 3}));
  EXPECT_EQ(Ints(batch.kv_slots.begin(), batch.kv_slots.end()), Ints({5, 6, 7, 8, 4, 5, 6, 3}));
  EXPECT_EQ(Ints(batch.kv_lens.begin(), batch.kv_lens.end()), Ints({9, 7, 4}));
  EXPECT_EQ(Ints(batch.logits_rows.begin(), batch.logits_rows.end()), Ints({0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(Ints(builder.sample_rows().begin(), builder.sample_rows().end()), Ints({0, 4, 7}));
  ASSERT_EQ(batch.tree_mask_words, 1);
  EXPECT_EQ(std::vector<uint32_t>(batch.tree_mask.begin(), batch.tree_mask.end()),
            (std::vector<uint32_t>{0b0001, 0b0011, 0b0101, 0b1101, 0b001, 0b011, 0b111, 0b1}));
  EXPECT_TRUE(builder.build(step, {}).tree_mask.empty());
  EXPECT_EQ(builder.batch().mode, ForwardMode::decode);
}

TEST(BatchBuilder, ListsTheCheckpointsOfEachRequest) {
  const Ints prompt = {10, 11, 12}, pages = {0};
  Step step;
  for (int r = 0; r < 3; ++r) {
    step.rows.push_back(make_row(1 + r, 0, prompt, pages));
    step.rows[r].prefill = true;
    step.rows[r].state_slot = r;
  }
  step.num_tokens = 9;
  BatchBuilder builder({.page_size = 4});
  EXPECT_TRUE(builder.build(step).state_checkpoints.indptr.empty());
  step.state_checkpoints = {{1, 7}, {2, 5}, {2, 9}};
  step.rows[0].num_checkpoints = 2;
  step.rows[1].first_checkpoint = step.rows[2].first_checkpoint = 2;
  step.rows[2].num_checkpoints = 1;
  const StateCheckpointArrays& checkpoints = builder.build(step).state_checkpoints;
  EXPECT_EQ(to_vector(checkpoints.indptr), (Ints{0, 2, 2, 3}));
  EXPECT_EQ(to_vector(checkpoints.tokens), (Ints{1, 2, 2}));
  EXPECT_EQ(to_vector(checkpoints.slots), (Ints{7, 5, 9}));
}

// A prompt of two rows at places of its own, of which the second is computed here, and one request without any.
TEST(BatchBuilder, PlacesRowsInTimeHeightAndWidth) {
  const Ints tokens = {1, 2, 3}, token = {1}, pages = {0, 1};
  Step step;
  step.rows.push_back(make_row(1, 1, tokens, pages));
  step.rows.push_back(make_row(2, 4, token, pages));
  step.num_tokens = 4;
  BatchBuilder builder({.page_size = 4});
  EXPECT_TRUE(builder.build(step).rope_positions.empty());
  const Ints prompt = {3, 4, 5, 6, 7, 8};
  builder.place_rows(std::vector<RowPlaces>{{.prompt = prompt, .after_prompt = 7}, {}});
  EXPECT_EQ(to_vector(builder.batch().positions), (Ints{1, 2, 3, 4}));
  EXPECT_EQ(to_vector(builder.batch().rope_positions), (Ints{4, 9, 10, 4, 6, 9, 10, 4, 8, 9, 10, 4}));
  EXPECT_TRUE(builder.build(step).rope_positions.empty());
}

}  // namespace
}  // namespace warpweave
