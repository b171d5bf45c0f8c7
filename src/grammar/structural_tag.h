// Structural tags: free text in which certain beginnings switch to a grammar (tool calls, mostly).
//
// Two shapes: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, and XGrammar's
// {"format": {...}} with const_string, json_schema, regex, grammar, any_text, sequence, or, tag,
// triggered_tags and tags_with_separator. Whatever else is refused by name.
#pragma once

#include "grammar/schema.h"

namespace warpweave::grammar {

Result<std::shared_ptr<const Grammar>> compile_structural_tag(const Json& tag, const JsonStyle& style, const GrammarLimits& limits);

}  // namespace warpweave::grammar
