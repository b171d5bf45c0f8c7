// StateCache: the memory behind the slots of a StatePool, on the host: per layer the recurrent states
// [slots, recurrent_elements] and the windows of short convolutions [slots, conv_elements], each dense.
//
// Memory is reserved at create() and committed when a slot is first written. Not synchronised: different slots may be
// written in parallel, a slot has one writer. Errors: create() refuses shapes without any state, overflowing ones,
// types other than f32 and bf16, and failed reservations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/state_pool.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

struct StateCacheShape {
  int num_layers = 0;              // with such a state; all alike
  int num_slots = 0;
  int64_t recurrent_elements = 0;  // v_heads x v_dim x k_dim; 0: a convolution alone
  int64_t conv_elements = 0;       // channels x (width - 1); 0: none
  DType recurrent_dtype = DType::f32;
  DType conv_dtype = DType::f32;
};

// Refuses what create() does, but for reservations that fail.
Status check_state_shape(const StateCacheShape& shape);

// One layer's part of every slot; `slot_stride` in elements.
struct StateLayerView {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t slot_stride = 0;
};

class StateCache {
 public:
  static Result<StateCache> create(const StateCacheShape& shape);
  // Bytes that one slot takes over all layers; what sizing a pool by memory needs.
  static size_t bytes_per_slot(const StateCacheShape& shape);

  StateCache(StateCache&& other) noexcept;
  StateCache& operator=(StateCache&& other) noexcept;
  ~StateCache();

  const StateCacheShape& shape() const { return shape_; }
  size_t size_bytes() const { return size_bytes_; }

  StateLayerView recurrent(int layer) const;
  StateLayerView conv(int layer) const;

  // All layers of a slot.
  void copy(const StateCopy& copy);
  void copy(std::span<const StateCopy> copies);
  void clear(int32_t slot);

  // Every byte of a slot, in all layers: what was left in a free slot must not be read, nor written.
  void fill(int32_t slot, std::byte value);
  bool is_filled(int32_t slot, std::byte value) const;

 private:
  explicit StateCache(const StateCacheShape& shape);
  // Calls visit(bytes of the slot in one layer, their count) for both parts of every layer.
  template <typename Visit>
  void each_part(int32_t slot, Visit visit) const;

  StateCacheShape shape_;
  std::byte* base_ = nullptr;
  size_t size_bytes_ = 0;
  size_t layer_bytes_ = 0;
  size_t conv_offset_ = 0;         // within a layer
  size_t recurrent_slot_bytes_ = 0, conv_slot_bytes_ = 0;
};

}  // namespace warpweave
