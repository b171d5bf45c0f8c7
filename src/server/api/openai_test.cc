#include <gtest/gtest.h>

#include <fstream>

#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

constexpr const char* kChat = R"({"messages": [{"role": "user", "content": "Hi"}])";

std::string chat(const std::string& more = "") {
  return kChat + (more.empty() ? "}" : ", " + more + "}");
}

TEST(Completions, WholeAnswer) {
  TestApi api;
  const Reply reply = api.post("/v1/completions", R"({"model": "fake", "prompt": "Once"})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(json["model"], "fake");
  EXPECT_TRUE(json["created"].is_number_integer());
  EXPECT_EQ(json["choices"].dump(),
            R"([{"index":0,"text":"Once upon a time","logprobs":null,"finish_reason":"stop",)"
            R"("matched_stop":2}])");
  const Json& usage = json["usage"];
  EXPECT_EQ(usage["completion_tokens"], 4);
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + 4);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(api.engine().submitted()[0].sampling.max_new_tokens, 16);
}

// Of a hybrid the cache ends at a state, though attention layers had more.
TEST(Completions, CachedTokensByKindOfLayer) {
  TestApiOptions options;
  options.engine.cached_kv_tokens = 5;
  TestApi api(std::move(options));
  const Json usage = api.post("/v1/completions", R"({"prompt": ["Once", "Twice"]})").json()["usage"];
  EXPECT_EQ(usage["prompt_tokens_details"].dump(), R"({"cached_tokens":6,"cached_tokens_by_layer":{"attention":10,"recurrent":6}})");
  const Json meta = api.post("/generate", R"({"text": "Once"})").json()["meta_info"];
  EXPECT_EQ(meta["cached_tokens"], 3);
  EXPECT_EQ(meta["cached_tokens_by_layer"].dump(), R"({"attention":5,"recurrent":3})");
}

TEST(Completions, FourFormsOfPrompts) {
  TestApi api;
  EXPECT_EQ(api.post("/v1/completions", R"({"prompt": ["a", "b", "c"]})").json()["choices"].size(),
            3u);
  EXPECT_EQ(api.post("/v1/completions", R"({"prompt": [1, 2]})").json()["choices"].size(), 1u);
  EXPECT_EQ(api.engine().submitted().back().input_ids, (std::vector<int32_t>{1, 2}));
  const Json json = api.post("/v1/completions", R"({"prompt": [[1], [2, 3]], "n": 2})").json();
  ASSERT_EQ(json["choices"].size(), 4u);
  EXPECT_EQ(json["choices"][3]["index"], 3);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);  // each prompt once
  EXPECT_EQ(json["usage"]["completion_tokens"], 16);
}

TEST(Completions, EchoWithLogprobsCoversThePrompt) {
  TestApi api;
  const Json json = api.post("/v1/completions",
                             R"({"prompt": "Once upon", "echo": true, "logprobs": 2})").json();
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "Once uponOnce upon a time");
  const Json& logprobs = choice["logprobs"];
  const size_t count = json["usage"]["total_tokens"];
  EXPECT_EQ(logprobs["tokens"].size(), count);
  EXPECT_EQ(logprobs["token_logprobs"].size(), count);
  EXPECT_EQ(logprobs["top_logprobs"].size(), count);
  EXPECT_EQ(logprobs["text_offset"].size(), count);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["token_logprobs"][1], -0.5);
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_TRUE(logprobs["top_logprobs"][1].is_object());
  EXPECT_EQ(api.engine().submitted()[0].logprob_start_len, 0);
}

TEST(Completions, StreamWithUsage) {
  TestApi api;
  const Reply reply = api.post("/v1/completions", R"({"prompt": "Once", "stream": true,
      "stream_options": {"include_usage": true}})");
  const std::vector<std::string> events = reply.events();
  ASSERT_EQ(events.size(), 6u) << reply.body;
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  for (size_t i = 0; i < 4; ++i) {
    const Json event = Json::parse(events[i]);
    text += event["choices"][0]["text"].get<std::string>();
    EXPECT_TRUE(event["usage"].is_null());
    EXPECT_EQ(event["choices"][0]["finish_reason"].is_null(), i < 3);
  }
  EXPECT_EQ(text, "Once upon a time");
  const Json last = Json::parse(events[4]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], 4);
}

TEST(Completions, StreamedLogprobsGoOnWhereTheyWere) {
  TestApiOptions options;
  options.engine.script = {};  // the prompt's ids come back
  TestApi api(std::move(options));
  const Reply reply = api.post("/v1/completions",
                               R"({"prompt": "Once upon a time", "stream": true, "logprobs": 1})");
  int last_offset = -1;
  for (const std::string& event : reply.events()) {
    if (event == "[DONE]") break;
    const Json logprobs = Json::parse(event)["choices"][0]["logprobs"];
    ASSERT_EQ(logprobs["tokens"].size(), 1u);
    EXPECT_GT(logprobs["text_offset"][0].get<int>(), last_offset);
    last_offset = logprobs["text_offset"][0].get<int>();
  }
}

TEST(Chat, WholeAnswer) {
  TestApi api;
  const Reply reply = api.post("/v1/chat/completions", chat());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("chatcmpl-"));
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "Once upon a time");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["matched_stop"], 2);
  EXPECT_TRUE(choice["logprobs"].is_null());
  const GenerateRequest request = api.engine().submitted()[0];
  EXPECT_EQ(api.tokenizer().decode(request.input_ids, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  // Without max_tokens the answer may fill the context.
  EXPECT_EQ(request.sampling.max_new_tokens, 1024 - static_cast<int>(request.input_ids.size()));
}

TEST(Chat, DefaultsComeFromTheModel) {
  TestApiOptions options;
  options.default_sampling.temperature = 0.25f;
  options.default_sampling.top_k = 7;
  TestApi api(std::move(options));
  api.post("/v1/chat/completions", chat(R"("top_k": 9, "max_tokens": 3)"));
  const SamplingParams params = api.engine().submitted()[0].sampling;
  EXPECT_EQ(params.temperature, 0.25f);
  EXPECT_EQ(params.top_k, 9);
  EXPECT_EQ(params.max_new_tokens, 3);
  api.post("/v1/chat/completions", chat(R"("max_tokens": 3, "max_completion_tokens": 2)"));
  EXPECT_EQ(api.engine().submitted()[1].sampling.max_new_tokens, 2);
}

TEST(Chat, StreamBeginsWithTheRoleAndEndsWithUsage) {
  TestApi api;
  const Reply reply = api.post("/v1/chat/completions", chat(R"("stream": true, "n": 2,
      "stream_options": {"include_usage": true, "continuous_usage_stats": true})"));
  std::vector<std::string> text(2);
  std::vector<int> roles(2), finishes(2);
  const std::vector<std::string> events = reply.events();
  ASSERT_GE(events.size(), 2u);
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json event = Json::parse(events[i]);
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_TRUE(event["usage"].is_object());
    const Json& choice = event["choices"][0];
    const size_t index = choice["index"];
    const Json& delta = choice["delta"];
    if (delta.contains("role")) {
      EXPECT_TRUE(text[index].empty());
      ++roles[index];
    }
    if (delta.contains("content")) text[index] += delta["content"].get<std::string>();
    if (!choice["finish_reason"].is_null()) ++finishes[index];
  }
  for (int i : {0, 1}) {
    EXPECT_EQ(text[i], "Once upon a time");
    EXPECT_EQ(roles[i], 1);
    EXPECT_EQ(finishes[i], 1);
  }
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 8);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST(Chat, LogprobsHaveBytes) {
  TestApi api;
  const Json json = api.post("/v1/chat/completions",
                             chat(R"("logprobs": true, "top_logprobs": 2)")).json();
  const Json& content = json["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 4u);
  std::string bytes;
  for (int byte : content[0]["bytes"]) bytes += static_cast<char>(byte);
  EXPECT_EQ(bytes, api.tokenizer().token_bytes(100));
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][1]["logprob"], -1.5);
}

TEST(Chat, TextPartsAndOtherParts) {
  TestApi api;
  EXPECT_EQ(api.post("/v1/chat/completions", R"({"messages": [{"role": "user", "content":
      [{"type": "text", "text": "Hi"}]}]})").status, 200);
  EXPECT_EQ(api.tokenizer().decode(api.engine().submitted()[0].input_ids, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const Reply image = api.post("/v1/chat/completions", R"({"messages": [{"role": "user", "content":
      [{"type": "image_url", "image_url": {"url": "http://x"}}]}]})");
  EXPECT_EQ(image.status, 400);
  EXPECT_EQ(image.json()["error"]["param"], "messages[0].content[0].type");
  const Reply spoken = api.post("/v1/chat/completions", R"({"messages": [{"role": "assistant", "audio": {"id": "a"}},
      {"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(spoken.status, 400);
  EXPECT_EQ(spoken.json()["error"]["param"], "messages[0].audio");
  EXPECT_EQ(api.post("/v1/chat/completions", R"({"messages": [{"role": "assistant", "content": "Hm", "audio": null},
      {"role": "user", "content": "Hi"}]})").status, 200);
}

TEST(Chat, ContinuesTheFinalMessage) {
  TestApi api;
  const Reply reply = api.post("/v1/chat/completions", R"({"continue_final_message": true,
      "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(api.tokenizer().decode(api.engine().submitted()[0].input_ids, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell");
  const std::string no_assistant = chat(R"("continue_final_message": true)");
  EXPECT_EQ(api.post("/v1/chat/completions", no_assistant).status, 400);
}

TEST(Chat, GenerationPromptIsTheClientsChoice) {
  TestApi api;
  api.post("/v1/chat/completions",
           chat(R"("chat_template_kwargs": {"add_generation_prompt": false})"));
  EXPECT_EQ(api.tokenizer().decode(api.engine().submitted()[0].input_ids, false),
            "<|im_start|>user\nHi<|im_end|>\n");
}

// Templates know the switch by one of two names.
TEST(Chat, ReasoningEffortTellsTheTemplateWhetherToThink) {
  TestApiOptions options;
  options.chat_template = "{{ enable_thinking }},{{ thinking }},{{ reasoning_effort }}";
  TestApi api(std::move(options));
  const auto prompt = [&](const std::string& members) {
    const Reply reply = api.post("/v1/chat/completions", chat(members));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return api.tokenizer().decode(api.engine().submitted().back().input_ids, false);
  };
  EXPECT_EQ(prompt(R"("reasoning_effort": null)"), ",,");
  EXPECT_EQ(prompt(R"("reasoning_effort": "none")"), "False,False,none");
  EXPECT_EQ(prompt(R"("reasoning_effort": "xhigh")"), "True,True,xhigh");
  EXPECT_EQ(prompt(R"("reasoning_effort": "none", "chat_template_kwargs": {"thinking": true})"), ",True,none");
  EXPECT_EQ(prompt(R"("chat_template_kwargs": {"reasoning_effort": "so so"})"), ",,so so");
  const Reply misspelt = api.post("/v1/chat/completions", chat(R"("reasoning_effort": "hgih")"));
  EXPECT_EQ(misspelt.status, 400);
  EXPECT_EQ(misspelt.json()["error"]["param"], "reasoning_effort") << misspelt.body;
}

TEST(Chat, TemplatesWithoutAPlaceForToolsLeaveThemOut) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}])";
  TestApi plain;
  EXPECT_EQ(plain.post("/v1/chat/completions", chat(tools)).status, 200);
  EXPECT_EQ(plain.tokenizer().decode(plain.engine().submitted()[0].input_ids, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  TestApiOptions options;
  options.chat_template = "{{ tools[0].function.name }}: {{ messages[0].content }}";
  TestApi api(std::move(options));
  EXPECT_EQ(api.post("/v1/chat/completions", chat(tools)).status, 200);
  EXPECT_EQ(api.tokenizer().decode(api.engine().submitted()[0].input_ids, false), "f: Hi");
}

TEST(Chat, NeedsATemplate) {
  TestApiOptions options;
  options.chat_template.clear();
  TestApi api(std::move(options));
  const Reply reply = api.post("/v1/chat/completions", chat());
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("--chat-template"), std::string::npos);
}

TEST(Models, ListAndOne) {
  TestApi api;
  const Json list = api.get("/v1/models").json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "fake");
  EXPECT_EQ(list["data"][0]["max_model_len"], 1024);
  EXPECT_EQ(api.get("/v1/models/fake").json()["id"], "fake");
  EXPECT_EQ(api.get("/v1/models/default").json()["id"], "fake");
  const Reply unknown = api.get("/v1/models/other");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json()["error"]["code"], "model_not_found");
}

class Suffix : public ::testing::TestWithParam<CompletionTemplate::Order> {};

TEST_P(Suffix, StandsBetweenTheTemplatesMarkers) {
  TestApiOptions options;
  options.completion_template = {{"<|im_start|>", "<|im_end|>", "<|pad|>", GetParam()}};
  TestApi api(std::move(options));
  const Reply reply = api.post("/v1/completions", R"({"prompt": ["Once", "Twice"], "suffix": " the end", "n": 2, "echo": true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["choices"].size(), 4u);
  EXPECT_EQ(reply.json()["choices"][0]["text"], "OnceOnce upon a time");
  const bool gap_first = GetParam() == CompletionTemplate::Order::prompt_gap_suffix;
  const auto submitted = api.engine().submitted();
  for (const auto& [at, prompt] : {std::pair(0, "Once"), {2, "Twice"}}) {
    const std::string text = gap_first ? "<|im_start|>" + std::string(prompt) + "<|im_end|> the end<|pad|>"
                                       : "<|im_start|>" + std::string(prompt) + "<|pad|> the end<|im_end|>";
    EXPECT_EQ(submitted[at].input_ids, *api.tokenizer().encode(text, true));
  }
  EXPECT_EQ(api.post("/v1/completions", R"({"prompt": [5], "suffix": "a"})").json()["error"]["param"], "suffix");
  EXPECT_EQ(api.post("/v1/completions", R"({"prompt": "a", "suffix": "a", "truncate_prompt_tokens": 5})").status, 400);
}
INSTANTIATE_TEST_SUITE_P(Orders, Suffix, ::testing::Values(CompletionTemplate::Order::prompt_gap_suffix,
                                                         CompletionTemplate::Order::prompt_suffix_gap));

TEST(CompletionTemplates, AreNamedOrReadOrRefused) {
  EXPECT_EQ((*open_completion_template("qwen_coder"))->fill("a", "b"), "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>");
  EXPECT_EQ((*open_completion_template("deepseek_coder"))->fill("a", "b"), "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>");
  EXPECT_FALSE(open_completion_template("none")->has_value());
  const std::string path = ::testing::TempDir() + "completion_template.json";
  const auto written = [&](const std::string& text) {
    std::ofstream(path) << text;
    return open_completion_template(path);
  };
  const std::string tokens = R"("fim_begin_token": "<|im_start|>", "fim_middle_token": "<|im_end|>", "fim_end_token": "<|pad|>")";
  const auto read = written(R"({"name": "mine", "fim_position": "END", )" + tokens + "}");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ((*read)->fill("a", "b"), "<|im_start|>a<|pad|>b<|im_end|>");
  EXPECT_EQ((*read)->missing_from(TestApi().tokenizer()), "");
  EXPECT_EQ((*open_completion_template("star_coder"))->missing_from(TestApi().tokenizer()), "<fim_prefix>");
  EXPECT_FALSE(guess_completion_template(TestApi().tokenizer()).has_value());
  for (const auto& bad : {written("{"), written("{" + tokens + "}"), written(R"({"fim_position": "SIDE", )" + tokens + "}"),
                          written(R"({"fim_position": "END", "who": 1, )" + tokens + "}"), open_completion_template("deepseek")}) {
    ASSERT_FALSE(bad.ok());
    EXPECT_EQ(bad.status().field(), "--completion-template");
  }
}

}  // namespace
}  // namespace warpweave::server::testing
