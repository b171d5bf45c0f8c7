// Structural tags: free text in which certain beginnings switch to a grammar (tool calls, mostly).
//
// Two shapes: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, and XGrammar's
// {"format": {...}} with const_string, json_schema, regex, grammar, any_text, sequence, or, tag,
// triggered_tags and tags_with_separator. Whatever else is refused by name.
#pragma once

#include "grammar/schema.h"

namespace warpweave::grammar {

Result<std::shared_ptr<const Grammar>> compile_structural_tag(const Json& tag, const JsonStyle& style,
                                                              const GrammarLimits& limits);

// Reasoning that comes before what a grammar holds: up to the first end mark, then at most two line breaks.
struct ReasoningMarks {
  std::string begin;  // empty: the text begins inside; else the whole reasoning may be left out
  std::string end;
};
Result<std::shared_ptr<const Grammar>> behind_reasoning(const Grammar& grammar, const ReasoningMarks& marks,
                                                        const GrammarLimits& limits);

}  // namespace warpweave::grammar
