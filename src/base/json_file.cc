#include "base/json_file.h"

#include <fmt/format.h>

#include <type_traits>

namespace warpweave {

template <typename JsonType>
Result<JsonType> read_json(std::string_view text, const JsonErrors& errors) {
  Result<Json> parsed = parse_json(text, kJsonFileLimits);
  if (!parsed.ok()) {
    return Status(errors.code, fmt::format("{} cannot be read: {}", errors.what, parsed.status().message()),
                  errors.field);
  }
  if constexpr (std::is_same_v<JsonType, Json>) {
    return parsed;
  } else {
    return JsonType(*parsed);  // recursive, but never deep
  }
}

template Result<nlohmann::json> read_json(std::string_view, const JsonErrors&);
template Result<nlohmann::ordered_json> read_json(std::string_view, const JsonErrors&);

}  // namespace warpweave
