// JSON texts as automata: strings by pattern or length, numbers by bounds and divisor.
//
// Strings: a character that may stand for itself does; the quote, the backslash and control
// characters are escaped, in one spelling each, or two where \u00XX has a short form. With
// `one_spelling` the short form alone counts, so that equal strings are equal texts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "grammar/char_dfa.h"
#include "grammar/grammar.h"

namespace warpweave::grammar {

// The JSON text of a string, quotes included, as the emitters write it.
std::string json_quote(std::string_view text);

class JsonStrings {
 public:
  explicit JsonStrings(GrammarBuilder* builder) : builder_(*builder) {}

  // All read from the opening quote to behind the closing one.
  StateId emit_any(StateId from, bool one_spelling);
  StateId emit_length(StateId from, int64_t min, int64_t max, bool one_spelling);  // max < 0: none
  StateId emit_dfa(StateId from, const CharDfa& dfa, bool one_spelling);

 private:
  RuleId char_rule(bool one_spelling);
  void emit_escapes(StateId from, const CharDfa::Move& move, StateId to, bool one_spelling);
  StateId escapes_to(const CharSet& chars, StateId to, bool one_spelling);
  StateId emit_long(StateId from, int64_t max, bool one_spelling);
  StateId emit_bounded(StateId from, int64_t min, int64_t max, bool one_spelling);
  StateId emit_states(StateId from, const CharDfa& dfa, bool one_spelling);
  StateId emit_chain(StateId from, int64_t min, int64_t max, bool one_spelling);

  GrammarBuilder& builder_;
  std::optional<RuleId> char_rules_[2];
  std::optional<RuleId> any_rules_[2];
  std::optional<RuleId> chunk_rules_[2];
  // Strings asked for again are rules, so that a schema may bound each of its members.
  std::map<std::tuple<int64_t, int64_t, bool>, RuleId> length_rules_;
  std::map<std::string, RuleId> dfa_rules_;
  std::map<std::pair<StateId, std::string>, StateId> escapes_;  // by target and characters
};

// A decimal number: sign, digits before and behind the point, neither with needless zeros.
struct Decimal {
  bool negative = false;
  std::string whole;     // "" for 0
  std::string fraction;
  bool is_zero() const { return whole.empty() && fraction.empty(); }
  bool is_whole() const { return fraction.empty(); }
  auto operator<=>(const Decimal&) const = default;  // an order for maps; compare() tells which is larger
};

Decimal decimal_of(std::string_view json_number);  // also with an exponent
int compare(const Decimal& a, const Decimal& b);

struct NumberBounds {
  struct Bound {
    Decimal value;
    bool exclusive = false;
    auto operator<=>(const Bound&) const = default;
  };
  std::optional<Bound> low, high;
  std::optional<Decimal> multiple_of;  // above 0
  bool integer = false;
  bool bounded() const { return low || high || multiple_of; }
  auto operator<=>(const NumberBounds&) const = default;
};

// Numbers without an exponent when there are bounds; "-0" only when there are none. Up to 20 digits before the point
// and behind it, or as many as a bound has and one more, so that no number goes on for ever; of a multipleOf of
// more than 1,000 steps any number of them.
StateId emit_number(GrammarBuilder* builder, StateId from, const NumberBounds& bounds, bool one_spelling);
bool number_fits(const Decimal& value, const NumberBounds& bounds);

}  // namespace warpweave::grammar
