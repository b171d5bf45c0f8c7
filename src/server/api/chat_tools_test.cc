// Tools and reasoning through the endpoint: what the engine is asked, and what clients get of scripted answers.
#include <gtest/gtest.h>

#include <algorithm>

#include "flags/flag_table.h"
#include "grammar/matcher.h"
#include "output/formats.h"
#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

constexpr const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
      "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false}}},
      {"type": "function", "function": {"name": "noop", "parameters": null}}])";

std::string chat(const std::string& more) {
  return R"({"messages": [{"role": "user", "content": "Hi"}], )" + more + "}";
}

TestApiOptions scripted(std::vector<std::string> script, const char* calls = "qwen", const char* reasoning = "none") {
  TestApiOptions options;
  options.engine.script = std::move(script);
  options.args.tool_call_parser = calls;
  options.args.reasoning_parser = reasoning;
  return options;
}

const std::vector<std::string> kTwoCalls = {"I will look.\n<tool_", "call>{\"name\": \"weather\", \"argu", "ments\": {\"city\": \"Par",
                                            "is\"}}</tool_call>", "<tool_call>{\"name\": \"noop\"}</tool_call>"};

TEST(ChatTools, CallsInAWholeAnswer) {
  TestApi api(scripted(kTwoCalls));
  const Json choice = api.post("/v1/chat/completions", chat(kTools)).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "I will look.");
  const Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_TRUE(calls[0]["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  EXPECT_EQ(calls[0]["function"]["name"], "weather");
  EXPECT_EQ(calls[0]["function"]["arguments"], "{\"city\": \"Paris\"}");
  EXPECT_EQ(calls[1]["function"]["arguments"], "{}");
}

TEST(ChatTools, CallsInAStream) {
  TestApi api(scripted(kTwoCalls));
  std::string content, arguments[2], names[2];
  int ids = 0;
  std::string finish;
  for (const std::string& event : api.post("/v1/chat/completions", chat(std::string(R"("stream": true, )") + kTools)).events()) {
    if (event == "[DONE]") break;
    const Json choice = Json::parse(event)["choices"][0];
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
    const Json& delta = choice["delta"];
    if (delta.contains("content")) content += delta["content"].get<std::string>();
    if (!delta.contains("tool_calls")) continue;
    const Json& call = delta["tool_calls"][0];
    const size_t index = call["index"];
    ASSERT_LT(index, 2u);
    if (call.contains("id")) {
      ++ids;
      names[index] = call["function"]["name"];
    }
    arguments[index] += call["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(content, "I will look.");
  EXPECT_EQ(ids, 2);
  EXPECT_EQ(names[0] + names[1], "weathernoop");
  EXPECT_EQ(arguments[0], "{\"city\": \"Paris\"}");
  EXPECT_EQ(arguments[1], "{}");
  EXPECT_EQ(finish, "tool_calls");
}

TEST(ChatTools, WithoutToolsOrWithNoneCallsStayText) {
  TestApi api(scripted(kTwoCalls));
  for (const std::string& more : {std::string(R"("max_tokens": 50)"), kTools + std::string(R"(, "tool_choice": "none")")}) {
    const Json choice = api.post("/v1/chat/completions", chat(more)).json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_TRUE(choice["message"]["content"].get<std::string>().find("<tool_call>") != std::string::npos);
    EXPECT_TRUE(choice["message"]["tool_calls"].is_null());
  }
}

TEST(ChatTools, OneCallWhereOneIsWanted) {
  TestApi api(scripted(kTwoCalls));
  const Json choice = api.post("/v1/chat/completions", chat(kTools + std::string(R"(, "parallel_tool_calls": false)"))).json()["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
}

TEST(ChatTools, AFunctionThatIsNamedIsCalledOnce) {
  TestApi api(scripted(kTwoCalls));
  const char* named = R"(, "tool_choice": {"type": "function", "function": {"name": "weather"}})";
  const Json choice = api.post("/v1/chat/completions", chat(kTools + std::string(named))).json()["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
}

TEST(ChatTools, DemandedCallsComeUnderAGrammar) {
  TestApi api(scripted({"[{\"name\": \"weather\", ", "\"parameters\": {\"city\": \"Rome\"}}]"}, "none"));
  for (const char* choice : {R"("required")", R"({"type": "function", "function": {"name": "weather"}})"}) {
    const Json answer = api.post("/v1/chat/completions", chat(kTools + std::string(R"(, "tool_choice": )") + choice)).json();
    ASSERT_TRUE(answer.contains("choices")) << answer.dump();
    EXPECT_EQ(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Rome\"}");
    EXPECT_TRUE(answer["choices"][0]["message"]["content"].is_null());
    EXPECT_NE(api.engine().submitted().back().sampling.grammar, nullptr);
  }
  api.post("/v1/chat/completions", chat(kTools));
  EXPECT_EQ(api.engine().submitted().back().sampling.grammar, nullptr);
}

TEST(ChatTools, StrictToolsHoldFreeAnswersToTheirSchemas) {
  TestApi api(scripted({"x"}));
  const std::string strict = R"("tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": {"type": "object"}}}])";
  EXPECT_EQ(api.post("/v1/chat/completions", chat(strict)).status, 200);
  EXPECT_NE(api.engine().submitted().back().sampling.grammar, nullptr);
}

void expect_refused(TestApi& api, const std::string& more, const std::string& param) {
  const Reply reply = api.post("/v1/chat/completions", chat(more));
  EXPECT_EQ(reply.status, 400) << more;
  EXPECT_EQ(reply.json()["error"]["param"], param) << more << reply.body;
}

TEST(ChatTools, WhatIsNoToolIsNamed) {
  TestApi api;
  expect_refused(api, R"("tool_choice": "required")", "tool_choice");
  expect_refused(api, kTools + std::string(R"(, "tool_choice": {"type": "function", "function": {"name": "x"}})"), "tool_choice");
  expect_refused(api, kTools + std::string(R"(, "tool_choice": "always")"), "tool_choice");
  expect_refused(api, kTools + std::string(R"(, "tool_choice": "required", "response_format": {"type": "json_object"})"), "tool_choice");
  expect_refused(api, R"("tools": [{"type": "web_search"}])", "tools[0].type");
  expect_refused(api, R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name");
  expect_refused(api, R"("tools": [{"type": "function", "function": {"name": "f", "parameters": []}}])", "tools[0].function.parameters");
  expect_refused(api, R"("tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "colour"}}}])", "tool_choice");
  expect_refused(api, R"("separate_reasoning": 1)", "separate_reasoning");
}

// A misspelt member would leave the model without what it was to be told.
TEST(ChatTools, MisspeltMembersAreNamedWithWhatWasMeant) {
  TestApi api;
  const auto refused = [&](const std::string& tool, const std::string& param, const std::string& meant) {
    const Reply reply = api.post("/v1/chat/completions", chat("\"tools\": [" + tool + "]"));
    EXPECT_EQ(reply.status, 400) << tool;
    EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
    EXPECT_NE(reply.json()["error"]["message"].get<std::string>().find("did you mean " + meant), std::string::npos) << reply.body;
  };
  refused(R"({"type": "function", "function": {"name": "f", "paramters": {"type": "object"}}})", "tools[0].function.paramters", "parameters");
  refused(R"({"type": "function", "function": {"name": "f", "decription": "x"}})", "tools[0].function.decription", "description");
  refused(R"({"type": "function", "function": {"name": "f"}, "functoin": {"name": "f"}})", "tools[0].functoin", "function");
  const std::string parse = R"({"text": "x", "tool_call_parser": "qwen", "tools": [{"type": "function", "function": {"name": "f", "paramters": {}}}]})";
  EXPECT_EQ(api.post("/parse_function_call", parse).json()["error"]["param"], "tools[0].function.paramters");
  // What the template shows, and what bounds a cache elsewhere.
  const std::string fine = R"("tools": [{"type": "function", "cache_control": {"type": "ephemeral"}, "function": {"name": "f", "return": {"type": "string"}}}])";
  EXPECT_EQ(api.post("/v1/chat/completions", chat(fine)).status, 200);
  TestApiOptions lenient;
  lenient.args.allow_unknown_fields = true;
  EXPECT_EQ(TestApi(lenient).post("/v1/chat/completions", chat(R"("tools": [{"type": "function", "function": {"name": "f", "x": 1}}])")).status, 200);
}

TEST(ChatReasoning, ComesApart) {
  const std::vector<std::string> script = {"<thi", "nk>\nI think", " so.\n</th", "ink>\n\nIt is 4", "2."};
  TestApi api(scripted(script, "none", "qwen3"));
  const Json message = api.post("/v1/chat/completions", chat(R"("max_tokens": 9)")).json()["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "I think so.");
  EXPECT_EQ(message["content"], "It is 42.");
  for (const char* whole : {"false", "true"}) {
    std::string reasoning, content;
    int pieces = 0;
    const std::string body = chat(std::string(R"("stream": true, "stream_reasoning": )") + whole);
    for (const std::string& event : api.post("/v1/chat/completions", body).events()) {
      if (event == "[DONE]") break;
      const Json delta = Json::parse(event)["choices"][0]["delta"];
      if (delta.contains("reasoning_content") && !delta["reasoning_content"].is_null()) reasoning += delta["reasoning_content"].get<std::string>(), ++pieces;
      if (delta.contains("content")) content += delta["content"].get<std::string>();
    }
    EXPECT_EQ(reasoning, "I think so.");
    EXPECT_EQ(content, "It is 42.");
    EXPECT_EQ(pieces == 1, std::string(whole) == "false");
  }
  const Json mixed = api.post("/v1/chat/completions", chat(R"("separate_reasoning": false)")).json()["choices"][0]["message"];
  EXPECT_EQ(mixed["content"], "<think>\nI think so.\n</think>\n\nIt is 42.");
  EXPECT_TRUE(mixed["reasoning_content"].is_null());
}

TEST(ChatReasoning, ThePromptMayOpenIt) {
  TestApiOptions options = scripted({"so</think>", "42"}, "none", "qwen3");
  options.chat_template = "{{ messages[0].content }}<|im_start|>assistant\n<think>\n";
  TestApi api(std::move(options));
  const Json message = api.post("/v1/chat/completions", chat(R"("max_tokens": 9)")).json()["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "so");
  EXPECT_EQ(message["content"], "42");
}

struct Reasoned {
  const char* parser;
  const char* prompt_end;
  const char* more;             // a member of the request
  std::vector<const char*> takes, refuses;
};

// The content is held to what was asked for; a model that reasons may do so before.
TEST(ChatReasoning, GrammarsHoldTheContentBehindIt) {
  const Reasoned cases[] = {
      {"qwen3", "", "", {"42", "<think>\nso: 1</think>\n\n42"}, {"so</think>42", "<think>42", "<think></think>so", "x"}},
      {"qwen3", "<think>\n", "", {"so</think>\n42", "</think>42"}, {"42", "so</think>"}},
      {"qwen3", "<think>\n\n</think>\n\n", "", {"42"}, {"<think>so</think>42"}},
      {"deepseek-r1", "", "", {"so</think>42"}, {"42"}},
      {"deepseek-r1", "", R"("separate_reasoning": false, )", {"42"}, {"so</think>42"}},
      {"gpt-oss", "", "", {"42"}, {"so"}},  // its marks are special tokens, which no grammar samples
  };
  for (const Reasoned& c : cases) {
    TestApiOptions options = scripted({"42"}, "none", c.parser);
    options.chat_template = "{{ messages[0].content }}<|im_start|>assistant\n" + std::string(c.prompt_end);
    TestApi api(std::move(options));
    const Reply reply = api.post("/v1/chat/completions", chat(std::string(c.more) + R"("regex": "[0-9]{2}")"));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const auto accepts = [&](std::string_view text) {
      grammar::GrammarMatcher matcher(api.engine().submitted().back().sampling.grammar);
      return matcher.accept_bytes(text) && matcher.can_end();
    };
    for (const char* text : c.takes) EXPECT_TRUE(accepts(text)) << c.parser << ' ' << c.prompt_end << ": " << text;
    for (const char* text : c.refuses) EXPECT_FALSE(accepts(text)) << c.parser << ' ' << c.prompt_end << ": " << text;
    const bool only_content = std::string_view(c.takes[0]) == "42";
    EXPECT_EQ(reply.json()["choices"][0]["message"]["content"], only_content ? "42" : "") << c.parser << c.more;
  }
}

TEST(ChatReasoning, EqualGrammarsBehindItAreOne) {
  TestApi api(scripted({"42"}, "none", "deepseek-r1"));
  for (const char* regex : {"a", "b", "a"}) api.post("/v1/chat/completions", chat(R"("regex": ")" + std::string(regex) + "\""));
  const auto submitted = api.engine().submitted();
  ASSERT_EQ(submitted.size(), 3u);
  EXPECT_EQ(submitted[0].sampling.grammar, submitted[2].sampling.grammar);
  EXPECT_NE(submitted[0].sampling.grammar, submitted[1].sampling.grammar);
}

TEST(ChatTools, HistoryWithoutContent) {
  TestApi plain;  // its template knows no calls, and joins texts
  const std::string history = R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null,
      "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "c", "content": "4"}, {"role": "assistant", "content": null}]})";
  EXPECT_EQ(plain.post("/v1/chat/completions", history).status, 200);
  EXPECT_EQ(plain.tokenizer().decode(plain.engine().submitted()[0].input_ids, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\n4<|im_end|>\n"
            "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n");
  TestApiOptions options;
  options.chat_template = "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %},{% endfor %}";
  TestApi knowing(std::move(options));
  EXPECT_EQ(knowing.post("/v1/chat/completions", history).status, 200);
  EXPECT_EQ(knowing.tokenizer().decode(knowing.engine().submitted()[0].input_ids, false), "Hi,f,4,,");
}

TEST(ChatTools, FlagsNameEveryFormat) {
  const auto choices = [](std::string_view flag) {
    std::vector<std::string_view> names = find_flag(flag)->choices;
    std::erase(names, "auto");
    std::erase(names, "none");
    std::sort(names.begin(), names.end());
    return names;
  };
  std::vector<std::string_view> calls = output::call_format_names(), reasoning = output::reasoning_format_names();
  std::sort(calls.begin(), calls.end());
  std::sort(reasoning.begin(), reasoning.end());
  EXPECT_EQ(choices("--tool-call-parser"), calls);
  EXPECT_EQ(choices("--reasoning-parser"), reasoning);
}

// Of two tools, a and b, by a chat and by /v1/responses.
std::pair<Reply, Reply> choose(TestApi& api, const std::string& chat_choice, const std::string& response_choice) {
  const auto tool = [](const std::string& name) {
    return R"({"type": "function", "function": {"name": ")" + name + R"(", "parameters": {"type": "object"}}})";
  };
  const auto flat = [](const std::string& name) { return R"({"type": "function", "name": ")" + name + R"("})"; };
  return {api.post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "tools": [)" + tool("a") + "," + tool("b") +
                       R"(], "tool_choice": )" + chat_choice + "}"),
          api.post("/v1/responses", R"({"input": "a", "tools": [)" + flat("a") + "," + flat("b") + R"(], "tool_choice": )" + response_choice + "}")};
}

TEST(ToolChoice, AllowsSomeOfTheTools) {
  TestApi api;
  for (const char* mode : {"auto", "required"}) {
    const std::string chat = R"({"type": "allowed_tools", "allowed_tools": {"mode": ")" + std::string(mode) +
                             R"(", "tools": [{"type": "function", "function": {"name": "b"}}]}})";
    const std::string flat = R"({"type": "allowed_tools", "mode": ")" + std::string(mode) + R"(", "tools": [{"type": "function", "name": "b"}]})";
    const auto [by_chat, by_response] = choose(api, chat, flat);
    ASSERT_EQ(by_chat.status, 200) << by_chat.body;
    ASSERT_EQ(by_response.status, 200) << by_response.body;
    for (const GenerateRequest& request : api.engine().submitted()) {
      EXPECT_EQ(request.sampling.grammar != nullptr, std::string(mode) == "required");
      if (request.sampling.grammar == nullptr) continue;
      const auto takes = [&](const std::string& name) {
        grammar::GrammarMatcher matcher(request.sampling.grammar);
        return matcher.accept_bytes(R"([{"name": ")" + name) || matcher.accept_bytes(R"(<tool_call>
{"name": ")" + name);
      };
      EXPECT_TRUE(takes("b"));
      EXPECT_FALSE(takes("a"));
    }
    api.engine().forget_submitted();
  }
  for (const char* wrong : {R"({"type": "allowed_tools"})", R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}})",
                            R"({"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": [{"function": {"name": "a"}}]}})",
                            R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "c"}}]}})",
                            R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [5]}})"}) {
    const Reply reply = choose(api, wrong, R"("auto")").first;
    EXPECT_EQ(reply.status, 400) << wrong;
    EXPECT_TRUE(reply.json()["error"]["param"].get<std::string>().starts_with("tool_choice")) << reply.body;
  }
}

// Named any number of times, a tool is not copied as often.
TEST(ToolChoice, AllowsAToolOnce) {
  TestApiOptions options;
  options.chat_template = "{% for tool in tools %}{{ tool.function.name }};{% endfor %}";
  TestApi api(std::move(options));
  const auto prompt_of = [&](int times) {
    std::string names = R"({"function": {"name": "b"}})";
    for (int i = 1; i < times; ++i) names += R"(, {"function": {"name": "b"}})";
    const Reply reply =
        choose(api, R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [)" + names + "]}}", R"("auto")").first;
    EXPECT_EQ(reply.status, 200) << reply.body.substr(0, 300);
    return api.engine().submitted().front().input_ids;
  };
  const auto once = prompt_of(1);
  api.engine().forget_submitted();
  EXPECT_EQ(prompt_of(100'000), once);
}

TEST(ToolChoice, ANameIsNeverEmpty) {
  TestApi api;
  const auto [by_chat, by_response] = choose(api, R"({"type": "function", "function": {"name": ""}})", R"({"type": "function", "name": ""})");
  EXPECT_EQ(by_chat.status, 400) << by_chat.body;
  EXPECT_EQ(by_response.status, 400) << by_response.body;
  for (const char* choice : {R"({"type": "tool"})", R"({"type": "tool", "name": ""})"}) {
    const Reply reply = api.post("/v1/messages", R"({"max_tokens": 5, "messages": [{"role": "user", "content": "a"}],
        "tools": [{"name": "a", "input_schema": {"type": "object"}}], "tool_choice": )" + std::string(choice) + "}");
    EXPECT_EQ(reply.status, 400) << choice;
    EXPECT_NE(reply.body.find("tool_choice.name is missing"), std::string::npos) << reply.body;
  }
}

TEST(NativeParsing, TakesATextApart) {
  TestApi api;
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}])";
  const Reply calls = api.post("/parse_function_call", R"({"text": "Well.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 1}}\n</tool_call>",
      "tool_call_parser": "qwen25", )" + tools + "}");
  ASSERT_EQ(calls.status, 200) << calls.body;
  EXPECT_EQ(calls.json(), Json::parse(R"({"normal_text": "Well.", "calls": [{"tool_index": 0, "name": "get", "parameters": "{\"a\": 1}"}]})"));
  const Reply reasoning = api.post("/separate_reasoning", R"({"text": "hm</think>yes", "reasoning_parser": "deepseek-r1"})");
  ASSERT_EQ(reasoning.status, 200) << reasoning.body;
  EXPECT_EQ(reasoning.json(), Json::parse(R"({"reasoning_text": "hm", "text": "yes"})"));
  EXPECT_EQ(api.post("/separate_reasoning", R"({"text": "<think>hm</think>yes", "reasoning_parser": "qwen3"})").json()["text"], "yes");
  for (const auto& [path, body, field] : {std::tuple("/separate_reasoning", R"({"text": "a"})", "reasoning_parser"),
                                          {"/separate_reasoning", R"({"text": "a", "reasoning_parser": "x"})", "reasoning_parser"},
                                          {"/separate_reasoning", R"({"reasoning_parser": "qwen3"})", "text"},
                                          {"/separate_reasoning", R"({"text": "a", "reasoning_parser": "qwen3", "who": 1})", "who"},
                                          {"/parse_function_call", R"({"text": "a", "tool_call_parser": 5})", "tool_call_parser"},
                                          {"/parse_function_call", R"({"text": "a", "tool_call_parser": "qwen25", "tool_choice": "none"})", "tool_choice"},
                                          {"/parse_function_call", R"({"text": "a", "tool_call_parser": "qwen25", "tools": 1})", "tools"}}) {
    const Reply reply = api.post(path, body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(reply.json()["error"]["param"], field) << reply.body;
  }
}

}  // namespace
}  // namespace warpweave::server::testing
