// How prompts are cut into pieces beside the tokens of requests that decode.
#include "sched/testing/scheduler_steps.h"

namespace warpweave {
namespace {

TEST(Scheduler, DecodeRowsRideAlongOnlyWithMixedChunk) {
  for (const bool mixed : {false, true}) {
    SchedulerConfig config = make_config();
    config.chunked_prefill_size = 16;
    config.enable_mixed_chunk = mixed;
    Scheduler scheduler(config);
    ASSERT_TRUE(scheduler.add(make_spec(1, 4, 20)).ok());
    commit(scheduler, scheduler.schedule());
    ASSERT_TRUE(scheduler.add(make_spec(2, 30, 4)).ok());
    const Step& step = scheduler.schedule();
    EXPECT_EQ(ids_of(step), mixed ? (std::vector<RequestId>{2, 1}) : (std::vector<RequestId>{2}));
    EXPECT_LE(step.num_tokens, 16);
    commit(scheduler, step);
    run_to_idle(scheduler);
  }
}

// A scheduler with `decoding` requests that decode, which takes prompts in pieces that fill steps to `rows` rows.
struct MixedChunks {
  MixedChunks(int rows, int decoding, int chunk = 4096) : scheduler(config(rows, chunk)) {
    for (int i = 0; i < decoding; ++i) EXPECT_TRUE(scheduler.add(make_spec(next_id++, 1, 1000)).ok());
    while (scheduler.stats().queued_reqs > 0) commit(scheduler, scheduler.schedule());
    EXPECT_EQ(scheduler.stats().running_reqs, decoding);
  }
  static SchedulerConfig config(int rows, int chunk) {
    SchedulerConfig out;
    out.page_size = 16;
    out.num_pages = 65536;
    out.context_len = 32768;
    out.max_running_requests = 600;
    out.chunked_prefill_size = chunk;
    out.max_prefill_tokens = 16384;
    out.enable_mixed_chunk = true;
    out.mixed_chunk_rows = rows;
    out.disable_radix_cache = true;
    return out;
  }
  void add_prompt(int tokens) { EXPECT_TRUE(scheduler.add(make_spec(next_id++, tokens, 1000)).ok()); }
  int next_step_tokens() {
    const Step& step = scheduler.schedule();
    const int tokens = step.num_tokens;
    commit(scheduler, step);
    return tokens;
  }

  Scheduler scheduler;
  RequestId next_id = 1;
};

TEST(Scheduler, WithoutMixedChunkRowsAStepTakesTheWholePrompt) {
  MixedChunks chunks(0, 64);
  chunks.add_prompt(1000);
  EXPECT_EQ(chunks.next_step_tokens(), 1064);
}

TEST(Scheduler, MixedChunkRowsSpreadAPromptOverStepsThatDecode) {
  MixedChunks chunks(256, 64);
  chunks.add_prompt(1024);
  EXPECT_EQ(chunks.next_step_tokens(), 384);  // 64 + 1024 / 4, in tiles of 128
  EXPECT_EQ(chunks.next_step_tokens(), 256);  // 64 + 704 / 4
  EXPECT_EQ(chunks.next_step_tokens(), 256);
  EXPECT_EQ(chunks.next_step_tokens(), 256);
  EXPECT_EQ(chunks.next_step_tokens(), 64 + 1024 - 320 - 3 * 192);
  EXPECT_EQ(chunks.next_step_tokens(), 65);
}

TEST(Scheduler, MixedChunkRowsFillAPieceWithTheNextPrompt) {
  MixedChunks chunks(256, 10);
  chunks.add_prompt(100);
  chunks.add_prompt(600);
  const Step& step = chunks.scheduler.schedule();
  EXPECT_EQ(step.num_tokens, 256);
  EXPECT_EQ(step.rows[0].num_tokens, 100);
  EXPECT_EQ(step.rows[1].num_tokens, 146);  // no multiple of a page: the step's rows are
  commit(chunks.scheduler, step);
}

TEST(Scheduler, MixedChunkRowsLeaveStepsOfManyDecodeRowsAndLongQueuesWhole) {
  MixedChunks many(256, 256);
  many.add_prompt(1000);
  EXPECT_EQ(many.next_step_tokens(), 1256);
  MixedChunks queue(256, 8);
  for (int i = 0; i < 40; ++i) queue.add_prompt(1000);
  EXPECT_EQ(queue.next_step_tokens(), 2048);  // what waits is spread over at most 4 steps
  MixedChunks alone(256, 0);
  alone.add_prompt(1000);
  EXPECT_EQ(alone.next_step_tokens(), 1000);  // nobody decodes
}

TEST(Scheduler, MixedChunkRowsMakeLongerPiecesBehindALongPrefix) {
  MixedChunks chunks(256, 64);
  chunks.add_prompt(20000);
  int left = 20000;
  while (left > 600) left -= chunks.next_step_tokens() - 64;
  ASSERT_GT(left, 256);
  EXPECT_EQ(chunks.next_step_tokens(), 64 + left);  // at once: more than 19400 / 32
}

TEST(Scheduler, MixedChunkRowsStayBelowTheChunkSize) {
  MixedChunks chunks(256, 64, /*chunk=*/128);
  chunks.add_prompt(1000);
  EXPECT_EQ(chunks.next_step_tokens(), 128);
}

TEST(Scheduler, MixedChunkRowsCountOnlyWhatMayRun) {
  SchedulerConfig config = MixedChunks::config(256, 4096);
  config.max_running_requests = 65;
  Scheduler scheduler(config);
  for (RequestId id = 1; id <= 64; ++id) ASSERT_TRUE(scheduler.add(make_spec(id, 1, 1000)).ok());
  commit(scheduler, scheduler.schedule());
  for (RequestId id = 65; id < 165; ++id) ASSERT_TRUE(scheduler.add(make_spec(id, 1024, 10)).ok());
  const Step& step = scheduler.schedule();
  EXPECT_EQ(step.num_tokens, 384);  // as if the first alone waited
  commit(scheduler, step);
}

}  // namespace
}  // namespace warpweave
