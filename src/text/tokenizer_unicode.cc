#include "text/tokenizer_unicode.h"

#include <algorithm>
#include <iterator>

#include "text/unicode/unicode.h"

namespace warpweave {
namespace {

constexpr UnicodeAddition kAdditions[] = {
#include "text/tokenizer_unicode_additions.inc"
};

// The category's letter for a code point newer than Unicode 14, else 0.
char added_category(char32_t c) {
  const auto* after = std::upper_bound(
      std::begin(kAdditions), std::end(kAdditions), c,
      [](char32_t value, const UnicodeAddition& added) { return value < added.first; });
  if (after == std::begin(kAdditions)) return 0;
  const UnicodeAddition& added = *(after - 1);
  return c <= added.last ? added.category[0] : 0;
}

}  // namespace

std::vector<UnicodeAddition> unicode_additions(std::string_view category) {
  std::vector<UnicodeAddition> found;
  for (const UnicodeAddition& added : kAdditions) {
    if (!std::string_view(added.category).starts_with(category)) continue;
    if (!found.empty() && found.back().last + 1 == added.first) {
      found.back().last = added.last;
    } else {
      found.push_back(added);
    }
  }
  return found;
}

Utf8State first_utf8(std::string_view bytes, size_t* length) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  *length = 1;
  if (lead < 0x80) return Utf8State::whole;
  if (lead < 0xC2 || lead > 0xF4) return Utf8State::broken;
  const size_t wanted = utf8_length(lead);
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (; *length < wanted; ++*length) {
    if (*length == bytes.size()) return Utf8State::unfinished;
    const auto byte = static_cast<unsigned char>(bytes[*length]);
    if (byte < low || byte > high) return Utf8State::broken;
    low = 0x80;
    high = 0xBF;
  }
  return Utf8State::whole;
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    size_t length = 0;
    if (first_utf8(text.substr(i), &length) != Utf8State::whole) return i;
    i += length;
  }
  return std::string_view::npos;
}

void append_utf8(char32_t c, std::string* out) {
  const auto put = [&](char32_t byte) { *out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

int hex_digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_white_space(char32_t c) { return unicode::is_white_space(c); }

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  if ((c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6)) return true;  // Unicode 17
  return unicode::is_number(c) || added_category(c) == 'N';
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  return c == 0x166D || c == 0x111C9 || unicode::is_punctuation_of_8(c);
}

bool is_word_char(char32_t c) {
  if (c == 0x200C || c == 0x200D) return true;  // Join_Control
  const unicode::Category category = unicode::category(c);
  return unicode::is_alphabetic(c) || category == unicode::Category::Nd || category == unicode::Category::Pc ||
         added_category(c) == 'L' || added_category(c) == 'M';
}

char32_t to_lower_simple(char32_t c) { return unicode::to_lower_simple(c); }

char32_t last_utf8(std::string_view text, size_t* length) {
  size_t start = text.size() - 1;
  while (start > 0 && (text[start] & 0xC0) == 0x80) --start;
  *length = text.size() - start;
  return take_utf8(text, &start);
}

}  // namespace warpweave
