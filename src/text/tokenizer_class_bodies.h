// Character classes of Oniguruma as what PCRE2 takes between brackets, for the Unicode version that
// tokenizers were made with. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace warpweave {

// \s of Oniguruma is White_Space: PCRE2's has U+180E on top.
inline constexpr std::string_view kSpaceBody =
    R"(\x09-\x0D\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
inline constexpr std::string_view kHexDigitBody = "0-9A-Fa-f";

std::string hex_escape(char32_t c);                        // \x{..}
std::string category_body(std::string_view category);      // "Lu"
std::string word_body();
std::string lone_word_body();  // outside brackets \w has six numbers of Latin-1 on top
std::string alphabetic_body();

std::string loose_name(std::string_view name);             // without spaces, '_', '-'; lower case
std::string general_category(const std::string& loose);    // "lu", "uppercaseletter" -> "Lu"; else empty

}  // namespace warpweave
