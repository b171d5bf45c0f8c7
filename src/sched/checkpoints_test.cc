// Checkpoints of recurrent states: where a prompt's rows leave them, in which slots, and when others may go on from them.
#include <algorithm>

#include "sched/testing/scheduler_steps.h"

namespace warpweave {
namespace {

SchedulerConfig states_config(int checkpoints) {
  SchedulerConfig config = make_config();
  config.max_running_requests = 2;
  config.state_request_slots = 2;
  config.state_slots = 2 + checkpoints;
  config.state_interval = 8;
  return config;
}

struct Row {
  int start, end;
  std::vector<int> within;  // positions of checkpoints
  bool at_end;
  bool operator==(const Row&) const = default;
};
void PrintTo(const Row& row, std::ostream* out) {
  *out << "[" << row.start << ", " << row.end << ")" << (row.at_end ? " saved" : "");
  for (const int position : row.within) *out << " " << position;
}

// The only row of a step, which is not committed.
Row only_row(const Step& step) {
  EXPECT_EQ(step.rows.size(), 1u);
  const StepRow& row = step.rows[0];
  Row out{row.start, row.start + row.num_tokens, {}, !step.state_saves.empty()};
  for (int i = 0; i < row.num_checkpoints; ++i) {
    out.within.push_back(row.start + step.state_checkpoints[row.first_checkpoint + i].num_tokens);
  }
  return out;
}

std::vector<Row> rows_of_prompt(Scheduler& scheduler, int prompt_len) {
  std::vector<Row> rows;
  do {
    const Step& step = scheduler.schedule();
    rows.push_back(only_row(step));
    commit(scheduler, step);
    EXPECT_TRUE(scheduler.audit().ok()) << scheduler.audit().message();
  } while (rows.back().end < prompt_len);
  return rows;
}

TEST(Checkpoints, AreLeftWithinTheRowsOfAPrompt) {
  SchedulerConfig config = states_config(12);
  Scheduler whole(config);
  ASSERT_TRUE(whole.add(make_spec(1, 30, 1)).ok());
  EXPECT_EQ(rows_of_prompt(whole, 30), (std::vector<Row>{{0, 30, {8, 16, 24}, true}}));
  config.chunked_prefill_size = 12;
  Scheduler cut(config);
  ASSERT_TRUE(cut.add(make_spec(1, 32, 1)).ok());
  EXPECT_EQ(rows_of_prompt(cut, 32),
            (std::vector<Row>{{0, 12, {8}, false}, {12, 24, {16}, true}, {24, 32, {}, true}}));
  run_to_idle(cut);
}

TEST(Checkpoints, EndRowsWhereKernelsLeaveNone) {
  SchedulerConfig config = states_config(12);
  config.state_checkpoints_within_rows = false;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 20, 1)).ok());
  EXPECT_EQ(rows_of_prompt(scheduler, 20),
            (std::vector<Row>{{0, 8, {}, true}, {8, 16, {}, true}, {16, 20, {}, true}}));
}

TEST(Checkpoints, StandWherePromptsMayBeCut) {
  SchedulerConfig config = states_config(12);
  config.state_cut_tokens = 4;
  config.chunked_prefill_size = 10;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 30, 12, 0)).ok());
  EXPECT_EQ(rows_of_prompt(scheduler, 30), (std::vector<Row>{{0, 8, {}, true}, {8, 16, {}, true}, {16, 24, {}, true}, {24, 30, {28}, false}}));
  ScheduledRequestSpec other = make_spec(2, 30, 1, 0);
  std::fill(other.input_ids.begin() + 23, other.input_ids.end(), 5000);
  ASSERT_TRUE(scheduler.add(other).ok());
  EXPECT_EQ(only_row(scheduler.schedule()), (Row{16, 24, {20}, true}));
}

// Where pages do not end at such places, chunks need not end at pages.
TEST(Checkpoints, PromptsAreCutBetweenPagesToo) {
  SchedulerConfig config = states_config(12);
  config.page_size = 5;
  config.state_cut_tokens = 4;
  config.chunked_prefill_size = 5;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 14, 1)).ok());
  EXPECT_EQ(rows_of_prompt(scheduler, 14),
            (std::vector<Row>{{0, 4, {}, false}, {4, 8, {}, true}, {8, 12, {}, false}, {12, 14, {}, false}}));
}

// Nor are generated tokens shared, which a prompt that holds them computes otherwise, nor a prompt's last chunk.
TEST(Checkpoints, OnlyWholeChunksOfPromptsAreSharedThere) {
  for (const auto& [cut, cached] : {std::pair(1, 21), {4, 8}}) {
    SchedulerConfig config = states_config(12);
    config.state_cut_tokens = cut;
    Scheduler scheduler(config);
    ASSERT_TRUE(scheduler.add(make_spec(1, 10, 12)).ok());
    run_to_idle(scheduler);
    EXPECT_EQ(scheduler.stats().evictable_tokens, cached);
  }
}

// The rest of a step that is too short to reach a place to cut at is left.
TEST(Checkpoints, PromptsWaitForAStepThatTheyMayBeCutIn) {
  SchedulerConfig config = states_config(12);
  config.state_cut_tokens = 8;
  config.chunked_prefill_size = 16;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 11, 12, 0)).ok());
  ASSERT_TRUE(scheduler.add(make_spec(2, 9, 12, 40)).ok());
  const Step& first = scheduler.schedule();
  EXPECT_EQ(only_row(first), (Row{0, 11, {8}, false}));
  commit(scheduler, first);
  const Step& second = scheduler.schedule();
  ASSERT_EQ(second.rows.size(), 1u);
  EXPECT_EQ(second.rows[0].id, 2u);
  EXPECT_EQ(second.rows[0].num_tokens, 9);
  commit(scheduler, second);
  run_to_idle(scheduler);
  EXPECT_EQ(scheduler.tree().checkpoints().size(), 2u) << "generated tokens leave none";
}

TEST(Checkpoints, AreNotTakenWithoutAPrefixCache) {
  SchedulerConfig config = states_config(12);
  config.disable_radix_cache = true;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 30, 1)).ok());
  EXPECT_EQ(rows_of_prompt(scheduler, 30), (std::vector<Row>{{0, 30, {}, false}}));
}

TEST(Checkpoints, AreLeftWherePromptsPart) {
  Scheduler scheduler(states_config(12));
  ASSERT_TRUE(scheduler.add(make_spec(1, 30, 1, 0)).ok());
  rows_of_prompt(scheduler, 30);
  ScheduledRequestSpec other = make_spec(2, 30, 1, 0);
  std::fill(other.input_ids.begin() + 21, other.input_ids.end(), 5000);
  ASSERT_TRUE(scheduler.add(other).ok());
  EXPECT_EQ(rows_of_prompt(scheduler, 30), (std::vector<Row>{{16, 30, {21, 24}, true}}));
  other.id = 3;
  std::fill(other.input_ids.begin() + 21, other.input_ids.end(), 6000);
  ASSERT_TRUE(scheduler.add(other).ok());
  EXPECT_EQ(rows_of_prompt(scheduler, 30), (std::vector<Row>{{21, 30, {24}, true}}));
}

// Others go on from a checkpoint when the step that leaves it is committed, not before.
TEST(Checkpoints, AreKnownWhenTheirStepIsCommitted) {
  SchedulerConfig config = states_config(12);
  config.overlap_depth = 1;
  config.chunked_prefill_size = 20;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 30, 1, 0)).ok());
  const Step& first = scheduler.schedule();
  EXPECT_EQ(only_row(first), (Row{0, 20, {8, 16}, false}));
  EXPECT_EQ(scheduler.states()->num_checkpoints(), 2);
  EXPECT_TRUE(scheduler.tree().checkpoints().empty());
  commit(scheduler, first);
  EXPECT_TRUE(scheduler.finish(1));  // aborted: what was committed stays
  EXPECT_EQ(scheduler.tree().checkpoints().size(), 2u);
  EXPECT_TRUE(scheduler.audit().ok()) << scheduler.audit().message();
}

TEST(Checkpoints, OfAFailedStepGiveTheirSlotsBack) {
  Scheduler scheduler(states_config(12));
  ASSERT_TRUE(scheduler.add(make_spec(1, 30, 1)).ok());
  EXPECT_EQ(only_row(scheduler.schedule()).within.size(), 3u);
  EXPECT_EQ(scheduler.states()->num_checkpoints(), 4);
  scheduler.fail_uncommitted();
  EXPECT_EQ(scheduler.states()->num_checkpoints(), 0);
  EXPECT_EQ(scheduler.states()->num_requests(), 0);
  EXPECT_TRUE(scheduler.audit().ok()) << scheduler.audit().message();
}

// The end of a prompt first, then from its last to its first.
TEST(Checkpoints, TheLaterOnesAreTakenWhereSlotsAreShort) {
  Scheduler one_row(states_config(3));
  ASSERT_TRUE(one_row.add(make_spec(1, 50, 1)).ok());
  EXPECT_EQ(rows_of_prompt(one_row, 50), (std::vector<Row>{{0, 50, {40, 48}, true}}));
  // Over several rows, the request's own earliest gives way.
  SchedulerConfig config = states_config(3);
  config.chunked_prefill_size = 20;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 50, 2, 0)).ok());
  EXPECT_EQ(rows_of_prompt(scheduler, 50),
            (std::vector<Row>{{0, 20, {8, 16}, false}, {20, 40, {24, 32}, true}, {40, 50, {48}, true}}));
  run_to_idle(scheduler);
  EXPECT_EQ(scheduler.tree().checkpoints().size(), 3u);
  // And what the cache has; but the end of another prompt only for an end.
  ASSERT_TRUE(scheduler.add(make_spec(2, 20, 1)).ok());
  EXPECT_EQ(rows_of_prompt(scheduler, 20), (std::vector<Row>{{0, 20, {16}, true}}));
  Scheduler none(states_config(0));
  ASSERT_TRUE(none.add(make_spec(1, 30, 1)).ok());
  EXPECT_EQ(rows_of_prompt(none, 30), (std::vector<Row>{{0, 30, {}, false}}));
}

}  // namespace
}  // namespace warpweave
