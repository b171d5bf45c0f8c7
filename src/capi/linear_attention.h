// Linear attention over the caller's tensors and states: ww_linear_attention.
#pragma once

#include "capi/context.h"
#include "linear/linear_attn.h"
#include "warpweave/c.h"

namespace warpweave::capi {

Status linear_attention(Context& context, const ww_linear_args& args);

// The same call with its tensors on the GPU and the arrays of its batch on the host, enqueued on call.stream:
// linear_gpu.cc, in builds with GPU kernels.
Status linear_attention_on_gpu(const LinearAttnCall& call);

}  // namespace warpweave::capi
