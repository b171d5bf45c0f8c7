#include "server/api/json_parse.h"

#include <fmt/format.h>

namespace warpweave::server {

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  return warpweave::parse_json<Json>(text, {.what = "The request body"}, limits);
}

Result<Json> parse_json_object(std::string_view text, const JsonLimits& limits) {
  WW_ASSIGN_OR_RETURN(Json value, parse_json(text, limits));
  if (!value.is_object()) {
    return Status::invalid_argument(fmt::format(
        "The request body is a JSON {}, but must be an object like {{\"field\": value}}.",
        value.type_name()));
  }
  return value;
}

}  // namespace warpweave::server
