// Regular expressions and grammars in EBNF as grammars over bytes.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/regex_syntax.h"

namespace warpweave::grammar {

// Reads `regex` from `from` on; where it ends. Anchors are allowed where they say nothing: at the
// two ends of the whole expression.
StateId emit_regex(GrammarBuilder* builder, StateId from, const Regex& regex);
Status strip_outer_anchors(Regex* regex);

// The expression matches the whole text.
Result<std::shared_ptr<const Grammar>> compile_regex(std::string_view pattern, const GrammarLimits& limits);
// One of the texts.
Result<std::shared_ptr<const Grammar>> compile_choice(const std::vector<std::string>& choices,
                                                      const GrammarLimits& limits);

// Two notations, told apart by "::=": GBNF (llama.cpp, XGrammar; the first rule or `root` starts) and
// Lark (llguidance; `start` starts). Both: literals, classes, groups, * + ? {m,n} and /regex/.
Result<std::shared_ptr<const Grammar>> compile_ebnf(std::string_view text, const GrammarLimits& limits);
Result<RuleId> add_ebnf(std::string_view text, GrammarBuilder* builder);
Result<RuleId> add_regex(std::string_view pattern, GrammarBuilder* builder);

}  // namespace warpweave::grammar
