// What an error of selection proposes: flags near the given ones, and how a user would write them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/select.h"

namespace warpweave {

// "--attention-backend fa3 --page-size 1", or "no attention flags".
std::string flags_text(const AttentionFlags& flags);

// Nearest first: one flag at its default, then another backend (`preferred` ones first), then more
// changes, then everything at its default.
std::vector<AttentionFlags> nearby_flags(const AttentionFlags& flags,
                                         std::span<const std::string_view> preferred,
                                         std::span<const KnownBackend> backends);

}  // namespace warpweave
