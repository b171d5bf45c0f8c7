// The formats of answers by name, and what their readers share.
#pragma once

#include <string_view>
#include <vector>

#include "output/answer_reader.h"

namespace warpweave::output {

struct ReasoningFormat {
  std::string_view name;
  std::string_view begin;        // empty: the format of calls of the same name reads it, too (gpt-oss)
  std::string_view end;
  bool always = false;           // the answer begins inside, even where the prompt does not say so
  std::string_view interrupted_by = {};  // a call's mark that ends reasoning without its own, where calls are read
  bool interrupted_without_tools = false;  // or always
};

struct CallFormat {
  std::string_view name;
  ParserTask<> (*read)(AnswerReader&);  // content and calls, to the end of the text
  bool trims_content = true;            // whitespace around calls is no content
  // What must not be left out of the text as a special token.
  std::vector<std::string_view> marks = {};
};

// Null: no such name. The names are those of SGLang's parsers.
const ReasoningFormat* find_reasoning_format(std::string_view name);
const CallFormat* find_call_format(std::string_view name);
std::vector<std::string_view> reasoning_format_names();
std::vector<std::string_view> call_format_names();

// The format that a chat template writes; empty: none is recognised.
std::string_view guess_reasoning_format(std::string_view chat_template);
std::string_view guess_call_format(std::string_view chat_template);

// Whether a prompt ends inside reasoning (its template wrote <think>), outside (</think>), or leaves it to the format.
bool begins_in_reasoning(const ReasoningFormat& format, std::string_view prompt);
bool ends_behind_reasoning(const ReasoningFormat& format, std::string_view prompt);

ParserTask<> read_hermes(AnswerReader& reader);
ParserTask<> read_llama3(AnswerReader& reader);
ParserTask<> read_mistral(AnswerReader& reader);
ParserTask<> read_deepseek(AnswerReader& reader);
ParserTask<> read_kimi(AnswerReader& reader);
ParserTask<> read_json_list(AnswerReader& reader);  // [{"name", "parameters"}, ...] and nothing else
ParserTask<> read_glm45(AnswerReader& reader);
ParserTask<> read_glm47(AnswerReader& reader);
ParserTask<> read_qwen3_coder(AnswerReader& reader);
ParserTask<> read_pythonic(AnswerReader& reader);
ParserTask<> read_harmony(AnswerReader& reader);

// {"name": ..., "arguments": {...}}, '{' being next. False: no call; what was kept can be given back.
// `only_offered`: an object whose name is no tool's is no call either.
ParserTask<bool> read_call_object(AnswerReader& reader, bool only_offered);

}  // namespace warpweave::output
