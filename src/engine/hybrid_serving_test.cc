// Serving hybrid models: states of recurrent layers beside the pages, with checkpoints for the prefix cache. The text
// is the one without a prefix cache, whatever the pages, steps, pools and slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/testing/temporary_folder.h"
#include "device/opencl/platform_name.h"
#include "engine/state_slots.h"
#include "engine/testing/asking.h"
#include "engine/testing/dice_proposer.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

constexpr const char* kModel = "tests/golden/families/qwen3-next";
constexpr const char* kConvolutions = "tests/golden/families/lfm2";  // as recurrent layers
constexpr const char* kLatent = "tests/golden/families/kimi-linear-moe";  // as full attention, beside KDA
constexpr const char* kWindows = "tests/golden/families/jet-nemotron";  // in one of its layers with attention
constexpr int kInterval = 16;
constexpr int kContext = 128;
constexpr int kMostAccepted = 12;  // tokens of a step with drafts
constexpr int kMostProposals = 5;  // of a request, where they are right by dice

// args.model_path: the model, where it is not kModel.
Result<ServedModel> try_serve(ServerArgs args) {
  serve_on_test_device(args);
  if (args.model_path.empty()) args.model_path = kModel;
  const std::string path = args.model_path;
  args.skip_tokenizer_init = true;
  return create_engine({.args = args, .model_path = path, .on_weights_progress = {}});
}

ServedModel serve(const ServerArgs& args) {
  auto served = try_serve(args);
  EXPECT_TRUE(served.ok()) << served.status().message();
  return std::move(served).value();
}

struct Setting {
  int page_size;
  bool overlap;
  bool mixed;
  const char* model = kModel;
  const char* linear_backend = "";
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.model << ", page " << s.page_size << (s.overlap ? "" : ", no overlap") << (s.mixed ? ", mixed chunks" : "")
       << (*s.linear_backend != 0 ? ", " : "") << s.linear_backend;
}

class HybridServing : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string reason = no_test_device(); !reason.empty()) GTEST_SKIP() << reason;
    if (*GetParam().linear_backend != 0 && opencl::platform_name().empty()) GTEST_SKIP() << "no OpenCL device here";
  }
  ServerArgs args() const {
    ServerArgs args;
    args.linear_attn_backend = GetParam().linear_backend;
    args.model_path = GetParam().model;
    args.page_size = GetParam().page_size;
    args.disable_overlap_schedule = !GetParam().overlap;
    args.enable_mixed_chunk = GetParam().mixed;
    args.chunked_prefill_size = 24;
    args.max_total_tokens = 1024;
    args.max_running_requests = 8;
    args.max_mamba_cache_size = 64;
    args.mamba_track_interval = kInterval;
    return args;
  }
  ServerArgs args_without_cache() const {
    ServerArgs without = args();
    without.disable_radix_cache = true;
    return without;
  }
};

TEST_P(HybridServing, SaysTheSameAsWithoutThePrefixCache) {
  std::vector<Ids> prompts;
  for (int i = 0; i < 6; ++i) prompts.push_back(some_ids(11 + 13 * i, i));
  auto plain = serve(args_without_cache());
  auto served = serve(args());
  const auto expected = ask(plain, prompts, 24);
  EXPECT_EQ(ask(served, prompts, 24), expected);
  // The next turns go on from the nearest checkpoint: fewer tokens are computed again than lie between two.
  std::vector<Ids> turns;
  for (size_t i = 0; i < prompts.size(); ++i) {
    turns.push_back(joined(joined(prompts[i], expected[i].ids), some_ids(3, 50 + static_cast<int>(i))));
  }
  const auto now = ask(served, turns, 8);
  EXPECT_EQ(now, ask(plain, turns, 8));
  for (size_t i = 0; i < turns.size(); ++i) {
    const int known = static_cast<int>(prompts[i].size()) + 23;  // the last token's K/V was never computed
    EXPECT_GT(now[i].cached_tokens, known - kInterval) << i;
    EXPECT_LE(now[i].cached_tokens, known) << i;
  }
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

TEST_P(HybridServing, SharedBeginningsAreFound) {
  auto served = serve(args());
  auto plain = serve(args_without_cache());
  constexpr int kShared = 57;  // no multiple of the interval or of pages
  const Ids shared = some_ids(kShared, 5);
  std::vector<Ids> prompts;
  for (int i = 0; i < 5; ++i) prompts.push_back(joined(shared, some_ids(20, 60 + i)));
  for (int i = 0; i < 5; ++i) {
    const auto answer = ask(served, {prompts[i]}, 8);
    EXPECT_EQ(answer, ask(plain, {prompts[i]}, 8)) << i;
    // The second prompt leaves a checkpoint where it parts from the first, be it within a page.
    const int found = i == 0 ? 0 : i == 1 ? kShared / kInterval * kInterval : kShared;
    EXPECT_GE(answer[0].cached_tokens, found) << i;
    // Of K and V all that is shared was cached, though the second prompt found no state there yet.
    ASSERT_TRUE(answer[0].cached_kv_tokens.has_value());
    EXPECT_GE(*answer[0].cached_kv_tokens, i == 0 ? 0 : kShared) << i;
    EXPECT_GE(*answer[0].cached_kv_tokens, answer[0].cached_tokens) << i;
    if (i == 1) {
      EXPECT_GT(*answer[0].cached_kv_tokens, answer[0].cached_tokens);
    }
  }
  const EngineStats stats = served.engine->stats();
  ASSERT_TRUE(stats.cached_kv_tokens_total.has_value());
  EXPECT_GE(*stats.cached_kv_tokens_total, 4u * kShared);
  EXPECT_GT(*stats.cached_kv_tokens_total, stats.cached_tokens_total);
}

// A step that computes a whole prompt leaves checkpoints on its way, from which others go on that begin alike.
TEST_P(HybridServing, WholePromptsLeaveCheckpointsOnTheirWay) {
  ServerArgs whole = args();
  whole.chunked_prefill_size = kContext;
  auto served = serve(whole);
  auto plain = serve(args_without_cache());
  std::vector<Ids> prompts;
  for (int i = 0; i < 4; ++i) prompts.push_back(some_ids(100 - i, i));
  EXPECT_EQ(ask(served, prompts, 8), ask(plain, prompts, 8));
  for (int i = 0; i < 4; ++i) {
    const int shared = 20 + 19 * i;
    const Ids parting = joined(Ids(prompts[i].begin(), prompts[i].begin() + shared), some_ids(15, 70 + i));
    const auto answer = ask(served, {parting}, 8);
    EXPECT_EQ(answer, ask(plain, {parting}, 8)) << i;
    EXPECT_GE(answer[0].cached_tokens, shared / kInterval * kInterval) << i;
  }
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

TEST_P(HybridServing, SaysTheSameWhenPagesAndSlotsAreTooFewForAll) {
  std::vector<Ids> prompts;
  for (int i = 0; i < 8; ++i) prompts.push_back(some_ids(30 + 5 * i, i));
  auto plain = serve(args_without_cache());
  ServerArgs tight = args();
  tight.max_total_tokens = 160;
  tight.schedule_conservativeness = 0.05;
  tight.max_running_requests = 6;
  tight.max_mamba_cache_size = 8;
  auto served = serve(tight);
  const auto expected = ask(plain, prompts, 40);
  const auto answers = ask_together(served, greedy_requests(prompts, 40));
  EXPECT_EQ(answers, expected);
  EXPECT_TRUE(std::any_of(answers.begin(), answers.end(), [](const Answer& a) { return a.retractions > 0; }));
  EXPECT_EQ(ask(served, prompts, 40), expected);
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

TEST_P(HybridServing, SamplesOfOnePromptShareIt) {
  auto served = serve(args());
  const Ids prompt = some_ids(45, 3);
  std::vector<GenerateRequest> samples = greedy_requests({prompt, prompt, prompt, prompt}, 20);
  for (size_t i = 1; i < samples.size(); ++i) samples[i].wait_for_prefix_of = "0";  // n > 1
  const auto answers = ask(served, samples);
  auto plain = serve(args_without_cache());
  const Answer expected = ask(plain, {prompt}, 20)[0];
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i], expected) << i;
    const int found = i == 0 ? -1 : static_cast<int>(prompt.size()) - 1 - kInterval;
    EXPECT_GT(answers[i].cached_tokens, found) << i;
  }
}

TEST_P(HybridServing, AbortedRequestsLeaveTheirSlots) {
  ServerArgs few = args();
  few.max_running_requests = 3;
  few.max_mamba_cache_size = 5;
  auto served = serve(few);
  auto plain = serve(args_without_cache());
  const std::vector<Ids> prompts = {some_ids(40, 1), some_ids(50, 2), some_ids(60, 3), some_ids(33, 4)};
  const auto expected = ask(plain, prompts, 20);
  for (int round = 0; round < 4; ++round) {
    Asking asking(served, greedy_requests(prompts, 60));
    asking.wait_for_first_token(round % 3);
    served.engine->abort(round < 2 ? "" : "1");
    if (round >= 2) served.engine->abort("2");
    asking.wait();
    EXPECT_EQ(ask(served, prompts, 20), expected) << round;
  }
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

// States go on along what was accepted; checkpoints are those of the steps' beginnings.
TEST_P(HybridServing, SpeculatesWithoutChangingTexts) {
  std::vector<Ids> prompts;
  for (int i = 0; i < 6; ++i) prompts.push_back(some_ids(11 + 9 * i, i));
  ServerArgs without = args_without_cache();
  without.threads = 1;
  auto plain = serve(without);
  const auto expected = ask(plain, prompts, 40);
  std::vector<Ids> turns;
  for (size_t i = 0; i < prompts.size(); ++i) {
    turns.push_back(joined(joined(prompts[i], expected[i].ids), some_ids(3, 50 + static_cast<int>(i))));
  }
  const auto expected_turns = ask(plain, turns, 8);
  for (const std::string algorithm : {"NGRAM", "STANDALONE"}) {
    ServerArgs speculating = args();
    speculating.threads = 1;
    speculating.speculative_algorithm = algorithm;
    // A tree may not be deeper than a layer's window.
    speculating.speculative_eagle_topk = GetParam().overlap && GetParam().model != kWindows ? 4 : 1;
    if (algorithm == "STANDALONE") {
      speculating.speculative_draft_model_path = "tests/golden/families/llama";
      speculating.speculative_num_steps = 2;  // although its guesses are wrong
    }
    auto served = serve(speculating);
    EXPECT_EQ(ask(served, prompts, 40), expected) << algorithm;
    const auto now = ask(served, turns, 8);
    EXPECT_EQ(now, expected_turns) << algorithm;
    for (size_t i = 0; i < turns.size(); ++i) {
      const int known = static_cast<int>(prompts[i].size()) + 39;
      EXPECT_GT(now[i].cached_tokens, known - kInterval - kMostAccepted) << algorithm << " " << i;
      EXPECT_LE(now[i].cached_tokens, known) << algorithm << " " << i;
    }
    EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
    EXPECT_GT(served.engine->stats().speculation->draft_tokens, 50u) << algorithm;
    if (algorithm == "NGRAM") {  // of texts that it has seen
      EXPECT_EQ(ask(served, prompts, 40), expected);
      EXPECT_GT(served.engine->stats().speculation->accepted_tokens, 40u);
    }
    // And from too few pages and slots.
    speculating.max_total_tokens = 224;
    speculating.schedule_conservativeness = 0.05;
    speculating.max_running_requests = 4;
    speculating.max_mamba_cache_size = 6;
    auto small = serve(speculating);
    EXPECT_EQ(ask(small, prompts, 40), expected) << algorithm;
    EXPECT_EQ(ask(small, turns, 8), expected_turns) << algorithm;
    EXPECT_TRUE(small.engine->audit().ok()) << small.engine->audit().message();
  }
}

// Proposals that are right by dice, chains and trees of every shape, and prompts that go on from checkpoints of such
// steps.
TEST_P(HybridServing, KeepsTheStatesOfWhatWasAccepted) {
  std::vector<Ids> prompts, turns;
  for (int i = 0; i < 6; ++i) prompts.push_back(some_ids(7 + 9 * i, i));
  auto plain = serve(args_without_cache());
  const auto expected = ask(plain, prompts, 40);
  DiceProposer proposer;
  proposer.trees = GetParam().overlap;
  for (size_t i = 0; i < prompts.size(); ++i) {
    proposer.known[prompts[i]] = expected[i].ids;
    turns.push_back(joined(joined(prompts[i], expected[i].ids), some_ids(2, 40 + static_cast<int>(i))));
  }
  ServerArgs proposed = args();
  serve_on_test_device(proposed);
  proposed.skip_tokenizer_init = true;
  auto served = create_engine({.args = proposed,
                               .model_path = GetParam().model,
                               .on_weights_progress = {},
                               .proposer = &proposer,
                               .max_proposals = kMostProposals});
  ASSERT_TRUE(served.ok()) << served.status().message();
  EXPECT_EQ(ask(*served, prompts, 40), expected);
  EXPECT_EQ(ask(*served, turns, 12), ask(plain, turns, 12));
  EXPECT_GT(proposer.proposed, 100);
  EXPECT_GT(served->engine->stats().speculation->accepted_tokens, 30u);
  EXPECT_TRUE(served->engine->audit().ok()) << served->engine->audit().message();
}

INSTANTIATE_TEST_SUITE_P(Settings, HybridServing,
                         testing::Values(Setting{1, true, false}, Setting{4, true, true}, Setting{16, true, false},
                                         Setting{16, false, true}, Setting{4, false, false}, Setting{32, true, true},
                                         Setting{4, true, true, kConvolutions},
                                         Setting{16, false, false, kConvolutions}, Setting{4, true, true, kLatent},
                                         Setting{16, false, false, kLatent}, Setting{4, true, true, kWindows},
                                         Setting{16, false, false, kWindows}));

#ifndef WW_TEST_ON_GPU
INSTANTIATE_TEST_SUITE_P(PortableTiles, HybridServing,
                         testing::Values(Setting{4, true, true, kModel, "triton"}, Setting{4, true, true, kLatent, "triton"},
                                         Setting{16, false, false, kWindows, "triton"}));
#endif

class HybridServingFlags : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_test_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(HybridServingFlags, StatesInBfloat16AreServed) {
  ServerArgs args;
  args.mamba_ssm_dtype = "bfloat16";
  args.max_total_tokens = 1024;
  auto served = serve(args);
  EXPECT_EQ(ask(served, {some_ids(40, 1)}, 20)[0].ids.size(), 20u);
}

TEST_F(HybridServingFlags, QuantisedPoolsAreCheckedWithStates) {
  ServerArgs args;
  args.kv_cache_dtype = "fp8_e4m3";
  args.max_total_tokens = 1024;
  auto served = serve(args);
  EXPECT_EQ(ask(served, {some_ids(40, 1)}, 20)[0].ids.size(), 20u);
}

#ifdef WW_TEST_ON_GPU
// Chunks of 16-bit GEMMs, steps from graphs; every name of the kernels.
TEST_F(HybridServingFlags, EveryNameServesInBfloat16) {
  for (const char* name : {"triton", "flashinfer", "cutedsl"}) {
    ServerArgs args;
    args.device = "cuda";
    args.dtype = "bfloat16";
    args.linear_attn_backend = name;
    args.max_total_tokens = 1024;
    args.model_path = kModel;
    args.skip_tokenizer_init = true;
    auto served = create_engine({.args = args, .model_path = kModel, .on_weights_progress = {}});
    if (!served.ok()) {  // cutedsl is Hopper's
      EXPECT_EQ(served.status().field(), "--linear-attn-backend") << name << ": " << served.status().message();
      continue;
    }
    const auto answers = ask(*served, {some_ids(40, 1), some_ids(70, 2)}, 20);
    for (const Answer& answer : answers) EXPECT_EQ(answer.ids.size(), 20u) << name;
    EXPECT_TRUE(served->engine->audit().ok()) << served->engine->audit().message();
  }
}

// One request at a time, so that both ways run the same kernels over as many rows. Decode steps are replayed from
// graphs, go on from states that were committed behind checks, and give the bits of steps launched one by one; checks
// of as many guesses of every request are in graphs, too.
TEST_F(HybridServingFlags, DecodeAndChecksInGraphsGiveTheTextsOfStepsLaunchedOneByOne) {
  for (const int topk : {1, 4}) {
    ServerArgs args;
    args.dtype = "bfloat16";
    args.page_size = 16;
    args.max_total_tokens = 2048;
    args.speculative_algorithm = "NGRAM";
    args.speculative_eagle_topk = topk;
    args.speculative_num_draft_tokens = 6;
    auto served = serve(args);
    args.disable_cuda_graph = true;
    auto plain = serve(args);
    for (int i = 0; i < 6; ++i) {
      const std::vector<Ids> prompt = {some_ids(20 + 7 * i, i)};
      EXPECT_EQ(ask(served, prompt, 60), ask(plain, prompt, 60)) << topk << " " << i;
    }
    EXPECT_GT(served.engine->stats().speculation->accepted_tokens, 5u);
    EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  }
}
#else
std::string refused(const ServerArgs& args) {
  const auto served = try_serve(args);
  return served.ok() ? "nothing" : served.status().field();
}

// Of Jet-Nemotron's layers the last keeps a state: the last with attention ends a recording.
TEST_F(HybridServingFlags, ForwardsAreRecordedBeforeRecurrentLayers) {
  const TemporaryFolder folder;
  ServerArgs args;
  args.model_path = kWindows;
  args.dump_batch = 2;
  args.dump_batch_file = folder / "forward.wwb";
  auto served = serve(args);
  ask(served, {some_ids(9, 1)}, 4);
  EXPECT_TRUE(std::filesystem::exists(args.dump_batch_file));
}

TEST_F(HybridServingFlags, WhatDoesNotFitIsRefusedByName) {
  ServerArgs args;
  args.max_running_requests = 9;
  args.max_mamba_cache_size = 8;
  EXPECT_EQ(refused(args), "--max-mamba-cache-size");
  ServerArgs other;
  other.mamba_track_interval = 64;
  other.model_path = "tests/golden/families/llama";
  EXPECT_EQ(refused(other), "--mamba-track-interval");
  ServerArgs dense;
  dense.mamba_track_interval = kLinearAttnLeastInterval - 1;
  EXPECT_EQ(refused(dense), "--mamba-track-interval");
  ServerArgs convolutions;
  convolutions.model_path = kConvolutions;
  convolutions.mamba_ssm_dtype = "bfloat16";
  EXPECT_EQ(refused(convolutions), "--mamba-ssm-dtype");
  convolutions.mamba_ssm_dtype.clear();
  convolutions.linear_attn_backend = "triton";
  EXPECT_EQ(refused(convolutions), "--linear-attn-backend");
  ServerArgs recorded;
  recorded.dump_batch = 1;
  recorded.dump_batch_layer = 2;
  EXPECT_EQ(refused(recorded), "--dump-batch-layer");
  ServerArgs kernels;
  kernels.linear_attn_backend = "flashinfer";
  EXPECT_EQ(refused(kernels), "--linear-attn-backend");
  ServerArgs drafts;
  drafts.speculative_algorithm = "NGRAM";
  drafts.speculative_num_draft_tokens = 65;
  EXPECT_EQ(refused(drafts), "--speculative-num-draft-tokens");
}
#endif

TEST(StateSlots, RunningRequestsAreLoweredToTheMemory) {
  ModelConfig config;
  config.num_layers = 4;
  config.linear = LinearAttnConfig{.k_heads = 1, .v_heads = 1, .k_dim = 16, .v_dim = 16, .conv_width = 4};
  config.recurrent_layers = {true, true, true, false};
  const double slot = static_cast<double>(StateCache::bytes_per_slot(state_cache_shape(config, 1, DType::f32)));
  SchedulerConfig scheduler;
  scheduler.context_len = kContext;
  scheduler.max_running_requests = 64;
  ServerArgs args;
  args.mamba_full_memory_ratio = 1;
  ASSERT_TRUE(size_state_slots(args, config, 2 * 10.5 * slot, scheduler).ok());
  EXPECT_EQ(scheduler.state_slots, 10);
  EXPECT_EQ(scheduler.max_running_requests, 5);
  EXPECT_EQ(scheduler.state_request_slots, 5);
  EXPECT_EQ(scheduler.state_interval, 256);
  EXPECT_TRUE(Scheduler::validate([&] {
    scheduler.num_pages = 1;
    return scheduler;
  }()).ok());
  scheduler.max_running_requests = 64;
  scheduler.disable_radix_cache = true;
  ASSERT_TRUE(size_state_slots(args, config, 2 * 10.5 * slot, scheduler).ok());
  EXPECT_EQ(scheduler.max_running_requests, 10);
  EXPECT_EQ(size_state_slots(args, config, slot, scheduler).field(), "--mamba-full-memory-ratio");
  // As many as are asked for, where the KV pool gets the rest.
  args.max_mamba_cache_size = 10;
  EXPECT_TRUE(size_state_slots(args, config, 10.5 * slot, scheduler).ok());
  args.max_mamba_cache_size = 11;
  EXPECT_EQ(size_state_slots(args, config, 10.5 * slot, scheduler).field(), "--max-mamba-cache-size");
  args.max_total_tokens = 1;
  EXPECT_TRUE(size_state_slots(args, config, 10.5 * slot, scheduler).ok());
}

}  // namespace
}  // namespace warpweave
