// Tokens of the modifier language. A view into the text, which must outlive the lexer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace warpweave::mods {

struct Token {
  enum class Kind : uint8_t { end, name, integer, real, symbol, bad };
  Kind kind = Kind::end;
  std::string_view text;   // as written; of `bad`, the byte
  size_t column = 1;       // bytes from 1
  int32_t integer = 0;
  double real = 0;
  const char* problem = nullptr;  // of `bad`

  bool is(std::string_view symbol) const { return kind == Kind::symbol && text == symbol; }
  std::string shown() const;      // for messages
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token next();

 private:
  Token number(size_t begin);
  Token make(Token::Kind kind, size_t begin, size_t size);

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace warpweave::mods
