#include "kv/state_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace warpweave {
namespace {

constexpr size_t kAlignBytes = 256;
constexpr size_t kHugeLayerBytes = size_t{4} << 20;

size_t align_up(size_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }
size_t bytes_of(int64_t elements, DType dtype) { return static_cast<size_t>(elements) * dtype_info(dtype).block_bytes; }

}  // namespace

Status check_state_shape(const StateCacheShape& shape) {
  const auto is_state = [](DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; };
  if (shape.num_layers < 1 || shape.num_slots < 1 || shape.recurrent_elements < 0 || shape.conv_elements < 0 ||
      shape.recurrent_elements + shape.conv_elements == 0) {
    return Status::invalid_argument("a state cache needs at least one layer, one slot and one element");
  }
  if (!is_state(shape.recurrent_dtype) || !is_state(shape.conv_dtype)) {
    return Status::invalid_argument("states are kept as float32 or bfloat16", "--mamba-ssm-dtype");
  }
  // 2^47 bytes is all the address space there is; below it the sums in the layout cannot overflow.
  const __int128 total = static_cast<__int128>(shape.recurrent_elements + shape.conv_elements) * 4 * shape.num_slots *
                         shape.num_layers;
  if (shape.recurrent_elements > (int64_t{1} << 40) || shape.conv_elements > (int64_t{1} << 40) ||
      total >= (static_cast<__int128>(1) << 47)) {
    return Status::invalid_argument("a state cache of " + std::to_string(shape.num_slots) +
                                        " slots does not fit in the address space; lower --max-mamba-cache-size",
                                    "--max-mamba-cache-size");
  }
  return {};
}

size_t StateCache::bytes_per_slot(const StateCacheShape& shape) {
  return (bytes_of(shape.recurrent_elements, shape.recurrent_dtype) + bytes_of(shape.conv_elements, shape.conv_dtype)) *
         shape.num_layers;
}

Result<StateCache> StateCache::create(const StateCacheShape& shape) {
  WW_RETURN_IF_ERROR(check_state_shape(shape));
  StateCache cache(shape);
  void* base =
      mmap(nullptr, cache.size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Status::resource_exhausted("cannot reserve " + std::to_string(cache.size_bytes_) + " bytes for states (" +
                                      std::strerror(errno) + "); lower --max-mamba-cache-size");
  }
  cache.base_ = static_cast<std::byte*>(base);
  if (cache.layer_bytes_ >= kHugeLayerBytes) madvise(base, cache.size_bytes_, MADV_HUGEPAGE);
  return cache;
}

StateCache::StateCache(const StateCacheShape& shape) : shape_(shape) {
  recurrent_slot_bytes_ = bytes_of(shape.recurrent_elements, shape.recurrent_dtype);
  conv_slot_bytes_ = bytes_of(shape.conv_elements, shape.conv_dtype);
  conv_offset_ = align_up(recurrent_slot_bytes_ * shape.num_slots);
  layer_bytes_ = conv_offset_ + align_up(conv_slot_bytes_ * shape.num_slots);
  size_bytes_ = layer_bytes_ * shape.num_layers;
}

StateCache::StateCache(StateCache&& other) noexcept { *this = std::move(other); }

StateCache& StateCache::operator=(StateCache&& other) noexcept {
  std::swap(shape_, other.shape_);
  std::swap(base_, other.base_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(layer_bytes_, other.layer_bytes_);
  std::swap(conv_offset_, other.conv_offset_);
  std::swap(recurrent_slot_bytes_, other.recurrent_slot_bytes_);
  std::swap(conv_slot_bytes_, other.conv_slot_bytes_);
  return *this;
}

StateCache::~StateCache() {
  if (base_ != nullptr) munmap(base_, size_bytes_);
}

StateLayerView StateCache::recurrent(int layer) const {
  assert(layer >= 0 && layer < shape_.num_layers);
  return {base_ + layer * layer_bytes_, shape_.recurrent_dtype, shape_.recurrent_elements};
}

StateLayerView StateCache::conv(int layer) const {
  assert(layer >= 0 && layer < shape_.num_layers);
  return {base_ + layer * layer_bytes_ + conv_offset_, shape_.conv_dtype, shape_.conv_elements};
}

template <typename Visit>
void StateCache::each_part(int32_t slot, Visit visit) const {
  assert(slot >= 0 && slot < shape_.num_slots);
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    std::byte* start = base_ + layer * layer_bytes_;
    visit(start + slot * recurrent_slot_bytes_, recurrent_slot_bytes_);
    visit(start + conv_offset_ + slot * conv_slot_bytes_, conv_slot_bytes_);
  }
}

void StateCache::copy(const StateCopy& copy) {
  assert(copy.from >= 0 && copy.from < shape_.num_slots && copy.from != copy.to);
  const auto distance = static_cast<int64_t>(copy.from) - copy.to;
  each_part(copy.to, [&](std::byte* to, size_t bytes) {
    std::memcpy(to, to + distance * static_cast<int64_t>(bytes), bytes);
  });
}

void StateCache::copy(std::span<const StateCopy> copies) {
  for (const StateCopy& each : copies) copy(each);
}

void StateCache::clear(int32_t slot) { fill(slot, std::byte{0}); }

void StateCache::fill(int32_t slot, std::byte value) {
  each_part(slot, [value](std::byte* at, size_t bytes) { std::memset(at, static_cast<int>(value), bytes); });
}

bool StateCache::is_filled(int32_t slot, std::byte value) const {
  bool filled = true;
  each_part(slot, [&](const std::byte* at, size_t bytes) {
    filled = filled && std::all_of(at, at + bytes, [value](std::byte b) { return b == value; });
  });
  return filled;
}

}  // namespace warpweave
