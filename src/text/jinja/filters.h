// The two halves of the filter table, joined by find_filter() in filters.cc.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/ast.h"

namespace warpweave::jinja {

FilterFunction find_text_filter(std::string_view name);
FilterFunction find_sequence_filter(std::string_view name);
std::vector<std::string_view> filter_names();  // of both halves, for tests
std::vector<std::string_view> sequence_filter_names();

}  // namespace warpweave::jinja
