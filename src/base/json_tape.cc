#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "base/json_file.h"

namespace warpweave {

static Status refused(const JsonErrors& errors, std::string_view why) {
  return {errors.code, fmt::format("{} cannot be read: {}", errors.what, why), errors.field};
}

Status read_json_tape(simdjson::dom::parser& parser, std::string_view text, const JsonErrors& errors,
                       simdjson::dom::element& out) {
  const size_t max_depth = JsonLimits{}.max_depth;
  simdjson::error_code error = parser.allocate(std::max<size_t>(text.size(), 1), max_depth);
  // The copy that the library makes has the blanks it wants behind the text.
  if (!error) error = parser.parse(text.data(), text.size(), /*realloc_if_needed=*/true).get(out);
  if (!error) return {};
  if (error == simdjson::DEPTH_ERROR)
    return refused(errors, fmt::format("lists and objects are nested deeper than {}", max_depth));
  if (error == simdjson::MEMALLOC) return refused(errors, "there is not enough memory");
  return refused(errors, fmt::format("it is not valid JSON: {}", simdjson::error_message(error)));
}

}  // namespace warpweave
