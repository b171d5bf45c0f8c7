// Request bodies to JSON values, under limits, so that no body can cost much more than its size.
//
// Keys keep their order (chat templates print objects); of equal keys the last one counts. The
// message of a failure names the byte and never repeats unchecked input. Thread-safe.
#pragma once

#include <cstddef>
#include <string_view>

#include <nlohmann/json.hpp>

#include "warpweave/status.h"

namespace warpweave::server {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_depth = 64;               // nested lists and objects
  size_t max_values = size_t{1} << 22; // of the whole body; a value costs 16 bytes
  size_t max_members = size_t{1} << 14;// of one object
};

// Fails with invalid_argument on anything that is not one JSON value in UTF-8 within the limits.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

// The same, and the value must be an object.
Result<Json> parse_json_object(std::string_view text, const JsonLimits& limits = {});

}  // namespace warpweave::server
