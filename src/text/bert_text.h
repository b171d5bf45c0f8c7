// What BERT's normalizer does to text (Devlin et al. 2018), with the character classes of the `tokenizers` library.
// Texts are valid UTF-8; pure functions.
#pragma once

#include <string>
#include <string_view>

namespace warpweave {

std::string clean_text(std::string_view text);        // without control characters; white space as spaces
std::string space_ideographs(std::string_view text);  // with spaces around CJK ideographs
std::string strip_marks(std::string_view text);       // without nonspacing marks

}  // namespace warpweave
