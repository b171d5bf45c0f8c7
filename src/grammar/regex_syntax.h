// Regular expressions as trees. The dialect is what ECMAScript, Python and Rust agree on; whatever
// needs backtracking (back-references, look-around but for parse_pattern()'s) is refused by name. Word boundaries (\b)
// beside letters that only some dialects count as words do not hold, nor does their opposite.
#pragma once

#include <string_view>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/limits.h"
#include "warpweave/status.h"

namespace warpweave::grammar {

struct Regex {
  enum class Kind { chars, sequence, choice, repeat, begin, end, boundary, no_boundary };
  static constexpr int kNoLimit = -1;

  Kind kind = Kind::sequence;  // an empty sequence is the empty text
  CharSet chars = {};
  std::vector<Regex> parts = {};  // of a repeat: one
  int min = 0;
  int max = kNoLimit;
};

// Fails with invalid_argument that names the offset and the construct.
Result<Regex> parse_regex(std::string_view pattern, const GrammarLimits& limits);

// A schema's pattern: like parse_regex(), and look-ahead right behind a leading ^ counts, where the
// expression has no other alternatives.
struct PatternSyntax {
  struct LookAhead {
    Regex regex;  // with the leading ^
    bool negated;
  };
  Regex regex;
  std::vector<LookAhead> look_aheads;  // all must hold
};
Result<PatternSyntax> parse_pattern(std::string_view pattern, const GrammarLimits& limits);

// The escapes \d \w \s \p{..} and so on, for other grammars' character classes. `at` stands behind
// the backslash; false where no class stands.
Result<bool> parse_class_escape(std::string_view text, size_t* at, CharSet* out);
// One character after a backslash: n, t, xHH, uHHHH, u{..}, punctuation.
Result<uint32_t> parse_char_escape(std::string_view text, size_t* at);

}  // namespace warpweave::grammar
