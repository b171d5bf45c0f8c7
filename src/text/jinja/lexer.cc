#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "text/jinja/unicode.h"
#include "text/jinja/value.h"

namespace warpweave::jinja {

namespace {

using Type = Token::Type;

constexpr size_t kMaxNameBytes = 256;

bool name_start(unsigned char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
}
bool digit(unsigned char c) { return c >= '0' && c <= '9'; }
bool name_part(unsigned char c) { return name_start(c) || digit(c); }

// Line ends become \n and one at the very end is dropped, as jinja2 does by default.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) data();
    push(Type::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Error(message, line_); }

  bool starts_with(std::string_view text, size_t at) const {
    return std::string_view(source_).substr(at, text.size()) == text;
  }

  void push(Type type, std::string text) { tokens_.push_back({type, line_, std::move(text)}); }

  // Moves to `end`, keeping the line number and what the line-start rule needs.
  void advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + end, '\n'));
    if (end > at_) line_starting_ = source_[end - 1] == '\n';
    at_ = end;
  }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      CodePoint c = decode(source_, at);
      if (!is_space(c.value)) break;
      at += c.bytes;
    }
    return at;
  }

  size_t next_tag(size_t from) const {
    size_t at = source_.find('{', from);
    while (at != std::string::npos && at + 1 < source_.size()) {
      char c = source_[at + 1];
      if (c == '{' || c == '%' || c == '#') return at;
      at = source_.find('{', at + 1);
    }
    return std::string::npos;
  }

  // The text in front of a tag, after the tag's whitespace control. `sign` is -, + or 0.
  std::string_view trimmed(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return strip(text, Side::right);
    if (sign == '+' || is_variable) return text;
    size_t line_begin = text.rfind('\n') + 1;  // npos + 1 == 0: no newline
    bool whole_line = line_begin > 0 || line_starting_;
    if (whole_line && strip(text.substr(line_begin), Side::both).empty()) {
      return text.substr(0, line_begin);
    }
    return text;
  }

  void emit_data(std::string_view text) {
    if (!text.empty()) push(Type::data, std::string(text));
  }

  void data() {
    const size_t tag = next_tag(at_);
    if (tag == std::string::npos) {
      emit_data(std::string_view(source_).substr(at_));
      at_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1];
    size_t after = tag + 2;
    char sign = 0;
    if (after < source_.size() && (source_[after] == '-' || source_[after] == '+')) {
      sign = source_[after++];
    }
    emit_data(trimmed(std::string_view(source_).substr(at_, tag - at_), sign, kind == '{'));
    advance(after);
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      push(Type::variable_begin, "");
      tag_tokens(false);
    } else if (size_t body = raw_tag_end(); body != 0) {
      advance(body);
      raw_block();
    } else {
      push(Type::block_begin, "");
      tag_tokens(true);
    }
  }

  // The end of a closing sequence at `at` ("%}" or "#}" with an optional sign), with the whitespace
  // that goes with it; 0 when there is none.
  size_t tag_close(size_t at, std::string_view close, bool trims_newline) const {
    char sign = 0;
    if (at < source_.size() && (source_[at] == '-' || (source_[at] == '+' && trims_newline))) {
      sign = source_[at++];
    }
    if (!starts_with(close, at)) return 0;
    at += close.size();
    if (sign == '-') return skip_space(at);
    if (sign == 0 && trims_newline && at < source_.size() && source_[at] == '\n') ++at;
    return at;
  }

  void comment() {
    size_t close = source_.find("#}", at_);
    if (close == std::string::npos) fail("a comment is not closed; add '#}'");
    size_t sign = close > at_ && (source_[close - 1] == '-' || source_[close - 1] == '+');
    advance(tag_close(close - sign, "#}", true));
  }

  // After "{%": the end of a raw tag, or 0 when this is another tag.
  size_t raw_tag_end() const {
    size_t at = skip_space(at_);
    if (!starts_with("raw", at)) return 0;
    at = skip_space(at + 3);
    if (starts_with("-%}", at)) return skip_space(at + 3);
    return starts_with("%}", at) ? at + 2 : 0;
  }

  void raw_block() {
    for (size_t at = source_.find("{%", at_); at != std::string::npos;
         at = source_.find("{%", at + 2)) {
      size_t word = at + 2;
      char sign = 0;
      if (word < source_.size() && (source_[word] == '-' || source_[word] == '+')) {
        sign = source_[word++];
      }
      word = skip_space(word);
      if (!starts_with("endraw", word)) continue;
      size_t close = tag_close(skip_space(word + 6), "%}", true);
      if (close == 0) continue;
      emit_data(trimmed(std::string_view(source_).substr(at_, at - at_), sign, false));
      advance(close);
      return;
    }
    fail("a raw block is not closed; add '{% endraw %}'");
  }

  void tag_tokens(bool block) {
    std::vector<char> open;  // brackets waiting for their partner
    while (true) {
      if (at_ >= source_.size()) {
        fail(block ? "a block tag is not closed; add '%}'" : "an expression is not closed; add '}}'");
      }
      if (open.empty()) {
        if (size_t close = tag_close(at_, block ? "%}" : "}}", block); close != 0) {
          push(block ? Type::block_end : Type::variable_end, "");
          advance(close);
          return;
        }
      }
      const unsigned char c = source_[at_];
      if (size_t next = skip_space(at_); next != at_) {
        advance(next);
      } else if (digit(c)) {
        number();
      } else if (name_start(c)) {
        name();
      } else if (c == '"' || c == '\'') {
        string(static_cast<char>(c));
      } else {
        op(open);
      }
    }
  }

  void name() {
    size_t end = at_;
    while (end < source_.size() && name_part(source_[end])) ++end;
    if (end - at_ > kMaxNameBytes) fail("a name has more than " + std::to_string(kMaxNameBytes) + " bytes");
    push(Type::name, source_.substr(at_, end - at_));
    advance(end);
  }

  void number() {
    size_t end = at_;
    auto digits = [&] {
      while (end < source_.size() && (digit(source_[end]) || source_[end] == '_')) ++end;
    };
    auto prefix = [&](char c) {
      return source_[at_] == '0' && at_ + 1 < source_.size() && (source_[at_ + 1] | 0x20) == c;
    };
    const int base = prefix('x') ? 16 : prefix('o') ? 8 : prefix('b') ? 2 : 10;
    bool is_real = false;
    if (base != 10) {
      end += 2;
      while (end < source_.size() && (std::isxdigit(static_cast<unsigned char>(source_[end])) != 0 ||
                                      source_[end] == '_')) {
        ++end;
      }
    } else {
      digits();
      // Behind a dot stands the index of an item: in rows.0.1 are two of them.
      const bool index = at_ > 0 && source_[at_ - 1] == '.';
      if (!index && end + 1 < source_.size() && source_[end] == '.' && digit(source_[end + 1])) {
        is_real = true;
        ++end;
        digits();
      }
      size_t exponent = end + 1;
      if (!index && end < source_.size() && (source_[end] | 0x20) == 'e') {
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
          ++exponent;
        }
        if (exponent < source_.size() && digit(source_[exponent])) {
          is_real = true;
          end = exponent;
          digits();
        }
      }
    }
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Token token{is_real ? Type::real : Type::integer, line_, text};
    if (is_real) {
      token.real = std::strtod(text.c_str(), nullptr);
    } else {
      const char* begin = text.data() + (base == 10 ? 0 : 2);
      auto [parsed, error] = std::from_chars(begin, text.data() + text.size(), token.integer, base);
      if (error != std::errc() || parsed != text.data() + text.size()) {
        fail("the number " + text.substr(0, 40) + " is no integer of at most 64 bits");
      }
    }
    tokens_.push_back(std::move(token));
    advance(end);
  }

  void string(char mark) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != mark) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string is not closed; add the missing quote");
    push(Type::string, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
  }

  std::string unescape(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      i = escape(text, i + 1, out);
    }
    return out;
  }

  // Appends what the escape at `at` (behind the backslash) means; returns its last position.
  size_t escape(std::string_view text, size_t at, std::string& out) const {
    static constexpr std::string_view kFrom = "abfnrtv\\'\"";
    static constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
    const char c = text[at];
    if (size_t i = kFrom.find(c); i != std::string_view::npos) {
      out += kTo[i];
      return at;
    }
    if (c == '\n') return at;
    int base = 16;
    size_t begin = at + 1;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c >= '0' && c <= '7') {
      base = 8;
      begin = at;
      digits = 1;
      while (digits < 3 && at + digits < text.size() && text[at + digits] >= '0' &&
             text[at + digits] <= '7') {
        ++digits;
      }
    }
    if (digits == 0) {
      if (c == 'N') fail("\\N{...} escapes are not supported; write the character itself");
      out += '\\';
      out += c;
      return at;
    }
    uint32_t code = 0;
    const char* first = text.data() + std::min(begin, text.size());
    const char* last = text.data() + std::min(begin + digits, text.size());
    auto [parsed, error] = std::from_chars(first, last, code, base);
    if (error != std::errc() || parsed != first + digits || code > 0x10FFFF ||
        (code >= 0xD800 && code <= 0xDFFF)) {
      fail("a string holds a broken \\" + std::string(1, c) + " escape");
    }
    append_utf8(out, code);
    return begin + digits - 1;
  }

  void op(std::vector<char>& open) {
    static constexpr std::array<std::string_view, 26> kOps = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (std::string_view candidate : kOps) {
      if (!starts_with(candidate, at_)) continue;
      const char c = candidate[0];
      if (candidate.size() == 1 && (c == '(' || c == '[' || c == '{')) {
        open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      } else if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) {
          fail(std::string("unexpected '") + c + "'" +
               (open.empty() ? "" : std::string(", expected '") + open.back() + "'"));
        }
        open.pop_back();
      }
      push(Type::op, std::string(candidate));
      advance(at_ + candidate.size());
      return;
    }
    fail("unexpected character " + quote(std::string_view(source_).substr(at_, 1)));
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace warpweave::jinja
