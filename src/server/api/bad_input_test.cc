// Every field of every body with values that must not pass, and fields that clients send anyway.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

enum class Body { generate, completion, chat };

Reply post(TestApi& api, Body body, const std::string& member) {
  switch (body) {
    case Body::generate:
      return api.post("/generate", R"({"input_ids": [1, 2], )" + member + "}");
    case Body::completion:
      return api.post("/v1/completions", R"({"prompt": "Once", )" + member + "}");
    case Body::chat:
      return api.post("/v1/chat/completions",
                      R"({"messages": [{"role": "user", "content": "Hi"}], )" + member + "}");
  }
  return {};
}

void expect_refused(const Reply& reply, const std::string& what, const std::string& param) {
  EXPECT_EQ(reply.status, 400) << what << ' ' << reply.body;
  const Json json = Json::parse(reply.body, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << what;
  EXPECT_TRUE(json["error"]["message"].is_string()) << what;
  EXPECT_EQ(json["error"]["type"], "invalid_request_error") << what;
  if (!param.empty()) {
    EXPECT_EQ(json["error"]["param"], param) << what;
  }
}

struct BadField {
  const char* name;
  std::vector<const char*> values;
};

const std::vector<BadField> kSamplingFields = {
    {"temperature", {"-1", "1e308", "true", "\"1\"", "[]", "101", "9223372036854775808"}},
    {"top_p", {"0", "-0.1", "1.1", "true", "\"x\"", "1e308"}},
    {"min_p", {"-0.1", "1.1", "false", "{}"}},
    {"top_k", {"-2", "1.5", "true", "2147483648", "9223372036854775808", "1e308", "\"5\""}},
    {"frequency_penalty", {"-2.1", "2.1", "true"}},
    {"presence_penalty", {"-2.1", "2.1", "\"0\""}},
    {"repetition_penalty", {"0", "-1", "2.5", "true"}},
    {"n", {"0", "-1", "129", "true", "1.5", "9223372036854775808", "\"2\""}},
    {"stop", {"5", "[5]", "{}", "true", "[null]"}},
    {"stop_token_ids", {"[-1]", "[4096]", "[2147483648]", "5", "[true]", "[1.5]", "[\"a\"]"}},
    {"logit_bias", {"[]", "5", "{\"x\": 1}", "{\"-1\": 1}", "{\"4096\": 1}", "{\"1\": 101}",
                    "{\"1\": \"x\"}", "{\"\": 1}", "{\"99999999999999\": 1}"}},
    {"ignore_eos", {"1", "\"true\"", "[]"}},
    {"skip_special_tokens", {"0", "\"\""}},
    {"no_stop_trim", {"0"}},
    {"regex", {"\"(\"", "5", "\"(?=a)\""}},
    {"ebnf", {"\"root ::= x\"", "[]"}},
    {"json_schema", {"\"{\"", "5", "\"{\\\"type\\\": \\\"colour\\\"}\""}},
    {"structural_tag", {"\"{}\"", "5"}},
    {"stop_regex", {"5", "\"(\"", "\"a*\"", "\"(?=a)\"", "[5]", "\"[ab]*a[ab]{20}\""}},
};

TEST(BadInput, SamplingFieldsOfAllBodies) {
  TestApi api;
  for (const BadField& field : kSamplingFields) {
    for (const char* value : field.values) {
      const std::string member = std::string("\"") + field.name + "\": " + value;
      const std::string params = "\"sampling_params\": {" + member + "}";
      expect_refused(post(api, Body::generate, params), member, "");
      expect_refused(post(api, Body::completion, member), member, "");
      expect_refused(post(api, Body::chat, member), member, "");
    }
  }
  EXPECT_TRUE(api.engine().submitted().empty());
}

TEST(BadInput, OpenAiFields) {
  TestApi api;
  const std::vector<BadField> fields = {
      {"max_tokens", {"-1", "1.5", "true", "\"5\"", "9223372036854775808", "1e308", "2147483647"}},
      {"min_tokens", {"-1", "true", "2147483648"}},
      {"seed", {"1.5", "true", "9223372036854775808", "\"1\""}},
      {"stream", {"1", "\"true\""}},
      {"stream_options", {"true", "[]"}},
      {"response_format", {"\"text\"", "{\"type\": \"xml\"}", "{\"type\": \"json_schema\"}",
                           "{\"type\": 5}"}},
      {"priority", {"1.5", "\"high\"", "2147483648"}},
      {"rid", {"5", "[]"}},
      {"cache_salt", {"5", "{}"}},
      {"lora_path", {"\"x\""}},
      {"model", {"5", "[]"}},
  };
  for (const BadField& field : fields) {
    for (const char* value : field.values) {
      const std::string member = std::string("\"") + field.name + "\": " + value;
      expect_refused(post(api, Body::completion, member), member, "");
      expect_refused(post(api, Body::chat, member), member, "");
    }
  }
  EXPECT_TRUE(api.engine().submitted().empty());
}

TEST(BadInput, WhatWouldHaveNoEffectIsRefused) {
  TestApi api;
  for (const char* name : {"stop", "stop_regex", "bad_words"}) {
    for (const char* value : {R"([""])", R"(["cat", ""])"}) {
      const std::string member = fmt::format("\"{}\": {}", name, value);
      const std::string item = fmt::format("{}[{}]", name, value == std::string_view(R"([""])") ? 0 : 1);
      expect_refused(post(api, Body::generate, fmt::format("\"sampling_params\": {{{}}}", member)), member,
                     "sampling_params." + item);
      expect_refused(post(api, Body::completion, member), member, item);
      expect_refused(post(api, Body::chat, member), member, item);
    }
    const std::string nothing = fmt::format("\"{}\": \"\"", name);
    EXPECT_EQ(post(api, Body::completion, nothing).status, 200) << nothing;
  }
  for (const char* member : {R"("stream_options": {"include_usage": true})",
                             R"("stream": false, "stream_options": {"include_usage": false})"}) {
    expect_refused(post(api, Body::completion, member), member, "stream_options");
    expect_refused(post(api, Body::chat, member), member, "stream_options");
  }
}

TEST(BadInput, FieldsOfOneBody) {
  TestApi api;
  expect_refused(post(api, Body::completion, R"("logprobs": true)"), "", "logprobs");
  expect_refused(post(api, Body::completion, R"("logprobs": 129)"), "", "logprobs");
  expect_refused(post(api, Body::completion, R"("best_of": 3)"), "", "best_of");
  expect_refused(post(api, Body::completion, R"("suffix": "end")"), "", "suffix");
  expect_refused(post(api, Body::chat, R"("logprobs": 1)"), "", "logprobs");
  expect_refused(post(api, Body::chat, R"("logprobs": true, "top_logprobs": 21)"), "",
                 "top_logprobs");
  expect_refused(post(api, Body::chat, R"("top_logprobs": 2)"), "", "top_logprobs");
  for (const char* own : {R"({"messages": []})", R"({"tools": []})"}) {
    expect_refused(post(api, Body::chat, std::string(R"("chat_template_kwargs": )") + own), "", "chat_template_kwargs");
  }
  expect_refused(post(api, Body::chat, R"("chat_template_kwargs": [])"), "",
                 "chat_template_kwargs");
  expect_refused(post(api, Body::chat, R"("tools": {})"), "", "tools");
  expect_refused(post(api, Body::chat, R"("tools": [5])"), "", "tools[0]");
  expect_refused(post(api, Body::chat, R"("tool_choice": 5)"), "", "tool_choice");
  expect_refused(post(api, Body::generate, R"("sampling_params": 5)"), "", "sampling_params");
  expect_refused(post(api, Body::generate, R"("logprob_start_len": 2)"), "", "logprob_start_len");
  expect_refused(post(api, Body::generate, R"("logprob_start_len": -2)"), "", "logprob_start_len");
  expect_refused(post(api, Body::generate, R"("top_logprobs_num": 129)"), "", "top_logprobs_num");
  expect_refused(post(api, Body::generate, R"("top_logprobs_num": 2)"), "no return_logprob", "top_logprobs_num");
  expect_refused(post(api, Body::generate, R"("return_logprob": false, "token_ids_logprob": [2])"), "", "token_ids_logprob");
  expect_refused(post(api, Body::generate, R"("token_ids_logprob": [4096])"), "",
                 "token_ids_logprob[0]");
  expect_refused(post(api, Body::generate, R"("return_logprob": 1)"), "", "return_logprob");
  expect_refused(post(api, Body::generate, R"("rid": ["a", "b"])"), "", "rid");
  expect_refused(post(api, Body::generate, R"("text": "both")"), "", "text");
  expect_refused(post(api, Body::generate, R"("image_data": "x")"), "", "image_data");
  expect_refused(post(api, Body::generate, R"("return_hidden_states": 1)"), "", "return_hidden_states");
  EXPECT_TRUE(api.engine().submitted().empty());
}

TEST(BadInput, Prompts) {
  TestApi api;
  for (const char* value : {"\"\"", "[]", "[[]]", "[\"\"]", "null", "5", "{}", "[1.5]", "[-1]",
                            "[true]", "[4096]", "[\"a\", 5]", "[[1], \"a\", 5]",
                            "[9223372036854775808]"}) {
    const std::string text = value;
    expect_refused(api.post("/v1/completions", "{\"prompt\": " + text + "}"), text, "");
    expect_refused(api.post("/generate", "{\"input_ids\": " + text + "}"), text, "");
  }
  for (const char* value : {"\"\"", "[]", "[\"\"]", "null", "5", "{}", "[1]", "[\"a\", 5]"}) {
    expect_refused(api.post("/generate", std::string("{\"text\": ") + value + "}"), value, "");
  }
  for (const char* value : {"[]", "null", "5", "\"Hi\"", "[5]", "[{}]", R"([{"role": "user"}])",
                            R"([{"role": 5, "content": "x"}])",
                            R"([{"role": "king", "content": "x"}])",
                            R"([{"role": "user", "content": 5}])",
                            R"([{"role": "user", "content": [5]}])",
                            R"([{"role": "user", "content": [{"type": "text"}]}])",
                            R"([{"role": "user", "content": [{"text": "x"}]}])"}) {
    expect_refused(api.post("/v1/chat/completions", std::string("{\"messages\": ") + value + "}"),
                   value, "");
  }
}

// What is missing is called so, not blamed as a value that nobody sent.
TEST(BadInput, MissingPartsAreNamed) {
  TestApi api;
  const auto expect_missing = [](const Reply& reply, const std::string& param) {
    expect_refused(reply, param, param);
    EXPECT_NE(reply.body.find(param + " is missing"), std::string::npos) << reply.body;
  };
  expect_missing(api.post("/v1/chat/completions", R"({"messages": [{"content": "x"}]})"), "messages[0].role");
  expect_missing(post(api, Body::chat, R"("tools": [{"type": "function"}])"), "tools[0].function");
  expect_missing(post(api, Body::chat, R"("tools": [{"type": "function", "function": {}}])"), "tools[0].function.name");
  expect_refused(post(api, Body::chat, R"("tools": [{"function": 5}])"), "", "tools[0].function");
}

// A tokenizer that got tokens its model has no rows for: the text is refused by the field it stands in.
TEST(BadInput, TextOfTokensThatTheModelLacksIsRefused) {
  TestApiOptions options;
  options.engine.info.vocab_size = 300;
  TestApi api(std::move(options));
  const Reply prompt = api.post("/v1/completions", R"({"prompt": "Once upon a time"})");
  expect_refused(prompt, "", "prompt");
  EXPECT_NE(prompt.body.find("the model has the tokens 0 to 299 only"), std::string::npos) << prompt.body;
  expect_refused(post(api, Body::chat, R"("max_tokens": 2)"), "", "messages");
  EXPECT_TRUE(api.engine().submitted().empty());
}

TEST(BadInput, PromptLongerThanTheContextSaysBothNumbers) {
  TestApi api;
  std::string ids = "1";
  for (int i = 0; i < 1999; ++i) ids += ",1";
  for (const Reply& reply : {api.post("/generate", "{\"input_ids\": [" + ids + "]}"),
                             api.post("/v1/completions", "{\"prompt\": [" + ids + "]}")}) {
    EXPECT_EQ(reply.status, 400);
    const std::string message = reply.json()["error"]["message"];
    EXPECT_NE(message.find("2000"), std::string::npos) << message;
    EXPECT_NE(message.find("1024"), std::string::npos) << message;
  }
  const Reply room = api.post("/generate", R"({"input_ids": [1, 2, 3, 4],
      "sampling_params": {"max_new_tokens": 1021}})");
  EXPECT_EQ(room.status, 400);
  EXPECT_NE(room.body.find("at most 1020 new tokens"), std::string::npos) << room.body;
}

TEST(BadInput, UnknownModelNamesTheServedOne) {
  TestApi api;
  for (Body body : {Body::completion, Body::chat}) {
    const Reply reply = post(api, body, R"("model": "gpt-9")");
    EXPECT_EQ(reply.status, 404);
    EXPECT_EQ(reply.json()["error"]["code"], "model_not_found");
    EXPECT_EQ(reply.json()["error"]["param"], "model");
    EXPECT_NE(reply.body.find("\\\"fake\\\""), std::string::npos) << reply.body;
  }
}

TEST(BadInput, Bodies) {
  TestApi api;
  std::string deep(100000, '[');
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"),
        std::string("\xff"), std::string("{\"text\": \"\xc3\x28\"}"), deep, "{\"text\":" + deep,
        std::string("{\"text\": NaN}"), std::string("{\"text\": 1e999}")}) {
    for (const char* path : {"/generate", "/v1/completions", "/v1/chat/completions", "/tokenize",
                             "/detokenize", "/abort_request"}) {
      expect_refused(api.post(path, body), std::string(path) + " " + body.substr(0, 20), "");
    }
  }
}

TEST(BadInput, FieldsThatAskForNothingAreFine) {
  TestApi api;
  for (const char* member :
       {R"("unknown": null)", R"("metadata": {"x": "y"})", R"("user": "u")", R"("regex": null)", R"("regex": "")",
        R"("lora_path": null)", R"("return_hidden_states": false)",
        R"("response_format": {"type": "text"})", R"("stop": null)", R"("stop": [])", R"("stop": "")", R"("temperature": 0)", R"("seed": -1)",
        R"("max_tokens": null)", R"("logit_bias": null)", R"("top_k": -1)", R"("top_k": 0)",
        R"("stream_options": {})", R"("model": "default")", R"("store": true)", R"("verbosity": "low")",
        R"("n": 1.0)", R"("temperature": 1, "temperature": 0.5)"}) {
    EXPECT_EQ(post(api, Body::completion, member).status, 200) << member;
    EXPECT_EQ(post(api, Body::chat, member).status, 200) << member;
  }
  EXPECT_EQ(post(api, Body::completion, R"("best_of": 2, "n": 2)").status, 200);
  EXPECT_EQ(post(api, Body::completion, R"("suffix": "")").status, 200);
  for (const Body body : {Body::completion, Body::chat}) {
    EXPECT_EQ(post(api, body, R"("spaces_between_special_tokens": true)").status, 200);
    expect_refused(post(api, body, R"("spaces_between_special_tokens": 1)"), "", "spaces_between_special_tokens");
  }
  EXPECT_EQ(post(api, Body::chat, R"("modalities": ["text"])").status, 200);
  expect_refused(post(api, Body::chat, R"("modalities": ["text", "audio"])"), "", "modalities");
  // An object without members asks for a search as well.
  expect_refused(post(api, Body::chat, R"("web_search_options": {})"), "", "web_search_options");
}

TEST(BadInput, MessagesOfTheEngineKeepTheirKind) {
  const auto status_of = [](Status error) {
    TestApiOptions options;
    options.engine.submit_error = std::move(error);
    TestApi api(std::move(options));
    const Reply reply = post(api, Body::chat, R"("stream": true)");
    bool retry_after = false;
    for (const auto& [name, value] : reply.headers) retry_after |= name == "Retry-After";
    return std::to_string(reply.status) + (retry_after ? " retry" : "");
  };
  EXPECT_EQ(status_of(Status::invalid_argument("x")), "400");
  EXPECT_EQ(status_of(Status::resource_exhausted("x")), "429 retry");
  EXPECT_EQ(status_of(Status::unavailable("x")), "503 retry");
  EXPECT_EQ(status_of(Status::internal("x")), "500");
}

}  // namespace
}  // namespace warpweave::server::testing
