#include "device/opencl/platform_name.h"

#include "device/opencl/opencl_device.h"

namespace warpweave::opencl {

std::string platform_name() {
  const auto all = devices();
  return all.ok() && !all->empty() ? all->front().platform : "";
}

}  // namespace warpweave::opencl
