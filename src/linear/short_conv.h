// The gated short convolution that takes attention's place in most layers of LFM2 (Liquid AI 2025). A row [B | C | x]
// has three parts of `channels` values; with a causal convolution per channel over the last `width` rows
//     u = B x        y = C conv(u)
// What it keeps between calls is u of the last width - 1 rows, in slots as LinearAttnConv has them.
//
// Pointers are of the device that runs the call; the innermost dimension is contiguous. Rows and `out` do not overlap.
// Padded rows (LinearAttnBatch::slots -1) read and write no state, their outputs are zeros.
#pragma once

#include "base/threads.h"
#include "linear/linear_attn.h"

namespace warpweave {

// As LinearAttnKernelCaps::checkpoints, on every device.
inline constexpr bool kShortConvLeavesCheckpoints = true;

struct ShortConvCall {
  // decode and extend write the state; target_verify does not; commit takes the accepted path into it. `out` is not the
  // result of a commit, which may still write it.
  LinearAttnPhase phase = LinearAttnPhase::extend;
  const LinearAttnBatch* batch = nullptr;  // with checkpoints in extend alone
  int channels = 0;                        // a multiple of 16
  // x: [tokens, 3 channels]; weight, bias and state are of `channels` channels; silu is false.
  LinearAttnConv conv;
  void* out = nullptr;                     // [tokens, channels], dense
  DType out_dtype = DType::f32;            // f32, bf16 or f16
  void* stream = nullptr;                  // cudaStream_t; null on the CPU
};

// The metadata of a call: `invalid_argument` with the struct's member as field. Reads no tensor; of target_verify and
// commit at most kLinearAttnMaxVerifyNodes rows per request are taken.
Status check_short_conv_call(const ShortConvCall& call);

// On the host: rows and outputs are f32, the state f32 or bf16. A request's bits do not depend on the batch or the
// threads.
void run_short_conv(const ShortConvCall& call, ThreadTeam& team);

}  // namespace warpweave
