// Oniguruma (Ruby syntax) to PCRE2. Sources: Oniguruma's doc/RE, pcre2pattern(3).
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_class_bodies.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

constexpr size_t kMaxGroupDepth = 200;

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (ok() && pos_ < in_.size()) step();
    if (ok() && !groups_.empty()) fail("a group without its )");
    if (!ok()) return error_;
    return std::move(out_);
  }

 private:
  // A bracket expression: what is in `items`, plus whatever is not in one of `complements`.
  struct ClassSet {
    bool negated = false;
    std::string items;
    std::vector<std::string> complements;
  };

  bool ok() const { return error_.ok(); }
  bool at_end() const { return pos_ >= in_.size(); }
  char peek() const { return pos_ < in_.size() ? in_[pos_] : '\0'; }
  bool take(std::string_view text) {
    if (in_.substr(pos_, text.size()) != text) return false;
    pos_ += text.size();
    return true;
  }
  void fail(const std::string& what) {
    if (!ok()) return;
    error_ = Status::unsupported("regular expression \"" + std::string(in_.substr(0, 200)) +
                                     "\" has " + what + " at byte " + std::to_string(pos_) +
                                     ", which this tokenizer does not know",
                                 "pattern");
  }

  // Reads one code point (the pattern is valid UTF-8: JSON text).
  char32_t next_char() { return take_utf8(in_, &pos_); }

  void atom(std::string_view text) {
    atom_start_ = out_.size();
    has_atom_ = true;
    quantified_ = false;
    out_ += text;
  }

  void step() {
    switch (peek()) {
      case '\\': ++pos_; return escape();
      case '[': ++pos_; return bracket_atom();
      case '(': ++pos_; return open_group();
      case ')': ++pos_; return close_group();
      case '*': case '+': case '?': return quantifier(std::string(1, in_[pos_++]), false);
      case '{': ++pos_; return interval();
      case '|': ++pos_; out_ += '|'; has_atom_ = false; return;
      case '^': case '$': out_ += in_[pos_++]; has_atom_ = false; return;
      case '.': ++pos_; return atom(".");
      default: return literal(next_char());
    }
  }

  void literal(char32_t c) {
    const bool plain = c < 0x80 && (std::isalnum(static_cast<int>(c)) || c == ' ' || c == '_');
    atom(plain ? std::string(1, static_cast<char>(c)) : hex_escape(c));
  }

  // Ruby lets quantifiers follow each other and has no possessive {n,m}+; PCRE2 differs in both.
  void quantifier(const std::string& text, bool is_interval) {
    if (!has_atom_) return fail("a quantifier with nothing to repeat");
    if (quantified_) {
      out_.insert(atom_start_, "(?:");
      out_ += ')';
    }
    out_ += text;
    if (!is_interval && (peek() == '?' || peek() == '+')) {
      out_ += in_[pos_++];
    } else if (is_interval && peek() == '?') {
      ++pos_;
      out_ += '?';
    }
    quantified_ = true;
  }

  void interval() {
    size_t end = pos_;
    std::string low, high;
    while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end]))) {
      low += in_[end++];
    }
    const bool comma = end < in_.size() && in_[end] == ',';
    if (comma) {
      ++end;
      while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end]))) {
        high += in_[end++];
      }
    }
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.empty())) {
      return atom("\\{");
    }
    pos_ = end + 1;
    if (!comma && peek() == '?') {  // Ruby: {n}? makes n repetitions optional
      if (!has_atom_) return fail("a quantifier with nothing to repeat");
      ++pos_;
      out_.insert(atom_start_, "(?:");
      out_ += "{" + low + "})?";
      quantified_ = true;
      return;
    }
    quantifier("{" + (low.empty() ? "0" : low) + (comma ? "," + high : "") + "}", true);
  }

  void open_group() {
    if (groups_.size() >= kMaxGroupDepth) return fail("too many nested groups");
    const size_t start = out_.size();
    if (peek() == '*') return fail("(*");
    if (take("?")) {
      if (take("#")) {
        const size_t end = in_.find(')', pos_);
        if (end == std::string_view::npos) return fail("an open comment");
        pos_ = end + 1;
        return;
      }
      bool known = false;
      for (std::string_view kind : {":", "=", "!", ">", "<=", "<!"}) {
        if (!known && take(kind)) {
          out_ += "(?" + std::string(kind);
          known = true;
        }
      }
      if (!known && take("<")) known = named_group();
      if (!known && !options()) return;
    } else {
      out_ += '(';
    }
    if (!ok()) return;
    groups_.push_back(start);
    has_atom_ = false;
  }

  bool named_group() {
    const size_t end = in_.find('>', pos_);
    if (end == std::string_view::npos || end == pos_) return false;
    for (char c : in_.substr(pos_, end - pos_)) {
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
    }
    pos_ = end + 1;
    out_ += '(';
    return true;
  }

  // (?i-m:...) opens a group: true. (?i) alone holds to the end of the enclosing group: false.
  bool options() {
    std::string flags;
    while (peek() == 'i' || peek() == 'm' || peek() == '-') {
      const char c = in_[pos_++];
      flags += c == 'm' ? 's' : c;
    }
    if (flags.empty() || (peek() != ':' && peek() != ')')) {
      fail("the group (?" + std::string(1, peek()));
      return false;
    }
    const bool group = in_[pos_++] == ':';
    // In Ruby a bare option also covers the alternatives after it, as in PCRE2.
    out_ += "(?" + flags + (group ? ":" : ")");
    has_atom_ = false;
    return group;
  }

  void close_group() {
    if (groups_.empty()) return fail("a ) without its (");
    out_ += ')';
    atom_start_ = groups_.back();
    groups_.pop_back();
    has_atom_ = true;
    quantified_ = false;
  }

  void escape() {
    if (at_end()) return fail("a backslash at its end");
    const char c = peek();
    switch (c) {
      case 's': ++pos_; return atom("[" + std::string(kSpaceBody) + "]");
      case 'S': ++pos_; return atom("[^" + std::string(kSpaceBody) + "]");
      case 'd': ++pos_; return atom("[" + category_body("Nd") + "]");
      case 'D': ++pos_; return atom("[^" + category_body("Nd") + "]");
      case 'w': ++pos_; return atom("[" + lone_word_body() + "]");
      case 'W': ++pos_; return atom("[^" + lone_word_body() + "]");
      case 'h': ++pos_; return atom("[" + std::string(kHexDigitBody) + "]");
      case 'H': ++pos_; return atom("[^" + std::string(kHexDigitBody) + "]");
      case 'R': ++pos_; return atom("\\R");
      case 'A': case 'z': case 'Z': case 'G':
        ++pos_;
        out_ += {'\\', c};
        has_atom_ = false;
        return;
      case 'b': case 'B': ++pos_; return word_border(c == 'B');
      case 'p': case 'P': {
        ++pos_;
        ClassSet set;
        property(c == 'P', false, &set);
        return class_atom(set);
      }
      default:
        if (c >= '1' && c <= '9') return back_reference();
        if (std::optional<char32_t> literal_char = escaped_char()) literal(*literal_char);
    }
  }

  void word_border(bool negated) {
    const std::string w = "[" + lone_word_body() + "]";
    out_ += negated ? "(?:(?<=" + w + ")(?=" + w + ")|(?<!" + w + ")(?!" + w + "))"
                    : "(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w + "))";
    has_atom_ = false;
  }

  void back_reference() {
    const char digit = in_[pos_++];
    if (std::isdigit(static_cast<unsigned char>(peek()))) return fail("a long back reference");
    atom("\\g{" + std::string(1, digit) + "}");
  }

  // An escape that stands for one character, in or out of brackets.
  std::optional<char32_t> escaped_char() {
    const char c = peek();
    switch (c) {
      case 't': ++pos_; return U'\t';
      case 'n': ++pos_; return U'\n';
      case 'r': ++pos_; return U'\r';
      case 'f': ++pos_; return U'\f';
      case 'v': ++pos_; return U'\v';
      case 'a': ++pos_; return U'\a';
      case 'e': ++pos_; return U'\x1B';
      case 'x': ++pos_; return peek() == '{' ? braced_hex() : hex_digits(1, 2);
      case 'u': ++pos_; return hex_digits(4, 4);
      case '0': return octal_digits();
      default: break;
    }
    if (std::isalnum(static_cast<unsigned char>(c))) {
      fail("\\" + std::string(1, c));
      return std::nullopt;
    }
    return next_char();
  }

  std::optional<char32_t> checked(char32_t value) {
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF) || value == 0) {
      fail("a character code that is no character");
      return std::nullopt;
    }
    return value;
  }

  std::optional<char32_t> hex_digits(int least, int most) {
    char32_t value = 0;
    int count = 0;
    while (count < most && std::isxdigit(static_cast<unsigned char>(peek()))) {
      value = value * 16 + static_cast<char32_t>(hex_digit_value(in_[pos_++]));
      ++count;
    }
    // \x80..\xFF is a raw byte to Oniguruma, not a character.
    if (count < least || (most == 2 && value >= 0x80)) {
      fail("a hexadecimal escape");
      return std::nullopt;
    }
    return checked(value);
  }

  std::optional<char32_t> braced_hex() {
    ++pos_;
    char32_t value = 0;
    int count = 0;
    while (count < 8 && std::isxdigit(static_cast<unsigned char>(peek()))) {
      value = value * 16 + static_cast<char32_t>(hex_digit_value(in_[pos_++]));
      ++count;
    }
    if (count == 0 || !take("}")) {
      fail("a hexadecimal escape");
      return std::nullopt;
    }
    return checked(value);
  }

  std::optional<char32_t> octal_digits() {
    char32_t value = 0;
    for (int count = 0; count < 3 && peek() >= '0' && peek() <= '7'; ++count) {
      value = value * 8 + static_cast<char32_t>(in_[pos_++] - '0');
    }
    if (value == 0 || value >= 0x80) {
      fail("an octal escape");
      return std::nullopt;
    }
    return value;
  }

  // After \p or \P: {Name} or {^Name}.
  void property(bool negated, bool in_brackets, ClassSet* set) {
    if (!take("{")) return fail("\\p without {");
    if (take("^")) negated = !negated;
    const size_t end = in_.find('}', pos_);
    if (end == std::string_view::npos) return fail("\\p{ without }");
    const std::string_view name = in_.substr(pos_, end - pos_);
    pos_ = end + 1;
    const std::string loose = loose_name(name);
    std::string body;
    if (const std::string category = general_category(loose); !category.empty()) {
      body = category_body(category);
    } else if (loose == "space" || loose == "whitespace") {
      body = kSpaceBody;
    } else if (loose == "word") {
      body = in_brackets ? word_body() : lone_word_body();
    } else if (loose == "any") {
      body = "\\x{0}-\\x{10FFFF}";
    } else if (loose == "alpha" || loose == "alphabetic") {
      body = alphabetic_body();
    } else if (loose == "uppercase" || loose == "lowercase" || loose == "emoji" ||
               loose == "extendedpictographic") {
      body = "\\p{" + loose + "}";
    } else {
      for (char c : loose) {
        if (!std::isalnum(static_cast<unsigned char>(c))) return fail("\\p{" + loose + "}");
      }
      body = "\\p{sc:" + loose + "}";  // PCRE2 means Script_Extensions by the bare name
    }
    if (negated) {
      set->complements.push_back(body);
    } else {
      set->items += body;
    }
  }

  void bracket_atom() {
    ClassSet set;
    bracket(&set, 0);
    class_atom(set);
  }

  void class_atom(const ClassSet& set) {
    if (!ok()) return;
    if (set.complements.empty()) return atom((set.negated ? "[^" : "[") + set.items + "]");
    if (set.items.empty() && set.complements.size() == 1) {
      return atom((set.negated ? "[" : "[^") + set.complements[0] + "]");
    }
    std::string alternatives;
    if (!set.items.empty()) alternatives = "[" + set.items + "]";
    for (const std::string& body : set.complements) {
      if (!alternatives.empty()) alternatives += '|';
      alternatives += "[^" + body + "]";
    }
    atom(set.negated ? "(?:(?!" + alternatives + ")(?s:.))" : "(?:" + alternatives + ")");
  }

  void bracket(ClassSet* set, int depth) {
    if (depth > 8) return fail("too many nested brackets");
    set->negated = take("^");
    bool first = true;
    while (ok()) {
      if (at_end()) return fail("an open bracket expression");
      if (peek() == ']' && !first) break;
      first = false;
      if (in_.substr(pos_, 2) == "&&") return fail("&& in brackets");
      class_item(set, depth);
    }
    ++pos_;
    if (set->items.empty() && set->complements.empty()) fail("an empty bracket expression");
  }

  void class_item(ClassSet* set, int depth) {
    if (in_.substr(pos_, 2) == "[:") return posix_class(set);
    if (take("[")) {
      ClassSet inner;
      bracket(&inner, depth + 1);
      if (!inner.negated) {
        set->items += inner.items;
        set->complements.insert(set->complements.end(), inner.complements.begin(),
                                inner.complements.end());
      } else if (inner.complements.empty()) {
        set->complements.push_back(inner.items);
      } else {
        fail("nested complements in brackets");
      }
      return;
    }
    if (peek() == '\\') {
      ++pos_;
      if (class_escape(set)) return;
    } else {
      return class_range(set, next_char());
    }
    if (!ok()) return;
    if (std::optional<char32_t> low = escaped_char()) class_range(set, *low);
  }

  // \s, \p{..} and the like in brackets; false when the escape is a character.
  bool class_escape(ClassSet* set) {
    const char c = peek();
    std::string body;
    switch (c) {
      case 's': case 'S': body = kSpaceBody; break;
      case 'd': case 'D': body = category_body("Nd"); break;
      case 'w': case 'W': body = word_body(); break;
      case 'h': case 'H': body = kHexDigitBody; break;
      case 'p': case 'P':
        ++pos_;
        property(c == 'P', true, set);
        return true;
      case 'b': ++pos_; class_range(set, U'\b'); return true;
      default: return false;
    }
    ++pos_;
    if (std::isupper(static_cast<unsigned char>(c))) {
      set->complements.push_back(body);
    } else {
      set->items += body;
    }
    return true;
  }

  void class_range(ClassSet* set, char32_t low) {
    set->items += hex_escape(low);
    if (peek() != '-' || pos_ + 1 >= in_.size() || in_[pos_ + 1] == ']') return;
    const size_t dash = pos_++;
    if (peek() == '[') return fail("a range that ends in a bracket");
    std::optional<char32_t> high;
    if (take("\\")) {
      const std::string_view classes = "sSdDwWhHpPb";
      if (classes.find(peek()) != std::string_view::npos) {
        pos_ = dash;
        return fail("a range that ends in a class");
      }
      high = escaped_char();
    } else {
      high = next_char();
    }
    if (!high) return;
    if (*high < low) return fail("a range whose end is before its start");
    set->items += "-" + hex_escape(*high);
  }

  void posix_class(ClassSet* set) {
    const size_t end = in_.find(":]", pos_);
    if (end == std::string_view::npos) return fail("[: in brackets");
    std::string_view name = in_.substr(pos_ + 2, end - pos_ - 2);
    const bool negated = !name.empty() && name[0] == '^';
    if (negated) name.remove_prefix(1);
    std::string body;
    if (name == "alpha") body = alphabetic_body();
    if (name == "digit") body = category_body("Nd");
    if (name == "alnum") body = alphabetic_body() + category_body("Nd");
    if (name == "space") body = kSpaceBody;
    if (name == "upper") body = "\\p{Uppercase}";
    if (name == "lower") body = "\\p{Lowercase}";
    if (name == "word") body = word_body();
    if (name == "xdigit") body = kHexDigitBody;
    if (body.empty()) return fail("[:" + std::string(name) + ":]");
    pos_ = end + 2;
    if (negated) {
      set->complements.push_back(body);
    } else {
      set->items += body;
    }
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  Status error_;
  std::vector<size_t> groups_;  // where each open group starts in out_
  size_t atom_start_ = 0;       // where the last repeatable thing starts in out_
  bool has_atom_ = false;
  bool quantified_ = false;
};

}  // namespace

Result<std::string> translate_oniguruma(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace warpweave
