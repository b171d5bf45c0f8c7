// A model's answer, piece by piece, to what it means: reasoning, content and calls of tools.
//
// Models mark these by texts of their own (<think>, <tool_call>{...}); the formats are named as SGLang names its
// parsers. Pieces may be cut anywhere: the joined events of all cuts are equal. Marks that turn out to be none stay
// content; a call that breaks off before its name is known does, too. Calls of tools that were not offered are left
// out, and counted. Whitespace around marks belongs to them: newlines at the ends of reasoning, and whitespace around
// calls (llama3 and pythonic keep it). Held text is bounded by kMaxHeldBytes; the work is linear in the text.
//
// Arguments are JSON text: the model's own bytes where its format has JSON, written here where it has not. A text that
// ends inside a call leaves its arguments unfinished, as the model did. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_parse.h"

namespace warpweave::output {

inline constexpr size_t kMaxHeldBytes = size_t{64} << 10;  // of a call's beginning, a value, a list of calls
inline constexpr size_t kMaxCallNameBytes = 256;
inline constexpr size_t kMaxCalls = 256;                   // of one answer; later ones are left out

// The tools of a request by name, with the JSON schema of their arguments.
class ToolSet {
 public:
  // `tools`: [{"type": "function", "function": {"name", "parameters"}}], checked by the caller.
  explicit ToolSet(const Json& tools);
  bool has(std::string_view name) const { return parameters_.contains(name); }
  // The schema of one argument; null where the tool says nothing about it.
  const Json* argument_schema(std::string_view name, std::string_view argument) const;

 private:
  std::map<std::string, OwnedJson, std::less<>> parameters_;
};

struct AnswerEvent {
  enum class Kind { reasoning, content, call, arguments };
  Kind kind;
  std::string text;  // of a call: the tool's name; of arguments: their next bytes
  std::string id;    // of a call: the model's own id for it, or empty
  size_t call = 0;   // number of the call, from 0
};

struct AnswerFormat {
  std::string_view reasoning;  // a name of reasoning_formats(), or empty: none
  std::string_view calls;      // a name of call_formats(), or empty: none
  bool begins_in_reasoning = false;
  bool parallel_calls = true;  // false: calls behind the first are left out
  std::shared_ptr<const ToolSet> tools;  // null: any name is taken
};

class AnswerParser {
 public:
  // The names must be known, see find_call_format().
  explicit AnswerParser(const AnswerFormat& format);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;

  // What `piece` of the answer adds, in order; an empty one asks for what waits for the next piece.
  std::vector<AnswerEvent> feed(std::string_view piece);
  // What was held back, at the end of the answer.
  std::vector<AnswerEvent> finish();
  // Calls that were begun, those left out not counted.
  size_t calls() const;
  // Names of tools that were called and not offered.
  const std::vector<std::string>& unknown_calls() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace warpweave::output
