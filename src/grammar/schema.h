// JSON schemas (drafts 4 to 2020-12) as grammars over JSON texts.
//
// What a schema means is kept, never loosened: every text the grammar allows is valid. A keyword is
// obeyed or refused by name; titles, descriptions and names no draft knows are annotations. Where a
// rule cannot be said by a grammar in full, valid texts are left out (docs/structured-output.md has
// the list): members stand in the schema's order, bounded numbers have no exponent, and so on.
// Reference: https://json-schema.org/draft/2020-12
#pragma once

#include <memory>
#include <string_view>

#include "base/json_parse.h"

#include "grammar/grammar.h"

namespace warpweave::grammar {


struct JsonStyle {
  // A space, or a line break and indentation by nesting, where writers put them: inside brackets and
  // behind ',' and ':'. Else none. Never around the whole text.
  bool any_whitespace = true;
  // With no whitespace: what stands after ':' and ','.
  std::string separator = "";
};

// Text to a value, within limits of depth.
Result<Json> parse_schema_text(std::string_view text, const GrammarLimits& limits);

Result<std::shared_ptr<const Grammar>> compile_json_schema(const Json& schema, const JsonStyle& style,
                                                           const GrammarLimits& limits);
// The same inside a grammar that is being built (structural tags).
Result<RuleId> add_json_schema(const Json& schema, const JsonStyle& style, GrammarBuilder* builder);

}  // namespace warpweave::grammar
