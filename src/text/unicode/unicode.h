// Properties, cases and normalization forms of Unicode 15 by code point: utf8proc (Unicode 15 in Debian 12) and, for
// what it does not tell, small tables made from the Unicode Character Database (tables.inc,
// tools/make_unicode_tables.py). All functions are pure and thread-safe; a value that is no code point has no property
// and maps to itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace warpweave::unicode {

// General_Category, in utf8proc's order.
enum class Category : uint8_t {
  Cn, Lu, Ll, Lt, Lm, Lo, Mn, Mc, Me, Nd, Nl, No, Pc, Pd, Ps, Pe, Pi, Pf, Po, Sm, Sc, Sk, So, Zs, Zl, Zp, Cc, Cf, Cs, Co
};
Category category(char32_t c);

bool is_letter(char32_t c);          // L*
bool is_mark(char32_t c);            // M*
bool is_number(char32_t c);          // N*
bool is_printable(char32_t c);       // assigned, and no control, format, surrogate or private character
bool is_punctuation_of_8(char32_t c);  // P* of Unicode 8
bool is_alphabetic(char32_t c);      // Alphabetic, or M*
bool is_white_space(char32_t c);     // White_Space
bool is_uppercase(char32_t c);       // Uppercase
bool is_lowercase(char32_t c);       // Lowercase
bool is_cased(char32_t c);           // Cased
bool is_case_ignorable(char32_t c);  // Case_Ignorable

char32_t to_lower_simple(char32_t c);                    // one character for one
void append_upper(char32_t c, std::u32string* out);      // the full mappings, in no language: up to three characters
void append_title(char32_t c, std::u32string* out);
void append_lower(char32_t c, std::u32string* out);      // but for the final sigma, which needs its surroundings

enum class NormalizationForm { nfc, nfd, nfkc, nfkd };

// The form of the characters that Unicode 9 had, as the `tokenizers` library has them; later ones that a form would
// change, reorder or compose stay as they are, and nothing is reordered or composed across them. Time O(n log n).
std::u32string normalize_as_of_9(std::u32string_view text, NormalizationForm form);

}  // namespace warpweave::unicode
