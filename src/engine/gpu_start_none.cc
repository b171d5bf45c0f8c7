// GPU serving in a program built without GPU kernels: resolve_device() never asks for it.
#include "engine/start_device.h"

namespace warpweave {

Result<StartedDevice> start_gpu(const DeviceSetup&, const GpuChoice&) {
  return Status::unsupported("this program was built without GPU kernels", "--device");
}

Result<AdapterMemory> gpu_adapter_memory(const ServerArgs&, const ModelConfig&, DType) { return AdapterMemory(); }

}  // namespace warpweave
