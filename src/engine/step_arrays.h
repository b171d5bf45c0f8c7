// Where the arrays of one step stand in a block of memory, the same on the host and on the GPU.
//
// A graph's steps share one shape, so that its kernels find everything at fixed addresses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/memory.h"
#include "ops/lora_tiles.h"
#include "sample/cuda/gpu_sampler.h"

namespace warpweave {

struct StepShape {
  int tokens = 0;
  int requests = 0;
  int logits_rows = 0;
  int samples = 0;
  int groups = 1;  // of the cache
  int mask_words = 0;  // of a token's row of the tree mask
  bool states = false;  // requests have slots of recurrent states
  int checkpoints = 0;  // of those states, that the step leaves on its way
  int max_adapters = 0;  // of the rows; 0: no row has one
  bool placed = false;  // rows stand at three positions (ForwardBatch::rope_positions)
  bool proposals = false;  // every token's row is sampled: of a step that verifies proposals

  // Byte offsets of the arrays, each a multiple of 16.
  size_t input_ids() const { return 0; }
  size_t positions() const { return after(input_ids(), tokens); }
  size_t kv_slots(int group) const {
    return after(positions(), tokens) + group * (after(0, tokens));
  }
  size_t rope_positions() const { return kv_slots(groups); }  // [3, tokens]
  size_t futures() const { return after(rope_positions(), placed ? 3 * tokens : 0); }
  size_t q_indptr() const { return after(futures(), tokens); }
  size_t kv_lens() const { return after(q_indptr(), requests + 1); }
  size_t state_slots() const { return after(kv_lens(), requests); }
  size_t initial_state_slots() const { return after(state_slots(), states ? requests : 0); }
  size_t checkpoint_indptr() const { return after(initial_state_slots(), states ? requests : 0); }
  size_t checkpoint_tokens() const { return after(checkpoint_indptr(), checkpoints > 0 ? requests + 1 : 0); }
  size_t checkpoint_slots() const { return after(checkpoint_tokens(), checkpoints); }
  size_t tree_mask() const { return after(checkpoint_slots(), checkpoints); }
  bool has_parents() const { return states && mask_words > 0; }
  size_t tree_parents() const { return after(tree_mask(), tokens * mask_words); }
  size_t wanted_rows() const { return after(tree_parents(), has_parents() ? tokens : 0); }
  int num_lora_tiles() const { return tiles_of(tokens); }
  int num_logits_lora_tiles() const { return tiles_of(logits_rows); }
  size_t lora_tiles() const { return after(wanted_rows(), logits_rows); }
  size_t logits_lora_tiles() const { return lora_tiles() + sizeof(LoraTile) * static_cast<size_t>(num_lora_tiles()); }
  size_t lora_places() const {
    return logits_lora_tiles() + sizeof(LoraTile) * static_cast<size_t>(num_logits_lora_tiles());
  }
  size_t logits_lora_places() const { return after(lora_places(), max_adapters > 0 ? tokens : 0); }
  size_t guesses() const { return after(logits_lora_places(), max_adapters > 0 ? logits_rows : 0); }
  size_t sample_rows() const { return after(guesses(), proposals ? tokens : 0); }
  size_t size_bytes() const { return sample_rows() + sizeof(gpu::SampleRowParams) * static_cast<size_t>(samples); }

 private:
  int tiles_of(int rows) const { return max_adapters > 0 ? max_lora_tiles(rows, max_adapters) : 0; }
  static size_t after(size_t offset, int count) { return offset + (static_cast<size_t>(count) * 4 + 15) / 16 * 16; }
};
static_assert(sizeof(gpu::SampleRowParams) % 16 == 0 && sizeof(LoraTile) % 16 == 0);

// An array of a step in the GPU's block.
template <typename T>
const T* device_array(const DeviceBuffer& block, size_t offset) {
  return reinterpret_cast<const T*>(block.as<std::byte>() + offset);
}

}  // namespace warpweave
