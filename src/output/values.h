// Values that models write without JSON, as JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json_parse.h"

namespace warpweave::output {

// Whether only texts fit an argument's schema, so that its value is one whatever it looks like.
bool takes_only_text(const Json* schema);

// What stands between an argument's tags: JSON or a Python literal where it is one, else a text. `schema` (or null)
// decides for texts and numbers in quotes.
std::string value_to_json(std::string_view text, const Json* schema);

// A Python literal (a text, a number, True, False, None, lists and dicts of them) from `*at` on, which moves behind it.
std::optional<std::string> python_literal_to_json(std::string_view text, size_t* at);

// A text in quotes.
std::string quoted_json(std::string_view text);

}  // namespace warpweave::output
