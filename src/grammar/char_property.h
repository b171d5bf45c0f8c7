// Sets of characters by the names of Unicode properties, as \p{...} writes them (ECMA-262, and what other dialects
// share): General_Category ("Lu", "Uppercase_Letter", "gc=L"), Script and Script_Extensions ("Greek", "sc=Greek",
// "scx=Greek"), binary properties ("Alphabetic", "White_Space") and "Any". Case, "_" and "-" do not count. Thread-safe.
//
// Categories come from utf8proc (Unicode 15 in Debian 12); scripts and binary properties from PCRE2's tables (Unicode
// 14 there), by matching every character once. A set takes about 15 ms when it is first asked for and is kept; there
// are about 600 names.
#pragma once

#include <string_view>

#include "grammar/char_set.h"

namespace warpweave::grammar {

// nullptr: no such property. Else it lives as long as the program.
const CharSet* find_char_property(std::string_view name);

}  // namespace warpweave::grammar
