// Who merges the pieces that the mma.sync kernel leaves of a unit.
#pragma once

#include "attention/cuda/mla/mla_params.h"

namespace warpweave::cuda {

// Whether the CTA that writes a unit's last piece does, in place of a kernel: of 16-bit tokens, where requests are one
// unit of 16 rows and at least half as many as the workers, so that a unit is in one or two pieces.
inline bool sm80_mla_merges(MlaFormat format, const MlaParams& p, int num_workers) {
  const int nearly_all = num_workers - num_workers / 16;
  return format == MlaFormat::same16 && p.max_q_len * p.num_heads <= 16 && 2 * p.num_requests >= nearly_all;
}

}  // namespace warpweave::cuda
