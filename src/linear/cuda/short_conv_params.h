// A ShortConvCall as the kernels' parameters (short_conv.cuh), for whatever runs them.
#pragma once

#include "linear/cuda/rows.h"
#include "linear/short_conv.h"

namespace warpweave::linear {

inline RowsParams short_conv_params(const ShortConvCall& call) {
  const bool commits = call.phase == LinearAttnPhase::commit;
  RowsParams p;
  p.linear.batch = *call.batch;
  if (!commits) p.linear.batch.accepted = nullptr;
  p.has_conv = true;
  p.conv = call.conv;
  const int64_t part_bytes = call.channels * static_cast<int64_t>(dtype_info(call.conv.x.dtype).block_bytes);
  p.conv.x.data = static_cast<const std::byte*>(call.conv.x.data) + 2 * part_bytes;
  p.writes_conv_state = call.phase != LinearAttnPhase::target_verify;
  p.channels = call.channels;
  p.packed = call.out;
  p.packed_dtype = call.out_dtype;
  p.blocks = static_cast<int>(call.batch->num_tokens / kChunk) + call.batch->num_requests;
  return p;
}

}  // namespace warpweave::linear
