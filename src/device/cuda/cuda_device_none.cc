// The GPU's facts in a program built without GPU kernels.
#include "device/cuda/cuda_device.h"

namespace warpweave {

bool built_with_cuda() { return false; }

Result<CudaDeviceInfo> probe_cuda_device() {
  return Status::unsupported("this program was built without GPU kernels; build it where nvcc is "
                             "installed, or use --device cpu", "--device");
}

}  // namespace warpweave
