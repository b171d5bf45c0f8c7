// Structured output in requests: every spelling reaches the engine as a grammar, every fault is named.
#include <gtest/gtest.h>

#include "grammar/matcher.h"
#include "server/api/testing.h"

namespace warpweave::server::testing {
namespace {

constexpr const char* kChat = R"({"model": "fake", "messages": [{"role": "user", "content": "hi"}], )";
constexpr const char* kSchema = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false})";

// Whether the last request's grammar takes `text` whole.
bool takes(TestApi& api, const std::string& text) {
  const auto submitted = api.engine().submitted();
  if (submitted.empty() || submitted.back().sampling.grammar == nullptr) return false;
  grammar::GrammarMatcher matcher(submitted.back().sampling.grammar);
  return matcher.accept_bytes(text) && matcher.can_end();
}

struct Spelling {
  std::string member;
  const char* yes;
  const char* no;
};

TEST(GrammarFields, EverySpellingOfOpenAiBodiesWorks) {
  const std::string schema = kSchema;
  const Spelling spellings[] = {
      {R"("response_format": {"type": "json_object"})", R"({"x": [1]})", "[1]"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": )" + schema + "}}", R"({"a": 1})", "{}"},
      {R"("response_format": {"type": "json_schema", "schema": )" + schema + "}", R"({"a": 1})", "{}"},
      {R"("response_format": {"type": "json_object", "schema": )" + schema + "}", R"({"a": 1})", "{}"},
      {R"("response_format": {"type": "structural_tag", "structures": [{"begin": "<t>", "schema": )" + schema + R"(, "end": "</t>"}], "triggers": ["<t>"]})", R"(so <t>{"a":1}</t>)", "<t>1"},
      {R"("guided_json": )" + schema, R"({"a": 1})", "1"},
      {R"("guided_json": "{\"type\": \"integer\"}")", "12", "x"},
      {R"("guided_regex": "[ab]{2}")", "ab", "abc"},
      {R"("guided_choice": ["yes", "no"])", "no", "maybe"},
      {R"("guided_grammar": "root ::= \"x\"+")", "xxx", ""},
      {R"("structured_outputs": {"json": )" + schema + "}", R"({"a": 1})", "1"},
      {R"("structured_outputs": {"json": )" + schema + R"(, "disable_any_whitespace": true})", R"({"a":1})", R"({"a": 1})"},
      {R"("structured_outputs": {"regex": "a+"})", "aa", "b"},
      {R"("structured_outputs": {"choice": ["p"]})", "p", "q"},
      {R"("structured_outputs": {"grammar": "start: \"z\""})", "z", "y"},
      {R"("structured_outputs": {"json_object": true})", "{}", "1"},
      {R"("regex": "c")", "c", "d"},
      {R"("ebnf": "root ::= \"e\"")", "e", "f"},
  };
  for (const Spelling& s : spellings) {
    TestApi api;
    const Reply chat = api.post("/v1/chat/completions", kChat + s.member + "}");
    EXPECT_EQ(chat.status, 200) << s.member << chat.body;
    EXPECT_TRUE(takes(api, s.yes)) << s.member;
    EXPECT_FALSE(takes(api, s.no)) << s.member;
    EXPECT_EQ(api.post("/v1/completions", R"({"model": "fake", "prompt": "hi", )" + s.member + "}").status, 200) << s.member;
    EXPECT_TRUE(takes(api, s.yes)) << s.member;
  }
}

TEST(GrammarFields, EverySpellingOfNativeBodiesWorks) {
  const Spelling spellings[] = {
      {R"("json_schema": "{\"type\": \"integer\"}")", "12", "x"},
      {R"("regex": "[ab]{2}")", "ab", "abc"},
      {R"("ebnf": "root ::= \"x\"+")", "xxx", ""},
      {R"("structural_tag": "{\"structures\": [{\"begin\": \"<t>\", \"schema\": {\"type\": \"null\"}, \"end\": \"</t>\"}], \"triggers\": [\"<t>\"]}")", "so <t>null</t>", "<t>1"},
  };
  for (const Spelling& s : spellings) {
    TestApi api;
    const Reply reply = api.post("/generate", R"({"text": "hi", "sampling_params": {)" + s.member + "}}");
    EXPECT_EQ(reply.status, 200) << s.member << reply.body;
    EXPECT_TRUE(takes(api, s.yes)) << s.member;
    EXPECT_FALSE(takes(api, s.no)) << s.member;
  }
}

TEST(GrammarFields, WhatAsksForNothingIsNoGrammar) {
  for (const char* member : {R"("guided_json": null)", R"("guided_regex": "")", R"("response_format": {"type": "text"})", R"("structured_outputs": {})",
                             R"("guided_json_object": false)"}) {
    TestApi api;
    EXPECT_EQ(api.post("/v1/chat/completions", kChat + std::string(member) + "}").status, 200) << member;
    EXPECT_EQ(api.engine().submitted().at(0).sampling.grammar, nullptr) << member;
  }
}

TEST(GrammarFields, FaultsNameTheFieldAndTheKeyword) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("guided_regex": "(")", "guided_regex"},
      {R"("guided_json": {"type": "array", "contains": {}, "maxContains": 1})", "maxContains"},
      {R"("guided_json": {"type": "string", "format": "colour"})", "colour"},
      {R"("guided_json": {"$ref": "#/nowhere"})", "nowhere"},
      {R"("guided_regex": "a", "guided_choice": ["b"])", "guided_choice"},
      {R"("guided_choice": [])", "guided_choice"},
      {R"("guided_choice": [1])", "guided_choice"},
      {R"("guided_grammar": "root ::= nothing")", "nothing"},
      {R"("guided_whitespace_pattern": " ")", "guided_whitespace_pattern"},
      {R"("structured_outputs": {"xml": "a"})", "xml"},
      {R"("structured_outputs": {"regex": "a", "json_object": true})", "json_object"},
      {R"("structured_outputs": 5)", "structured_outputs"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})", "schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": false}})", "schema"},
      {R"("guided_json": false)", "guided_json"},
      {R"("response_format": {})", "response_format.type"},
      {R"("response_format": {"format": "json_object"})", "response_format.type"},
      {R"("response_format": {"type": "text", "schema": {}})", "response_format.schema"},
      {R"("response_format": {"type": "json_object", "scheme": {}})", "did you mean schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strikt": true}})", "did you mean strict"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}})", "response_format.schema"},
  };
  for (const auto& [member, word] : cases) {
    TestApi api;
    const Reply reply = api.post("/v1/chat/completions", kChat + std::string(member) + "}");
    EXPECT_EQ(reply.status, 400) << member << reply.body;
    EXPECT_NE(reply.body.find(word), std::string::npos) << member << reply.body;
    EXPECT_TRUE(api.engine().submitted().empty());
  }
}

TEST(GrammarFields, MisplacedOnesAreRefused) {
  TestApi api;
  const Reply reply = api.post("/generate", R"({"text": "hi", "regex": "a"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("sampling_params"), std::string::npos);
}

TEST(GrammarFields, TheBackendNoneAndAMissingTokenizerAreSaid) {
  TestApiOptions options;
  options.args.grammar_backend = "none";
  TestApi off(options);
  EXPECT_NE(off.post("/v1/chat/completions", kChat + std::string(R"("guided_regex": "a"})")).body.find("--grammar-backend"), std::string::npos);
  TestApiOptions bare;
  bare.with_tokenizer = false;
  TestApi ids(bare);
  const Reply reply = ids.post("/generate", R"({"input_ids": [1], "sampling_params": {"regex": "a"}})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("tokenizer"), std::string::npos);
}

TEST(GrammarFields, EqualGrammarsAreOne) {
  TestApi api;
  for (int i = 0; i < 2; ++i) api.post("/v1/chat/completions", kChat + std::string(R"("guided_regex": "a+", "n": 2})"));
  const auto submitted = api.engine().submitted();
  ASSERT_EQ(submitted.size(), 4u);
  for (const GenerateRequest& request : submitted) EXPECT_EQ(request.sampling.grammar, submitted[0].sampling.grammar);
}

}  // namespace
}  // namespace warpweave::server::testing
