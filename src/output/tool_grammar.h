// What a grammar must allow so that an answer calls tools as a request demands: a structural tag, as JSON
// (src/grammar/structural_tag.h reads it). The format that parses the answer is chosen with it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "output/answer_parser.h"

namespace warpweave::output {

struct ToolDemand {
  const Json& tools;             // checked, not empty
  std::string_view only = {};    // the one tool that may be called; empty: any
  bool must_call = false;        // false: free text, in which calls follow their tools' schemas
  bool parallel_calls = true;
  std::string_view format = {};  // the model's own, or empty
  // Reasoning that comes first, where the format is known and its end can be sampled under a grammar.
  std::string_view reasoning_begin = {};
  std::string_view reasoning_end = {};
  bool begins_in_reasoning = false;
};

struct ToolGrammar {
  OwnedJson tag;
  std::string_view format;       // of the calls in the answer
};

// None: nothing to hold the answer to (no demand, and a format whose calls no grammar here describes).
std::optional<ToolGrammar> make_tool_grammar(const ToolDemand& demand);

}  // namespace warpweave::output
