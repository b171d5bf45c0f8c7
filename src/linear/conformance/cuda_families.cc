#include "linear/conformance/cuda_families.h"

#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "linear/cuda/cuda_device.h"
#include "linear/cuda/testing/gpu_adapter.h"

namespace warpweave::testing_linear {

std::optional<CudaLinearFamilies> cuda_linear_families() {
  const Result<CudaDeviceInfo> info = probe_cuda_device();
  if (!info.ok()) return {};
  const std::optional<DeviceArch> arch = arch_of_compute_capability(info->compute_capability);
  if (!arch) return {};
  CudaLinearFamilies all = {{info->name, *arch, info->driver_version}, linear::cuda_linear_attn_backends(), {}};
  for (const LinearAttnBackend& backend : all.backends) {
    const auto same = [&](const CudaLinearFamily& family) { return family.caps == backend.caps; };
    if (std::any_of(all.families.begin(), all.families.end(), same)) continue;
    all.families.push_back({backend.caps, [create = backend.create](bool captured) {
                              return std::make_unique<linear::GpuAdapter>(create(), captured);
                            }});
  }
  return all;
}

}  // namespace warpweave::testing_linear
