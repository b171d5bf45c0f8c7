#include "text/bert_text.h"

#include <algorithm>
#include <iterator>

#include "text/tokenizer_unicode.h"
#include "text/unicode/unicode.h"

namespace warpweave {
namespace {

struct CharRange {
  char32_t first, last;
};

// Ranges in which all nonspacing marks are newer than Unicode 8, which the library's table is of.
constexpr CharRange kNewerMarks[] = {
#include "text/bert_newer_marks.inc"
};
constexpr CharRange kIdeographs[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
                                     {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
// Control and format characters newer than Unicode 8, which stay.
constexpr CharRange kNewerControls[] = {{0x890, 0x891}, {0x8E2, 0x8E2}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}};

template <size_t kCount>
bool is_in(const CharRange (&ranges)[kCount], char32_t c) {
  const CharRange* const after =
      std::upper_bound(std::begin(ranges), std::end(ranges), c,
                       [](char32_t value, const CharRange& range) { return value < range.first; });
  return after != std::begin(ranges) && c <= (after - 1)->last;
}

bool is_control(char32_t c) {
  using unicode::Category;
  const Category category = unicode::category(c);
  const bool other = category == Category::Cc || category == Category::Cf || category == Category::Co;
  return c == 0xFFFD || (other && !is_in(kNewerControls, c));
}

bool is_mark(char32_t c) {
  if (c == 0x1734) return true;  // a spacing mark since Unicode 14
  return unicode::category(c) == unicode::Category::Mn && !is_in(kNewerMarks, c);
}

template <typename Append>
std::string rewrite(std::string_view text, Append&& append) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) append(take_utf8(text, &pos), &out);
  return out;
}

}  // namespace

std::string clean_text(std::string_view text) {
  return rewrite(text, [](char32_t c, std::string* out) {
    const bool space = c == '\t' || c == '\n' || c == '\r' || (is_white_space(c) && !is_control(c));
    if (space) *out += ' ';
    else if (!is_control(c)) append_utf8(c, out);
  });
}

std::string space_ideographs(std::string_view text) {
  return rewrite(text, [](char32_t c, std::string* out) {
    const bool spaced = is_in(kIdeographs, c);
    if (spaced) *out += ' ';
    append_utf8(c, out);
    if (spaced) *out += ' ';
  });
}

std::string strip_marks(std::string_view text) {
  return rewrite(text, [](char32_t c, std::string* out) {
    if (!is_mark(c)) append_utf8(c, out);
  });
}

}  // namespace warpweave
