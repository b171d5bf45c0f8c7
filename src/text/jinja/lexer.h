// Template source to tokens, with jinja2's whitespace rules under trim_blocks and lstrip_blocks:
// the first newline after a block or comment tag goes, blanks between the line's start and such a
// tag go, `-` eats all whitespace on its side, `+` keeps it. {% raw %} becomes plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace warpweave::jinja {

struct Token {
  enum class Type {
    data,            // text between tags
    variable_begin,  // {{
    variable_end,
    block_begin,     // {%
    block_end,
    name,
    string,          // text holds the unescaped value
    integer,
    real,
    op,              // text holds the operator
    end,             // of the template
  };
  Type type;
  int line;
  std::string text;
  int64_t integer = 0;
  double real = 0;
};

// Throws jinja::Error. The last token is `end`.
std::vector<Token> tokenize(std::string_view source);

}  // namespace warpweave::jinja
