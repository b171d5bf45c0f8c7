#include <algorithm>
#include <map>
#include <numeric>

#include "sched/testing/scheduler_steps.h"

namespace warpweave {
namespace {

// A negative token: the device found none for one of the requests.
TEST(Scheduler, ARequestWithoutATokenEndsAloneAndIsNotCached) {
  for (const int overlap : {0, 1}) {
    SchedulerConfig config = make_config();
    config.overlap_depth = overlap;
    Scheduler scheduler(config);
    ASSERT_TRUE(scheduler.add(make_spec(1, 9, 20)).ok());
    ASSERT_TRUE(scheduler.add(make_spec(2, 9, 20)).ok());
    const Step& prefill = scheduler.schedule();
    ASSERT_EQ(prefill.num_samples, 2);
    const Step* next = overlap > 0 ? &scheduler.schedule() : nullptr;
    const auto events = scheduler.commit(prefill, Tokens{-1, 7});
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[0].finish, StepEvent::Finish::failed);
    EXPECT_FALSE(events[0].has_token);
    EXPECT_EQ(events[0].token, -1);
    EXPECT_EQ(events[1].finish, StepEvent::Finish::none);
    if (next != nullptr) commit(scheduler, *next);
    EXPECT_TRUE(scheduler.audit().ok());
    run_to_idle(scheduler);
    ASSERT_TRUE(scheduler.add(make_spec(3, 9, 1, 1000)).ok());  // the first one's prompt
    EXPECT_EQ(scheduler.schedule().rows[0].start, 0);
  }
}

// Requests of one adapter too many wait until all of another have ended; others pass them.
TEST(Scheduler, RunsFewAdaptersTogether) {
  SchedulerConfig config = make_config();
  config.max_adapters = 2;
  Scheduler scheduler(config);
  int places[3] = {};
  const auto adapter = [&](int i) { return reinterpret_cast<const LoraAdapter*>(&places[i]); };
  const auto add = [&](RequestId id, const LoraAdapter* of, int new_tokens) {
    ScheduledRequestSpec spec = make_spec(id, 4, new_tokens, static_cast<int>(100 * id));
    spec.adapter = of;
    ASSERT_TRUE(scheduler.add(std::move(spec)).ok());
  };
  const auto rows = [](const Step& step) {
    std::vector<RequestId> ids;
    for (const StepRow& row : step.rows) ids.push_back(row.id);
    return ids;
  };
  add(1, adapter(0), 1);
  add(2, adapter(1), 3);
  add(3, adapter(2), 2);  // one too many
  add(4, adapter(1), 3);
  add(5, nullptr, 3);
  const Step& first = scheduler.schedule();
  EXPECT_EQ(rows(first), (std::vector<RequestId>{1, 2, 4, 5}));
  EXPECT_EQ(first.rows[2].adapter, adapter(1));
  EXPECT_EQ(first.rows[3].adapter, nullptr);
  commit(scheduler, first);  // request 1 ends
  const Step& second = scheduler.schedule();
  EXPECT_EQ(rows(second), (std::vector<RequestId>{3}));
  commit(scheduler, second);
  run_to_idle(scheduler);
  EXPECT_TRUE(scheduler.audit().ok());
}

TEST(Scheduler, AnAdapterIsPassedOverABoundedNumberOfTimes) {
  SchedulerConfig config = make_config();
  config.max_adapters = 1;
  config.max_running_requests = 2;
  Scheduler scheduler(config);
  int places[2] = {};
  RequestId next = 1;
  const auto add = [&](int of) {
    ScheduledRequestSpec spec = make_spec(next, 4, 3, static_cast<int>(10 * next));
    ++next;
    spec.adapter = reinterpret_cast<const LoraAdapter*>(&places[of]);
    ASSERT_TRUE(scheduler.add(std::move(spec)).ok());
  };
  add(0);
  add(1);  // waits, while requests of the other keep coming
  int steps = 0;
  for (bool ran = false; !ran && steps < 4 * kLpmMaxOvertakes; ++steps) {
    add(0);
    const Step& step = scheduler.schedule();
    ran = std::any_of(step.rows.begin(), step.rows.end(), [](const StepRow& row) { return row.id == 2; });
    commit(scheduler, step);
  }
  EXPECT_LT(steps, 4 * kLpmMaxOvertakes);
}

TEST(Scheduler, PrefillsThenDecodesThenFinishesByLength) {
  Scheduler scheduler(make_config());
  int user = 0;
  ScheduledRequestSpec spec = make_spec(1, 6, 2);
  spec.user = &user;
  ASSERT_TRUE(scheduler.add(std::move(spec)).ok());
  const Step& prefill = scheduler.schedule();
  ASSERT_EQ(prefill.rows.size(), 1u);
  EXPECT_TRUE(prefill.rows[0].prefill);
  EXPECT_TRUE(prefill.rows[0].first_scheduled);
  EXPECT_EQ(prefill.rows[0].num_tokens, 6);
  EXPECT_EQ(prefill.rows[0].num_logits, 1);
  auto events = commit(scheduler, prefill);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, StepEvent::Finish::none);
  const Step& decode = scheduler.schedule();
  EXPECT_EQ(decode.rows[0].start, 6);
  EXPECT_EQ(decode.rows[0].input_ids[0], 7);
  events = commit(scheduler, decode);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, StepEvent::Finish::length);
  EXPECT_EQ(scheduler.take_released(), std::vector<void*>{&user});
  EXPECT_TRUE(scheduler.take_released().empty());
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.stats().evictable_tokens, 7);  // the last token has no K/V
  EXPECT_EQ(scheduler.stats().used_tokens, 0);
}

TEST(Scheduler, StopTokensHeedMinNewTokensAndIgnoreEos) {
  SchedulerConfig config = make_config();
  config.eos_token_ids = {7};
  const auto tokens_until_stop = [&](ScheduledRequestSpec spec) {
    Scheduler scheduler(config);
    EXPECT_TRUE(scheduler.add(std::move(spec)).ok());
    int tokens = 0;
    while (!scheduler.idle()) tokens += commit(scheduler, scheduler.schedule(), 7).size();
    return tokens;
  };
  ScheduledRequestSpec spec = make_spec(1, 4, 9);
  EXPECT_EQ(tokens_until_stop(spec), 1);
  spec.min_new_tokens = 3;
  EXPECT_EQ(tokens_until_stop(spec), 3);
  spec.ignore_eos = true;
  EXPECT_EQ(tokens_until_stop(spec), 9);
  spec.stop_token_ids = {7};
  EXPECT_EQ(tokens_until_stop(spec), 3);
}

TEST(Scheduler, RefusesWhatCanNeverRunAndNamesTheBound) {
  SchedulerConfig config = make_config();
  config.num_pages = 10;  // 40 tokens
  config.context_len = 60;
  config.max_queued_requests = 1;
  Scheduler scheduler(config);
  EXPECT_EQ(scheduler.add(make_spec(1, 0, 1)).field(), "input_ids");
  EXPECT_EQ(scheduler.add(make_spec(1, 5, -1)).field(), "max_new_tokens");
  Status status = scheduler.add(make_spec(1, 50, 11));
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("context length of 60"), std::string::npos);
  status = scheduler.add(make_spec(1, 30, 12));
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("KV pool of 40 tokens"), std::string::npos);
  EXPECT_EQ(scheduler.add(make_spec(1, 5, std::numeric_limits<int>::max())).code(),
            StatusCode::invalid_argument);
  EXPECT_TRUE(scheduler.add(make_spec(1, 30, 11)).ok());  // exactly fits
  EXPECT_EQ(scheduler.add(make_spec(2, 3, 1)).code(), StatusCode::resource_exhausted);
  run_to_idle(scheduler);
}

TEST(Scheduler, CutsPromptsIntoChunksAndFreesThemOnAbort) {
  SchedulerConfig config = make_config();
  config.chunked_prefill_size = 10;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 25, 4)).ok());
  const Step& first = scheduler.schedule();
  EXPECT_EQ(first.rows[0].num_tokens, 8);  // ends on a page boundary
  EXPECT_EQ(first.rows[0].num_logits, 0);
  EXPECT_TRUE(commit(scheduler, first).empty());
  const Step& second = scheduler.schedule();
  EXPECT_EQ(second.rows[0].start, 8);
  EXPECT_TRUE(scheduler.finish(1));
  EXPECT_FALSE(scheduler.finish(1));
  EXPECT_GT(scheduler.stats().used_tokens, 0);  // the step in flight still writes them
  commit(scheduler, second);
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.stats().used_tokens, 0);
  EXPECT_TRUE(scheduler.audit().ok());
}

TEST(Scheduler, OverlapMarksFutureTokensAndIgnoresTheWastedRow) {
  SchedulerConfig config = make_config();
  config.overlap_depth = 1;
  config.eos_token_ids = {9};
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 4, 10)).ok());
  ASSERT_TRUE(scheduler.add(make_spec(2, 4, 10)).ok());
  const Step& prefill = scheduler.schedule();
  const Step& next = scheduler.schedule();
  ASSERT_EQ(next.rows.size(), 2u);
  EXPECT_EQ(next.rows[1].future_slot, 1);
  EXPECT_EQ(next.rows[1].input_ids, nullptr);
  EXPECT_EQ(next.rows[1].start, 4);
  const auto events = scheduler.commit(prefill, Tokens{3, 9});  // request 2 ends at once
  EXPECT_EQ(events[1].finish, StepEvent::Finish::stop);
  EXPECT_FALSE(scheduler.finish(2));
  const int64_t used = scheduler.stats().used_tokens;
  EXPECT_EQ(used, 16);  // both keep their pages while `next` is uncommitted
  const Step& third = scheduler.schedule();
  EXPECT_EQ(ids_of(third), std::vector<RequestId>{1});
  const auto later = scheduler.commit(next, Tokens{5, 6});
  ASSERT_EQ(later.size(), 1u);
  EXPECT_EQ(later[0].id, 1u);
  EXPECT_EQ(scheduler.stats().used_tokens, 8);
  commit(scheduler, third, 9);
  run_to_idle(scheduler);
}

// Else two halves would decode by turns, each in steps that read all weights.
TEST(Scheduler, WithProposalsAllRequestsDecodeTogether) {
  SchedulerConfig config = make_config();
  config.overlap_depth = 1;
  config.max_proposals = 2;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 9, 20)).ok());
  const Step& first_prompt = scheduler.schedule();
  ASSERT_TRUE(scheduler.add(make_spec(2, 9, 20)).ok());
  const Step& second_prompt = scheduler.schedule();
  ASSERT_EQ(ids_of(second_prompt), std::vector<RequestId>{2});
  commit(scheduler, first_prompt);
  const Step& alone = scheduler.schedule();
  EXPECT_EQ(ids_of(alone), std::vector<RequestId>{1});
  commit(scheduler, second_prompt);
  EXPECT_TRUE(scheduler.schedule().empty()) << "request 2 waits for request 1's step";
  commit(scheduler, alone);
  const Step& both = scheduler.schedule();
  EXPECT_EQ(ids_of(both), (std::vector<RequestId>{1, 2}));
  commit(scheduler, both);
  run_to_idle(scheduler);
}

TEST(Scheduler, OverlapDoesNotWasteARowOnAKnownLength) {
  SchedulerConfig config = make_config();
  config.overlap_depth = 1;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 4, 1)).ok());
  const Step& prefill = scheduler.schedule();
  EXPECT_TRUE(scheduler.schedule().empty());
  EXPECT_EQ(commit(scheduler, prefill)[0].finish, StepEvent::Finish::length);
  EXPECT_TRUE(scheduler.idle());
}

TEST(Scheduler, SecondTurnReusesPromptAndAnswerToTheToken) {
  Scheduler scheduler(make_config());
  ASSERT_TRUE(scheduler.add(make_spec(1, 6, 4)).ok());
  run_to_idle(scheduler);
  ScheduledRequestSpec spec = make_spec(2, 6, 4, 1000);
  spec.input_ids.insert(spec.input_ids.end(), {7, 7, 7, 7, 50, 51});
  ASSERT_TRUE(scheduler.add(spec).ok());
  const Step& step = scheduler.schedule();
  EXPECT_EQ(step.rows[0].start, 9);  // two full pages and one token of the third
  ASSERT_EQ(step.copies.size(), 1u);
  EXPECT_EQ(step.copies[0].num_tokens, 1);
  EXPECT_EQ(step.copies[0].dst_page, step.rows[0].pages[2]);
  EXPECT_NE(step.copies[0].src_page, step.copies[0].dst_page);
  EXPECT_EQ(commit(scheduler, step)[0].cached_tokens, 9);
  run_to_idle(scheduler);
}

TEST(Scheduler, PromptLogprobsLimitReuseAndAreOwedOnce) {
  SchedulerConfig config = make_config();
  config.chunked_prefill_size = 8;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 20, 1)).ok());
  run_to_idle(scheduler);
  ScheduledRequestSpec spec = make_spec(2, 20, 3, 1000);
  spec.logprob_start_len = 6;
  ASSERT_TRUE(scheduler.add(spec).ok());
  const Step& first = scheduler.schedule();
  EXPECT_EQ(first.rows[0].start, 5);  // the logprob of token 6 needs position 5
  EXPECT_EQ(first.rows[0].num_logits, first.rows[0].num_tokens);
  commit(scheduler, first);
  const Step& second = scheduler.schedule();
  EXPECT_EQ(second.rows[0].num_logits, 20 - second.rows[0].start);
  EXPECT_EQ(second.rows[0].sample_slot, 0);
  commit(scheduler, second);
  run_to_idle(scheduler);
}

TEST(Scheduler, RetractsTheLastArrivedAndFinishesAll) {
  SchedulerConfig config = make_config();
  config.num_pages = 12;  // 48 tokens
  config.schedule_conservativeness = 0.01;
  Scheduler scheduler(config);
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.add(make_spec(id, 8, 40)).ok());
  std::map<RequestId, int> tokens, retractions;
  std::vector<RequestId> finished;
  for (int i = 0; i < 1000 && !scheduler.idle(); ++i) {
    const Step& step = scheduler.schedule();
    ASSERT_FALSE(step.empty());
    for (const StepEvent& event : commit(scheduler, step)) {
      ++tokens[event.id];
      retractions[event.id] = event.retractions;
      if (event.finish != StepEvent::Finish::none) finished.push_back(event.id);
    }
    ASSERT_TRUE(scheduler.audit().ok()) << scheduler.audit().message();
  }
  EXPECT_EQ(finished, (std::vector<RequestId>{1, 2, 3}));
  EXPECT_EQ(tokens, (std::map<RequestId, int>{{1, 40}, {2, 40}, {3, 40}}));
  EXPECT_EQ(retractions[1], 0);
  EXPECT_GT(retractions[3], 0);
  EXPECT_EQ(scheduler.stats().retracted_reqs_total,
            static_cast<uint64_t>(retractions[2] + retractions[3]));
}

TEST(Scheduler, SiblingsWaitForTheFirstPromptAndShareIt) {
  Scheduler scheduler(make_config());
  ASSERT_TRUE(scheduler.add(make_spec(1, 12, 4)).ok());
  for (RequestId id = 2; id <= 4; ++id) {
    ScheduledRequestSpec spec = make_spec(id, 12, 4, 1000);
    spec.wait_for_prefix_of = 1;
    ASSERT_TRUE(scheduler.add(spec).ok());
  }
  const Step& first = scheduler.schedule();
  EXPECT_EQ(ids_of(first), std::vector<RequestId>{1});
  commit(scheduler, first);
  const Step& second = scheduler.schedule();
  EXPECT_EQ(ids_of(second), (std::vector<RequestId>{2, 3, 4}));
  EXPECT_EQ(second.num_tokens, 3);  // 8 tokens shared, 3 copied, one computed
  EXPECT_EQ(second.copies.size(), 3u);
  commit(scheduler, second);
  run_to_idle(scheduler);
}

TEST(Scheduler, SiblingsGoOnWhenTheFirstIsAborted) {
  Scheduler scheduler(make_config());
  ASSERT_TRUE(scheduler.add(make_spec(1, 12, 4)).ok());
  ScheduledRequestSpec spec = make_spec(2, 12, 4, 1000);
  spec.wait_for_prefix_of = 1;
  ASSERT_TRUE(scheduler.add(spec).ok());
  ASSERT_TRUE(scheduler.finish(1));
  const Step& step = scheduler.schedule();
  EXPECT_EQ(ids_of(step), std::vector<RequestId>{2});
  commit(scheduler, step);
  run_to_idle(scheduler);
}

TEST(Scheduler, EqualLongPromptsArePrefilledOnce) {
  Scheduler scheduler(make_config());
  ASSERT_TRUE(scheduler.add(make_spec(1, 60, 4, 0)).ok());
  ASSERT_TRUE(scheduler.add(make_spec(2, 60, 4, 0)).ok());
  ASSERT_TRUE(scheduler.add(make_spec(3, 9, 4)).ok());
  const Step& first = scheduler.schedule();
  EXPECT_EQ(ids_of(first), (std::vector<RequestId>{1, 3}));
  commit(scheduler, first);
  const Step& second = scheduler.schedule();
  EXPECT_EQ(ids_of(second), std::vector<RequestId>{2});
  EXPECT_EQ(second.num_tokens, 1);
  commit(scheduler, second);
  run_to_idle(scheduler);
}

TEST(Scheduler, PriorityGoesFirstThenArrival) {
  SchedulerConfig config = make_config();
  config.schedule_policy = SchedulePolicy::priority;
  config.max_prefill_tokens = 8;
  Scheduler scheduler(config);
  const int priorities[] = {0, 5, 0, 5};
  for (RequestId id = 1; id <= 4; ++id) {
    ScheduledRequestSpec spec = make_spec(id, 4, 1);
    spec.priority = priorities[id - 1];
    ASSERT_TRUE(scheduler.add(spec).ok());
  }
  const Step& first = scheduler.schedule();
  EXPECT_EQ(ids_of(first), (std::vector<RequestId>{2, 4}));
  commit(scheduler, first);
  const Step& second = scheduler.schedule();
  EXPECT_EQ(ids_of(second), (std::vector<RequestId>{1, 3}));
  commit(scheduler, second);
}

TEST(Scheduler, LongestPrefixMatchGoesFirstButStarvesNobody) {
  SchedulerConfig config = make_config();
  config.schedule_policy = SchedulePolicy::lpm;
  config.max_running_requests = 1;
  Scheduler scheduler(config);
  ASSERT_TRUE(scheduler.add(make_spec(1, 40, 1, 0)).ok());
  run_to_idle(scheduler);
  RequestId next = 2;
  const RequestId unlucky = next++;
  ASSERT_TRUE(scheduler.add(make_spec(unlucky, 10, 1)).ok());
  int overtaken = 0;
  for (bool admitted = false; !admitted; ++overtaken) {
    ASSERT_LE(overtaken, kLpmMaxOvertakes);
    ASSERT_TRUE(scheduler.add(make_spec(next++, 40, 1, 0)).ok());  // always cached
    const Step& step = scheduler.schedule();
    admitted = step.rows[0].id == unlucky;
    commit(scheduler, step);
  }
  EXPECT_GT(overtaken, 10);  // the policy does prefer cached prompts
  run_to_idle(scheduler);
}

TEST(Scheduler, DeviceFailureEndsOnlyThoseInTheFailedSteps) {
  SchedulerConfig config = make_config();
  config.overlap_depth = 1;
  config.max_running_requests = 2;
  Scheduler scheduler(config);
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.add(make_spec(id, 6, 5)).ok());
  scheduler.schedule();
  scheduler.schedule();
  EXPECT_EQ(scheduler.fail_uncommitted(), (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(scheduler.tree().match_length("", Tokens{1000, 1001}), 0);  // nothing half-written
  EXPECT_TRUE(scheduler.audit().ok());
  run_to_idle(scheduler);  // request 3 is served
}

TEST(Scheduler, FlushesOnlyWhenNothingRuns) {
  Scheduler scheduler(make_config());
  ASSERT_TRUE(scheduler.add(make_spec(1, 6, 2)).ok());
  commit(scheduler, scheduler.schedule());
  EXPECT_FALSE(scheduler.flush_cache());
  run_to_idle(scheduler);
  EXPECT_TRUE(scheduler.flush_cache());
  EXPECT_EQ(scheduler.pool().num_used(), 0);
}

TEST(Scheduler, ValidatesItsConfiguration) {
  EXPECT_TRUE(Scheduler::validate(make_config()).ok());
  SchedulerConfig config = make_config();
  config.page_size = 0;
  EXPECT_EQ(Scheduler::validate(config).field(), "--page-size");
  config = make_config();
  config.chunked_prefill_size = 0;
  EXPECT_EQ(Scheduler::validate(config).field(), "--chunked-prefill-size");
  config = make_config();
  config.schedule_conservativeness = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Scheduler::validate(config).field(), "--schedule-conservativeness");
}

}  // namespace
}  // namespace warpweave
