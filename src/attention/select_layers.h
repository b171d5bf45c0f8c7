// The layers that --attention-backend does not choose for: the kernels inside sparse attention, the
// GDN and KDA layers of hybrid models, and the vision tower. Each has its flags, its table of names
// and its rules; all resolve into the same Resolved, with reasons.
#pragma once

#include <span>
#include <string_view>

#include "attention/select_rules.h"

namespace warpweave {

// `unsupported` or `invalid_argument` with the flag as field. Needs resolved.kv_format and
// resolved.speculation.
Status resolve_sparse_layers(const SelectionInput& input, const AttentionFlags& flags,
                             Resolved& resolved);
Status resolve_linear_layers(const SelectionInput& input, const AttentionFlags& flags,
                             Resolved& resolved);
Status resolve_vision_tower(const SelectionInput& input, const AttentionFlags& flags,
                            Resolved& resolved);

std::span<const std::string_view> nsa_backend_names();
std::span<const std::string_view> linear_backend_names();
std::span<const std::string_view> mm_backend_names();

}  // namespace warpweave
