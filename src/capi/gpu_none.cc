#include "capi/gpu.h"
#include "device/cuda/cuda_device.h"

namespace warpweave::capi {

struct GpuArrays::Memory {};

GpuArrays::GpuArrays() = default;
GpuArrays::~GpuArrays() = default;

Result<HardwareFacts> gpu_hardware_facts() { return probe_cuda_device().status(); }

Status GpuArrays::upload(ForwardBatch&, void*) {
  return Status::unsupported("this library was built without GPU kernels", "device");
}

}  // namespace warpweave::capi
