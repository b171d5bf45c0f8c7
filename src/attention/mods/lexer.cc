#include "attention/mods/lexer.h"

#include <charconv>
#include <cmath>

namespace warpweave::mods {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

std::string Token::shown() const {
  if (kind == Kind::end) return "the end";
  if (kind == Kind::bad && (text[0] < ' ' || text[0] > '~')) {
    return "byte " + std::to_string(static_cast<unsigned char>(text[0]));
  }
  return "'" + std::string(text.substr(0, 40)) + "'";
}

Token Lexer::make(Token::Kind kind, size_t begin, size_t size) {
  at_ = begin + size;
  Token token;
  token.kind = kind;
  token.text = text_.substr(begin, size);
  token.column = begin + 1;
  return token;
}

Token Lexer::number(size_t begin) {
  size_t end = begin;
  while (end < text_.size() && is_digit(text_[end])) ++end;
  bool real = false;
  if (end < text_.size() && text_[end] == '.') {
    real = true;
    for (++end; end < text_.size() && is_digit(text_[end]);) ++end;
  }
  if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
    size_t digits = end + 1;
    if (digits < text_.size() && (text_[digits] == '+' || text_[digits] == '-')) ++digits;
    if (digits < text_.size() && is_digit(text_[digits])) {
      real = true;
      for (end = digits; end < text_.size() && is_digit(text_[end]);) ++end;
    }
  }
  Token token = make(real ? Token::Kind::real : Token::Kind::integer, begin, end - begin);
  const char *first = token.text.data(), *last = first + token.text.size();
  if (!real) {
    if (std::from_chars(first, last, token.integer).ec == std::errc()) return token;
    token.problem = "integers go up to 2147483647; write it with a point for a real number";
  } else {
    if (std::from_chars(first, last, token.real).ec == std::errc() &&
        std::fabs(token.real) <= 3.4e38) {
      return token;
    }
    token.problem = "real numbers go up to 3.4e38";
  }
  token.kind = Token::Kind::bad;
  return token;
}

Token Lexer::next() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  if (at_ >= text_.size()) return make(Token::Kind::end, text_.size(), 0);
  const size_t begin = at_;
  const char c = text_[begin];
  if (is_name_start(c)) {
    size_t end = begin;
    while (end < text_.size() && (is_name_start(text_[end]) || is_digit(text_[end]))) ++end;
    return make(Token::Kind::name, begin, end - begin);
  }
  const bool point = c == '.' && begin + 1 < text_.size() && is_digit(text_[begin + 1]);
  if (is_digit(c) || point) return number(begin);
  for (std::string_view symbol : {"&&", "||", "<=", ">=", "==", "!="}) {
    if (text_.substr(begin, 2) == symbol) return make(Token::Kind::symbol, begin, 2);
  }
  if (std::string_view("+-*/%<>!?:(),=").find(c) != std::string_view::npos) {
    return make(Token::Kind::symbol, begin, 1);
  }
  Token token = make(Token::Kind::bad, begin, 1);
  token.problem = c == '&' ? "write && for and" : c == '|' ? "write || for or" : "unknown character";
  return token;
}

}  // namespace warpweave::mods
