// dual_chunk_flash_attn on the CPU: AttentionCall::dual_chunk says which form of a query meets which
// keys; without it this is ordinary causal attention. See docs/dual-chunk.md.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "device/cpu/cpu_info.h"

namespace warpweave::dual_chunk_flash_attn {

std::unique_ptr<AttentionBackend> create(const BackendContext& context);

// For tests: a given tier, which this CPU must have.
std::unique_ptr<AttentionBackend> create_for_tier(const BackendContext& context, CpuTier tier);

}  // namespace warpweave::dual_chunk_flash_attn
