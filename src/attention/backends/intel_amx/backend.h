// The CPU backend. Results of a row depend only on that row's q and on the K/V it sees: bitwise
// equal whatever else is in the batch, however the prompt was chunked, in extend and in decode, for
// any number of threads and any page size (per tier; see Caps::deterministic).
//
// bf16 pools on the AVX512-BF16 and AMX tiers multiply bf16: q and the probabilities are rounded to
// bf16, sums are f32. Every other combination computes in f32.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "device/cpu/cpu_info.h"

namespace warpweave::intel_amx {

std::unique_ptr<AttentionBackend> create(const BackendContext& context);

std::unique_ptr<AttentionBackend> create_mla(const BackendContext& context);

// For tests: a given tier, which this CPU must have. `kind`: whose Caps it tells, mha or mla.
std::unique_ptr<AttentionBackend> create_for_tier(const BackendContext& context, CpuTier tier,
                                                  AttentionKind kind = AttentionKind::mha);

}  // namespace warpweave::intel_amx
