// Text to checked expressions. The language is described in docs/flex-attention.md.
//
// Errors are `invalid_argument` and read "mask modifier, column 12: expected ')', got '&&'". Bounds:
// kMaxTextBytes of text, kMaxDepth of nesting, Builder::kMaxNodes operations.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/mods/expression.h"
#include "warpweave/status.h"

namespace warpweave::mods {

inline constexpr size_t kMaxTextBytes = 8192;
inline constexpr int kMaxDepth = 64;

// A named number, substituted where its name stands.
struct Parameter {
  std::string name;
  double value = 0;
  bool integer = false;  // written without point or exponent
};

// "slope=0.5, width=128".
Result<std::vector<Parameter>> parse_parameters(std::string_view text);

// The result is a real number; an integer expression is converted.
Result<Expression> parse_score_modifier(std::string_view text,
                                        std::span<const Parameter> parameters = {});
// The result is a condition: what the row sees. `score` is not visible to it.
Result<Expression> parse_mask_modifier(std::string_view text,
                                       std::span<const Parameter> parameters = {});

struct ModifierTexts {
  std::string_view score;       // empty: none, likewise below
  std::string_view mask;
  std::string_view parameters;
};
Result<Modifiers> parse_modifiers(const ModifierTexts& texts);

}  // namespace warpweave::mods
