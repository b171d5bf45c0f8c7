// The truth that linear attention kernels are held to: the recurrence of linear_attn.h token by token, in scalar code
// that shares nothing with any kernel.
//
// Reads the call's tensors (host memory) and writes nothing to them; the call must have passed check_linear_attn_call
// and check_linear_attn_batch. Slow: (tokens x v_heads x v_dim x k_dim) operations on one thread. No errors.
#pragma once

#include <map>
#include <vector>

#include "linear/linear_attn.h"

namespace warpweave {

struct LinearAttnSlotState {
  std::vector<double> recurrent;  // [v_heads, v_dim, k_dim]
  std::vector<double> conv;       // [conv_channels, width - 1]; empty without a convolution
};

struct LinearAttnTruth {
  // [tokens, v_heads, v_dim]; zeros for padded rows, NaN for rows of no request; empty for commit.
  std::vector<double> out;
  std::map<int, LinearAttnSlotState> slots;  // every slot that the call writes
};

// In f64, nothing rounded but what the stored types round: the state that a call reads.
LinearAttnTruth linear_attn_reference(const LinearAttnCall& call, LinearAttnPhase phase);

// The same recurrence in f32, with state and output rounded to their types where a call stores them. Its distance from
// the reference is the error that the types themselves cost, which bounds the kernels' error.
LinearAttnTruth linear_attn_same_precision(const LinearAttnCall& call, LinearAttnPhase phase);

}  // namespace warpweave
