// What the grammar of a demand allows is read back by the parser of its format as just those calls.
#include "output/tool_grammar.h"

#include <gtest/gtest.h>

#include "grammar/compiler.h"
#include "grammar/testing/grammar_texts.h"

namespace warpweave::output {
namespace {

const Json& tools() {
  static const Json list = Json::parse(R"([
    {"type": "function", "function": {"name": "weather", "strict": true, "parameters": {"type": "object",
      "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"], "additionalProperties": false,
      "$defs": {"city": {"enum": ["Paris", "Rome"]}}}}},
    {"type": "function", "function": {"name": "noop"}}])");
  return list;
}

bool allows(const ToolGrammar& grammar, const std::string& text) {
  const std::string taken =
      grammar::testing::takes({grammar::GrammarSpec::Kind::structural_tag, grammar.tag.value.dump()}, text);
  EXPECT_NE(taken, "does not compile");
  return taken == "yes";
}

size_t calls_in(const ToolGrammar& grammar, const std::string& text) {
  AnswerParser parser(
      {.reasoning = "qwen3", .calls = grammar.format, .tools = std::make_shared<const ToolSet>(tools())});
  parser.feed(text);
  parser.finish();
  return parser.calls();
}

TEST(ToolGrammar, RequiredCallsInAList) {
  const auto grammar = make_tool_grammar({.tools = tools(), .must_call = true});
  ASSERT_TRUE(grammar);
  EXPECT_EQ(grammar->format, "json");
  const std::string one = R"([{"name": "weather", "parameters": {"city": "Rome"}}])";
  const std::string two =
      R"([{"name": "noop", "parameters": {}}, {"name": "weather", "parameters": {"city": "Paris"}}])";
  EXPECT_TRUE(allows(*grammar, one));
  EXPECT_TRUE(allows(*grammar, two));
  EXPECT_EQ(calls_in(*grammar, two), 2u);
  EXPECT_FALSE(allows(*grammar, "[]"));
  EXPECT_FALSE(allows(*grammar, R"([{"name": "weather", "parameters": {"city": "Oslo"}}])"));
  EXPECT_FALSE(allows(*grammar, "text"));
}

// As OpenAI's API defines it.
TEST(ToolGrammar, ToolWithoutParametersTakesNone) {
  const auto grammar = make_tool_grammar({.tools = tools(), .must_call = true});
  EXPECT_TRUE(allows(*grammar, R"([{"name": "noop", "parameters": {}}])"));
  EXPECT_FALSE(allows(*grammar, R"([{"name": "noop", "parameters": {"a": 1}}])"));
}

TEST(ToolGrammar, OneNamedCallInTheModelsFormat) {
  const auto grammar = make_tool_grammar(
      {.tools = tools(), .only = "weather", .must_call = true, .parallel_calls = false, .format = "qwen25"});
  ASSERT_TRUE(grammar);
  const std::string call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
  EXPECT_TRUE(allows(*grammar, call));
  EXPECT_EQ(calls_in(*grammar, call), 1u);
  EXPECT_FALSE(allows(*grammar, call + "\n" + call));
  EXPECT_FALSE(allows(*grammar, "<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>"));
}

TEST(ToolGrammar, ReasoningComesFirst) {
  ToolDemand demand{
      .tools = tools(), .must_call = true, .format = "qwen", .reasoning_begin = "<think>", .reasoning_end = "</think>"};
  const std::string call = "<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>";
  const auto free = make_tool_grammar(demand);
  EXPECT_TRUE(allows(*free, "<think>\nany < text\n</think>\n\n" + call));
  EXPECT_TRUE(allows(*free, call));
  EXPECT_FALSE(allows(*free, "<think>any"));
  demand.begins_in_reasoning = true;
  const auto begun = make_tool_grammar(demand);
  EXPECT_TRUE(allows(*begun, "hm</think>\n\n" + call));
  EXPECT_FALSE(allows(*begun, "hm"));
}

TEST(ToolGrammar, FreeTextWithStrictTools) {
  const auto grammar = make_tool_grammar({.tools = tools(), .format = "hermes"});
  ASSERT_TRUE(grammar);
  EXPECT_TRUE(allows(*grammar, "just text"));
  EXPECT_TRUE(
      allows(*grammar, "so <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>"));
  EXPECT_FALSE(allows(*grammar, "so <tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_TRUE(allows(*grammar, "<tool_call>\n{\"name\": \"noop\", \"arguments\": {\"any\": 1}}\n</tool_call>"));
  EXPECT_FALSE(make_tool_grammar({.tools = tools(), .format = "mistral"}).has_value());
}

}  // namespace
}  // namespace warpweave::output
