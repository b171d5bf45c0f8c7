// Requests with grammars, penalties, biases, words and ids that are forbidden or allowed, and log-probabilities, among
// others that have none of them: each says in a crowd, with steps that overlap, what it says alone.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/testing/asking.h"
#include "engine/testing/printable_grammar.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

struct Setting {
  const char* family;
  bool overlap, graphs;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.family << (s.overlap ? " overlap" : "") << (s.graphs ? " graphs" : "");
}

class EditedServing : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }

  ServedModel serve(bool overlap, int max_total_tokens = 4096) {
    ServerArgs args;
    serve_on_test_device(args);
    args.model_path = "tests/golden/families/" + std::string(GetParam().family);
    args.skip_tokenizer_init = true;
    args.page_size = 4;
    args.disable_overlap_schedule = !overlap;
    args.disable_cuda_graph = !GetParam().graphs;
    args.disable_jump_forward = true;
    args.chunked_prefill_size = 16;
    args.max_total_tokens = max_total_tokens;
    args.schedule_conservativeness = max_total_tokens < 4096 ? 0.05 : 1.0;
    auto served = create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}});
    EXPECT_TRUE(served.ok()) << served.status().message();
    return std::move(served).value();
  }

  // By number, one of each kind and some of two.
  static GenerateRequest request(int number) {
    GenerateRequest one = greedy_request(std::to_string(number), some_ids(7 + 3 * number, number), 20 + number);
    SamplingParams& sampling = one.sampling;
    sampling.temperature = number % 2 == 0 ? 0 : 0.9f;
    sampling.seed = 55 + number;
    if (number % 3 == 1) sampling.grammar = printable_regex("[a-m]*(xyz|[0-9]{3})+[n-z]*");
    if (number % 4 == 2) sampling.repetition_penalty = 1.4f;
    if (number % 4 == 2) sampling.frequency_penalty = 0.7f;
    if (number % 5 == 3) sampling.logit_bias = {{10, 4.0f}, {11, -50.0f}};
    if (number % 6 == 4) sampling.bad_words = {{10}, {12, 13}};
    if (number % 7 == 5) sampling.allowed_token_ids = {10, 11, 12, 40, 41, 60};
    if (number == 9) sampling.min_new_tokens = 12;
    if (number == 9) sampling.stop_token_ids = {10, 11, 12, 13, 14, 15};
    one.return_logprob = number % 3 != 0;
    one.top_logprobs_num = number % 3;
    return one;
  }

  static std::vector<GenerateRequest> requests() {
    std::vector<GenerateRequest> out;
    for (int i = 0; i < 16; ++i) out.push_back(request(i));
    return out;
  }

  static void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(got[i].error.ok()) << i << ": " << got[i].error.message();
      EXPECT_EQ(got[i].ids, expected[i].ids) << i;
      ASSERT_EQ(got[i].logprobs.size(), expected[i].logprobs.size()) << i;
      for (size_t k = 0; k < got[i].logprobs.size(); ++k) {
        EXPECT_NEAR(got[i].logprobs[k], expected[i].logprobs[k], 1e-4) << i;
      }
    }
  }
};

TEST_P(EditedServing, ACrowdSaysWhatEachSaysAlone) {
  const auto asked = requests();
  std::vector<Answer> expected;
  auto alone = serve(/*overlap=*/false);
  for (const GenerateRequest& one : asked) expected.push_back(ask(alone, std::vector{one})[0]);
  for (const int max_total_tokens : {4096, 256}) {  // with the second requests are retracted and begin anew
    auto served = serve(GetParam().overlap, max_total_tokens);
    for (int turn = 0; turn < 2; ++turn) {
      SCOPED_TRACE(testing::Message() << max_total_tokens << " tokens, turn " << turn);
      expect_same(ask(served, asked), expected);
    }
    EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  }
}

TEST_P(EditedServing, WhatIsForbiddenIsNotSaid) {
  auto served = serve(GetParam().overlap);
  const auto asked = requests();
  const auto got = ask(served, asked);
  for (size_t i = 0; i < asked.size(); ++i) {
    const SamplingParams& sampling = asked[i].sampling;
    for (size_t k = 0; k < got[i].ids.size(); ++k) {
      const int32_t id = got[i].ids[k];
      const auto& allowed = sampling.allowed_token_ids;
      if (!allowed.empty()) {
        EXPECT_NE(std::find(allowed.begin(), allowed.end(), id), allowed.end()) << i;
      }
      if (!sampling.bad_words.empty()) {
        EXPECT_NE(id, 10) << i;
        EXPECT_FALSE(k > 0 && got[i].ids[k - 1] == 12 && id == 13) << i;
      }
    }
    if (sampling.min_new_tokens > 0) {
      EXPECT_GE(static_cast<int>(got[i].ids.size()), sampling.min_new_tokens) << i;
    }
    if (sampling.grammar == nullptr) continue;
    grammar::GrammarMatcher matcher(sampling.grammar);
    for (const int32_t id : got[i].ids) EXPECT_TRUE(matcher.accept_token(id)) << i << " " << id;
  }
}

// Where no token is allowed, its request alone fails, though the step behind it was begun already.
TEST_P(EditedServing, ARequestWithoutATokenFailsAlone) {
  auto served = serve(GetParam().overlap);
  std::vector<GenerateRequest> asked = {request(0), request(1), request(2)};
  const auto expected = ask(served, asked);
  asked.push_back(request(3));
  asked.back().sampling.grammar = printable_regex("[a-c]{3}d");
  asked.back().sampling.logit_bias.clear();
  asked.back().sampling.bad_words = {{'d' - ' ' + 1}};
  const auto got = ask(served, asked);
  expect_same({got.begin(), got.begin() + 3}, expected);
  EXPECT_EQ(got[3].ids.size(), 3u);
  EXPECT_EQ(got[3].error.code(), StatusCode::invalid_argument) << got[3].error.message();
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

INSTANTIATE_TEST_SUITE_P(Settings, EditedServing,
                         testing::Values(Setting{"llama", true, true}, Setting{"llama", false, false},
                                         Setting{"gemma3", true, false}, Setting{"qwen3-next", true, true},
                                         Setting{"deepseek-v2-groups-moe", true, true}));

}  // namespace
}  // namespace warpweave
