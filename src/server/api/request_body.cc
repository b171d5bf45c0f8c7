#include "server/api/request_body.h"

#include <fmt/format.h>

namespace warpweave::server {

Result<Json> parse_body(std::string_view body) {
  Result<Json> value = parse_json(body);
  if (!value.ok()) {
    return Status::invalid_argument("The request body cannot be read: " + value.status().message() +
                                    ".");
  }
  if (!value->is_object()) {
    return Status::invalid_argument(fmt::format(
        "The request body is a JSON {}, but must be an object like {{\"field\": value}}.",
        value->type_name()));
  }
  return value;
}

}  // namespace warpweave::server
