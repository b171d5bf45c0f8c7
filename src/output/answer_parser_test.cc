// Answers of every format, cut at every byte: whole, in two pieces at each place, and byte by byte give the same. What is
// expected follows SGLang's parser tests (its whole-text parsing, where that and its streaming differ in whitespace).
#include <gtest/gtest.h>

#include "output/formats.h"

namespace warpweave::output {
namespace {

struct Call {
  std::string name;
  std::string arguments;  // JSON; compared as values, or as text where it is unfinished
  bool operator==(const Call&) const = default;
};

struct Meaning {
  std::string reasoning, content;
  std::vector<Call> calls;
  bool operator==(const Meaning&) const = default;
};

void add(const std::vector<AnswerEvent>& events, Meaning* meaning) {
  for (const AnswerEvent& event : events) {
    switch (event.kind) {
      case AnswerEvent::Kind::reasoning: meaning->reasoning += event.text; break;
      case AnswerEvent::Kind::content: meaning->content += event.text; break;
      case AnswerEvent::Kind::call:
        ASSERT_EQ(event.call, meaning->calls.size());
        meaning->calls.push_back({event.text, {}});
        break;
      case AnswerEvent::Kind::arguments:
        ASSERT_EQ(event.call + 1, meaning->calls.size());
        meaning->calls.back().arguments += event.text;
        break;
    }
  }
}

Meaning read(const AnswerFormat& format, const std::vector<std::string_view>& pieces) {
  AnswerParser parser(format);
  Meaning meaning;
  for (const std::string_view piece : pieces) add(parser.feed(piece), &meaning);
  add(parser.finish(), &meaning);
  return meaning;
}

std::shared_ptr<const ToolSet> tools() {
  static const auto set = std::make_shared<const ToolSet>(Json::parse(R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
       "city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer"},
       "ratio": {"type": "number"}, "filters": {"type": "object"}, "exact": {"type": "boolean"}}}}},
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object",
       "properties": {"query": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "noop"}}])"));
  return set;
}

struct Case {
  std::string label, reasoning, calls, text;
  Meaning expected;
  bool begins_in_reasoning = false;
  bool parallel_calls = true;
};

const std::string kParis = R"({"city": "Paris"})";
const std::string kTwo = R"({"city": "Paris", "days": 3})";

std::vector<Case> json_cases() {
  return {
      {"no call", "", "hermes", "Just text, a < b and <tool is no mark.", {"", "Just text, a < b and <tool is no mark.", {}}},
      {"hermes", "", "hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>", {"", "", {{"get_weather", kParis}}}},
      {"text before", "", "qwen25", "I will look. <tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>", {"", "I will look.", {{"get_weather", kParis}}}},
      {"two calls", "", "qwen", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"a \\\"b\\\" </tool_call> {\"}}\n</tool_call>", {"", "", {{"get_weather", kTwo}, {"search", R"({"query": "a \"b\" </tool_call> {"})"}}}},
      {"two in one mark", "", "hermes", "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"search\", \"arguments\": {}}</tool_call>", {"", "", {{"get_weather", kParis}, {"search", "{}"}}}},
      {"text behind", "", "hermes", "<tool_call>{\"name\": \"noop\", \"arguments\": {}}</tool_call>\n\nDone.", {"", "Done.", {{"noop", "{}"}}}},
      {"no arguments", "", "hermes", "<tool_call>{\"name\": \"noop\"}</tool_call>", {"", "", {{"noop", "{}"}}}},
      {"null arguments", "", "hermes", "<tool_call>{\"name\": \"noop\", \"arguments\": null}</tool_call>", {"", "", {{"noop", "{}"}}}},
      {"arguments first", "", "hermes", "<tool_call>{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}</tool_call>", {"", "", {{"get_weather", kParis}}}},
      {"arguments as a string", "", "hermes", R"(<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>)", {"", "", {{"get_weather", kParis}}}},
      {"not JSON", "", "hermes", "<tool_call>not valid json</tool_call> and on", {"", "<tool_call>not valid json</tool_call> and on", {}}},
      {"JSON without a name", "", "hermes", "<tool_call>{\"city\": 1}</tool_call>", {"", "<tool_call>{\"city\": 1}</tool_call>", {}}},
      {"unknown tool", "", "hermes", "Hm. <tool_call>{\"name\": \"rm\", \"arguments\": {\"x\": 1}}</tool_call><tool_call>{\"name\": \"noop\", \"arguments\": {}}</tool_call>", {"", "Hm.", {{"noop", "{}"}}}},
      {"cut in its arguments", "", "hermes", "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par", {"", "", {{"get_weather", "{\"city\": \"Par"}}}},
      {"cut in its name", "", "hermes", "<tool_call>{\"name\": \"get_wea", {"", "<tool_call>{\"name\": \"get_wea", {}}},
      {"half a mark at the end", "", "hermes", "so <tool_c", {"", "so <tool_c", {}}},
      {"one call only", "", "hermes", "<tool_call>{\"name\": \"noop\"}</tool_call><tool_call>{\"name\": \"search\", \"arguments\": {}}</tool_call>", {"", "", {{"noop", "{}"}}}, false, false},
      {"llama3 with tag", "", "llama3", "Let me check. <|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}", {"", "Let me check. ", {{"get_weather", kParis}}}},
      {"llama3 bare", "", "llama3", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}", {"", "", {{"get_weather", kParis}}}},
      {"llama3 with type", "", "llama3", "{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}", {"", "", {{"get_weather", kParis}}}},
      {"llama3 several", "", "llama3", "<|python_tag|>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}};{\"name\": \"search\", \"arguments\": {\"query\": \"x\"}}", {"", "", {{"get_weather", kParis}, {"search", R"({"query": "x"})"}}}},
      {"llama3, JSON that is no call", "", "llama3", "{\"name\": \"Ann\", \"age\": 3} is the answer", {"", "{\"name\": \"Ann\", \"age\": 3} is the answer", {}}},
      {"llama3 text", "", "llama3", "  The weather is nice today.", {"", "  The weather is nice today.", {}}},
      {"mistral list", "", "mistral", "I will check. [TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"search\", \"arguments\": {\"query\": \"[x] ]\"}}]", {"", "I will check.", {{"get_weather", kParis}, {"search", R"({"query": "[x] ]"})"}}}},
      {"mistral compact", "", "mistral", "Let me help. [TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]noop[ARGS]{}", {"", "Let me help.", {{"get_weather", kParis}, {"noop", "{}"}}}},
      {"mistral with an id", "", "mistral", "[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{\"city\": \"Paris\"}", {"", "", {{"get_weather", kParis}}}},
      {"mistral broken", "", "mistral", "[TOOL_CALLS] [not valid json]", {"", "[TOOL_CALLS] [not valid json]", {}}},
      {"mistral text", "", "mistral", "A list [1] and [TOOL", {"", "A list [1] and [TOOL", {}}},
      {"deepseek v3", "", "deepseekv3", "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n{\"query\": \"x\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", {"", "Sure.", {{"get_weather", kParis}, {"search", R"({"query": "x"})"}}}},
      {"deepseek v3.1", "", "deepseekv31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>noop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", {"", "", {{"get_weather", kParis}, {"noop", "{}"}}}},
      {"deepseek text", "", "deepseekv3", "全角｜ and <｜ stay", {"", "全角｜ and <｜ stay", {}}},
      {"kimi k2", "", "kimi_k2", "On it.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_call_begin|>functions.search:1<|tool_call_argument_begin|>{\"query\": \"x\"}<|tool_call_end|><|tool_calls_section_end|>", {"", "On it.", {{"get_weather", kParis}, {"search", R"({"query": "x"})"}}}},
      {"kimi k2's ends without a begin", "", "kimi_k2", "x:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", {"", "x:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", {}}},
      {"a list", "", "json", " [{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}, {\"name\": \"noop\", \"parameters\": {}}]", {"", "", {{"get_weather", kParis}, {"noop", "{}"}}}},
      {"an empty list", "", "json", "[]", {"", "", {}}},
      {"no list", "", "json", "[1, 2]", {"", "[1, 2]", {}}},
  };
}

std::vector<Case> tagged_cases() {
  return {
      {"glm", "", "glm45", "Let me check. <tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>北京 \"a\"\nb\\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>\"42\"</arg_value>\n<arg_key>filters</arg_key>\n<arg_value>{\"a\": 1}</arg_value>\n</tool_call>", {"", "Let me check.", {{"get_weather", "{\"city\": \"北京 \\\"a\\\"\\nb\\\\n\", \"days\": 42, \"filters\": {\"a\": 1}}"}}}},
      {"glm digits stay a string", "", "glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>123</arg_value>\n</tool_call>", {"", "", {{"get_weather", R"({"city": "123"})"}}}},
      {"glm escaped JSON", "", "glm45", "<tool_call>get_weather\n<arg_key>filters</arg_key>\n<arg_value>{\\\"a\\\": [\\\"x\\\"]}</arg_value>\n</tool_call>", {"", "", {{"get_weather", R"({"filters": {"a": ["x"]}})"}}}},
      {"glm undeclared", "", "glm", "<tool_call>search\n<arg_key>n</arg_key>\n<arg_value>123</arg_value>\n<arg_key>t</arg_key>\n<arg_value>some words</arg_value>\n<arg_key>p</arg_key>\n<arg_value>{'a': True}</arg_value>\n</tool_call>", {"", "", {{"search", R"({"n": 123, "t": "some words", "p": {"a": true}})"}}}},
      {"glm without a line's end", "", "glm45", "<tool_call>noop</tool_call>", {"", "<tool_call>noop</tool_call>", {}}},
      {"glm no arguments", "", "glm45", "<tool_call>noop\n</tool_call>", {"", "", {{"noop", "{}"}}}},
      {"glm two", "", "glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>a<b & c</arg_value>\n</tool_call>\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>cafes</arg_value>\n</tool_call>", {"", "", {{"get_weather", R"({"city": "a<b & c"})"}, {"search", R"({"query": "cafes"})"}}}},
      {"glm47", "", "glm47", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call><tool_call>noop</tool_call>", {"", "", {{"get_weather", kParis}, {"noop", "{}"}}}},
      {"glm with written line ends", "", "glm45", "<tool_call>get_weather\\n<arg_key>city</arg_key>\\n<arg_value>Paris</arg_value>\\n</tool_call>", {"", "", {{"get_weather", kParis}}}},
      {"glm cut", "", "glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Par", {"", "", {{"get_weather", "{\"city\": \"Par"}}}},
      {"coder", "", "qwen3_coder", "Sure!<tool_call>\n<function=get_weather>\n<parameter=city>\nDallas->TX\nline\n</parameter>\n<parameter=days>\n2\n</parameter>\n<parameter=ratio>\n3.5\n</parameter>\n<parameter=exact>\ntrue\n</parameter>\n<parameter=filters>\n{\"w\": 10,\n \"h\": 20}\n</parameter>\n</function>\n</tool_call>", {"", "Sure!", {{"get_weather", "{\"city\": \"Dallas->TX\\nline\", \"days\": 2, \"ratio\": 3.5, \"exact\": true, \"filters\": {\"w\": 10, \"h\": 20}}"}}}},
      {"coder, two calls", "", "qwen3_coder", "<tool_call>\n<function=noop>\n</function>\n</tool_call>\n<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>", {"", "", {{"noop", "{}"}, {"search", R"({"query": "x"})"}}}},
      {"coder without the outer tags", "", "qwen3_coder", "<function=search>\n<parameter=query>\nx\n</parameter>\n</function>", {"", "", {{"search", R"({"query": "x"})"}}}},
      {"coder as JSON", "", "qwen3_coder", "<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>", {"", "", {{"noop", "{}"}}}},
      {"coder text", "", "qwen3_coder", "use <tool_call> like this", {"", "use <tool_call> like this", {}}},
      {"coder cut", "", "qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nDallas", {"", "", {{"get_weather", "{\"city\": \"Dallas"}}}},
      {"pythonic", "", "pythonic", "Here's a call: [get_weather(city='New York', unit=\"celsius\", data=[1, 2, {'k': None}])]", {"", "Here's a call: ", {{"get_weather", R"({"city": "New York", "unit": "celsius", "data": [1, 2, {"k": null}]})"}}}},
      {"pythonic, two", "", "pythonic", "[get_weather(city='a]b', exact=True), search(query='x')] and more", {"", " and more", {{"get_weather", R"({"city": "a]b", "exact": true})"}, {"search", R"({"query": "x"})"}}}},
      {"pythonic in marks", "", "pythonic", "In Mars. <|python_start|>[get_weather(city='Mars')]<|python_end|> So.", {"", "In Mars.  So.", {{"get_weather", R"({"city": "Mars"})"}}}},
      {"pythonic, lists apart", "", "pythonic", "[get_weather(city='a')] and [noop()]", {"", " and ", {{"get_weather", R"({"city": "a"})"}, {"noop", "{}"}}}},
      {"pythonic text", "", "pythonic", "see [1], [a link](x) and [f(1)] and [", {"", "see [1], [a link](x) and [f(1)] and [", {}}},
      {"pythonic escapes", "", "llama4", "[search(query='it\\'s \\u00e9 \\\\ \"q\"')]", {"", "", {{"search", "{\"query\": \"it's \u00e9 \\\\ \\\"q\\\"\"}"}}}},
      {"pythonic, unknown", "", "pythonic", "[rm(path='/'), noop()]", {"", "", {{"noop", "{}"}}}},
  };
}

std::vector<Case> reasoning_cases() {
  const std::string hermes = "<tool_call>{\"name\": \"noop\"}</tool_call>";
  return {
      {"r1", "deepseek-r1", "", "I think so</think>The answer is 42.", {"I think so", "The answer is 42.", {}}, true},
      {"r1 with a start", "deepseek-r1", "", "<think>\nI think so.\n</think>\n\nThe answer is 42.", {"I think so.", "The answer is 42.", {}}, true},
      {"r1 unended", "deepseek-r1", "", "I think so", {"I think so", "", {}}, true},
      {"qwen3", "qwen3", "", "<think>\nLet me see.\n\nYes.\n</think>\n\nIt is 42. \n", {"Let me see.\n\nYes.", "It is 42. \n", {}}},
      {"qwen3 without", "qwen3", "", "Direct <answer> here.", {"", "Direct <answer> here.", {}}},
      {"qwen3 empty", "qwen3", "", "<think>\n\n</think>\n\nJust this.", {"", "Just this.", {}}},
      {"qwen3 opened by the prompt", "qwen3", "", "a < b</thin so</think>c", {"a < b</thin so", "c", {}}, true},
      {"a lone end stays", "qwen3", "", "</answer> <this is text", {"", "</answer> <this is text", {}}},
      {"kimi", "kimi", "", "◁think▷Carefully◁/think▷The answer", {"Carefully", "The answer", {}}},
      {"kimi without", "kimi", "", "Direct ◁ answer", {"", "Direct ◁ answer", {}}},
      {"glm", "glm45", "glm45", "<think>Hm.</think>\n<tool_call>noop\n</tool_call>", {"Hm.", "", {{"noop", "{}"}}}},
      {"a call ends reasoning", "qwen3", "qwen", "<think>I need it. " + hermes, {"I need it. ", "", {{"noop", "{}"}}}},
      {"a call ends reasoning where none is read", "glm45", "", "<think>Hm.<tool_call>noop", {"Hm.", "<tool_call>noop", {}}},
      {"a repeated begin", "qwen3", "", "<think><think>Hm.</think>Yes", {"Hm.", "Yes", {}}},
      {"no call ends it for r1", "deepseek-r1", "qwen", "maybe " + hermes + "</think>no", {"maybe " + hermes, "no", {}}, true},
      {"reasoning, text and calls", "qwen3", "qwen", "<think>\nWhy\n</think>\n\nI look it up.\n" + hermes, {"Why", "I look it up.", {{"noop", "{}"}}}},
      {"gpt-oss", "gpt-oss", "gpt-oss", "<|channel|>analysis<|message|>User asks.<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|return|>", {"User asks.", "Hello!", {}}},
      {"gpt-oss call", "gpt-oss", "gpt-oss", "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>", {"Need it.", "", {{"get_weather", kParis}}}},
      {"gpt-oss, said before a call", "gpt-oss", "gpt-oss", "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant to=functions.noop<|channel|>commentary json<|message|>{}<|call|>", {"", "I will look.", {{"noop", "{}"}}}},
      {"gpt-oss, two calls", "gpt-oss", "gpt-oss", "<|channel|>commentary to=functions.noop<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.search<|message|>{\"query\": \"x\"}<|call|>", {"", "", {{"noop", "{}"}, {"search", R"({"query": "x"})"}}}},
      {"gpt-oss without marks", "gpt-oss", "gpt-oss", "plain text", {"", "plain text", {}}},
      {"gpt-oss cut", "gpt-oss", "", "<|channel|>analysis<|message|>Thinking", {"Thinking", "", {}}},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> all = json_cases();
  for (auto more : {tagged_cases, reasoning_cases}) {
    for (Case& one : more()) all.push_back(std::move(one));
  }
  return all;
}

void expect_meaning(const Meaning& got, const Meaning& expected) {
  EXPECT_EQ(got.reasoning, expected.reasoning);
  EXPECT_EQ(got.content, expected.content);
  ASSERT_EQ(got.calls.size(), expected.calls.size());
  for (size_t i = 0; i < got.calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].name, expected.calls[i].name);
    const Json wanted = Json::parse(expected.calls[i].arguments, nullptr, false);
    if (wanted.is_discarded()) {
      EXPECT_EQ(got.calls[i].arguments, expected.calls[i].arguments);
    } else {
      EXPECT_EQ(Json::parse(got.calls[i].arguments, nullptr, false), wanted) << got.calls[i].arguments;
    }
  }
}

TEST(AnswerParser, MeansTheSameHoweverItIsCut) {
  size_t cuts = 0;
  for (const Case& one : all_cases()) {
    SCOPED_TRACE(one.label);
    const AnswerFormat format{one.reasoning, one.calls, one.begins_in_reasoning, one.parallel_calls, tools()};
    const std::string_view text = one.text;
    const Meaning whole = read(format, {text});
    expect_meaning(whole, one.expected);
    std::vector<std::string_view> bytes;
    for (size_t at = 0; at < text.size(); ++at) {
      EXPECT_EQ(read(format, {text.substr(0, at), text.substr(at)}), whole) << "cut at " << at;
      bytes.push_back(text.substr(at, 1));
      ++cuts;
    }
    EXPECT_EQ(read(format, bytes), whole) << "byte by byte";
  }
  RecordProperty("cuts", static_cast<int>(cuts));
  EXPECT_GT(cuts, 5000u);
}

TEST(AnswerParser, ArgumentsComeWhileTheyAreWritten) {
  for (const auto& [format, text] : {std::pair{"hermes", "<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"long t"},
                                     std::pair{"glm47", "<tool_call>search<arg_key>query</arg_key><arg_value>long t"},
                                     std::pair{"glm45", "<tool_call>search\n<arg_key>query</arg_key><arg_value>long t"},
                                     std::pair{"deepseekv31", "<｜tool▁call▁begin｜>search<｜tool▁sep｜>{\"query\": \"long t"},
                                     std::pair{"mistral", "[TOOL_CALLS] [{\"name\": \"search\", \"arguments\": {\"query\": \"long t"}}) {
    AnswerParser parser({.reasoning = "", .calls = format, .tools = tools()});
    Meaning meaning;
    add(parser.feed(text), &meaning);
    ASSERT_EQ(meaning.calls.size(), 1u) << format;
    EXPECT_EQ(meaning.calls[0].arguments, "{\"query\": \"long t") << format;
    EXPECT_EQ(parser.calls(), 1u);
  }
}

// As SGLang's parsers of these formats do.
TEST(AnswerParser, SomeCallsComeAsAWhole) {
  const std::string deepseek = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n";
  for (const auto& [format, begin] : {std::pair{"mistral", std::string("[TOOL_CALLS]search[ARGS]")}, std::pair{"deepseekv3", deepseek}}) {
    AnswerParser parser({.reasoning = "", .calls = format, .tools = tools()});
    EXPECT_EQ(parser.feed("So.").size(), 1u) << format;
    EXPECT_EQ(parser.feed(begin + "{\"query\": \"long").size(), 0u) << format;
    const std::vector<AnswerEvent> events = parser.feed(" t\"}\n");
    ASSERT_EQ(events.size(), 2u) << format;
    EXPECT_EQ(events[1].text, "{\"query\": \"long t\"}") << format;
    // One too long to be held, and one that ends with the answer, go out as they are.
    AnswerParser long_call({.reasoning = "", .calls = format, .tools = tools()});
    EXPECT_EQ(long_call.feed(begin + "{\"query\": \"").size(), 0u) << format;
    EXPECT_EQ(long_call.feed(std::string(kMaxHeldBytes, 'a')).size(), 2u) << format;
    EXPECT_EQ(long_call.feed("b").size(), 1u) << format;
    AnswerParser cut({.reasoning = "", .calls = format, .tools = tools()});
    EXPECT_EQ(cut.feed(begin + "{\"query\": \"").size(), 0u) << format;
    EXPECT_EQ(cut.finish().size(), 2u) << format;
  }
}

TEST(AnswerParser, WhatFollowsAListOfCallsComesWithTheNextPiece) {
  AnswerParser parser({.reasoning = {}, .calls = "pythonic", .tools = tools()});
  EXPECT_EQ(parser.feed("[noop()] and [noop()]").size(), 2u);
  const std::vector<AnswerEvent> next = parser.feed("");
  ASSERT_EQ(next.size(), 3u);
  EXPECT_EQ(next[0].text, " and ");
  EXPECT_EQ(parser.feed("[noop()] so").size(), 2u);
  EXPECT_EQ(parser.finish().size(), 1u);
  AnswerParser long_piece({.reasoning = {}, .calls = "pythonic", .tools = tools()});
  EXPECT_EQ(long_piece.feed("[noop()]" + std::string(2 * kMaxHeldBytes, 'a')).size(), 3u);  // more than may wait
}

TEST(AnswerParser, TheBeginningOfAMarkWaitsOutsideOfReasoning) {
  AnswerParser parser({.reasoning = "qwen3", .calls = {}, .tools = nullptr});
  EXPECT_EQ(parser.feed("<").size(), 0u);
  EXPECT_EQ(parser.feed("/").size(), 0u);
  const std::vector<AnswerEvent> events = parser.feed("random>");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "</random>");
  EXPECT_EQ(parser.feed("a <").size(), 1u);
  EXPECT_EQ(parser.feed("</th").size(), 0u);
  EXPECT_EQ(parser.finish().size(), 1u);
}

TEST(AnswerParser, AListOfCallsEndsWithItsBracket) {
  AnswerParser parser({.reasoning = {}, .calls = "pythonic", .tools = tools()});
  const std::vector<AnswerEvent> events = parser.feed("[get_weather(city='Paris')]");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].text, "get_weather");
  EXPECT_EQ(Json::parse(events[1].text), Json::parse(kParis));
}

TEST(AnswerParser, KeepsKimisIdsAndNamesUnknownTools) {
  AnswerParser parser({.reasoning = "", .calls = "kimi_k2", .tools = tools()});
  const auto events = parser.feed("<|tool_call_begin|>functions.noop:7<|tool_call_argument_begin|>{}<|tool_call_end|>"
                                  "<|tool_call_begin|>functions.rm:8<|tool_call_argument_begin|>{}<|tool_call_end|>");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].id, "functions.noop:7");
  EXPECT_EQ(parser.unknown_calls(), std::vector<std::string>{"rm"});
}

// What is held back has a bound, whatever is begun and never ended.
TEST(AnswerParser, HoldsBackALittle) {
  for (const std::string_view name : call_format_names()) {
    for (const std::string begin : {"<tool_call>{\"name\": \"", "<tool_call>{\"x\": [", "[TOOL_CALLS]", "[TOOL_CALLS] [{\"x\": \"", "[f(a='",
                                    "<|python_tag|>{\"arguments\": \"", "[{\"x\": \"", "{\"x\": \"", "<|channel|>", "<tool_call>",
                                    "<｜tool▁call▁begin｜>", "<tool_call>noop<arg_key>a</arg_key><arg_value>", "<function="}) {
      AnswerParser parser({.reasoning = "", .calls = name, .tools = tools()});
      size_t in = begin.size(), out = 0;
      const auto count = [&](const std::vector<AnswerEvent>& events) {
        for (const AnswerEvent& event : events) out += event.text.size();
      };
      count(parser.feed(begin));
      const std::string filler(1000, 'a');
      for (int i = 0; i < 200; ++i) {
        count(parser.feed(filler));
        in += filler.size();
        // A call's name and keys may be taken for good; the rest is out or held.
        ASSERT_LE(in, out + kMaxHeldBytes + 4096) << name << " after " << begin;
      }
      count(parser.finish());
      EXPECT_GE(out + kMaxCallNameBytes + 64, in) << name << " after " << begin;
    }
  }
}

TEST(AnswerParser, ManyCallsAndDeepValuesEnd) {
  std::string text;
  for (size_t i = 0; i < kMaxCalls + 50; ++i) text += "<tool_call>{\"name\": \"noop\"}</tool_call>";
  const Meaning many = read({.reasoning = "", .calls = "hermes", .tools = tools()}, {text});
  EXPECT_EQ(many.calls.size(), kMaxCalls);
  const std::string deep = "<tool_call>{\"name\": \"noop\", \"arguments\": " + std::string(100000, '[') + "</tool_call>bye";
  const Meaning broken = read({.reasoning = "", .calls = "hermes", .tools = tools()}, {deep});
  EXPECT_EQ(broken.calls.size(), 1u);
  EXPECT_EQ(broken.content, "bye");
  std::string members = "<tool_call>{\"name\": \"noop\"";
  for (int i = 0; i < 5000; ++i) members += ", \"a\": 1";
  EXPECT_EQ(read({.reasoning = "", .calls = "hermes", .tools = tools()}, {members + "}</tool_call>"}).calls.size(), 1u);
}

TEST(Formats, GuessedFromTemplates) {
  EXPECT_EQ(guess_call_format("... <tool_call>\n{\"name\": <function-name> ..."), "qwen");
  EXPECT_EQ(guess_call_format("<tool_call>\n<function=example>"), "qwen3_coder");
  EXPECT_EQ(guess_call_format("<tool_call>{function-name}<arg_key>"), "glm47");
  EXPECT_EQ(guess_call_format("[TOOL_CALLS]"), "mistral");
  EXPECT_EQ(guess_call_format("{{ m.content }}"), "");
  EXPECT_EQ(guess_reasoning_format("{{ '<think>\\n\\n</think>\\n\\n' }}"), "qwen3");
  EXPECT_EQ(find_call_format("xml"), nullptr);
}

TEST(Formats, ThePromptSaysWhetherTheAnswerBeginsInReasoning) {
  const ReasoningFormat& qwen3 = *find_reasoning_format("qwen3");
  EXPECT_FALSE(begins_in_reasoning(qwen3, "<|im_start|>assistant\n"));
  EXPECT_TRUE(begins_in_reasoning(qwen3, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(begins_in_reasoning(qwen3, "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  const ReasoningFormat& r1 = *find_reasoning_format("deepseek-r1");
  EXPECT_TRUE(begins_in_reasoning(r1, "<｜Assistant｜>"));
  EXPECT_FALSE(begins_in_reasoning(r1, "<｜Assistant｜></think>"));
}

}  // namespace
}  // namespace warpweave::output
