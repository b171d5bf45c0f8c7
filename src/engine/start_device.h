// From a selected configuration to a device that runs steps: weights, KV pool, attention backend.
// Which device it is was decided before (resolve_device); everything refusable was refused.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "attention/select.h"
#include "device/cuda/cuda_device.h"
#include "engine/device_runner.h"
#include "engine/engine_impl.h"
#include "kv/kv_cache.h"
#include "kv/state_cache.h"
#include "linear/dispatch.h"
#include "lora/load_adapter.h"
#include "model/model_bundle.h"

namespace warpweave {

// Where adapters are loaded to.
class GpuAdapters;
struct AdapterMemory {
  std::shared_ptr<GpuAdapters> gpu;                     // null: on the host, or nowhere
  std::function<std::unique_ptr<LoraPlacer>()> placer;  // LoraRegistryOptions::placer
};
// On the GPU, where a flag asks for adapters.
Result<AdapterMemory> gpu_adapter_memory(const ServerArgs& args, const ModelConfig& config, DType dtype);

struct DeviceSetup {
  const EngineOptions& options;
  ModelBundle& bundle;          // its weights are taken
  const ServePlan& plan;
  SchedulerConfig& scheduler;   // start_* sets its pages and state_*, and may lower max_running_requests and
                                // chunked_prefill_size
  std::shared_ptr<GpuAdapters> adapters = nullptr;
};

struct StartedDevice {
  std::unique_ptr<DeviceRunner> runner;
  std::string description;      // "cpu: AMD EPYC, avx512_bf16, 2 threads"
  size_t weight_bytes = 0;
  size_t kv_cache_bytes = 0;
};

// --device: the GPU for cuda, and for auto where one is usable; nullopt for the CPU. `unsupported`
// when a GPU was asked for and there is none.
struct GpuChoice {
  CudaDeviceInfo info;
  HardwareFacts facts;
};
Result<std::optional<GpuChoice>> resolve_device(const std::string& flag);

Result<StartedDevice> start_cpu(const DeviceSetup& setup);
Result<StartedDevice> start_gpu(const DeviceSetup& setup, const GpuChoice& gpu);

KvCacheShape kv_cache_shape(const DeviceSetup& setup);  // num_pages from the scheduler's

// Of recurrent layers: as many states as `pool_bytes` for them and the KV pool allow. The scheduler's configuration
// then says how many, and whether the plan's kernels, of the device's `backends`, leave checkpoints on their way.
Result<StateCacheShape> size_states(const DeviceSetup& setup, double pool_bytes,
                                    std::span<const LinearAttnBackend> backends);

}  // namespace warpweave
