// The gated short convolution on the current NVIDIA GPU. Only for builds with GPU kernels.
#pragma once

#include "linear/short_conv.h"

namespace warpweave::linear {

// Enqueues a call that check_short_conv_call() takes; rows and outputs are f32, bf16 or f16. A request's bits do not depend
// on the batch.
void launch_short_conv(const ShortConvCall& call);

}  // namespace warpweave::linear
