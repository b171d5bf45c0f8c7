// Every numeric field at the edges of its type, and every pair of sampling options: an answer of 200
// with values in range, or a 400 that names the field. Never anything else.
#include <gtest/gtest.h>

#include <cmath>

#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

constexpr const char* kEdges[] = {
    "0", "-0", "-0.0", "1", "-1", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "4294967295", "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616",
    "1e308", "-1e308", "1.7976931348623157e308", "5e-324", "-5e-324", "2.2250738585072014e-308",
    "1e-45", "1.4e-45", "1e-38", "1e38", "3.5e38", "0.1", "0.999999999999", "1.0000000001", "1e16"};

const char* const kNumbers[] = {
    "temperature", "top_p", "min_p", "top_k", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "n"};

void expect_sane(const SamplingParams& params, const std::string& what) {
  for (const float value : {params.temperature, params.top_p, params.min_p, params.frequency_penalty,
                            params.presence_penalty, params.repetition_penalty}) {
    EXPECT_TRUE(std::isfinite(value)) << what;
  }
  EXPECT_TRUE(params.temperature >= 0 && params.temperature <= 100) << what;
  // A float of 0 would keep nothing, or divide by nothing: what is above 0 stays above it.
  EXPECT_TRUE(params.top_p > 0 && params.top_p <= 1) << what;
  EXPECT_TRUE(params.repetition_penalty > 0) << what;
  EXPECT_TRUE(params.min_p >= 0 && params.min_p <= 1) << what;
  EXPECT_TRUE(params.temperature == 0 || std::isfinite(1.0f / params.temperature)) << what;
  EXPECT_TRUE(params.top_k == -1 || params.top_k > 0) << what;
  EXPECT_GE(params.max_new_tokens, params.min_new_tokens) << what;
  EXPECT_GE(params.min_new_tokens, 0) << what;
}

void expect_answer(TestApi& api, const Reply& reply, const std::string& what) {
  if (reply.status == 400) {
    EXPECT_TRUE(reply.json()["error"]["param"].is_string()) << what << reply.body;
    return;
  }
  ASSERT_EQ(reply.status, 200) << what << reply.body;
  expect_sane(api.engine().submitted().back().sampling, what);
}

TEST(FieldSweep, NumbersAtTheEdgesOfTheirTypes) {
  TestApi api;
  const std::vector<std::string> shared(std::begin(kNumbers), std::end(kNumbers));
  std::vector<std::string> openai = shared, native = shared;
  for (const char* name : {"max_tokens", "max_completion_tokens", "min_tokens", "seed", "priority",
                           "truncate_prompt_tokens"}) {
    openai.emplace_back(name);
  }
  for (const char* name : {"max_new_tokens", "min_new_tokens", "sampling_seed"}) native.emplace_back(name);
  for (const char* edge : kEdges) {
    for (const std::string& name : openai) {
      const std::string member = "\"" + name + "\": " + edge + "}";
      expect_answer(api, api.post("/v1/completions", R"({"prompt": [1, 2], )" + member), member);
      expect_answer(api, api.post("/v1/chat/completions",
                                  R"({"messages": [{"role": "user", "content": "a"}], )" + member), member);
    }
    for (const char* name : {"logprobs", "best_of"}) {
      const std::string member = "\"" + std::string(name) + "\": " + edge + "}";
      expect_answer(api, api.post("/v1/completions", R"({"prompt": [1, 2], )" + member), member);
    }
    expect_answer(api, api.post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}],
        "logprobs": true, "top_logprobs": )" + std::string(edge) + "}"), edge);
    for (const std::string& name : native) {
      const std::string member = "\"" + name + "\": " + edge + "}}";
      expect_answer(api, api.post("/generate", R"({"input_ids": [1, 2], "sampling_params": {)" + member), member);
    }
    for (const char* name : {"logprob_start_len", "top_logprobs_num", "priority"}) {
      const std::string member = "\"" + std::string(name) + "\": " + edge + "}";
      expect_answer(api, api.post("/generate", R"({"input_ids": [1, 2], "return_logprob": true, )" + member), member);
    }
    const std::string bias = "{\"prompt\": [1, 2], \"logit_bias\": {\"5\": " + std::string(edge) + "}}";
    expect_answer(api, api.post("/v1/completions", bias), bias);
  }
}

const char* const kOptions[] = {
    R"("temperature": 0)", R"("temperature": 1.5)", R"("top_p": 0.5)", R"("top_p": 1e-30)", R"("top_k": 1)",
    R"("top_k": 2147483647)", R"("min_p": 0.3)", R"("frequency_penalty": 2)", R"("presence_penalty": -2)",
    R"("repetition_penalty": 1.3)", R"("seed": -5)", R"("stop": ["a", "b"])", R"("stop_token_ids": [5])",
    R"("logit_bias": {"7": -100})", R"("ignore_eos": true)", R"("min_tokens": 3)", R"("max_tokens": 5)",
    R"("n": 3)", R"("logprobs": 2)", R"("echo": true)", R"("stream": true)", R"("allowed_token_ids": [5, 6])",
    R"("bad_words": ["cat"])", R"("include_stop_str_in_output": true)", R"("return_token_ids": true)",
    R"("skip_special_tokens": false)", R"("no_stop_trim": true)", R"("truncate_prompt_tokens": 1)",
    R"("stop_regex": ["[0-9]{3}", "x+y"])", R"("regex": "[a-z ]+")",
    R"("return_hidden_states": true)", R"("priority": -2147483648)", R"("cache_salt": "s")", R"("stream_options": {"include_usage": true})"};

TEST(FieldSweep, EveryPairOfOptions) {
  TestApi api;
  const std::string_view stream = R"("stream": true)", options = R"("stream_options": {"include_usage": true})";
  for (const char* first : kOptions) {
    for (const char* second : kOptions) {
      const std::string body = std::string(R"({"prompt": [1, 2], )") + first + ", " + second + "}";
      const Reply reply = api.post("/v1/completions", body);
      if ((first == options && second != stream) || (second == options && first != stream)) {
        EXPECT_EQ(reply.status, 400) << body << reply.body;
        continue;
      }
      ASSERT_EQ(reply.status, 200) << body << reply.body;
      if (reply.streamed) {
        EXPECT_EQ(reply.events().back(), "[DONE]") << body;
      } else {
        EXPECT_TRUE(Json::accept(reply.body)) << body;
      }
      expect_sane(api.engine().submitted().back().sampling, body);
    }
  }
}

}  // namespace
}  // namespace warpweave::server::testing
