#include "model/gpu_kv_cache.h"

#include "device/cuda/cuda_check.h"

namespace warpweave {
namespace {

constexpr size_t kAlignBytes = 256;

size_t align_up(size_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

}  // namespace

Result<GpuKvCache> GpuKvCache::create(const KvCacheShape& shape, const KvHeadScales& scales) {
  // The checks of the host's cache, which reserves address space and no memory.
  WW_ASSIGN_OR_RETURN(const KvCache checked, KvCache::create(shape, scales));
  GpuKvCache out;
  out.shape_ = shape;
  const size_t slots = static_cast<size_t>(shape.num_pages) * shape.page_size;
  for (int i = 0; i < 2; ++i) {
    Side& side = out.sides_[i];
    side.head_dim = i == 0 ? shape.k_head_dim : shape.v_head_dim;
    const size_t elements = static_cast<size_t>(shape.num_kv_heads) * side.head_dim;
    side.token_bytes = elements * kv_format_bits(shape.format) / 8;
    side.token_scale_bytes = shape.format == KvFormat::fp4_e2m1 ? elements / kFp4BlockElements : 0;
    side.offset = out.layer_bytes_;
    side.scale_offset = side.offset + align_up(slots * side.token_bytes);
    out.layer_bytes_ = side.scale_offset + align_up(slots * side.token_scale_bytes);
  }
  WW_ASSIGN_OR_RETURN(out.buffer_, DeviceBuffer::allocate(out.layer_bytes_ * shape.num_layers, "the KV cache"));
  if (kv_format_bits(shape.format) >= 16) return out;
  const size_t side_bytes = sizeof(float) * shape.num_layers * shape.num_kv_heads;
  WW_ASSIGN_OR_RETURN(out.head_scales_, DeviceBuffer::allocate(2 * side_bytes, "the KV cache's scales"));
  for (int i = 0; i < 2; ++i) {
    const std::vector<float>& values = i == 0 ? scales.k : scales.v;
    out.has_head_scales_[i] = !values.empty();
    if (values.empty()) continue;
    WW_CUDA_RETURN_IF_ERROR(cudaMemcpy(out.head_scales_.as<std::byte>() + i * side_bytes, values.data(), side_bytes,
                                       cudaMemcpyHostToDevice),
                            "uploading the KV cache's scales");
  }
  return out;
}

KvPoolView GpuKvCache::view(int layer, int index) const {
  const Side& side = sides_[index];
  const std::byte* base = buffer_.as<std::byte>() + layer * layer_bytes_;
  KvPoolView view;
  view.data = base + side.offset;
  view.format = shape_.format;
  view.head_stride = side.head_dim;
  view.token_stride = int64_t{shape_.num_kv_heads} * side.head_dim;
  view.page_stride = shape_.page_size * view.token_stride;
  if (side.token_scale_bytes > 0) view.block_scales = reinterpret_cast<const uint8_t*>(base + side.scale_offset);
  if (has_head_scales_[index]) {
    view.head_scales = head_scales_.as<float>() + (int64_t{index} * shape_.num_layers + layer) * shape_.num_kv_heads;
  }
  return view;
}

Status GpuKvCache::copy_tokens(int64_t src_slot, int64_t dst_slot, int num_tokens, void* stream) {
  // One strided copy over the layers for each region.
  const auto copy = [&](size_t offset, size_t token_bytes) {
    if (token_bytes == 0) return cudaSuccess;
    std::byte* region = buffer_.as<std::byte>() + offset;
    return cudaMemcpy2DAsync(region + dst_slot * token_bytes, layer_bytes_, region + src_slot * token_bytes,
                             layer_bytes_, num_tokens * token_bytes, shape_.num_layers, cudaMemcpyDeviceToDevice,
                             static_cast<cudaStream_t>(stream));
  };
  for (const Side& side : sides_) {
    WW_CUDA_RETURN_IF_ERROR(copy(side.offset, side.token_bytes), "copying KV pages");
    WW_CUDA_RETURN_IF_ERROR(copy(side.scale_offset, side.token_scale_bytes), "copying KV pages");
  }
  return {};
}

}  // namespace warpweave
