#include "text/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <span>

namespace warpweave::unicode {
namespace {

struct CodePointRange {
  char32_t first;
  char32_t last;
};
struct LongCaseMapping {
  char32_t from;
  char32_t to[3];  // ends with 0 when shorter
};
#include "text/unicode/tables.inc"

static_assert(static_cast<int>(Category::Co) == UTF8PROC_CATEGORY_CO);
static_assert(static_cast<int>(Category::Nd) == UTF8PROC_CATEGORY_ND);
static_assert(static_cast<int>(Category::Zs) == UTF8PROC_CATEGORY_ZS);

bool within(std::span<const CodePointRange> ranges, char32_t c) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), c,
                                      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != ranges.begin() && c <= std::prev(after)->last;
}

bool between(Category c, Category first, Category last) { return c >= first && c <= last; }

utf8proc_int32_t signed_code(char32_t c) { return static_cast<utf8proc_int32_t>(c); }

// Appends the mapping of more than one character, if there is one.
bool append_long(std::span<const LongCaseMapping> mappings, char32_t c, std::u32string* out) {
  const auto found =
      std::lower_bound(mappings.begin(), mappings.end(), c,
                       [](const LongCaseMapping& mapping, char32_t value) { return mapping.from < value; });
  if (found == mappings.end() || found->from != c) return false;
  for (const char32_t part : found->to) {
    if (part != 0) *out += part;
  }
  return true;
}

int combining_class(char32_t c) { return utf8proc_get_property(signed_code(c))->combining_class; }

void append_decomposed(char32_t c, int options, std::u32string* out) {
  utf8proc_int32_t parts[32];  // the longest decomposition has 18
  int boundary_class = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(signed_code(c), parts, std::size(parts),
                                                         static_cast<utf8proc_option_t>(options), &boundary_class);
  if (count < 0 || count > static_cast<utf8proc_ssize_t>(std::size(parts))) {
    *out += c;
    return;
  }
  out->append(parts, parts + count);
}

// Canonical order: runs of combining characters by their class, those of one class as they came.
void order_marks(std::u32string* text) {
  const auto is_mark = [](char32_t c) { return combining_class(c) != 0; };
  for (auto at = text->begin(); at != text->end();) {
    const auto begin = std::find_if(at, text->end(), is_mark);
    at = std::find_if_not(begin, text->end(), is_mark);
    std::stable_sort(begin, at, [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
  }
}

std::u32string normalize_all(std::u32string_view text, NormalizationForm form) {
  const bool compatibility = form == NormalizationForm::nfkc || form == NormalizationForm::nfkd;
  std::u32string out;
  out.reserve(text.size() + 1);
  for (const char32_t c : text) {
    append_decomposed(c, UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0), &out);
  }
  order_marks(&out);
  if (form != NormalizationForm::nfc && form != NormalizationForm::nfkc) return out;
  const utf8proc_ssize_t length = utf8proc_normalize_utf32(
      reinterpret_cast<utf8proc_int32_t*>(out.data()), static_cast<utf8proc_ssize_t>(out.size()),
      static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  if (length >= 0) out.resize(static_cast<size_t>(length));
  return out;
}

}  // namespace

Category category(char32_t c) { return static_cast<Category>(utf8proc_category(signed_code(c))); }

bool is_letter(char32_t c) { return between(category(c), Category::Lu, Category::Lo); }
bool is_mark(char32_t c) { return between(category(c), Category::Mn, Category::Me); }
bool is_number(char32_t c) { return between(category(c), Category::Nd, Category::No); }
bool is_printable(char32_t c) { return between(category(c), Category::Lu, Category::Zp); }

bool is_punctuation_of_8(char32_t c) {
  return between(category(c), Category::Pc, Category::Po) && !within(kLaterPunctuation, c);
}

bool is_alphabetic(char32_t c) {
  const Category own = category(c);
  return between(own, Category::Lu, Category::Me) || own == Category::Nl || within(kOtherAlphabetic, c);
}

bool is_white_space(char32_t c) { return within(kWhiteSpace, c); }
bool is_uppercase(char32_t c) { return category(c) == Category::Lu || within(kOtherUppercase, c); }
bool is_lowercase(char32_t c) { return category(c) == Category::Ll || within(kOtherLowercase, c); }
bool is_cased(char32_t c) { return is_uppercase(c) || is_lowercase(c) || category(c) == Category::Lt; }

bool is_case_ignorable(char32_t c) {
  const Category own = category(c);
  return own == Category::Mn || own == Category::Me || own == Category::Cf || own == Category::Lm ||
         own == Category::Sk || within(kOtherCaseIgnorable, c);
}

char32_t to_lower_simple(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(signed_code(c))); }

void append_upper(char32_t c, std::u32string* out) {
  if (!append_long(kLongUpper, c, out)) *out += static_cast<char32_t>(utf8proc_toupper(signed_code(c)));
}

void append_title(char32_t c, std::u32string* out) {
  if (!append_long(kLongTitle, c, out)) *out += static_cast<char32_t>(utf8proc_totitle(signed_code(c)));
}

void append_lower(char32_t c, std::u32string* out) {
  *out += to_lower_simple(c);
  if (c == 0x130) *out += 0x307;  // the one lower case that is two characters
}

std::u32string normalize_as_of_9(std::u32string_view text, NormalizationForm form) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto is_later = [](char32_t c) { return within(kNotNormalized, c); };
    const auto later = std::find_if(text.begin(), text.end(), is_later);
    out += normalize_all(std::u32string_view(text.begin(), later), form);
    const auto next = std::find_if_not(later, text.end(), is_later);
    out.append(later, next);
    text = std::u32string_view(next, text.end());
  }
  return out;
}

}  // namespace warpweave::unicode
