#include "grammar/regex_syntax.h"

#include <optional>

#include "grammar/char_property.h"

namespace warpweave::grammar {
namespace {

constexpr int kMaxRepeat = 10'000;

Status fail_at(size_t offset, const std::string& what) {
  return Status::invalid_argument("at offset " + std::to_string(offset) + ": " + what);
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

CharSet digits() { return CharSet::of('0', '9'); }

CharSet word_chars() {
  CharSet set = digits();
  set.add('a', 'z');
  set.add('A', 'Z');
  set.add('_', '_');
  return set;
}

CharSet spaces() {
  CharSet set = CharSet::of(9, 13);
  set.add(' ', ' ');
  return set;
}

// The negated classes leave out what any common dialect counts as a digit, word character or space.
CharSet without_unicode(CharSet left_out, std::initializer_list<std::string_view> properties) {
  for (const std::string_view name : properties) left_out.add(*find_char_property(name));
  return left_out.complement();
}

CharSet all_spaces() {
  CharSet set = spaces();
  set.add(0xFEFF, 0xFEFF);
  set.add(0x1C, 0x1F);
  return set;
}

class Parser {
 public:
  Parser(std::string_view text, const GrammarLimits& limits) : text_(text), limits_(limits) {}

  Result<Regex> parse() {
    WW_ASSIGN_OR_RETURN(Regex regex, parse_choice());
    if (at_ < text_.size()) return fail_at(at_, "')' without '('");
    return regex;
  }

  Result<PatternSyntax> parse_pattern() {
    PatternSyntax out;
    if (text_.starts_with("^(?=") || text_.starts_with("^(?!")) at_ = 1;
    while (at_ > 0) {
      const size_t begin = at_;
      const bool negated = take("(?!");
      if (!negated && !take("(?=")) break;
      WW_ASSIGN_OR_RETURN(Regex inside, parse_choice());
      if (!take(")")) return fail_at(begin, "'(' without ')'");
      out.look_aheads.push_back({behind_begin(std::move(inside)), negated});
    }
    const bool looks_ahead = !out.look_aheads.empty();
    WW_ASSIGN_OR_RETURN(out.regex, parse());
    if (!looks_ahead) return out;
    if (out.regex.kind == Regex::Kind::choice)
      return fail_at(1,
                     "look-ahead before one of several alternatives is not supported; put the alternatives in a group");
    out.regex = behind_begin(std::move(out.regex));
    return out;
  }

 private:
  static Regex behind_begin(Regex regex) {
    Regex sequence;
    sequence.parts.push_back({.kind = Regex::Kind::begin});
    sequence.parts.push_back(std::move(regex));
    return sequence;
  }

  bool peek(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Result<Regex> parse_choice() {
    if (++nesting_ > limits_.max_nesting) {
      return fail_at(at_, "more than " + std::to_string(limits_.max_nesting) + " nested groups");
    }
    Regex choice{.kind = Regex::Kind::choice};
    do {
      WW_ASSIGN_OR_RETURN(Regex part, parse_sequence());
      choice.parts.push_back(std::move(part));
    } while (take("|"));
    --nesting_;
    if (choice.parts.size() > 1) return choice;
    Regex only = std::move(choice.parts[0]);
    return only;
  }

  Result<Regex> parse_sequence() {
    Regex sequence;
    while (at_ < text_.size() && !peek('|') && !peek(')')) {
      WW_ASSIGN_OR_RETURN(Regex part, parse_atom());
      WW_RETURN_IF_ERROR(parse_quantifiers(&part));
      sequence.parts.push_back(std::move(part));
    }
    return sequence;
  }

  Result<Regex> parse_atom() {
    const size_t begin = at_;
    if (take("(")) return parse_group(begin);
    if (take("[")) return parse_class(begin);
    if (take(".")) return chars(CharSet::of('\n', '\n').complement());
    if (take("^")) return Regex{.kind = Regex::Kind::begin};
    if (take("$")) return Regex{.kind = Regex::Kind::end};
    if (take("\\")) return parse_escape(begin);
    if (peek('*') || peek('+') || peek('?')) return fail_at(at_, "a quantifier with nothing before it");
    uint32_t c = 0;
    if (!next_utf8(text_, &at_, &c)) return fail_at(at_, "no UTF-8");
    return chars(CharSet::of(c, c));
  }

  static Regex chars(CharSet set) { return Regex{.kind = Regex::Kind::chars, .chars = std::move(set)}; }

  Result<Regex> parse_group(size_t begin) {
    if (take("?")) {
      if (take("=") || take("!") || take("<=") || take("<!")) {
        return fail_at(begin, "look-ahead and look-behind are not supported; write the alternatives out");
      }
      if (take("P<") || take("<")) {
        const size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) return fail_at(begin, "a group's name has no '>'");
        at_ = end + 1;
      } else if (!take(":")) {
        return fail_at(begin, "the group flags '(?" + std::string(text_.substr(at_, 1)) +
                                  "' are not supported; write both cases out");
      }
    }
    WW_ASSIGN_OR_RETURN(Regex inside, parse_choice());
    if (!take(")")) return fail_at(begin, "'(' without ')'");
    return inside;
  }

  Result<Regex> parse_escape(size_t begin) {
    if (take("b")) return Regex{.kind = Regex::Kind::boundary};
    if (take("B")) return Regex{.kind = Regex::Kind::no_boundary};
    if (take("A")) return Regex{.kind = Regex::Kind::begin};
    if (take("Z") || take("z")) return Regex{.kind = Regex::Kind::end};
    if (at_ < text_.size() && text_[at_] >= '1' && text_[at_] <= '9') {
      return fail_at(begin, "back-references are not supported");
    }
    CharSet set;
    WW_ASSIGN_OR_RETURN(const bool is_class, parse_class_escape(text_, &at_, &set));
    if (is_class) return chars(std::move(set));
    WW_ASSIGN_OR_RETURN(const uint32_t c, parse_char_escape(text_, &at_));
    return chars(CharSet::of(c, c));
  }

  Result<Regex> parse_class(size_t begin) {
    const bool negated = take("^");
    if (peek(']'))
      return fail_at(begin, "a class that begins with ']' means different things in different dialects; escape it");
    CharSet set;
    while (!take("]")) {
      if (at_ >= text_.size()) return fail_at(begin, "'[' without ']'");
      if (text_.substr(at_, 2) == "[:" || text_.substr(at_, 2) == "&&" || text_.substr(at_, 2) == "--") {
        return fail_at(at_, "POSIX names and set operations in a class are not supported");
      }
      std::optional<uint32_t> first;
      WW_RETURN_IF_ERROR(parse_class_member(negated, &set, &first));
      if (!first) continue;
      uint32_t last = *first;
      if (peek('-') && text_.substr(at_, 2) != "-]") {
        const size_t dash = at_++;
        std::optional<uint32_t> end;
        WW_RETURN_IF_ERROR(parse_class_member(negated, &set, &end));
        if (!end) {  // [a-\d]: the dash stands for itself
          set.add('-', '-');
        } else if (*end < *first) {
          return fail_at(dash, "a range whose end comes before its beginning");
        } else {
          last = *end;
        }
      }
      set.add(*first, last);
    }
    return chars(negated ? set.complement() : std::move(set));
  }

  // A single character into `c`, or a class like \d into `set`. What a negated class leaves out is
  // all that any common dialect takes for one: the complement of the opposite class.
  Status parse_class_member(bool negated, CharSet* set, std::optional<uint32_t>* c) {
    if (take("\\")) {
      if (take("b")) {
        *c = 8;
        return {};
      }
      CharSet inner;
      if (negated && at_ < text_.size() && std::string_view("dwsDWS").find(text_[at_]) != std::string_view::npos) {
        const char opposite = static_cast<char>(text_[at_++] ^ ('a' ^ 'A'));
        size_t at = 0;
        WW_RETURN_IF_ERROR(parse_class_escape({&opposite, 1}, &at, &inner).status());
        set->add(inner.complement());
        return {};
      }
      WW_ASSIGN_OR_RETURN(const bool is_class, parse_class_escape(text_, &at_, &inner));
      if (is_class) {
        set->add(inner);
        return {};
      }
      WW_ASSIGN_OR_RETURN(*c, parse_char_escape(text_, &at_));
      return {};
    }
    uint32_t value = 0;
    if (!next_utf8(text_, &at_, &value)) return fail_at(at_, "no UTF-8, or '[' without ']'");
    *c = value;
    return {};
  }

  Status parse_quantifiers(Regex* part) {
    const size_t begin = at_;
    int min = 0, max = Regex::kNoLimit;
    if (take("?")) {
      max = 1;
    } else if (take("+")) {
      min = 1;
    } else if (!take("*") && !take_counts(&min, &max)) {
      return {};
    }
    if (part->kind >= Regex::Kind::begin) {
      return fail_at(begin, "a quantifier after an anchor");
    }
    if (min > kMaxRepeat || max > kMaxRepeat) {
      return fail_at(begin, "a repetition of more than " + std::to_string(kMaxRepeat));
    }
    if (max != Regex::kNoLimit && max < min) return fail_at(begin, "a repetition whose maximum is below its minimum");
    if (!take("?") && peek('+')) return fail_at(at_, "possessive quantifiers are not supported");
    if (peek('*')) return fail_at(at_, "two quantifiers in a row; use a group");
    Regex repeat{.kind = Regex::Kind::repeat, .min = min, .max = max};
    repeat.parts.push_back(std::move(*part));
    *part = std::move(repeat);
    return {};
  }

  // {n}, {n,} or {n,m}; a brace that is none of these stands for itself.
  bool take_counts(int* min, int* max) {
    size_t at = at_;
    const auto number = [&](int* out) {
      const size_t first = at;
      int64_t value = 0;
      while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9' && at - first < 9)
        value = value * 10 + (text_[at++] - '0');
      *out = static_cast<int>(value);
      return at > first;
    };
    if (at >= text_.size() || text_[at++] != '{') return false;
    if (!number(min)) return false;
    *max = *min;
    if (at < text_.size() && text_[at] == ',') {
      ++at;
      if (!number(max)) *max = Regex::kNoLimit;
    }
    if (at >= text_.size() || text_[at] != '}') return false;
    at_ = at + 1;
    return true;
  }

  std::string_view text_;
  const GrammarLimits& limits_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace

Result<bool> parse_class_escape(std::string_view text, size_t* at, CharSet* out) {
  if (*at >= text.size()) return fail_at(*at, "a backslash at the end");
  const char c = text[*at];
  static const CharSet not_digits = without_unicode(digits(), {"Nd"});
  static const CharSet not_words = without_unicode(word_chars(), {"L", "M", "N", "Pc"});
  static const CharSet not_spaces = without_unicode(all_spaces(), {"White_Space"});
  switch (c) {
    case 'd': *out = digits(); break;
    case 'w': *out = word_chars(); break;
    case 's': *out = spaces(); break;
    case 'D': *out = not_digits; break;
    case 'W': *out = not_words; break;
    case 'S': *out = not_spaces; break;
    case 'p':
    case 'P': {
      size_t end = *at + 2;
      std::string name(text.substr(std::min(*at + 1, text.size()), 1));
      if (name == "{") {
        end = text.find('}', *at);
        if (end == std::string_view::npos) return fail_at(*at, "\\p{ without }");
        name = text.substr(*at + 2, end - *at - 2);
        ++end;
      }
      const CharSet* property = find_char_property(name);
      if (property == nullptr) return fail_at(*at, "\\p with an unknown property");
      *out = c == 'P' ? property->complement() : *property;
      *at = end;
      return true;
    }
    default: return false;
  }
  ++*at;
  return true;
}

Result<uint32_t> parse_char_escape(std::string_view text, size_t* at) {
  if (*at >= text.size()) return fail_at(*at, "a backslash at the end");
  const size_t begin = *at;
  const auto hex = [&](size_t digits) -> Result<uint32_t> {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++*at) {
      const int digit = *at < text.size() ? hex_value(text[*at]) : -1;
      if (digit < 0) return fail_at(begin, "an escape with too few hexadecimal digits");
      value = value * 16 + digit;
    }
    if (value > kMaxChar || (value >= 0xD800 && value <= 0xDFFF))
      return fail_at(begin, "an escape that is no character");
    return value;
  };
  const char c = text[*at];
  if (!is_word(c)) {
    uint32_t value = 0;
    if (!next_utf8(text, at, &value)) return fail_at(begin, "no UTF-8");
    return value;
  }
  ++*at;
  switch (c) {
    case 'n': return uint32_t{'\n'};
    case 'r': return uint32_t{'\r'};
    case 't': return uint32_t{'\t'};
    case 'f': return uint32_t{'\f'};
    case 'v': return uint32_t{'\v'};
    case 'a': return uint32_t{7};
    case 'e': return uint32_t{27};
    case '0': return uint32_t{0};
    case 'x': return hex(2);
    case 'U': return hex(8);
    case 'u': {
      if (*at >= text.size() || text[*at] != '{') return hex(4);
      const size_t end = text.find('}', *at);
      if (end == std::string_view::npos || end - *at < 2 || end - *at > 7)
        return fail_at(begin, "\\u{ without a number and }");
      ++*at;
      WW_ASSIGN_OR_RETURN(const uint32_t value, hex(end - *at));
      ++*at;
      return value;
    }
    default: return fail_at(begin, std::string("the escape '\\") + c + "' is not supported");
  }
}

Result<Regex> parse_regex(std::string_view pattern, const GrammarLimits& limits) {
  if (pattern.size() > limits.max_source_bytes)
    return fail_at(0, "the expression is longer than " + std::to_string(limits.max_source_bytes) + " bytes");
  return Parser(pattern, limits).parse();
}

Result<PatternSyntax> parse_pattern(std::string_view pattern, const GrammarLimits& limits) {
  if (pattern.size() > limits.max_source_bytes)
    return fail_at(0, "the expression is longer than " + std::to_string(limits.max_source_bytes) + " bytes");
  return Parser(pattern, limits).parse_pattern();
}

}  // namespace warpweave::grammar
