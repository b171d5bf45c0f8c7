// Steps of many tokens: a proposer that is right by dice changes how many steps an answer takes, never its text.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/testing/asking.h"
#include "engine/testing/dice_proposer.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

struct Setting {
  const char* family;
  int page_size;
  bool overlap;
  bool trees;
  int max_proposals;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.family << " page " << s.page_size << (s.trees ? " trees" : " chains") << " of " << s.max_proposals
       << (s.overlap ? "" : " without overlap");
}

class ProposalServing : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }

  ServedModel serve(Proposer* proposer, int max_total_tokens = 2048) {
    ServerArgs args;
    const std::string path = "tests/golden/families/" + std::string(GetParam().family);
    serve_on_test_device(args);
    args.model_path = path;
    args.skip_tokenizer_init = true;
    args.page_size = GetParam().page_size;
    args.disable_overlap_schedule = !GetParam().overlap;
    args.chunked_prefill_size = 16;
    args.max_total_tokens = max_total_tokens;
    args.schedule_conservativeness = max_total_tokens < 2048 ? 0.05 : 1.0;
    auto served = create_engine({.args = args, .model_path = path, .on_weights_progress = {}, .proposer = proposer,
                                 .max_proposals = GetParam().max_proposals});
    EXPECT_TRUE(served.ok()) << served.status().message();
    return std::move(served).value();
  }

  std::vector<GenerateRequest> questions() const {
    std::vector<GenerateRequest> asked;
    for (int i = 0; i < 7; ++i) {
      Ids prompt;
      for (int k = 0; k < 9 + 11 * i; ++k) prompt.push_back(1 + (k * 37 + k * k * i + i * 11) % 90);
      GenerateRequest one = greedy_request(std::to_string(i), prompt, i == 3 ? 1 : 25 + i);
      one.sampling.temperature = i % 3 == 1 ? 0.8 : 0;
      one.sampling.seed = 1234 + i;
      one.sampling.presence_penalty = i == 4 ? 0.5 : 0;
      one.return_logprob = i % 2 == 0;
      asked.push_back(one);
    }
    return asked;
  }

  void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(got[i].error.ok()) << got[i].error.message();
      EXPECT_EQ(got[i].ids, expected[i].ids) << "request " << i;
      ASSERT_EQ(got[i].logprobs.size(), expected[i].logprobs.size());
      for (size_t k = 0; k < got[i].logprobs.size(); ++k) {
        EXPECT_NEAR(got[i].logprobs[k], expected[i].logprobs[k], 1e-4) << "request " << i << " token " << k;
      }
    }
  }
};

TEST_P(ProposalServing, SaysWhatItSaysWithoutProposalsInFewerSteps) {
  auto plain = serve(nullptr);
  const auto asked = questions();
  const auto expected = ask_together(plain, asked);
  DiceProposer proposer;
  proposer.trees = GetParam().trees;
  for (size_t i = 0; i < asked.size(); ++i) proposer.known[asked[i].input_ids] = expected[i].ids;
  for (const int percent : {0, 60, 100}) {
    proposer.right_percent = percent;
    auto served = serve(&proposer);
    expect_same(ask_together(served, asked), expected);
    EXPECT_GT(proposer.proposed, 0);
    EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
    const EngineStats with = served.engine->stats(), without = plain.engine->stats();
    EXPECT_EQ(with.generation_tokens_total, without.generation_tokens_total);
    // A step that checks proposals is one of decode, unless prompts are in it.
    if (!served.engine->info().enable_mixed_chunk) {
      EXPECT_EQ(with.mixed_steps.steps, 0u);
    }
    EXPECT_GT(with.decode_steps.tokens, with.decode_steps.requests);
    const auto& kept = with.accepted_by_position;
    EXPECT_EQ(std::accumulate(kept.begin(), kept.end(), uint64_t{0}), with.speculation->accepted_tokens);
    EXPECT_TRUE(std::is_sorted(kept.rbegin(), kept.rend()));  // who stands deeper is kept only with those before it
    if (percent == 100 && !GetParam().overlap && !GetParam().trees) {
      EXPECT_LT(with.steps_total, without.steps_total);
    }
  }
}

TEST_P(ProposalServing, SaysTheSameWithTooSmallAPoolAndFromTheCache) {
  auto plain = serve(nullptr);
  const auto asked = questions();
  const auto expected = ask(plain, asked);
  DiceProposer proposer;
  proposer.trees = GetParam().trees;
  for (size_t i = 0; i < asked.size(); ++i) proposer.known[asked[i].input_ids] = expected[i].ids;
  auto served = serve(&proposer, 160);
  for (int turn = 0; turn < 2; ++turn) expect_same(ask(served, asked), expected);
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

INSTANTIATE_TEST_SUITE_P(Models, ProposalServing,
                         testing::Values(Setting{"llama", 1, true, false, 3}, Setting{"llama", 16, true, true, 7},
                                         Setting{"qwen3", 4, false, false, 5}, Setting{"gemma3", 4, true, true, 6},
                                         Setting{"mistral", 3, true, false, 4}, Setting{"gpt-oss", 1, false, true, 5},
                                         Setting{"qwen3-moe", 8, true, true, 40}));

#ifndef WW_TEST_ON_GPU
// With recurrent layers, whose states go on along what was accepted.
INSTANTIATE_TEST_SUITE_P(Hybrid, ProposalServing,
                         testing::Values(Setting{"qwen3-next", 1, true, false, 3},
                                         Setting{"qwen3-next", 16, true, true, 7},
                                         Setting{"qwen3_5", 4, false, true, 40},
                                         Setting{"qwen3_5-moe", 8, true, false, 5}));
#endif

}  // namespace
}  // namespace warpweave
