// Every pair of sampling options, on every kind of attention backend, with and without speculation, in one crowd: each
// request gets its answer, each option keeps what it promises beside any other, and the engine serves on.
#include <cmath>
#include <functional>

#include "ask_tale.h"

namespace warpweave::speculation {
namespace {

constexpr int kTokens = 8;
constexpr int32_t kCommonToken = 262;

struct Option {
  const char* name;
  std::function<void(GenerateRequest&)> apply;
  // What the answer keeps; null: nothing that shows in one answer.
  std::function<bool(const Answer&)> holds = nullptr;
};

bool lacks(const Answer& answer, int32_t token) {
  return std::find(answer.ids.begin(), answer.ids.end(), token) == answer.ids.end();
}

bool gives_logprobs(const Answer& answer) {
  return answer.logprobs.size() == answer.ids.size() &&
         std::all_of(answer.logprobs.begin(), answer.logprobs.end(), [](float p) { return p <= 0 && std::isfinite(p); });
}

std::vector<Option> options(const ServedModel& served) {
  const int vocab_size = served.engine->info().vocab_size;
  std::vector<int32_t> even;
  for (int32_t id = 0; id < vocab_size; id += 2) even.push_back(id);
  const auto regex = compile_regex(served, "( [a-z]{1,9}){6,9}\\.");
  using R = GenerateRequest&;
  return {
      {"temperature 1.5", [](R r) { r.sampling.temperature = 1.5f; }},
      {"temperature 1e-30", [](R r) { r.sampling.temperature = 1e-30f; }},
      {"top_k 1", [](R r) { r.sampling.temperature = 1, r.sampling.top_k = 1; }},
      {"top_k 2^31-1", [](R r) { r.sampling.temperature = 1, r.sampling.top_k = 2147483647; }},
      {"top_p 1e-30", [](R r) { r.sampling.temperature = 1, r.sampling.top_p = 1e-30f; }},
      {"min_p 1", [](R r) { r.sampling.temperature = 1, r.sampling.min_p = 1; }},
      {"frequency_penalty", [](R r) { r.sampling.frequency_penalty = 2; }},
      {"presence_penalty", [](R r) { r.sampling.presence_penalty = -2; }},
      {"repetition_penalty", [](R r) { r.sampling.repetition_penalty = 1e-30f; }},
      {"stop", [](R r) { r.sampling.stop = {"the"}; }, [](const Answer& a) { return a.text.find("the") == std::string::npos; }},
      {"stop_token_ids", [](R r) { r.sampling.stop_token_ids = {kCommonToken}; }},
      {"ignore_eos", [](R r) { r.sampling.ignore_eos = true; }},
      {"min_new_tokens", [](R r) { r.sampling.min_new_tokens = 3; }},
      {"max_new_tokens 1", [](R r) { r.sampling.max_new_tokens = r.sampling.min_new_tokens = 1; },
       [](const Answer& a) { return a.ids.size() == 1; }},
      {"logit_bias", [](R r) { r.sampling.logit_bias = {{kCommonToken, -100.0f}, {kCommonToken + 2, 100.0f}}; }},
      {"allowed_token_ids", [even](R r) { r.sampling.allowed_token_ids = even; },
       [](const Answer& a) { return std::all_of(a.ids.begin(), a.ids.end(), [](int32_t id) { return id % 2 == 0; }); }},
      {"bad_words", [](R r) { r.sampling.bad_words = {{kCommonToken}}; }, [](const Answer& a) { return lacks(a, kCommonToken); }},
      {"grammar", [regex](R r) { r.sampling.grammar = regex; }},
      {"logprobs", [](R r) { r.return_logprob = true, r.top_logprobs_num = 3, r.logprob_start_len = 0; }, gives_logprobs},
      {"hidden states", [](R r) { r.states = StateWish::last; }},
      {"whole", [](R r) { r.stream = false; }},
      {"cache_salt", [](R r) { r.cache_salt = "tenant"; }},
      {"priority", [](R r) { r.priority = -2147483647 - 1; }},
  };
}

struct Setting {
  const char* backend;
  const char* algorithm;  // empty: no speculation
};

class OptionPairs : public testing::TestWithParam<Setting> {};

TEST_P(OptionPairs, AreAllAnsweredAndKeepWhatTheyPromise) {
  ServerArgs args;
  args.threads = 1;
  args.chunked_prefill_size = 32;
  args.max_total_tokens = 2048;  // far fewer than all of them take
  args.attention_backend = GetParam().backend;
  args.speculative_algorithm = GetParam().algorithm;
  ServedModel served = serve(args);
  ASSERT_NE(served.engine, nullptr);
  const std::vector<Option> all = options(served);
  const std::vector<Ids> prompts = golden_prompts();
  std::vector<GenerateRequest> requests;
  std::vector<std::pair<const Option*, const Option*>> pairs;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t k = 0; k <= i; ++k) {
      GenerateRequest& request = requests.emplace_back();
      request.rid = std::to_string(requests.size());
      request.input_ids = prompts[requests.size() % prompts.size()];
      request.sampling.temperature = 0;
      request.sampling.seed = requests.size();
      request.sampling.max_new_tokens = kTokens;
      all[i].apply(request);
      if (k < i) all[k].apply(request);
      pairs.emplace_back(&all[i], &all[k]);
    }
  }
  const std::vector<Answer> answers = ask(served, requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer& answer = answers[i];
    const std::string what = std::string(pairs[i].first->name) + ", " + pairs[i].second->name + ": " + answer.text;
    EXPECT_NE(answer.finish.type, FinishReason::Type::abort) << what << ": " << answer.finish.error.message();
    EXPECT_LE(answer.ids.size(), static_cast<size_t>(kTokens)) << what;
    for (const int32_t id : answer.ids) EXPECT_TRUE(id >= 0 && id < served.engine->info().vocab_size) << what;
    for (const Option* option : {pairs[i].first, pairs[i].second}) {
      if (!option->holds) continue;
      EXPECT_TRUE(option->holds(answer)) << what << ", broken: " << option->name;
    }
  }
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  EXPECT_EQ(served.engine->stats().running_reqs, 0);
}

std::string name_of(const testing::TestParamInfo<Setting>& info) {
  return std::string(info.param.backend) + (*info.param.algorithm == '\0' ? "" : "_speculating");
}

INSTANTIATE_TEST_SUITE_P(Backends, OptionPairs,
                         testing::Values(Setting{"torch_native", ""}, Setting{"torch_native", "NGRAM"}, Setting{"triton", ""},
                                         Setting{"triton", "NGRAM"}, Setting{"flex_attention", ""}),
                         name_of);

}  // namespace
}  // namespace warpweave::speculation
