#include "server/api/request_body.h"

#include <utility>

#include <fmt/format.h>

namespace warpweave::server {

Result<OwnedJson> parse_body(std::string_view body) {
  Result<Json> parsed = parse_json(body);
  if (!parsed.ok()) {
    return Status::invalid_argument("The request body cannot be read: " + parsed.status().message() +
                                    ".");
  }
  OwnedJson owned(std::move(parsed).value());
  if (!owned.value.is_object()) {
    return Status::invalid_argument(fmt::format(
        "The request body is a JSON {}, but must be an object like {{\"field\": value}}.",
        owned.value.type_name()));
  }
  return owned;
}

}  // namespace warpweave::server
