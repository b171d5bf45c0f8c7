// What CUDA's own functions are for kernels that run on the host (device/cuda/testing/host_cta.h). Before the kernels' headers.
#pragma once

#include <cmath>

namespace warpweave {
using std::fmaxf;
using std::fminf;
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
}  // namespace warpweave
