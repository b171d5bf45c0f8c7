// The norm behind experts where there are many rows, by bulk copies: what is on its way to a multiprocessor stands in shared
// memory, not in registers. Compute capability 9.0.
#pragma once

#include "ops/cuda/norm_codes.h"

namespace warpweave::gpu {

// As norm_experts_codes(), with the same bits; asks for no weights ahead.
bool norm_experts_bulk_takes(const NormExpertsCall& call);
void norm_experts_bulk(const NormExpertsCodesCall& call, Stream stream);

}  // namespace warpweave::gpu
