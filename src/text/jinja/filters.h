// The two halves of the filter table, joined by find_filter() in filters.cc.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace warpweave::jinja {

FilterFunction find_text_filter(std::string_view name);
FilterFunction find_sequence_filter(std::string_view name);

}  // namespace warpweave::jinja
