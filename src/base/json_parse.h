// JSON from outside to values, under limits: every parse in the program comes through here, so that no
// text can cost much more than its size, nor nest so deep that walking or freeing it runs out of stack.
//
// Two forms of the same rules: parse_json() builds nlohmann's values, of equal keys the last one counts;
// parse_json_tape() is for large files that are read once (vocabularies, safetensors headers). Messages
// name the byte or the reason and never repeat unchecked input. Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "warpweave/status.h"

namespace simdjson::dom {
class parser;
class element;
}  // namespace simdjson::dom

namespace warpweave {

struct JsonLimits {
  size_t max_depth = 64;                // nested lists and objects
  size_t max_values = size_t{1} << 22;  // of the whole text; a value costs 16 bytes
  size_t max_members = size_t{1} << 14; // of one object
};

// How a refusal reads: "<what> cannot be read: <why>".
struct JsonErrors {
  std::string what = "the text";
  StatusCode code = StatusCode::invalid_argument;
  std::string field = {};
};

// Fails on anything that is not one JSON value in UTF-8 within the limits. JsonType is nlohmann::json
// (keys sorted) or nlohmann::ordered_json (keys in their order, for chat templates that print objects).
template <typename JsonType>
Result<JsonType> parse_json(std::string_view text, const JsonErrors& errors, const JsonLimits& limits = {});

// The same depth and the library's own checks. The element points into `parser`.
Status parse_json_tape(simdjson::dom::parser& parser, std::string_view text, const JsonErrors& errors,
                       simdjson::dom::element& out);

}  // namespace warpweave
