// The families of the NVIDIA GPU in this machine. Only in builds with GPU kernels.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "attention/select.h"
#include "linear/dispatch.h"

namespace warpweave::testing_linear {

struct CudaLinearFamily {
  const LinearAttnKernelCaps* caps = nullptr;
  std::function<std::unique_ptr<LinearAttnKernelBase>(bool captured)> create;
};
struct CudaLinearFamilies {
  HardwareFacts hardware;
  std::vector<LinearAttnBackend> backends;
  std::vector<CudaLinearFamily> families;  // each caps of `backends` once
};

// Nothing without a usable GPU.
std::optional<CudaLinearFamilies> cuda_linear_families();

}  // namespace warpweave::testing_linear
