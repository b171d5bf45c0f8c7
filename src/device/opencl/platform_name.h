// The OpenCL platform that kernels would run on, for builds with OpenCL and without.
#pragma once

#include <string>

namespace warpweave::opencl {

// Of the first device, "Portable Computing Language" for one; empty where there is none.
std::string platform_name();

}  // namespace warpweave::opencl
