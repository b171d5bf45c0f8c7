// Values from JSON and back: the variables of a rendering, and json.dumps as the tojson filter.
#pragma once

#include <nlohmann/json.hpp>

#include "text/jinja/runtime.h"

namespace warpweave::jinja {

// Throws when the document nests deeper than kMaxValueDepth; of equal keys the last one counts.
Value from_json(Runtime& runtime, const nlohmann::ordered_json& json);

struct JsonStyle {
  std::string indent;  // of one level
  bool pretty = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};

Value to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace warpweave::jinja
