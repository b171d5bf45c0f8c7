#include "device/cuda/cuda_device.h"

#include <cstdlib>

#include "device/cuda/cuda_check.h"

namespace warpweave {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The oldest driver that the static runtime in this program can use.
Status check_driver() {
  int driver = 0, runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return Status::unsupported("no NVIDIA driver is installed (libcuda.so.1 was not found); install one, "
                               "or use --device cpu", "--device");
  }
  if (driver / 1000 < runtime / 1000) {
    return Status::unsupported("the NVIDIA driver speaks CUDA " + version_text(driver) +
                               ", this program needs " + std::to_string(runtime / 1000) +
                               ".0 or newer; update the driver, or use --device cpu", "--device");
  }
  return {};
}

// WARPWEAVE_CUDA_ARCHS is a list like "80-real,90a-real". Code for one architecture runs on later ones
// of the same major version, except where it uses what only that one has ("a").
bool has_kernels_for(int compute_capability) {
  const std::string archs = WARPWEAVE_CUDA_ARCHS;
  for (size_t at = 0; at != archs.npos; at = archs.find(',', at)) {
    if (archs[at] == ',') ++at;
    const int arch = std::atoi(archs.c_str() + at);
    const size_t end = archs.find_first_not_of("0123456789", at);
    const bool exact = end != archs.npos && archs[end] == 'a';
    if (exact ? arch == compute_capability
              : arch / 10 == compute_capability / 10 && arch <= compute_capability) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool built_with_cuda() { return true; }

Result<CudaDeviceInfo> probe_cuda_device() {
  WW_RETURN_IF_ERROR(check_driver());
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    const std::string why = error == cudaSuccess ? "none is visible" : cudaGetErrorString(error);
    cudaGetLastError();
    return Status::unsupported("no usable NVIDIA GPU (" + why + "); check nvidia-smi and "
                               "CUDA_VISIBLE_DEVICES, or use --device cpu", "--device");
  }
  cudaDeviceProp properties{};
  CudaDeviceInfo info;
  WW_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, info.ordinal), "reading the GPU's properties");
  WW_CUDA_RETURN_IF_ERROR(cudaSetDevice(info.ordinal), "opening the GPU");
  WW_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&info.free_bytes, &info.total_bytes), "reading the GPU's memory");
  cudaDriverGetVersion(&info.driver_version);
  info.name = properties.name;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.num_sms = properties.multiProcessorCount;
  if (!has_kernels_for(info.compute_capability)) {
    return Status::unsupported(info.name + " has compute capability " + std::to_string(info.compute_capability / 10) +
                                   "." + std::to_string(info.compute_capability % 10) +
                                   ", and this program has kernels for " + WARPWEAVE_CUDA_ARCHS +
                                   "; build it with -DWARPWEAVE_CUDA_ARCHS=" + std::to_string(info.compute_capability) +
                                   "-real, or use --device cpu",
                               "--device");
  }
  return info;
}

}  // namespace warpweave
