// /v1/messages and /v1/responses: what the engine is asked, answers, streams, what is kept, and what is refused.
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "server/api/api_state.h"
#include "server/api/response_store.h"
#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

TestApiOptions scripted(std::vector<std::string> script) {
  TestApiOptions options;
  options.engine.script = std::move(script);
  options.args.tool_call_parser = "qwen";
  options.args.reasoning_parser = "qwen3";
  return options;
}

const std::vector<std::string> kThoughtTextCall = {"<think>Hm", ".</think>", "I look.", "<tool_call>{\"name\": \"weather\", \"arg",
                                                   "uments\": {\"city\": \"Rome\"}}</tool_call>"};
constexpr const char* kAnthropicTools = R"("tools": [{"name": "weather", "input_schema": {"type": "object"}, "eager_input_streaming": true}])";
constexpr const char* kResponseTools = R"("tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}])";

// The data of a stream's events; each must say its type in both places.
std::vector<Json> typed_events(const Reply& reply) {
  std::vector<Json> out;
  size_t at = 0;
  while (at < reply.body.size()) {
    const size_t end = reply.body.find("\n\n", at);
    const std::string event = reply.body.substr(at, end - at);
    const size_t line = event.find('\n');
    EXPECT_TRUE(event.starts_with("event: ")) << event;
    EXPECT_EQ(event.substr(line + 1, 6), "data: ");
    out.push_back(Json::parse(event.substr(line + 7)));
    EXPECT_EQ(out.back()["type"], event.substr(7, line - 7));
    at = end + 2;
  }
  return out;
}

std::string prompt_of(TestApi& api) { return api.tokenizer().decode(api.engine().submitted().back().input_ids, false); }

TEST(Messages, WholeAnswer) {
  TestApi api(scripted(kThoughtTextCall));
  const Reply reply = api.post("/v1/messages", std::string(R"({"model": "default", "max_tokens": 50, "system": "Be brief.",
      "stop_sequences": ["END"], "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], )") + kAnthropicTools + "}");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["type"], "message");
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(json["stop_reason"], "tool_use");
  ASSERT_EQ(json["content"].size(), 3u) << json.dump();
  EXPECT_EQ(json["content"][0]["thinking"], "Hm.");
  EXPECT_EQ(json["content"][1]["text"], "I look.");
  EXPECT_EQ(json["content"][2]["name"], "weather");
  EXPECT_EQ(json["content"][2]["input"]["city"], "Rome");
  EXPECT_EQ(json["usage"]["output_tokens"], 5);
  EXPECT_EQ(prompt_of(api), "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(api.engine().submitted()[0].sampling.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(api.engine().submitted()[0].sampling.max_new_tokens, 50);
}

TEST(Messages, Stream) {
  TestApi api(scripted(kThoughtTextCall));
  const Reply reply = api.post("/v1/messages", std::string(R"({"max_tokens": 50, "stream": true,
      "messages": [{"role": "user", "content": "Hi"}], )") + kAnthropicTools + "}");
  std::string kinds, thinking, text, input;
  for (const Json& event : typed_events(reply)) {
    const std::string type = event["type"];
    if (type == "content_block_start") kinds += event["content_block"]["type"].get<std::string>() + std::to_string(event["index"].get<int>()) + " ";
    if (type == "content_block_delta") {
      const Json& delta = event["delta"];
      if (delta["type"] == "thinking_delta") thinking += delta["thinking"].get<std::string>();
      if (delta["type"] == "text_delta") text += delta["text"].get<std::string>();
      if (delta["type"] == "input_json_delta") input += delta["partial_json"].get<std::string>();
    }
    if (type == "message_delta") {
      EXPECT_EQ(event["delta"]["stop_reason"], "tool_use");
    }
  }
  EXPECT_EQ(kinds, "thinking0 text1 tool_use2 ");
  EXPECT_EQ(thinking, "Hm.");
  EXPECT_EQ(text, "I look.");
  EXPECT_EQ(Json::parse(input)["city"], "Rome");
  EXPECT_EQ(typed_events(reply).front()["type"], "message_start");
  EXPECT_EQ(typed_events(reply).back()["type"], "message_stop");
}

TEST(Messages, ToolResultsAndCountedTokens) {
  TestApi api;
  const std::string body = R"("messages": [{"role": "user", "content": "Hi"},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}, {"type": "text", "text": "So?"}]}]})";
  EXPECT_EQ(api.post("/v1/messages", R"({"max_tokens": 5, )" + body).status, 200);
  EXPECT_EQ(prompt_of(api), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n"
                            "<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n");
  const Json count = api.post("/v1/messages/count_tokens", "{" + body).json();
  EXPECT_EQ(count["input_tokens"], api.engine().submitted().back().input_ids.size());
}

// output_format is what output_config.format was called before.
TEST(Messages, SchemasHoldTheAnswer) {
  TestApi api;
  const std::string rest = R"("max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]})";
  const std::string format = R"({"type": "json_schema", "schema": {"type": "object"}})";
  for (const std::string& member : {R"("output_config": {"effort": "low", "format": )" + format + "}", R"("output_format": )" + format}) {
    EXPECT_EQ(api.post("/v1/messages", "{" + member + ", " + rest).status, 200) << member;
    EXPECT_NE(api.engine().submitted().back().sampling.grammar, nullptr) << member;
  }
  for (const auto& [member, said] : std::vector<std::pair<std::string, std::string>>{
           {R"("output_config": {"format": {"type": "json_schema", "schema": {"type": 5}}})", "output_config.format.schema: "},
           {R"("output_config": {"format": {"type": "text"}})", "output_config.format must be"},
           {R"("output_config": {"effort": 5})", "output_config.effort is 5"}, {R"("output_config": {"formats": 5})", "output_config.formats"},
           {R"("output_format": 5)", "output_format"}, {R"("output_format": )" + format + R"(, "output_config": {"format": )" + format + "}", "send one"}}) {
    const Reply reply = api.post("/v1/messages", "{" + member + ", " + rest);
    EXPECT_EQ(reply.status, 400) << member;
    EXPECT_NE(reply.json()["error"]["message"].get<std::string>().find(said), std::string::npos) << reply.body;
  }
}

TEST(Messages, ThinkingIsTheTemplatesSwitch) {
  TestApiOptions options;
  options.chat_template = "{{ enable_thinking }},{{ thinking }}";
  TestApi api(std::move(options));
  for (const auto& [type, prompt] : {std::pair("enabled", "True,True"), {"disabled", "False,False"}}) {
    const std::string member = std::string(R"("thinking": {"type": ")") + type + R"("}, "output_config": {"effort": "low"})";
    ASSERT_EQ(api.post("/v1/messages", R"({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], )" + member + "}").status, 200);
    EXPECT_EQ(api.tokenizer().decode(api.engine().submitted().back().input_ids, false), prompt);
  }
}

// Agents send these with every request, and ask for nothing by them.
TEST(Messages, WhatAsksForNothingPasses) {
  TestApi api;
  const auto status = [&](const std::string& member) {
    return api.post("/v1/messages", R"({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], )" + member + "}").status;
  };
  for (const char* member : {R"("mcp_servers": [])", R"("context_management": {})", R"("context_management": {"edits": []})",
                             R"("context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})", R"("container": null)"}) {
    EXPECT_EQ(status(member), 200) << member;
  }
  for (const char* member : {R"("mcp_servers": [{"type": "url"}])", R"("container": "c")", R"("context_management": {"edit": []})",
                             R"("context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]})",
                             R"("context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": 1}]})"}) {
    EXPECT_EQ(status(member), 400) << member;
  }
}

// A chat that began elsewhere goes on: what was sealed there is sent back as it came, and is no part of the prompt.
TEST(Messages, SealedThinkingIsTakenBackAndLeftOut) {
  TestApiOptions options;
  options.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}:{{ m.content }};{% endfor %}";
  TestApi api(std::move(options));
  const auto post = [&](const std::string& blocks) {
    return api.post("/v1/messages", R"({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [)" +
                                        blocks + R"(]}, {"role": "user", "content": "On."}]})");
  };
  ASSERT_EQ(post(R"({"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3"},
                    {"type": "text", "text": "Ho"})").status, 200);
  EXPECT_EQ(prompt_of(api), "user::Hi;assistant:Hm.:Ho;user::On.;");
  const Reply reply = post(R"({"type": "redacted_thinking", "data": 5}, {"type": "text", "text": "Ho"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("messages[1].content[0].data"), std::string::npos) << reply.body;
}

TEST(Messages, TooLongPromptIsSaidInAnthropicsWords) {
  TestApi api;
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "word ";
  const Reply reply = api.post("/v1/messages", R"({"max_tokens": 5, "messages": [{"role": "user", "content": ")" + words + R"("}]})");
  EXPECT_TRUE(reply.json()["error"]["message"].get<std::string>().starts_with("prompt is too long: ")) << reply.body;
}

TEST(Messages, RefusalsHaveAnthropicsShape) {
  TestApi api;
  for (const char* body : {R"({"messages": [{"role": "user", "content": "Hi"}]})", R"({"max_tokens": 5})",
                           R"({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]})",
                           R"({"max_tokens": 5, "max_tokenz": 5, "messages": [{"role": "user", "content": "Hi"}]})",
                           R"({"max_tokens": 5, "tool_choice": {"type": "any"}, "messages": [{"role": "user", "content": "Hi"}]})",
                           R"({"max_tokens": 5, "messages": 3})", R"({"max_tokens": 5, "messages": [{"role": "tool", "content": "x"}]})"}) {
    const Reply reply = api.post("/v1/messages", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(reply.json()["type"], "error") << body;
    EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error") << body;
  }
}

TEST(Responses, ListWhatTheyWereAskedWith) {
  TestApi api(scripted(kThoughtTextCall));
  const Json first = api.post("/v1/responses", R"({"input": "Hi"})").json();
  const std::string path = "/v1/responses/" + first["id"].get<std::string>() + "/input_items";
  const Json one = api.get(path).json();
  EXPECT_EQ(one["object"], "list");
  ASSERT_EQ(one["data"].size(), 1u) << one.dump();
  EXPECT_EQ(one["data"][0]["type"], "message");
  EXPECT_EQ(one["data"][0]["role"], "user");
  EXPECT_EQ(one["data"][0]["content"], Json::parse(R"([{"type": "input_text", "text": "Hi"}])"));
  EXPECT_EQ(one["first_id"], one["data"][0]["id"]);
  EXPECT_EQ(one["last_id"], one["data"][0]["id"]);
  EXPECT_EQ(one["has_more"], false);
  const Json many = api.post("/v1/responses", R"({"input": [{"role": "user", "content": "a"},
      {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "b"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]})").json();
  const std::string items = "/v1/responses/" + many["id"].get<std::string>() + "/input_items";
  const Json up = api.get(items + "?order=asc&limit=2").json();
  ASSERT_EQ(up["data"].size(), 2u);
  EXPECT_EQ(up["data"][1]["id"], "fc_1");
  EXPECT_EQ(up["has_more"], true);
  const Json rest = api.get(items + "?order=asc&after=fc_1").json();
  ASSERT_EQ(rest["data"].size(), 3u);
  EXPECT_EQ(rest["data"][1]["content"][0]["type"], "output_text");
  EXPECT_EQ(rest["has_more"], false);
  EXPECT_EQ(api.get(items).json()["data"][0]["content"][0]["text"], "d");  // the last one first
  EXPECT_EQ(api.get(items + "?after=" + rest["data"][2]["id"].get<std::string>()).json()["data"].size(), 4u);
  for (const char* bad : {"?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=msg_none", "?before=fc_1"}) {
    const Reply reply = api.get(items + bad);
    EXPECT_EQ(reply.status, 400) << bad;
    EXPECT_NE(std::string(bad).find(reply.json()["error"]["param"].get<std::string>()), std::string::npos) << reply.body;
  }
  EXPECT_EQ(api.get("/v1/responses/resp_none/input_items").status, 404);
}

TEST(Responses, WholeAnswerIsKeptAndGoesOn) {
  TestApi api(scripted(kThoughtTextCall));
  const Json first = api.post("/v1/responses", std::string(R"({"input": "Hi", "instructions": "Be brief.", "metadata": {"a": "b"}, )") + kResponseTools + "}").json();
  ASSERT_TRUE(first.contains("output")) << first.dump();
  EXPECT_EQ(first["object"], "response");
  EXPECT_EQ(first["status"], "completed");
  EXPECT_EQ(first["metadata"]["a"], "b");
  ASSERT_EQ(first["output"].size(), 3u);
  EXPECT_EQ(first["output"][0]["type"], "reasoning");
  EXPECT_EQ(first["output"][1]["content"][0]["text"], "I look.");
  EXPECT_EQ(first["output"][2]["type"], "function_call");
  EXPECT_EQ(first["output"][2]["arguments"], "{\"city\": \"Rome\"}");
  const auto thought = api.tokenizer().encode(first["output"][0]["content"][0]["text"].get<std::string>(), false);
  EXPECT_EQ(first["usage"]["output_tokens_details"]["reasoning_tokens"], thought.value().size());
  const std::string id = first["id"];
  EXPECT_EQ(api.get("/v1/responses/" + id).json(), first);
  const std::string parts = api.get("/v1/responses/" + id + "/cancel").json()["error"]["message"];
  EXPECT_EQ(parts, "Of a response itself and its input_items are kept here, and not its cancel; ask for /v1/responses/" + id + ".");
  EXPECT_EQ(api.get("/v1/responses/" + id + "?stream=false&include=x").status, 200);
  EXPECT_EQ(api.get("/v1/responses/" + id + "?stream=true").json()["error"]["param"], "stream");
  EXPECT_EQ(api.get("/v1/responses/" + id + "?starting_after=3").status, 400);
  const std::string more = R"({"previous_response_id": ")" + id + R"(", "input": [{"type": "function_call_output", "call_id": "c", "output": "sunny"}]})";
  EXPECT_EQ(api.post("/v1/responses", more).status, 200);
  EXPECT_EQ(prompt_of(api), "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nI look.<|im_end|>\n"
                            "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(api.call("DELETE", "/v1/responses/" + id, "").json()["deleted"], true);
  EXPECT_EQ(api.get("/v1/responses/" + id).status, 404);
  const Reply gone = api.post("/v1/responses", more);
  EXPECT_EQ(gone.status, 400);
  EXPECT_EQ(gone.json()["error"]["param"], "previous_response_id");
  EXPECT_NE(gone.json()["error"]["message"].get<std::string>().find("must be the id of a response that is stored here"), std::string::npos) << gone.body;
  const Json unkept = api.post("/v1/responses", R"({"input": "Hi", "store": false})").json();
  EXPECT_EQ(api.get("/v1/responses/" + unkept["id"].get<std::string>()).status, 404);
}

TEST(Responses, Stream) {
  TestApi api(scripted(kThoughtTextCall));
  const Reply reply = api.post("/v1/responses", std::string(R"({"stream": true, "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], )") + kResponseTools + "}");
  std::string text, arguments;
  int number = 0;
  const std::vector<Json> events = typed_events(reply);
  for (const Json& event : events) {
    EXPECT_EQ(event["sequence_number"], number++);
    if (event["type"] == "response.output_text.delta") text += event["delta"].get<std::string>();
    if (event["type"] == "response.function_call_arguments.delta") arguments += event["delta"].get<std::string>();
    if (event["type"] == "response.function_call_arguments.done") {
      EXPECT_EQ(event["name"], "weather");
    }
  }
  EXPECT_EQ(text, "I look.");
  EXPECT_EQ(arguments, "{\"city\": \"Rome\"}");
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(events.front()["type"], "response.created");
  EXPECT_EQ(events.back()["type"], "response.completed");
  EXPECT_EQ(events.back()["response"]["output"].size(), 3u);
}

// In the message, and in a stream with the text they belong to.
TEST(Responses, LogprobsAreIncludedWhereAsked) {
  TestApi api(scripted({"I ", "look."}));
  const std::string asked = R"("input": "Hi", "top_logprobs": 2, "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]})";
  const Json whole = api.post("/v1/responses", "{" + asked).json();
  ASSERT_TRUE(whole.contains("output")) << whole.dump();
  const Json logprobs = whole["output"][0]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 2u) << whole.dump();
  EXPECT_TRUE(logprobs[0]["logprob"].is_number());
  EXPECT_EQ(logprobs[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(api.engine().submitted().back().top_logprobs_num, 2);
  Json streamed = Json::array(), done;
  for (const Json& event : typed_events(api.post("/v1/responses", R"({"stream": true, )" + asked))) {
    if (event["type"] == "response.output_text.done") done = event["logprobs"];
    if (event["type"] != "response.output_text.delta") continue;
    for (const Json& position : event["logprobs"]) streamed.push_back(position);
  }
  EXPECT_EQ(streamed, logprobs);
  EXPECT_EQ(done, logprobs);
  const Json plain = api.post("/v1/responses", R"({"input": "Hi", "include": []})").json();
  EXPECT_EQ(plain["output"][0]["content"][0]["logprobs"], Json::array());
  EXPECT_FALSE(api.engine().submitted().back().return_logprob);
}

TEST(Responses, FormsAndRefusals) {
  TestApi api;
  EXPECT_EQ(api.post("/v1/responses", R"({"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}})").status, 200);
  EXPECT_NE(api.engine().submitted().back().sampling.grammar, nullptr);
  EXPECT_EQ(api.post("/v1/responses", R"({"input": "Hi", "context_management": []})").status, 200);
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {R"({})", "input"}, {R"({"input": 3})", "input"}, {R"({"input": "a", "background": true})", "background"},
           {R"({"input": "a", "truncation": "auto"})", "truncation"}, {R"({"input": "a", "tools": [{"type": "web_search"}]})", "tools[0].type"},
           {R"({"input": "a", "include": ["file_search_call.results"]})", "include"}, {R"({"input": "a", "include": "x"})", "include"},
           {R"({"input": "a", "top_logprobs": 2})", "top_logprobs"}, {R"({"input": "a", "max_tool_calls": 1})", "max_tool_calls"},
           {R"({"input": "a", "prompt": {"id": "p"}})", "prompt"}, {R"({"input": "a", "conversation": "c"})", "conversation"},
           {R"({"input": "a", "context_management": [{"type": "compaction"}]})", "context_management"},
           {R"({"input": [{"type": "item_reference"}]})", "input[0].type"}, {R"({"input": "a", "inputs": "b"})", "inputs"},
           {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})", "input[0].content[0].type"}}) {
    const Reply reply = api.post("/v1/responses", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(reply.json()["error"]["param"], param) << body << reply.body;
  }
}

// Calls that follow one another are one message of the chat, so its indices are not the body's.
TEST(Responses, ArgumentsTooLargeAreNamedByTheirItem) {
  TestApi api(scripted({"ok"}));
  Json members = Json::object();
  for (int i = 0; i < 20'000; ++i) members[std::to_string(i)] = 1;
  const auto call = [](const std::string& arguments) {
    return Json{{"type", "function_call"}, {"call_id", "a"}, {"name", "f"}, {"arguments", arguments}};
  };
  const Json items = Json::array({Json{{"role", "user"}, {"content", "Hi"}}, call("{}"), call(members.dump())});
  const Reply reply = api.post("/v1/responses", Json{{"instructions", "Be brief."}, {"input", items}}.dump());
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "input[2].arguments") << reply.body;
  EXPECT_EQ(reply.body.find("tool_calls"), std::string::npos) << reply.body;
}

uint64_t undo_shift_right(uint64_t x, int shift, uint64_t mask) {
  uint64_t out = x;
  for (int i = 0; i < 64 / shift; ++i) out = x ^ ((out >> shift) & mask);
  return out;
}

uint64_t undo_shift_left(uint64_t x, int shift, uint64_t mask) {
  uint64_t out = x;
  for (int i = 0; i < 64 / shift; ++i) out = x ^ ((out << shift) & mask);
  return out;
}

// Who has an id may read and delete the answer, so a client must not find others' ids from its own: 312 words are all that a
// Mersenne twister is made of.
TEST(Responses, IdsDoNotTellTheNext) {
  std::vector<uint64_t> words;
  while (words.size() < 314) {
    const std::string id = random_id("");
    for (const size_t begin : {0, 16}) words.push_back(std::stoull(id.substr(begin, 16), nullptr, 16));
  }
  std::stringstream state;
  for (size_t i = 0; i < 312; ++i) {
    uint64_t word = undo_shift_right(words[i], 43, ~uint64_t{0});
    word = undo_shift_left(word, 37, 0xFFF7EEE000000000);
    word = undo_shift_left(word, 17, 0x71D67FFFEDA60000);
    state << undo_shift_right(word, 29, 0x5555555555555555) << ' ';
  }
  state << 312;
  std::mt19937_64 guess;
  state >> guess;
  ASSERT_TRUE(state);
  EXPECT_NE(guess(), words[312]);
  EXPECT_NE(guess(), words[313]);
}

// What the chat request made of a body finds wrong is said in the body's own names.
struct NamedRefusal {
  const char* route;
  const char* members;  // beside those that must be there
  const char* param;
  const char* said;     // in the message
};

class OwnNames : public ::testing::TestWithParam<NamedRefusal> {};

TEST_P(OwnNames, AreInRefusals) {
  TestApi api(scripted({"ok"}));
  const NamedRefusal& refusal = GetParam();
  const bool anthropic = std::string_view(refusal.route).starts_with("/v1/messages");
  const std::string rest = anthropic ? R"({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], )" : R"({"input": "Hi", )";
  const Reply reply = api.post(refusal.route, rest + refusal.members + "}");
  EXPECT_EQ(reply.status, 400) << reply.body;
  const Json error = reply.json()["error"];
  const std::string message = error["message"];
  EXPECT_NE(message.find(refusal.said), std::string::npos) << message;
  for (const char* other : {"response_format", "reasoning_effort", ".function", "\"function\": {", "\"json_schema\": {", "max_completion_tokens"}) {
    EXPECT_EQ(message.find(other), std::string::npos) << message;
  }
  if (!anthropic) {
    EXPECT_EQ(error["param"], refusal.param) << reply.body;
  }
}

INSTANTIATE_TEST_SUITE_P(Chats, OwnNames, ::testing::Values(
    NamedRefusal{"/v1/responses", R"("text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 5}}})", "text.format.schema", "text.format.schema: "},
    NamedRefusal{"/v1/responses", R"("text": {"format": {"type": "json_schema"}})", "text.format", R"("name": "...", "schema": {...}})"},
    NamedRefusal{"/v1/responses", R"("reasoning": {"effort": 5})", "reasoning.effort", "reasoning.effort is 5"},
    NamedRefusal{"/v1/responses", R"("reasoning": {"effort": "hgih"})", "reasoning.effort", "reasoning.effort is \"hgih\""},
    NamedRefusal{"/v1/responses", R"("stream_options": {"include_usage": true})", "stream_options.include_usage", "stream_options.include_usage"},
    NamedRefusal{"/v1/responses", R"("tools": [{"type": "function", "name": 5}])", "tools[0].name", "tools[0].name is 5"},
    NamedRefusal{"/v1/responses", R"("tool_choice": "zz")", "tool_choice", R"({"type": "function", "name": "..."})"},
    NamedRefusal{"/v1/responses", R"("max_output_tokens": 1000000000)", "max_output_tokens", "max_output_tokens"},
    NamedRefusal{"/v1/messages", R"("tools": [{"name": "f", "input_schema": 5}])", "", "tools[0].input_schema is 5"},
    NamedRefusal{"/v1/messages", R"("tools": [{"name": 5, "input_schema": {}}])", "", "tools[0].name is 5"}));

constexpr NamedRefusal kWithoutEffect[] = {
    {"/v1/responses", R"("stream_options": {"include_obfuscation": true})", "stream_options", "stream is not true"},
    {"/v1/responses", R"("stop": ["a", ""])", "stop[1]", "stop[1] is an empty text"},
    {"/v1/messages", R"("stop_sequences": [""])", "", "stop_sequences[0] is an empty text"},
};
INSTANTIATE_TEST_SUITE_P(WithoutEffect, OwnNames, ::testing::ValuesIn(kWithoutEffect));

TEST(ResponseStore, IsBoundedByOwner) {
  ResponseStore store(2);
  for (const char* id : {"1", "2", "3"}) EXPECT_TRUE(store.put("a", id, {"body", "[]"}));
  EXPECT_TRUE(store.put("b", "1", {"other", "[]"}));
  EXPECT_FALSE(store.get("a", "1"));
  EXPECT_EQ(store.get("a", "3")->body, "body");
  EXPECT_EQ(store.get("b", "1")->body, "other");
  EXPECT_FALSE(store.get("b", "3"));
  EXPECT_FALSE(store.put("a", "4", {std::string(ResponseStore::kMaxEntryBytes, 'x'), ""}));
  for (int i = 0; i < 40; ++i) store.put("o" + std::to_string(i), "1", {std::string(ResponseStore::kMaxEntryBytes - 100, 'x'), ""});
  EXPECT_LE(store.bytes(), ResponseStore::kMaxBytes);
  EXPECT_FALSE(ResponseStore(0).put("a", "1", {"", ""}));
}

TEST(Errors, TooLongForTheContextHasItsCode) {
  TestApi api;
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "word ";
  for (const std::string& body : {R"({"messages": [{"role": "user", "content": ")" + words + R"("}]})",
                                  std::string(R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 5000})")}) {
    const Reply reply = api.post("/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded") << reply.body;
  }
  EXPECT_TRUE(api.post("/v1/chat/completions", R"({"messages": 5})").json()["error"]["code"].is_null());
}

TEST(Tokenize, MessagesAreWhatAChatSends) {
  TestApi api;
  const Json reply = api.post("/tokenize", R"({"messages": [{"role": "user", "content": "Hi"}]})").json();
  ASSERT_TRUE(reply.contains("tokens")) << reply.dump();
  api.post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(reply["tokens"].get<std::vector<int32_t>>(), api.engine().submitted()[0].input_ids);
  EXPECT_EQ(reply["count"], reply["tokens"].size());
  EXPECT_EQ(api.post("/tokenize", R"({"messages": [{"role": "user", "content": "Hi"}], "prompt": "a"})").json()["error"]["param"], "prompt");
}

TEST(Info, VersionAndLoad) {
  TestApi api;
  EXPECT_FALSE(api.get("/version").json()["version"].get<std::string>().empty());
  const Json load = api.get("/get_load").json();
  EXPECT_EQ(load[0]["num_reqs"], 0);
  EXPECT_EQ(load[0]["max_total_num_tokens"], 65536);
}

}  // namespace
}  // namespace warpweave::server::testing
