// The fake model's recurrent layers: slots of states that remember what they have read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/forward_batch.h"
#include "fake_model.h"
#include "kv/state_pool.h"

namespace warpweave::sim {

class FakeStates {
 public:
  explicit FakeStates(int num_slots) : slots_(num_slots) {}

  bool empty() const { return slots_.empty(); }
  int size() const { return static_cast<int>(slots_.size()); }
  void forget(int32_t slot) { slots_.at(slot) = {}; }
  void copy(std::span<const StateCopy> copies) {
    for (const StateCopy& copy : copies) slots_.at(copy.to) = slots_.at(copy.from);
  }

  // Request r of the batch, whose sequence and salt these are, reads its rows and leaves its checkpoints. False where
  // its state has not read what stands before them, or a checkpoint is wanted at none of them.
  bool read_rows(const ForwardBatch& batch, int r, std::span<const int32_t> sequence, uint64_t salt) {
    const int start = batch.positions[batch.q_indptr[r]], rows = batch.q_len(r);
    State now{0, salt};
    for (; now.position < start; ++now.position) now.hash = extend_hash(now.hash, sequence[now.position]);
    State& state = slots_.at(batch.state_slots[r]);
    if (start > 0 && state != now) return false;
    const StateCheckpointArrays& checkpoints = batch.state_checkpoints;
    int next = checkpoints.indptr.empty() ? 0 : checkpoints.indptr[r];
    const int last = checkpoints.indptr.empty() ? 0 : checkpoints.indptr[r + 1];
    for (int row = 0; row < rows; ++row, ++now.position) {
      if (next < last && checkpoints.tokens[next] == row) slots_.at(checkpoints.slots[next++]) = now;
      now.hash = extend_hash(now.hash, sequence[now.position]);
    }
    state = now;
    return next == last;
  }

 private:
  struct State {
    int position = -1;  // tokens read; -1: nobody's
    uint64_t hash = 0;
    bool operator==(const State&) const = default;
  };
  std::vector<State> slots_;
};

}  // namespace warpweave::sim
