// JSON from outside to values, under limits, so that no text can cost much more than its size.
//
// Keys keep their order (chat templates print objects); of equal keys the last one counts. The
// message of a failure names the byte and never repeats unchecked input. Thread-safe.
// Errors: invalid_argument for what is not one JSON value in UTF-8; resource_exhausted where a
// limit is passed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "warpweave/status.h"

namespace warpweave {

using Json = nlohmann::ordered_json;

// Whether `value` is this text. The library's own == makes a value of the text, and ends the process
// where there is no memory for it.
inline bool is_text(const Json& value, std::string_view text) noexcept {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

// Empties `value` from the inside. The library's destructor allocates for every container that is not
// empty, and where that fails the process ends; for values of outside's size, call this first.
void dismantle(Json& value) noexcept;

// A value that is dismantled at its end.
struct OwnedJson {
  Json value;
  OwnedJson() = default;
  explicit OwnedJson(Json owned) : value(std::move(owned)) {}
  OwnedJson(OwnedJson&& other) noexcept : value(std::move(other.value)) {}
  OwnedJson& operator=(OwnedJson&& other) noexcept {
    value.swap(other.value);
    return *this;
  }
  ~OwnedJson() { dismantle(value); }
};

struct JsonLimits {
  size_t max_depth = 64;                // nested lists and objects
  // Of the whole text, in units of about 16 bytes of memory: a number, true, false or null is one,
  // a string kJsonStringValues, a list or object kJsonContainerValues.
  size_t max_values = size_t{1} << 22;
  size_t max_members = size_t{1} << 14; // of one object
};
inline constexpr size_t kJsonStringValues = 3;
inline constexpr size_t kJsonContainerValues = 4;

// `used_values`, when given, gets what the text cost of max_values.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {},
                        size_t* used_values = nullptr);

}  // namespace warpweave
