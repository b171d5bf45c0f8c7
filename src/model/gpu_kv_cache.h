// KvCache (kv/kv_cache.h) in GPU memory: the same shape and the same views, with device pointers.
//
// Not synchronised: copy_tokens() and every kernel that reads or writes go through one stream.
#pragma once

#include "device/cuda/memory.h"
#include "kv/kv_cache.h"

namespace warpweave {

class GpuKvCache {
 public:
  // Errors: those of KvCache::create(), and `resource_exhausted` when the memory is not there.
  static Result<GpuKvCache> create(const KvCacheShape& shape, const KvHeadScales& scales = {});

  const KvCacheShape& shape() const { return shape_; }
  size_t size_bytes() const { return buffer_.size_bytes(); }
  KvPoolView k(int layer) const { return view(layer, 0); }
  KvPoolView v(int layer) const { return view(layer, 1); }

  // Copies `num_tokens` consecutive slots of every layer, in the order of the stream's work.
  Status copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens, void* stream);

 private:
  struct Side {  // K or V of one layer
    int head_dim = 0;
    size_t token_bytes = 0, token_scale_bytes = 0;
    size_t offset = 0, scale_offset = 0;
  };
  KvPoolView view(int layer, int side) const;

  KvCacheShape shape_;
  Side sides_[2];
  size_t layer_bytes_ = 0;
  DeviceBuffer buffer_;
  DeviceBuffer head_scales_;  // [2][num_layers][num_kv_heads] f32, or empty
  bool has_head_scales_[2] = {};
};

}  // namespace warpweave
