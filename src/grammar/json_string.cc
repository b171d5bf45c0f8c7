#include <algorithm>

#include "grammar/json_text.h"
#include "grammar/vocabulary.h"

namespace warpweave::grammar {
namespace {

constexpr int64_t kLongestChain = 2048;   // characters that are counted one by one
constexpr int64_t kChunk = 1024;
constexpr int64_t kNoTextIsLonger = int64_t{1} << 24;

struct ShortEscape {
  uint32_t c;
  char letter;
};
constexpr ShortEscape kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                         {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

const ShortEscape* short_escape(uint32_t c) {
  const auto at =
      std::find_if(std::begin(kShortEscapes), std::end(kShortEscapes), [&](const ShortEscape& e) { return e.c == c; });
  return at == std::end(kShortEscapes) ? nullptr : at;
}

const CharSet& special_chars() {
  static const CharSet set = Vocabulary::plain_chars().complement();
  return set;
}

// Runs are counted in 16 bits; what is longer than any token is as good as unbounded.
PlainRun exact_run(int64_t chars) {
  const auto count = static_cast<uint16_t>(std::min<int64_t>(chars, PlainRun::kUnbounded));
  return {count, count, true};
}
constexpr PlainRun kEndlessRun{PlainRun::kUnbounded, PlainRun::kUnbounded, true};

}  // namespace

std::string json_quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (const ShortEscape* escape = short_escape(byte)) {
      (out += '\\') += escape->letter;
    } else if (byte < 0x20 || byte == 0x7F) {
      ((out += "\\u00") += kHex[byte >> 4]) += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out += '"';
}

// What follows a backslash to spell one of `chars`.
StateId JsonStrings::escapes_to(const CharSet& chars, StateId to, bool one_spelling) {
  std::string key(1, one_spelling ? '1' : '0');
  for (const CharRange& r : chars.ranges()) (key += static_cast<char>(r.first)) += static_cast<char>(r.last);
  const auto [at, fresh] = escapes_.try_emplace({to, key}, 0);
  if (!fresh) return at->second;
  const StateId begin = builder_.add_state();
  at->second = begin;
  StateId zeros = 0;  // behind \u00
  std::map<uint32_t, StateId> by_high;
  for (const CharRange& r : chars.ranges()) {
    for (uint32_t c = r.first; c <= r.last; ++c) {
      const ShortEscape* escape = short_escape(c);
      if (escape != nullptr) builder_.add_byte(begin, escape->letter, escape->letter, to);
      if (c == '"' || c == '\\' || (escape != nullptr && one_spelling)) continue;
      if (by_high.empty()) zeros = builder_.emit_text(begin, "u00");
      const auto [high, is_new] = by_high.try_emplace(c >> 4, 0);
      if (is_new) high->second = builder_.emit_text(zeros, std::string(1, static_cast<char>('0' + (c >> 4))));
      const auto low = static_cast<uint8_t>(c & 15);
      const auto digit = static_cast<uint8_t>(low < 10 ? '0' + low : 'a' + low - 10);
      builder_.add_byte(high->second, digit, digit, to);
      if (low >= 10 && !one_spelling) builder_.add_byte(high->second, digit - 32, digit - 32, to);
    }
  }
  return begin;
}

void JsonStrings::emit_escapes(StateId from, const CharDfa::Move& move, StateId to, bool one_spelling) {
  const CharSet special = move.chars.intersect(special_chars());
  if (!special.empty()) builder_.add_byte(from, '\\', '\\', escapes_to(special, to, one_spelling));
}

RuleId JsonStrings::char_rule(bool one_spelling) {
  std::optional<RuleId>& rule = char_rules_[one_spelling];
  if (rule) return *rule;
  rule = builder_.add_rule();
  const StateId start = builder_.start(*rule), end = builder_.add_state();
  builder_.emit_chars_to(start, Vocabulary::plain_chars(), end);
  emit_escapes(start, {CharSet::any(), 0}, end, one_spelling);
  // Its callers say how runs go on; alone it says nothing.
  builder_.set_plain_run(start, {0, 1, true});
  builder_.end_rule(end);
  return *rule;
}

StateId JsonStrings::emit_any(StateId from, bool one_spelling) {
  std::optional<RuleId>& rule = any_rules_[one_spelling];
  if (!rule) {
    rule = builder_.add_rule();
    const StateId inside = builder_.emit_text(builder_.start(*rule), "\"");
    builder_.emit_chars_to(inside, Vocabulary::plain_chars(), inside);
    emit_escapes(inside, {CharSet::any(), 0}, inside, one_spelling);
    builder_.set_plain_run(inside, kEndlessRun);
    builder_.end_rule(builder_.emit_text(inside, "\""));
  }
  return builder_.emit_call(from, *rule);
}

// min to max characters, counted one by one, and the closing quote.
StateId JsonStrings::emit_chain(StateId from, int64_t min, int64_t max, bool one_spelling) {
  const RuleId any_char = char_rule(one_spelling);
  const StateId end = builder_.add_state();
  for (int64_t i = 0; builder_.within_limits(); ++i) {
    builder_.set_plain_run(from, max < 0 ? kEndlessRun : exact_run(max - i));
    if (i >= min) builder_.add_byte(from, '"', '"', end);
    if (i == max) break;
    if (max < 0 && i == min) {
      builder_.add_call(from, any_char, from);
      break;
    }
    from = builder_.emit_call(from, any_char);
  }
  return end;
}

// 0 to max characters, by chunks: in every state where another chunk fits, the tail may begin.
StateId JsonStrings::emit_long(StateId from, int64_t max, bool one_spelling) {
  std::optional<RuleId>& chunk = chunk_rules_[one_spelling];
  if (!chunk) {
    chunk = builder_.add_rule();
    StateId at = builder_.start(*chunk);
    for (int64_t i = 0; i < kChunk; ++i) {
      builder_.set_plain_run(at, {static_cast<uint16_t>(kChunk), PlainRun::kUnbounded, true});
      at = builder_.emit_call(at, char_rule(one_spelling));
    }
    builder_.end_rule(at);
  }
  const int64_t tail_chars = kChunk + max % kChunk;
  const StateId tail = builder_.add_state();
  for (int64_t left = max - tail_chars; left > 0 && builder_.within_limits(); left -= kChunk) {
    builder_.add_empty(from, tail);
    from = builder_.emit_call(from, *chunk);
  }
  builder_.add_empty(from, tail);
  return emit_chain(tail, 0, tail_chars, one_spelling);
}

StateId JsonStrings::emit_length(StateId from, int64_t min, int64_t max, bool one_spelling) {
  if (max > kNoTextIsLonger) max = -1;
  if (min <= 0 && max < 0) return emit_any(from, one_spelling);
  const auto [at, fresh] = length_rules_.try_emplace({min, max, one_spelling}, 0);
  if (fresh) {
    const RuleId rule = at->second = builder_.add_rule();
    builder_.end_rule(emit_bounded(builder_.start(rule), min, max, one_spelling));
  }
  return builder_.emit_call(from, at->second);
}

StateId JsonStrings::emit_bounded(StateId from, int64_t min, int64_t max, bool one_spelling) {
  StateId inside = builder_.emit_text(from, "\"");
  if (max < 0 || max <= kLongestChain) return emit_chain(inside, min, max, one_spelling);
  for (int64_t i = 0; i < min && builder_.within_limits(); ++i) {
    builder_.set_plain_run(inside, {static_cast<uint16_t>(std::min<int64_t>(max - i, PlainRun::kUnbounded - 1)),
                                    PlainRun::kUnbounded, true});
    inside = builder_.emit_call(inside, char_rule(one_spelling));
  }
  if (max - min <= kLongestChain) return emit_chain(inside, 0, max - min, one_spelling);
  return emit_long(inside, max - min, one_spelling);
}

StateId JsonStrings::emit_dfa(StateId from, const CharDfa& dfa, bool one_spelling) {
  const auto [at, fresh] = dfa_rules_.try_emplace((one_spelling ? "1" : "0") + dfa.content(), 0);
  if (fresh) {
    const RuleId rule = at->second = builder_.add_rule();
    builder_.end_rule(emit_states(builder_.start(rule), dfa, one_spelling));
  }
  return builder_.emit_call(from, at->second);
}

StateId JsonStrings::emit_states(StateId from, const CharDfa& dfa, bool one_spelling) {
  const StateId end = builder_.add_state();
  std::vector<StateId> states(dfa.num_states());
  for (StateId& state : states) state = builder_.add_state();
  builder_.add_byte(from, '"', '"', states[0]);
  const std::vector<PlainRun> runs = dfa.plain_runs();
  for (int s = 0; s < dfa.num_states() && builder_.within_limits(); ++s) {
    builder_.set_plain_run(states[s], runs[s]);
    if (dfa.accepting(s)) builder_.add_byte(states[s], '"', '"', end);
    for (const CharDfa::Move& move : dfa.moves(s)) {
      builder_.emit_chars_to(states[s], move.chars.intersect(Vocabulary::plain_chars()), states[move.to]);
      emit_escapes(states[s], move, states[move.to], one_spelling);
    }
  }
  return end;
}

}  // namespace warpweave::grammar
