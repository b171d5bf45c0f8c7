// Request bodies to JSON values: base/json_parse.h with the words of a request. Thread-safe.
#pragma once

#include <string_view>

#include "base/json_parse.h"

namespace warpweave::server {

using Json = nlohmann::ordered_json;

// Fails with invalid_argument on anything that is not one JSON value in UTF-8 within the limits.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

// The same, and the value must be an object.
Result<Json> parse_json_object(std::string_view text, const JsonLimits& limits = {});

}  // namespace warpweave::server
