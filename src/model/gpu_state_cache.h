// StateCache (kv/state_cache.h) in GPU memory: the same shape and views, but a slot's states of all layers stand
// together, so that copying one is a single copy.
//
// Not synchronised: copy() and every kernel that reads or writes go through one stream.
#pragma once

#include <span>

#include "device/cuda/memory.h"
#include "kv/state_cache.h"

namespace warpweave {

class GpuStateCache {
 public:
  // Errors: those of check_state_shape(), and `resource_exhausted` when the memory is not there.
  static Result<GpuStateCache> create(const StateCacheShape& shape);

  const StateCacheShape& shape() const { return shape_; }
  size_t size_bytes() const { return buffer_.size_bytes(); }
  StateLayerView recurrent(int layer) const;
  StateLayerView conv(int layer) const;

  // All layers of each slot, in the order of the stream's work.
  Status copy(std::span<const StateCopy> copies, void* stream);

 private:
  explicit GpuStateCache(const StateCacheShape& shape);
  StateLayerView view(size_t offset_bytes, DType dtype) const;

  StateCacheShape shape_;
  DeviceBuffer buffer_;          // [slots][layers][recurrent | conv], each part 256-byte aligned
  size_t recurrent_bytes_ = 0;   // of a layer
  size_t layer_bytes_ = 0;       // of both parts
};

}  // namespace warpweave
