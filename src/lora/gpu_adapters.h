// The adapters of a server in GPU memory: a table that the layers' kernels read (ops/cuda/lora.h), with a slot for each
// adapter that is loaded.
//
// An adapter's matrices are one allocation, ranks filled up with zeros to what the kernels take at once. They and the
// slot are free when the adapter is let go of; freeing waits for the GPU, so that no kernel still reads them.
// Thread-safe. Only for builds with GPU kernels.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "lora/load_adapter.h"
#include "ops/cuda/lora.h"

namespace warpweave {

struct GpuAdaptersOptions {
  int max_rank = 0;
  int max_loaded = 0;
  DType dtype = DType::bf16;     // of activations and matrices
};

class GpuAdapters : public std::enable_shared_from_this<GpuAdapters> {
 public:
  // `unsupported` for widths that the kernels do not take, `resource_exhausted` for a full GPU.
  static Result<std::shared_ptr<GpuAdapters>> create(const LoraTargets& targets, const GpuAdaptersOptions& options);

  // What the model's layers read; as long as this.
  const gpu::LoraModel& model() const { return model_; }
  // For one adapter. The adapter keeps this alive.
  std::unique_ptr<LoraPlacer> placer();

 private:
  friend class GpuPlacer;
  friend class GpuAdapter;
  GpuAdapters(const LoraTargets& targets, const GpuAdaptersOptions& options);

  Result<int> take_slot();
  void give_back(int slot);
  // Into the slot's row of the table, when the matrices are there.
  Status publish(int slot, const std::vector<gpu::LoraSiteWeights>& sites);
  Status copy(void* to, const void* from, size_t size_bytes) const;

  const GpuAdaptersOptions options_;
  gpu::LoraModel model_;
  DeviceBuffer table_;           // [max_loaded, layers, kLoraSites]
  DeviceBuffer counters_;        // LoraModel::counters
  CudaStream stream_;            // of copies
  std::mutex mutex_;             // guards what follows
  std::condition_variable slot_freed_;
  std::vector<int> free_slots_;
};

}  // namespace warpweave
