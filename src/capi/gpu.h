// What plans on a GPU need beside the CPU's: the device as facts, and a batch's arrays in its
// memory. gpu.cc in builds with GPU kernels, else gpu_none.cc, which refuses.
#pragma once

#include <memory>

#include "attention/select.h"
#include "batch/forward_batch.h"

namespace warpweave::capi {

// `unsupported`, in words, where there is no GPU that this library has kernels for.
Result<HardwareFacts> gpu_hardware_facts();

class GpuArrays {
 public:
  GpuArrays();
  ~GpuArrays();

  // Copies the batch's host arrays on `stream` and points batch.device at the copies, which live as
  // long as this object and until the next upload. The host arrays may change when this returns.
  Status upload(ForwardBatch& batch, void* stream);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace warpweave::capi
