// Template source to its tree. Throws jinja::Error with the line for anything jinja2 would refuse,
// and for what chat templates have no use of: include, import, extends, block, recursive loops.
#pragma once

#include <memory>
#include <string>

#include "text/jinja/ast.h"

namespace warpweave::jinja {

inline constexpr size_t kMaxTemplateBytes = 1u << 20;
inline constexpr int kMaxNesting = 200;  // of expressions and of blocks
inline constexpr size_t kMaxParameters = 255;  // of a macro, as Python once had it

std::shared_ptr<const Template> parse_template(std::string source);

}  // namespace warpweave::jinja
