// Python's two ways to fill in text: "..." % values and "...".format(values).
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace warpweave::jinja {

// `values` is a tuple, a mapping for %(name)s, or the one value itself.
Value percent_format(Runtime& runtime, std::string_view pattern, const Value& values);
Value brace_format(Runtime& runtime, std::string_view pattern, const CallArgs& args);

}  // namespace warpweave::jinja
