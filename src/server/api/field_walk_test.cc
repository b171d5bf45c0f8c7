// A walk over every field of every body: each one that an endpoint asks for, and each value at any depth of a full
// body, becomes every kind of wrong value and every number at the edge of its type. The answer is a 200 or a 400 that
// names the field, in our words; and no field takes everything.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "server/api/field_listener.h"
#include "server/api/testing.h"
#include "server/testing/fake_adapters.h"

namespace warpweave::server::testing {
namespace {

struct Endpoint {
  const char* path;
  const char* body;  // with every object that has fields of its own
  bool of_labels = false;  // by a model with labels
};

constexpr Endpoint kEndpoints[] = {
    {"/generate", R"({"text": "Once", "stream": true, "return_logprob": true, "sampling_params": {"max_new_tokens": 2,
        "stop": ["zz"], "stop_token_ids": [5], "logit_bias": {"5": 1}, "bad_words": ["cat"], "stop_regex": ["zz+"]}, "rid": "a",
        "token_ids_logprob": [1]})"},
    {"/v1/completions", R"({"prompt": ["Once"], "max_tokens": 2, "stream": true, "stop": ["zz"], "logit_bias": {"5": 1},
        "stream_options": {"include_usage": true}, "response_format": {"type": "json_schema", "json_schema":
        {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}})"},
    {"/v1/completions", R"({"prompt": [1, 2], "max_tokens": 2, "structured_outputs": {"choice": ["a", "b"]}})"},
    {"/v1/chat/completions", R"({"messages": [{"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}], "name": "c"},
        {"role": "assistant", "content": "d", "reasoning_content": "e", "tool_calls": [{"id": "f", "type": "function",
         "function": {"name": "g", "arguments": "{\"h\": 1}"}}]},
        {"role": "tool", "content": "i", "tool_call_id": "f", "name": "g"}, {"role": "user", "content": "j"}],
        "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true}, "chat_template_kwargs": {"k": 1},
        "tools": [{"type": "function", "function": {"name": "g", "description": "l", "strict": true, "parameters":
        {"type": "object", "properties": {"h": {"type": "integer"}}}}}], "tool_choice": {"type": "function",
        "function": {"name": "g"}}, "logprobs": true, "top_logprobs": 1})"},
    {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "b"}], "max_tokens": 2,
        "response_format": {"type": "json_object"}})"},
    {"/v1/responses", R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "b", "name": "c", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "d"}], "instructions": "e", "max_output_tokens": 32,
        "tools": [{"type": "function", "name": "c", "description": "f", "parameters": {"type": "object"}}],
        "tool_choice": "auto", "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"], "top_logprobs": 1})"},
    {"/v1/messages", R"({"max_tokens": 2, "system": "a", "messages": [{"role": "user", "content": [{"type": "text",
        "text": "b"}]}, {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "d",
        "input": {"e": 1}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
        "content": "f", "is_error": false}]}], "tools": [{"name": "d", "description": "g", "input_schema":
        {"type": "object"}}], "tool_choice": {"type": "auto"}, "stop_sequences": ["zz"], "thinking":
        {"type": "disabled"}})"},
    {"/v1/messages", R"({"max_tokens": 2, "messages": [{"role": "user", "content": "b"}], "output_config": {"effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "object"}}}})"},
    {"/v1/messages", R"({"max_tokens": 2, "messages": [{"role": "user", "content": "b"}], "output_format":
        {"type": "json_schema", "schema": {"type": "object"}}})"},
    {"/v1/messages/count_tokens", R"({"messages": [{"role": "user", "content": "b"}], "system": "a"})"},
    {"/tokenize", R"({"prompt": ["a", "b"], "add_special_tokens": true})"},
    {"/tokenize", R"({"messages": [{"role": "user", "content": "b"}]})"},
    {"/detokenize", R"({"tokens": [[1, 2], [3]], "skip_special_tokens": true})"},
    {"/v1/tokenize", R"({"prompt": "a"})"},
    {"/v1/detokenize", R"({"tokens": [1]})"},
    {"/abort_request", R"({"rid": "a"})"},
    {"/start_profile", R"({"num_steps": 3})"},
    {"/invocations", R"({"messages": [{"role": "user", "content": "b"}], "max_tokens": 2})"},
    {"/open_session", R"({"capacity_of_str_len": 5, "timeout": 1})"},
    {"/close_session", R"({"session_id": "open"})"},
    {"/parse_function_call", R"({"text": "a", "tool_call_parser": "hermes", "tools": [{"type": "function", "function": {"name": "g"}}]})"},
    {"/separate_reasoning", R"({"text": "a", "reasoning_parser": "qwen3"})"},
    {"/update_weight_version", R"({"new_version": "a", "abort_all_requests": false})"},
    {"/load_lora_adapter", R"({"lora_name": "a", "lora_path": "b"})"},
    {"/unload_lora_adapter", R"({"lora_name": "a"})"},
    {"/v1/load_lora_adapter", R"({"lora_name": "a", "lora_path": "b", "load_inplace": false})"},
    {"/v1/unload_lora_adapter", R"({"lora_name": "a"})"},
    {"/v1/embeddings", R"({"input": ["a", "b"], "dimensions": 2, "encoding_format": "base64"})"},
    {"/v1/embeddings", R"({"input": [[1, 2], [3]]})"},
    {"/encode", R"({"text": ["a", "b"]})"},
    {"/classify", R"({"input": ["a", "b"]})", true},
    {"/v1/classify", R"({"input_ids": [[1], [2]]})", true},
    {"/score", R"({"text_1": "a", "text_2": ["b", "c"]})"},
    {"/score", R"({"queries": "a", "documents": ["b", "c"]})"},
    {"/v1/score", R"({"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6], "apply_softmax": true})"},
    {"/rerank", R"({"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1})"},
    {"/v1/rerank", R"({"query": "a", "documents": ["b"], "return_documents": true})"},
    {"/v2/rerank", R"({"query": "a", "documents": ["b"]})"},
};

// JSON of the client's own, and fields without effect by definition.
const std::set<std::string> kTakeEverything = {
    "/v1/chat/completions chat_template_kwargs.k", "/v1/messages messages[1].content[0].input.e",
    "/v1/messages tools[0].input_schema.type", "/v1/responses metadata",
    "/v1/responses tools[0].parameters.type", "/v1/responses user"};

// Objects that take members beside their own fields: what templates read, JSON of the client's own, and schemas, whose
// unknown words bind nothing.
const std::set<std::string> kTakeMembers = {
    "/invocations messages[0]", "/tokenize messages[0]", "/v1/chat/completions chat_template_kwargs",
    "/v1/chat/completions messages[0]", "/v1/chat/completions messages[1]", "/v1/chat/completions messages[1].content[0]",
    "/v1/chat/completions messages[2]", "/v1/chat/completions messages[2].tool_calls[0]",
    "/v1/chat/completions messages[2].tool_calls[0].function", "/v1/chat/completions messages[3]",
    "/v1/chat/completions messages[4]", "/v1/chat/completions tools[0].function.parameters",
    "/v1/chat/completions tools[0].function.parameters.properties.h", "/v1/completions response_format.json_schema.schema",
    "/v1/completions response_format.json_schema.schema.properties.a", "/v1/messages messages[1].content[0].input",
    "/v1/messages output_config.format.schema", "/v1/messages output_format.schema", "/v1/messages tools[0].input_schema",
    "/v1/responses tools[0].parameters"};
// Objects whose members are no fields: token ids, properties.
const std::set<std::string> kMembersAreNoFields = {"logit_bias", "sampling_params.logit_bias",
    "response_format.json_schema.schema.properties", "tools[0].function.parameters.properties"};

// A kind of value each, so that a field that takes them all stands out; then edges of numbers.
constexpr const char* kKinds[] = {"true", "3", "\"odd\"", "[7]", "{\"odd\": 7}"};
constexpr const char* kEdges[] = {
    "null", "false", "0", "-0", "-0.0", "-1", "0.5", "1e308", "-1e308", "5e-324", "-5e-324", "2.2250738585072014e-308",
    "1e-45", "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "-9223372036854775808",
    "18446744073709551615", "18446744073709551616", "\"\"", "\"\\u0000\"", "\"\\ud83d\\ude00\"", "[]", "[[]]", "[null]",
    "[true, \"a\", {}]", "{}", "{\"\": null}", "[[[[[[[[[[]]]]]]]]]]", "\"\\u001b[31m\\r\\n\""};

// Words of libraries and of C++.
constexpr const char* kForeignWords[] = {"json.exception", "parse error", "parse_error", "type_error", "nlohmann", "std::",
                                         "basic_string", "simdjson", "bad_alloc", "terminate", "syntax error",
                                         "out_of_range.", "what()", "0x7f"};

// "messages[0].content" -> {messages, 0, content}
std::vector<std::string> steps_of(const std::string& path) {
  std::vector<std::string> steps(1);
  for (const char c : path) {
    if (c == '.' || c == '[') {
      steps.emplace_back();
    } else if (c != ']') {
      steps.back() += c;
    }
  }
  return steps;
}

// Puts `value` at the path; false where the body has no such place.
bool put(Json* body, const std::vector<std::string>& steps, const Json& value) {
  Json* at = body;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    if (at->is_array()) {
      const size_t index = std::stoul(steps[i]);
      if (index >= at->size()) return false;
      at = &(*at)[index];
    } else {
      if (!at->is_object() || !at->contains(steps[i])) return false;
      at = &(*at)[steps[i]];
    }
  }
  if (at->is_array()) {
    const size_t index = std::stoul(steps.back());
    if (index >= at->size()) return false;
    (*at)[index] = value;
    return true;
  }
  if (!at->is_object()) return false;
  (*at)[steps.back()] = value;
  return true;
}

// The places of objects, the body itself as "".
void add_objects(const Json& value, const std::string& path, std::set<std::string>* paths) {
  if (value.is_object()) {
    paths->insert(path);
    for (const auto& [key, item] : value.items()) add_objects(item, path.empty() ? key : path + "." + key, paths);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) add_objects(value[i], path + "[" + std::to_string(i) + "]", paths);
  }
}

void add_paths(const Json& value, const std::string& path, std::set<std::string>* paths) {
  if (!path.empty()) paths->insert(path);
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) add_paths(item, path.empty() ? key : path + "." + key, paths);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) add_paths(value[i], path + "[" + std::to_string(i) + "]", paths);
  }
}

class FieldWalk : public ::testing::Test {
 protected:
  FieldWalk() : api_(options({})), label_api_(options({"low", "high"})) { api_.post("/open_session", R"({"session_id": "open"})"); }
  TestApiOptions options(std::vector<std::string> labels) {
    TestApiOptions options;
    options.adapters = &adapters_;
    options.engine.script = {" a", " b"};
    options.args.profile_dir = "profiles";
    options.engine.info.pools = options.engine.info.gives_states = true;
    options.engine.info.pooled_size = 2;
    options.engine.info.labels = std::move(labels);
    return options;
  }
  TestApi& api_of(const Endpoint& endpoint) { return endpoint.of_labels ? label_api_ : api_; }

  // True: taken.
  bool expect_answer(const Endpoint& endpoint, const std::string& path, const std::string& body) {
    const Reply reply = api_of(endpoint).post(endpoint.path, body);
    ++requests_;
    if (reply.status == 200) return true;
    const std::string what = std::string(endpoint.path) + " " + path + " in " + body + ": " + reply.body;
    if (failed_.contains(path)) return false;  // one failure a field is enough to read
    const int failures = parts_failed();
    check_refusal(reply, path, what);
    if (parts_failed() > failures) failed_.insert(path);
    return false;
  }

  static int parts_failed() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
  }

  static void check_refusal(const Reply& reply, const std::string& path, const std::string& what) {
    const bool may_lack = path == "model" || path == "session_id";  // what is named
    EXPECT_TRUE(reply.status == 400 || (reply.status == 404 && may_lack)) << reply.status << what;
    const Json json = Json::parse(reply.body, nullptr, false);
    ASSERT_TRUE(!json.is_discarded() && json["error"]["message"].is_string()) << what;
    const std::string message = json["error"]["message"];
    const Json param = json["error"].value("param", Json());  // Anthropic's shape has none
    const std::string said = message + " " + (param.is_string() ? param.get<std::string>() : "");
    EXPECT_TRUE(names_the_field(said, path)) << what;
    for (const char* word : kForeignWords) EXPECT_EQ(said.find(word), std::string::npos) << word << " in " << what;
    for (const char c : said) EXPECT_FALSE(static_cast<unsigned char>(c) < 0x20) << what;
  }

  // The field, one around it, or one that it must go with.
  static bool names_the_field(const std::string& said, const std::string& path) {
    for (const std::string& step : steps_of(path)) {
      if (!step.empty() && said.find(step) != std::string::npos) return true;
    }
    static const std::map<std::string, std::string> kGoesWith = {
        {"input_ids", "text"}, {"text", "input_ids"}, {"return_logprob", "logprob"},
        {"max_completion_tokens", "new tokens"}, {"max_output_tokens", "new tokens"}, {"guided_json", "guided_"},
        {"guided_json_object", "guided_"}, {"guided_regex", "guided_"}, {"guided_choice", "guided_"},
        {"max_tokens", "new tokens"}, {"messages", "prompt"}, {"tools", "tool_choice"}};
    const auto other = kGoesWith.find(steps_of(path)[0]);
    return other != kGoesWith.end() && said.find(other->second) != std::string::npos;
  }

  std::set<std::string> paths_of(const Endpoint& endpoint, const Json& body) {
    std::set<std::string> paths;
    {
      FieldListener listener;
      const Reply reply = api_of(endpoint).post(endpoint.path, body.dump());
      EXPECT_EQ(reply.status, 200) << endpoint.path << reply.body;
      paths = listener.paths;
    }
    add_paths(body, "", &paths);
    return paths;
  }

  FakeAdapters adapters_{/*any=*/true};
  TestApi api_;
  TestApi label_api_;
  int requests_ = 0;
  std::set<std::string> failed_;
};

TEST_F(FieldWalk, EveryFieldWithEveryKindOfValue) {
  std::set<std::string> takes_all;
  for (const Endpoint& endpoint : kEndpoints) {
    const Json body = Json::parse(endpoint.body);
    for (const std::string& path : paths_of(endpoint, body)) {
      const std::vector<std::string> steps = steps_of(path);
      size_t taken = 0, kinds = 0;
      for (const char* value : kKinds) {
        Json changed = body;
        if (!put(&changed, steps, Json::parse(value))) continue;
        ++kinds;
        taken += expect_answer(endpoint, path, changed.dump());
      }
      if (kinds > 0 && taken == kinds) takes_all.insert(std::string(endpoint.path) + " " + path);
      for (const char* value : kEdges) {
        Json changed = body;
        if (put(&changed, steps, Json::parse(value))) expect_answer(endpoint, path, changed.dump());
      }
    }
  }
  std::printf("%d requests\n", requests_);
  EXPECT_EQ(takes_all, kTakeEverything);
}

TEST_F(FieldWalk, AMemberThatNothingReadsIsRefusedOrIgnoredAtEveryDepth) {
  TestApiOptions lenient = options({});
  lenient.args.allow_unknown_fields = true;
  TestApi ignoring(lenient);
  lenient.engine.info.labels = {"low", "high"};
  TestApi ignoring_labels(lenient);
  ignoring.post("/open_session", R"({"session_id": "open"})");
  std::set<std::string> take_members;
  for (const Endpoint& endpoint : kEndpoints) {
    const Json body = Json::parse(endpoint.body);
    std::set<std::string> objects;
    add_objects(body, "", &objects);
    for (const std::string& object : objects) {
      if (kMembersAreNoFields.contains(object)) continue;
      const std::string path = object.empty() ? "unheard_of" : object + ".unheard_of";
      Json changed = body;
      ASSERT_TRUE(put(&changed, steps_of(path), 7)) << path;
      if (expect_answer(endpoint, path, changed.dump())) take_members.insert(std::string(endpoint.path) + " " + object);
      const Reply reply = (endpoint.of_labels ? ignoring_labels : ignoring).post(endpoint.path, changed.dump());
      EXPECT_EQ(reply.status, 200) << endpoint.path << ' ' << path << reply.body;
    }
  }
  EXPECT_EQ(take_members, kTakeMembers);
}

TEST_F(FieldWalk, EveryBodyThatIsNoObject) {
  for (const Endpoint& endpoint : kEndpoints) {
    for (const char* body : {"", " ", "null", "5", "\"a\"", "[]", "[{}]", "{", "{\"a\"", "{\"a\":}", "{\"a\": 1,}", "{]", "nul",
                             "{\"a\": 01}", "{\"a\": +1}", "{\"a\": NaN}", "{\"a\": 1e999}", "{\"a\": \"\\x\"}",
                             "{\"a\": \"\\ud800\"}", "{\"a\": \"\xff\"}", "{} {}", "\xef\xbb\xbf{}", "{'a': 1}",
                             "{\"a\": 1, \"a\": 2}"}) {
      const std::string path = endpoint.path;
      const bool takes_nothing = path == "/start_profile" || path == "/open_session";  // all of their fields may lack
      if (takes_nothing && (std::string(body).empty() || std::string(body).ends_with("{}"))) continue;
      const Reply reply = api_of(endpoint).post(endpoint.path, body);
      EXPECT_EQ(reply.status, 400) << endpoint.path << ' ' << body << reply.body;
      for (const char* word : kForeignWords) EXPECT_EQ(reply.body.find(word), std::string::npos) << word << reply.body;
    }
  }
}

TEST_F(FieldWalk, EveryRouteWithABodyIsWalked) {
  std::set<std::string> walked = {"/flush_cache", "/stop_profile"};  // take no body
  for (const Endpoint& endpoint : kEndpoints) walked.insert(endpoint.path);
  for (const Route& route : api_.router().routes()) {
    EXPECT_TRUE(route.method == "GET" || route.method == "DELETE" || walked.contains(route.path)) << route.path;
  }
}

}  // namespace
}  // namespace warpweave::server::testing
