// KvCache (kv/kv_cache.h) in GPU memory: the same shape and the same views, with device pointers.
//
// Not synchronised: copy_tokens() and every kernel that reads or writes go through one stream.
#pragma once

#include "device/cuda/memory.h"
#include "kv/kv_cache.h"

namespace warpweave {

class GpuKvCache {
 public:
  static constexpr size_t kAlignBytes = 256;  // of each layer's part
  // Errors: those of KvCache::create(), and `resource_exhausted` when the memory is not there.
  static Result<GpuKvCache> create(const KvCacheShape& shape, const KvHeadScales& scales = {});

  const KvCacheShape& shape() const { return map_.shape(); }
  int group_of(int layer) const { return shape().group_of(layer); }
  // Bytes of one page over the layers it holds.
  static size_t page_bytes(const KvCacheShape& shape);
  size_t size_bytes() const { return buffer_.size_bytes(); }
  KvPoolView k(int layer) const { return view(layer, 0); }
  KvPoolView v(int layer) const { return view(layer, 1); }

  // Copies `num_tokens` consecutive slots of all layers of a page, in the order of the stream's work.
  Status copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens, void* stream);

 private:
  explicit GpuKvCache(KvMemoryMap map) : map_(std::move(map)) {}
  KvPoolView view(int layer, int side) const;

  KvMemoryMap map_;
  DeviceBuffer buffer_;
  DeviceBuffer head_scales_;  // [2][layers of the model][num_kv_heads] f32, or empty
  bool has_head_scales_[2] = {};
};

}  // namespace warpweave
