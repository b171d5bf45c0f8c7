#include "linear/cuda/cuda_device.h"

namespace warpweave::linear {

std::unique_ptr<LinearAttnKernelBase> make_cuda_linear_kernel(bool wgmma) {
  return std::make_unique<ChunkedLinearKernel>(make_cuda_device(), wgmma);
}

}  // namespace warpweave::linear
