// UTF-8 stepping and the character classes that tokenizers use.
//
// Categories are those of Unicode 16, as in the `tokenizers` library: utf8proc (unicode/) and PCRE2 of
// the system may be older, so the letters, marks, numbers, punctuation and symbols assigned after
// Unicode 14 are listed in tokenizer_unicode_additions.inc (made by tools/make_tokenizer_goldens.py).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace warpweave {

struct UnicodeAddition {
  char32_t first;
  char32_t last;
  char category[3];  // "Lo"
};

// The additions whose category begins with `category` ("L", "Lu").
std::vector<UnicodeAddition> unicode_additions(std::string_view category);

enum class Utf8State { whole, unfinished, broken };

// Looks at the character that `bytes` (not empty) begins with. *length: its bytes; for a broken
// one those of the maximal part that could have been a character (at least 1).
Utf8State first_utf8(std::string_view bytes, size_t* length);

// Offset of the first byte that is no valid UTF-8; npos when all is.
size_t find_invalid_utf8(std::string_view text);

// Reads the code point at *pos of valid UTF-8 and moves *pos behind it.
inline char32_t take_utf8(std::string_view text, size_t* pos) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const size_t i = *pos;
  const unsigned lead = byte(i);
  if (lead < 0x80) {
    *pos = i + 1;
    return lead;
  }
  const unsigned second = byte(i + 1) & 0x3F;
  if (lead < 0xE0) {
    *pos = i + 2;
    return (lead & 0x1F) << 6 | second;
  }
  const unsigned third = byte(i + 2) & 0x3F;
  if (lead < 0xF0) {
    *pos = i + 3;
    return (lead & 0x0F) << 12 | second << 6 | third;
  }
  *pos = i + 4;
  return (lead & 0x07) << 18 | second << 12 | third << 6 | (byte(i + 3) & 0x3F);
}

inline size_t utf8_length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

void append_utf8(char32_t c, std::string* out);
int hex_digit_value(char c);  // -1 when it is none

bool is_white_space(char32_t c);    // White_Space
bool is_numeric(char32_t c);        // Nd, Nl, No
bool is_punctuation(char32_t c);    // ASCII punctuation, or P* of Unicode 8: the library's table
bool is_word_char(char32_t c);      // Alphabetic, M*, Nd, Pc, Join_Control
char32_t to_lower_simple(char32_t c);

// The last code point of non-empty valid UTF-8, and its length in bytes.
char32_t last_utf8(std::string_view text, size_t* length);

}  // namespace warpweave
