// What a grammar forces is written several tokens a step without any speculation: the same text, in fewer steps, and
// only where that pays.
#include <gtest/gtest.h>

#include "engine/testing/asking.h"
#include "engine/testing/printable_grammar.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

std::string text_of(const Ids& ids) {
  std::string text;
  for (const int32_t id : ids) text += static_cast<char>(' ' + id - 1);
  return text;
}

class JumpForward : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }

  ServedModel serve(bool jump, int max_total_tokens = 4096) {
    ServerArgs args;
    serve_on_test_device(args);
    args.model_path = "tests/golden/families/" + family_;
    args.skip_tokenizer_init = true;
    args.page_size = 4;
    args.disable_overlap_schedule = !GetParam();
    args.disable_jump_forward = !jump;
    args.max_total_tokens = max_total_tokens;
    args.schedule_conservativeness = max_total_tokens < 4096 ? 0.05 : 1.0;
    auto served = create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}});
    EXPECT_TRUE(served.ok()) << served.status().message();
    return std::move(served).value();
  }

  static GenerateRequest request(int number, const Grammar& grammar, int new_tokens = 48) {
    GenerateRequest one = greedy_request(std::to_string(number), some_ids(9 + 5 * number, number), new_tokens);
    one.sampling.temperature = number % 2;
    one.sampling.seed = 99 + number;
    one.sampling.grammar = grammar;
    one.return_logprob = number == 2;
    return one;
  }

  std::string family_ = "llama";
};

constexpr const char* kMostlyForced = "[ab](the quick brown fox jumps)[ab](over the lazy dog)[a-z]*";

TEST_P(JumpForward, WritesForcedTextInFewSteps) {
  auto plain = serve(false), jumping = serve(true);
  const std::vector<GenerateRequest> alone = {request(1, printable_regex(kMostlyForced))};
  const auto expected = ask(plain, alone), got = ask(jumping, alone);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(text_of(got[0].ids).substr(1, 25), "the quick brown fox jumps");
  for (const ServedModel* served : {&plain, &jumping}) {
    EXPECT_TRUE(served->engine->audit().ok()) << served->engine->audit().message();  // and the last step is counted
  }
  EXPECT_EQ(plain.engine->stats().decode_steps.steps, 47u);
  // 2 + 2 steps over 25 and 17 forced tokens, one at most before each, and 4 tokens of choice behind them.
  EXPECT_LE(jumping.engine->stats().decode_steps.steps, 14u);
  EXPECT_EQ(jumping.engine->stats().generation_tokens_total, 48u);
  EXPECT_FALSE(jumping.engine->stats().speculation);
}

TEST_P(JumpForward, SaysTheSameInABatchAndWithTooSmallAPool) {
  for (const char* family : {"llama", "gemma3", "qwen3-moe"}) {
    SCOPED_TRACE(family);
    family_ = family;
    std::vector<GenerateRequest> asked;
    for (int i = 0; i < 8; ++i) asked.push_back(request(i, i % 4 == 3 ? nullptr : printable_regex(kMostlyForced), 30 + i));
    auto plain = serve(false);
    const auto expected = ask(plain, asked);
    for (const int max_total_tokens : {4096, 160}) {
      auto jumping = serve(true, max_total_tokens);
      for (int turn = 0; turn < 2; ++turn) {
        const auto got = ask(jumping, asked);
        EXPECT_EQ(got, expected);
        ASSERT_EQ(got[2].logprobs.size(), expected[2].logprobs.size());
        for (size_t k = 0; k < got[2].logprobs.size(); ++k)
          EXPECT_NEAR(got[2].logprobs[k], expected[2].logprobs[k], 1e-4);
      }
      EXPECT_TRUE(jumping.engine->audit().ok()) << jumping.engine->audit().message();
      EXPECT_GT(jumping.engine->stats().decode_steps.tokens, jumping.engine->stats().decode_steps.requests);
    }
  }
}

TEST_P(JumpForward, LeavesBatchesAloneWhereLittleIsForced) {
  auto served = serve(true);
  std::vector<GenerateRequest> asked;
  for (int i = 0; i < 8; ++i) asked.push_back(request(i, i == 0 ? printable_regex("([ab](xy))*") : nullptr, i == 0 ? 40 : 48));
  ask_together(served, asked);
  EXPECT_TRUE(served.engine->audit().ok());
  const EngineStats stats = served.engine->stats();
  // While all eight run, two forced tokens save a row at most, and a step that waits for the one before costs more.
  EXPECT_EQ(stats.decode_steps.tokens, stats.decode_steps.requests);
}

// With so many rows the engine does not look before every step.
TEST_P(JumpForward, LargeBatchesJumpWhereAllIsForced) {
  auto plain = serve(false), jumping = serve(true);
  std::vector<GenerateRequest> asked;
  for (int i = 0; i < 20; ++i) asked.push_back(request(i, printable_regex(kMostlyForced)));
  EXPECT_EQ(ask(jumping, asked), ask(plain, asked));
  EXPECT_GT(jumping.engine->stats().decode_steps.tokens, jumping.engine->stats().decode_steps.requests);
  EXPECT_TRUE(jumping.engine->audit().ok()) << jumping.engine->audit().message();
}

INSTANTIATE_TEST_SUITE_P(Overlap, JumpForward, testing::Bool());

}  // namespace
}  // namespace warpweave
