// The backends of the NVIDIA GPU in this machine: each Forward is copied to the device, run there in
// the model's 16-bit type (f32 only where the pool is f32), and copied back. Empty without a usable
// GPU. Only in builds with GPU kernels.
#pragma once

#include <vector>

#include "conformance/variant.h"

namespace warpweave::conformance {

std::vector<Variant> cuda_variants();

}  // namespace warpweave::conformance
