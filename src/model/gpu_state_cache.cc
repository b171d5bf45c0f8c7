#include "model/gpu_state_cache.h"

#include <cassert>

#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"

namespace warpweave {
namespace {

constexpr size_t kAlignBytes = 256;

size_t part_bytes(int64_t elements, DType dtype) {
  const size_t bytes = static_cast<size_t>(elements) * dtype_info(dtype).block_bytes;
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

}  // namespace

GpuStateCache::GpuStateCache(const StateCacheShape& shape)
    : shape_(shape),
      recurrent_bytes_(part_bytes(shape.recurrent_elements, shape.recurrent_dtype)),
      layer_bytes_(recurrent_bytes_ + part_bytes(shape.conv_elements, shape.conv_dtype)) {}

Result<GpuStateCache> GpuStateCache::create(const StateCacheShape& shape) {
  WW_RETURN_IF_ERROR(check_state_shape(shape));
  GpuStateCache out(shape);
  WW_ASSIGN_OR_RETURN(out.buffer_, DeviceBuffer::allocate(out.layer_bytes_ * shape.num_layers * shape.num_slots,
                                                          "states of recurrent layers; lower --max-mamba-cache-size"));
  return out;
}

StateLayerView GpuStateCache::view(size_t offset_bytes, DType dtype) const {
  const auto slot_bytes = static_cast<int64_t>(layer_bytes_ * shape_.num_layers);
  return {buffer_.as<std::byte>() + offset_bytes, dtype,
          slot_bytes / static_cast<int64_t>(dtype_info(dtype).block_bytes)};
}

StateLayerView GpuStateCache::recurrent(int layer) const {
  assert(layer >= 0 && layer < shape_.num_layers);
  return view(layer * layer_bytes_, shape_.recurrent_dtype);
}

StateLayerView GpuStateCache::conv(int layer) const {
  assert(layer >= 0 && layer < shape_.num_layers);
  return view(layer * layer_bytes_ + recurrent_bytes_, shape_.conv_dtype);
}

Status GpuStateCache::copy(std::span<const StateCopy> copies, void* stream) {
  const size_t slot_bytes = layer_bytes_ * shape_.num_layers;
  for (const StateCopy& each : copies) {
    assert(each.from >= 0 && each.from < shape_.num_slots && each.to >= 0 && each.to < shape_.num_slots);
    WW_RETURN_IF_ERROR(copy_async(buffer_.as<std::byte>() + each.to * slot_bytes,
                                  buffer_.as<std::byte>() + each.from * slot_bytes, slot_bytes, stream,
                                  "copying states"));
  }
  return {};
}

}  // namespace warpweave
