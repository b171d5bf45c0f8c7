// Bounds of the configuration, and of the patience that requests have with each other.
#include <algorithm>
#include <map>

#include "sched/new_token_ratio.h"
#include "sched/testing/scheduler_steps.h"

namespace warpweave {
namespace {

// `field` set to `least` is right, and one less is refused by a message that names `flag`.
void expect_least(int SchedulerConfig::*field, int least, const std::string& flag) {
  SchedulerConfig config = make_config();
  config.max_running_requests = 1;
  config.*field = least;
  EXPECT_TRUE(Scheduler::validate(config).ok()) << flag << ": " << Scheduler::validate(config).message();
  config.*field = least - 1;
  EXPECT_EQ(Scheduler::validate(config).field(), flag);
}

TEST(SchedulerPolicy, EveryBoundOfTheConfigurationIsExact) {
  expect_least(&SchedulerConfig::page_size, 1, "--page-size");
  expect_least(&SchedulerConfig::num_pages, 1, "--max-total-tokens");
  expect_least(&SchedulerConfig::context_len, 1, "--context-length");
  expect_least(&SchedulerConfig::max_running_requests, 1, "--max-running-requests");
  expect_least(&SchedulerConfig::max_prefill_tokens, 1, "--max-prefill-tokens");
  expect_least(&SchedulerConfig::mixed_chunk_rows, 0, "--mixed-chunk-rows");
  expect_least(&SchedulerConfig::max_adapters, 1, "--max-loras-per-batch");
  expect_least(&SchedulerConfig::max_queued_requests, 1, "--max-queued-requests");
  expect_least(&SchedulerConfig::chunked_prefill_size, 1, "--chunked-prefill-size");
  for (int SchedulerConfig::*unbounded :
       {&SchedulerConfig::max_queued_requests, &SchedulerConfig::chunked_prefill_size}) {
    SchedulerConfig config = make_config();
    config.*unbounded = -1;
    EXPECT_TRUE(Scheduler::validate(config).ok());
    config.*unbounded = -2;
    EXPECT_FALSE(Scheduler::validate(config).ok());
  }
  SchedulerConfig config = make_config();
  for (const double conservativeness : {0.0, -0.5}) {
    config.schedule_conservativeness = conservativeness;
    EXPECT_EQ(Scheduler::validate(config).field(), "--schedule-conservativeness");
  }
  for (const int depth : {-1, 0, 1, 2}) {
    config = make_config();
    config.overlap_depth = depth;
    EXPECT_EQ(Scheduler::validate(config).ok(), depth == 0 || depth == 1);
  }
  for (const int proposals : {-1, 0}) {
    config = make_config();
    config.max_proposals = proposals;
    EXPECT_EQ(Scheduler::validate(config).ok(), proposals == 0);
  }
  for (const int groups : {0, 1, kMaxCacheGroups, kMaxCacheGroups + 1}) {
    config = make_config();
    config.cache_groups.resize(groups);
    EXPECT_EQ(Scheduler::validate(config).ok(), groups > 0 && groups <= kMaxCacheGroups) << groups;
  }
}

TEST(SchedulerPolicy, APoolIsSplitBetweenGroupsOfBothKinds) {
  const auto is_right = [](int window_pages, std::vector<CacheGroupRule> groups) {
    SchedulerConfig config = make_config();
    config.window_pages = window_pages;
    config.cache_groups = std::move(groups);
    return Scheduler::validate(config).ok();
  };
  EXPECT_TRUE(is_right(0, {{-1}, {7}}));
  EXPECT_TRUE(is_right(1, {{-1}, {7}}));
  EXPECT_TRUE(is_right(63, {{-1}, {7}}));
  EXPECT_FALSE(is_right(64, {{-1}, {7}}));
  EXPECT_FALSE(is_right(1, {{-1}, {7}, {7}}));
  EXPECT_FALSE(is_right(1, {{-1}}));
  EXPECT_FALSE(is_right(1, {{7}, {7}}));
}

// Four requests of 12 pages without a window and 3 with one: either part may be the one that is too small.
TEST(SchedulerPolicy, ASplitPoolRetractsForEitherPart) {
  for (const int window_pages : {0, 8, 44}) {
    SchedulerConfig config = make_config();
    config.num_pages = 68;
    config.window_pages = window_pages;
    config.cache_groups = {{-1}, {7}};
    config.chunked_prefill_size = 4;
    config.schedule_conservativeness = 0.01;
    Scheduler scheduler(config);
    for (RequestId id = 1; id <= 4; ++id) ASSERT_TRUE(scheduler.add(make_spec(id, 8, 40)).ok());
    std::map<RequestId, int> tokens;
    for (int i = 0; i < 2000 && !scheduler.idle(); ++i) {
      const Step& step = scheduler.schedule();
      ASSERT_FALSE(step.empty());
      for (const StepEvent& event : commit(scheduler, step)) ++tokens[event.id];
      ASSERT_TRUE(scheduler.audit().ok()) << scheduler.audit().message();
    }
    EXPECT_EQ(tokens, (std::map<RequestId, int>{{1, 40}, {2, 40}, {3, 40}, {4, 40}}));
    EXPECT_EQ(scheduler.stats().retracted_reqs_total > 0, window_pages > 0) << window_pages;
  }
}

TEST(SchedulerPolicy, ARequestThatNeitherPartCanHoldIsRefusedByItsPart) {
  SchedulerConfig config = make_config();
  config.num_pages = 24;
  config.window_pages = 4;
  config.cache_groups = {{-1}, {7}};
  Scheduler scheduler(config);  // prompts are not cut
  EXPECT_TRUE(scheduler.add(make_spec(1, 16, 1)).ok());
  const Status windows = scheduler.add(make_spec(2, 17, 1));
  EXPECT_NE(windows.message().find("16 tokens of layers with a sliding window"), std::string::npos)
      << windows.message();
  EXPECT_NE(windows.message().find("--swa-full-tokens-ratio"), std::string::npos);
  EXPECT_EQ(scheduler.add(make_spec(4, 80, 1)).message().find("KV pool of 80 tokens;"), std::string::npos);  // just fits
  const Status full = scheduler.add(make_spec(3, 81, 1));
  EXPECT_NE(full.message().find("KV pool of 80 tokens;"), std::string::npos) << full.message();
  EXPECT_NE(full.message().find("--max-total-tokens"), std::string::npos);
}

TEST(SchedulerPolicy, StatesAreEnoughForEveryRunningRequest) {
  const auto is_right = [](int slots, int request_slots, int interval) {
    SchedulerConfig config = make_config();
    config.max_running_requests = 3;
    config.state_slots = slots;
    config.state_request_slots = request_slots;
    config.state_interval = interval;
    return Scheduler::validate(config).ok();
  };
  EXPECT_TRUE(is_right(3, 3, 1));
  EXPECT_TRUE(is_right(4, 3, 1));
  EXPECT_FALSE(is_right(3, 3, 0));
  EXPECT_FALSE(is_right(3, 4, 1));
  EXPECT_FALSE(is_right(2, 2, 1));
  EXPECT_FALSE(is_right(1, 0, 1));
  EXPECT_TRUE(is_right(0, 0, 0));  // no states
}

// Requests of another adapter come without end, and some are always running.
TEST(SchedulerPolicy, TheOldestIsPassedOverForItsAdapterABoundedNumberOfTimes) {
  SchedulerConfig config = make_config();
  config.max_adapters = 1;
  config.max_running_requests = 4;
  Scheduler scheduler(config);
  int places[2] = {};
  RequestId next = 1;
  const auto add = [&](int of, int new_tokens) {
    ScheduledRequestSpec spec = make_spec(next, 4, new_tokens, static_cast<int>(10 * next));
    ++next;
    spec.adapter = reinterpret_cast<const LoraAdapter*>(&places[of]);
    ASSERT_TRUE(scheduler.add(std::move(spec)).ok());
  };
  add(0, 6);
  add(1, 1);
  int passed = -1;  // the first was there before
  for (int step_number = 0; step_number < 2000; ++step_number) {
    add(0, 5 + step_number % 4);
    const Step& step = scheduler.schedule();
    const bool ran = std::any_of(step.rows.begin(), step.rows.end(), [](const StepRow& row) { return row.id == 2; });
    for (const StepRow& row : step.rows) passed += row.first_scheduled && row.id != 2;
    commit(scheduler, step);
    if (ran) break;
  }
  EXPECT_GE(passed, kLpmMaxOvertakes);
  EXPECT_LT(passed, kLpmMaxOvertakes + config.max_running_requests);  // a step may admit several
}

// The request with the longest cached prefix goes first, if it is among the kScanWindow oldest.
TEST(SchedulerPolicy, LooksAtSoManyWaitingRequestsAndNoMore) {
  for (const int others : {kScanWindow - 1, kScanWindow}) {
    SchedulerConfig config = make_config();
    config.schedule_policy = SchedulePolicy::lpm;
    config.max_running_requests = 1;
    Scheduler scheduler(config);
    ASSERT_TRUE(scheduler.add(make_spec(1, 16, 1, 5)).ok());
    run_to_idle(scheduler);  // its prompt is cached
    for (int i = 0; i < others; ++i) ASSERT_TRUE(scheduler.add(make_spec(10 + i, 8, 1)).ok());
    ASSERT_TRUE(scheduler.add(make_spec(2, 20, 1, 5)).ok());
    const Step& step = scheduler.schedule();
    ASSERT_EQ(step.rows.size(), 1u);
    EXPECT_EQ(step.rows[0].id, others < kScanWindow ? RequestId{2} : RequestId{10}) << others;
    commit(scheduler, step);
    run_to_idle(scheduler);
  }
}

// Each of those it waits for fails before its prompt is cached.
TEST(SchedulerPolicy, WaitsForTheSamePrefixOfSoManyOthersAndNoMore) {
  SchedulerConfig config = make_config();
  config.schedule_policy = SchedulePolicy::priority;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 60, 4, 0)).ok());
  for (int turn = 0; turn <= kInBatchShareMaxWaits; ++turn) {
    ScheduledRequestSpec spec = make_spec(2 + turn, 60, 4, 0);
    spec.priority = 1;
    ASSERT_TRUE(scheduler.add(std::move(spec)).ok());
    const Step& step = scheduler.schedule();
    const bool alone = turn < kInBatchShareMaxWaits;
    EXPECT_EQ(ids_of(step).size(), alone ? 1u : 2u) << turn;
    EXPECT_EQ(ids_of(step).front(), static_cast<RequestId>(2 + turn));
    scheduler.fail_uncommitted();
  }
  EXPECT_TRUE(scheduler.idle());
}

// Waiting for one other is one wait, however many steps its prompt takes.
TEST(SchedulerPolicy, WaitsForOneLongPromptToItsEnd) {
  SchedulerConfig config = make_config();
  config.chunked_prefill_size = 8;
  config.max_prefill_tokens = 64;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 100, 1, 0)).ok());
  ASSERT_TRUE(scheduler.add(make_spec(2, 100, 1, 0)).ok());
  int chunks = 0;
  for (; scheduler.stats().queued_reqs > 0; ++chunks) commit(scheduler, scheduler.schedule());
  EXPECT_EQ(chunks, 100 / 8 + 1 + 1);
  EXPECT_EQ(scheduler.stats().cached_tokens_total, 99u);
}

// With proposals a decode row's end is not known before it has run: its checkpoint is of the state before it.
TEST(SchedulerPolicy, ARowWithProposalsKeepsTheStateBeforeItOnceAnInterval) {
  SchedulerConfig config = make_config();
  config.max_running_requests = 2;
  config.state_request_slots = 2;
  config.state_slots = 8;
  config.state_interval = 4;
  config.max_proposals = 1;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 5, 12)).ok());
  std::vector<int> saved_within, saved_after, saved_before;
  while (!scheduler.idle()) {
    const Step& step = scheduler.schedule();
    ASSERT_EQ(step.rows.size(), 1u);
    const StepRow& row = step.rows[0];
    for (const StateCheckpoint& checkpoint : step.state_checkpoints) {
      saved_within.push_back(row.start + checkpoint.num_tokens);
    }
    for (const StateCopy& copy : step.state_saves) {
      EXPECT_EQ(copy.from, row.state_slot);
      saved_after.push_back(row.start + row.num_tokens);
    }
    for (const StateCopy& copy : step.state_loads) {
      EXPECT_EQ(copy.from, row.state_slot);
      saved_before.push_back(row.start);
    }
    commit(scheduler, step);
  }
  EXPECT_EQ(saved_within, std::vector<int>{4});  // the prompt's
  EXPECT_EQ(saved_after, std::vector<int>{5});
  EXPECT_EQ(saved_before, (std::vector<int>{8, 12}));
  EXPECT_TRUE(scheduler.audit().ok()) << scheduler.audit().message();
}

// While nothing is proposed steps overlap as without proposals; those in flight with some are waited for.
TEST(SchedulerPolicy, StepsOverlapWhileNothingIsProposed) {
  SchedulerConfig config = make_config();
  config.overlap_depth = 1;
  config.max_proposals = 2;
  Scheduler scheduler(config);
  scheduler.set_proposing(false);
  ASSERT_TRUE(scheduler.add(make_spec(1, 5, 20)).ok());
  const Step& prompt = scheduler.schedule();
  const Step& ahead = scheduler.schedule();
  ASSERT_EQ(ids_of(ahead), std::vector<RequestId>{1});
  EXPECT_EQ(ahead.rows[0].future_slot, 0);
  commit(scheduler, prompt);
  commit(scheduler, ahead);
  scheduler.set_proposing(true);
  const Step& proposing = scheduler.schedule();
  EXPECT_GT(proposing.rows[0].max_proposals, 0);
  scheduler.set_proposing(false);
  EXPECT_TRUE(scheduler.schedule().empty());  // how many tokens that step gives is not known
  commit(scheduler, proposing);
  run_to_idle(scheduler);
}

// What is worth waiting for: kInBatchShareMinTokens tokens, by whole pages where the cache matches those.
TEST(SchedulerPolicy, WaitsOnlyForPrefixesThatAreWorthIt) {
  for (const PrefixMatchMode mode : {PrefixMatchMode::token, PrefixMatchMode::page}) {
    for (const int common : {kInBatchShareMinTokens - 1, kInBatchShareMinTokens}) {
      SchedulerConfig config = make_config();
      config.prefix_match = mode;
      config.page_size = 5;
      Scheduler scheduler(config);
      ASSERT_TRUE(scheduler.add(make_spec(1, 60, 4, 0)).ok());
      ScheduledRequestSpec spec = make_spec(2, 60, 4, 0);
      std::fill(spec.input_ids.begin() + common, spec.input_ids.end(), 5);
      ASSERT_TRUE(scheduler.add(std::move(spec)).ok());
      const bool waits =
          mode == PrefixMatchMode::token && common == kInBatchShareMinTokens;  // 32 are 6 pages of 5 and a bit
      EXPECT_EQ(scheduler.schedule().rows.size(), waits ? 1u : 2u) << common;
      scheduler.fail_uncommitted();
    }
  }
}

TEST(SchedulerPolicy, TheWidestStepHoldsAChunkOrARowOfEveryRequest) {
  SchedulerConfig config = make_config();
  config.max_running_requests = 3;
  config.max_prefill_tokens = 50;
  config.context_len = 70;
  EXPECT_EQ(Scheduler::max_tokens_per_step(config), 70);
  config.max_prefill_tokens = 90;
  EXPECT_EQ(Scheduler::max_tokens_per_step(config), 90);
  config.enable_mixed_chunk = true;
  EXPECT_EQ(Scheduler::max_tokens_per_step(config), 90 + 3);
  config.max_proposals = 5;
  for (const int chunk : {1, 2, 40}) {
    config.chunked_prefill_size = chunk;
    config.enable_mixed_chunk = false;
    EXPECT_EQ(Scheduler::max_tokens_per_step(config), std::max(chunk, 3 + 15)) << chunk;
    config.enable_mixed_chunk = true;
    EXPECT_EQ(Scheduler::max_tokens_per_step(config), std::max(chunk + 3, 3 + 15)) << chunk;
  }
  config.max_step_proposals = 7;
  config.chunked_prefill_size = 1;
  EXPECT_EQ(Scheduler::max_tokens_per_step(config), 3 + 7);
}

TEST(NewTokenRatio, ARetractionRaisesItToWhatTheOthersShow) {
  NewTokenRatio ratio(1);
  ratio.on_retraction(9, 10);
  EXPECT_EQ(ratio.value(), 0.9);
  ratio.on_retraction(1, 10);
  EXPECT_EQ(ratio.value(), 0.9);
  ratio.on_retraction(0, 0);  // none stays to show less
  EXPECT_EQ(ratio.value(), 1.0);
}

}  // namespace
}  // namespace warpweave
