#include "model/gpu_kv_cache.h"

#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"

namespace warpweave {

size_t GpuKvCache::page_bytes(const KvCacheShape& shape) { return KvMemoryMap::page_bytes(shape, kAlignBytes); }

Result<GpuKvCache> GpuKvCache::create(const KvCacheShape& shape, const KvHeadScales& scales) {
  // The checks of the host's cache, which reserves address space and no memory.
  WW_ASSIGN_OR_RETURN(const KvCache checked, KvCache::create(shape, scales));
  WW_ASSIGN_OR_RETURN(KvMemoryMap map, KvMemoryMap::create(shape, kAlignBytes));
  GpuKvCache out(std::move(map));
  WW_ASSIGN_OR_RETURN(out.buffer_, DeviceBuffer::allocate(out.map_.size_bytes(), "the KV cache"));
  if (shape.grouped()) {
    // The blank page is read and never written.
    WW_RETURN_IF_ERROR(fill_now(out.buffer_.as<void>(), 0, out.map_.size_bytes(), "clearing the KV cache"));
  }
  if (kv_format_bits(shape.format) >= 16) return out;
  const size_t side_bytes = sizeof(float) * shape.model_layers() * shape.num_kv_heads;
  WW_ASSIGN_OR_RETURN(out.head_scales_, DeviceBuffer::allocate(2 * side_bytes, "the KV cache's scales"));
  for (int i = 0; i < 2; ++i) {
    const std::vector<float>& values = i == 0 ? scales.k : scales.v;
    out.has_head_scales_[i] = !values.empty();
    if (values.empty()) continue;
    WW_RETURN_IF_ERROR(copy_now(out.head_scales_.as<std::byte>() + i * side_bytes, values.data(), side_bytes,
                                "uploading the KV cache's scales"));
  }
  return out;
}

KvPoolView GpuKvCache::view(int layer, int side) const {
  KvPoolView view = map_.view(layer, side, buffer_.as<std::byte>());
  if (has_head_scales_[side]) {
    view.head_scales =
        head_scales_.as<float>() + (int64_t{side} * shape().model_layers() + layer) * shape().num_kv_heads;
  }
  return view;
}

Status GpuKvCache::copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens, void* stream) {
  // One strided copy over the layers for each region.
  const KvMemoryMap::TokenRuns from = map_.token_runs(src_slot), to = map_.token_runs(dst_slot);
  for (int i = 0; i < KvMemoryMap::kRegions; ++i) {
    if (from[i].token_bytes == 0) continue;
    WW_RETURN_IF_ERROR(copy_rows_async({buffer_.as<std::byte>() + to[i].offset, to[i].pitch,
                                        buffer_.as<std::byte>() + from[i].offset, from[i].pitch,
                                        num_tokens * from[i].token_bytes, static_cast<size_t>(from[i].count)},
                                       stream, "copying KV pages"));
  }
  return {};
}

}  // namespace warpweave
