// What GpuExperts counted, read from GPU memory on a stream of its own: no step waits for it, and it waits for none.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "model/gpu_decoder.h"
#include "warpweave/engine.h"

namespace warpweave {

class GpuExpertLoad {
 public:
  // `model` outlives this. Null: it has no experts, or does not count.
  static Result<std::unique_ptr<GpuExpertLoad>> create(const GpuDecoder& model);
  // As ExpertLoad::summary(), of the routed experts. Any thread; empty where the GPU has failed.
  std::vector<ExpertLayerLoad> summary();

 private:
  explicit GpuExpertLoad(const GpuDecoder& model) : model_(model) {}

  const GpuDecoder& model_;
  std::mutex mutex_;  // of all that follows
  CudaStream stream_;
  PinnedBuffer counts_;  // [layers, experts counted]
};

}  // namespace warpweave
