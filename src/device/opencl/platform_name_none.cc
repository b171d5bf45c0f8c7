// Of a build without OpenCL.
#include "device/opencl/platform_name.h"

namespace warpweave::opencl {

std::string platform_name() { return {}; }

}  // namespace warpweave::opencl
