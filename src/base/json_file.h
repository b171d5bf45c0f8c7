// JSON of files: base/json_parse.h's limits in two forms that say which file broke them.
//
// read_json() builds nlohmann's values, of equal keys the last one counts; read_json_tape() is for large
// files that are looked through once (vocabularies, safetensors headers). Messages name the byte or the
// reason and never repeat unchecked input. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/json_parse.h"

namespace simdjson::dom {
class parser;
class element;
}  // namespace simdjson::dom

namespace warpweave {

// How a refusal reads: "<what> cannot be read: <why>", with this code and field.
struct JsonErrors {
  std::string what = "the text";
  StatusCode code = StatusCode::invalid_argument;
  std::string field = {};
};

// Classifiers name every label in a configuration: many members, never deep.
inline constexpr JsonLimits kJsonFileLimits{.max_members = size_t{1} << 20};

// JsonType is nlohmann::json (keys sorted) or nlohmann::ordered_json.
template <typename JsonType>
Result<JsonType> read_json(std::string_view text, const JsonErrors& errors);

// The same depth and the library's own checks. The element points into `parser`.
Status read_json_tape(simdjson::dom::parser& parser, std::string_view text, const JsonErrors& errors,
                      simdjson::dom::element& out);

}  // namespace warpweave
