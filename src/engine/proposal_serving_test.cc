// Steps of many tokens: a proposer that is right by dice changes how many steps an answer takes, never its text.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/testing/asking.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

// Knows how each prompt goes on, and says so as often as the dice allow; else it says anything.
class DiceProposer : public Proposer {
 public:
  std::map<Ids, Ids> known;
  int right_percent = 60;
  bool trees = false;
  int vocab_size = 90;
  int64_t proposed = 0;

  void propose(const ProposalCall& call, Proposal& out) override {
    const Ids prompt(call.input_ids.begin(), call.input_ids.end());
    const auto found = known.find(prompt);
    const Ids answer = found == known.end() ? Ids() : found->second;
    const int count = static_cast<int>(rng_() % (call.max_tokens + 1));
    for (int node = 1; node <= count; ++node) {
      const int parent = trees ? static_cast<int>(rng_() % node) : node - 1;
      const size_t place = call.output_ids.size() + (parent > 0 ? out.depth(parent) : 0);
      const bool right = place < answer.size() && static_cast<int>(rng_() % 100) < right_percent;
      out.tokens.push_back(right ? answer[place] : static_cast<int32_t>(1 + rng_() % vocab_size));
      if (trees) out.parents.push_back(parent);
    }
    proposed += count;
  }

 private:
  std::mt19937 rng_{7};
};

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
  const auto expected = ask(plain, asked);
  DiceProposer proposer;
  proposer.trees = GetParam().trees;
  for (size_t i = 0; i < asked.size(); ++i) proposer.known[asked[i].input_ids] = expected[i].ids;
  for (const int percent : {0, 60, 100}) {
    proposer.right_percent = percent;
    auto served = serve(&proposer);
    expect_same(ask(served, asked), expected);
    EXPECT_GT(proposer.proposed, 0);
    EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
    const EngineStats with = served.engine->stats(), without = plain.engine->stats();
    EXPECT_EQ(with.generation_tokens_total, without.generation_tokens_total);
    // A step that checks proposals is one of decode, unless prompts are in it.
    if (!served.engine->info().enable_mixed_chunk) EXPECT_EQ(with.mixed_steps.steps, 0u);
    EXPECT_GT(with.decode_steps.tokens, with.decode_steps.requests);
    if (percent == 100 && !GetParam().overlap && !GetParam().trees) EXPECT_LT(with.steps_total, without.steps_total);
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

}  // namespace
}  // namespace warpweave
