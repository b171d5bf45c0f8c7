// flex_attention on the CPU. See docs/flex-attention.md for the modifiers and README.md for the parts.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "attention/mods/expression.h"
#include "device/cpu/cpu_info.h"

namespace warpweave::flex_attention {

// With the context's modifiers; create_mla: for latent attention.
std::unique_ptr<AttentionBackend> create(const BackendContext& context);
std::unique_ptr<AttentionBackend> create_mla(const BackendContext& context);

// For tests: a given tier, which this CPU must have, and modifiers; `kind`: mha or mla.
std::unique_ptr<AttentionBackend> create_for_tier(const BackendContext& context, CpuTier tier,
                                                  const mods::Modifiers& modifiers,
                                                  AttentionKind kind = AttentionKind::mha);

}  // namespace warpweave::flex_attention
