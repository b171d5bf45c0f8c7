// The methods of str, list, tuple, dict and float that a template may call. Those that would change
// a value in place do not exist here.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace warpweave::jinja {

using Method = Value (*)(Runtime&, const Value& self, const CallArgs& args);

// Null when values of this kind have no such method.
Method find_method(const Value& self, std::string_view name);

std::vector<std::string_view> method_names();  // of all kinds, for tests

// Shared with the filters of the same name. `count` < 0 replaces all.
Value replace_text(Runtime& runtime, std::string_view text, std::string_view from,
                   std::string_view to, int64_t count);
enum class Align { left, right, center };
// Pads to `width` characters as str.ljust, rjust and center do.
Value pad_text(Runtime& runtime, std::string_view text, int64_t width, std::string_view fill,
               Align align);
Value dict_items(Runtime& runtime, const Value& dict);

}  // namespace warpweave::jinja
