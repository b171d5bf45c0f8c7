// Request bodies to JSON objects, under the limits of base/json_parse.h. Thread-safe.
#pragma once

#include <string_view>

#include "base/json_parse.h"

namespace warpweave::server {

using warpweave::Json;

// Fails with invalid_argument on anything that is not one JSON object within the limits.
Result<OwnedJson> parse_body(std::string_view body);

}  // namespace warpweave::server
