// The modifiers that have a name: they expand into ordinary operations.
#pragma once

#include <span>
#include <string_view>

#include "attention/mods/builder.h"

namespace warpweave::mods {

struct NamedModifier {
  std::string_view name;
  std::string_view usage;     // "window(n)"
  int min_arguments = 0;
  int max_arguments = 0;
  bool uses_score = false;    // refused in masks
  Builder::Part (*expand)(Builder& builder, std::span<const Builder::Part> arguments);
};

std::span<const NamedModifier> named_modifiers();
const NamedModifier* find_named_modifier(std::string_view name);

}  // namespace warpweave::mods
