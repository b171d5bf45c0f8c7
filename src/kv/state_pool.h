// StatePool: who holds which slot of the recurrent and convolution states (linear attention, short convolutions).
//
// A slot holds the state of one sequence after one token, over all layers; it cannot be cut like pages can. Slots of
// requests are written every step and have one holder; checkpoints are written once and may have several: the prefix
// tree and every request that still has to read one. A slot is free when nobody holds it.
//
// `request_slots` of them are kept for requests: checkpoints never take those, so that a full prefix cache cannot stop
// a request. All operations but audit are O(1). Not thread-safe (the scheduler owns it). A reference to a free slot, a
// double free or a second holder of a request's slot is a programmer error (assert). The memory is StateCache's.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

inline constexpr int32_t kNoStateSlot = -1;

enum class StateSlotUse : uint8_t { free, request, checkpoint };

// To be done by whoever owns the memory, before `to` is read and before `from` is written again.
struct StateCopy {
  int32_t from = kNoStateSlot;
  int32_t to = kNoStateSlot;
};

class StatePool {
 public:
  StatePool(int num_slots, int request_slots) : request_slots_(request_slots), slots_(num_slots) {
    assert(num_slots > 0 && request_slots >= 0 && request_slots <= num_slots);
    free_.reserve(num_slots);
    for (int32_t slot = num_slots - 1; slot >= 0; --slot) free_.push_back(slot);
  }

  int num_slots() const { return static_cast<int>(slots_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_requests() const { return num_slots() - num_free() - checkpoints_; }
  int num_checkpoints() const { return checkpoints_; }
  int max_checkpoints() const { return num_slots() - request_slots_; }
  int refs(int32_t slot) const { return slots_[slot].refs; }
  StateSlotUse use(int32_t slot) const { return slots_[slot].use; }

  // A free slot with one reference and undefined contents, or kNoStateSlot. A checkpoint also needs a place among
  // max_checkpoints().
  int32_t alloc(StateSlotUse use) {
    assert(use != StateSlotUse::free);
    const bool checkpoint = use == StateSlotUse::checkpoint;
    if (free_.empty() || (checkpoint && checkpoints_ == max_checkpoints())) return kNoStateSlot;
    const int32_t slot = free_.back();  // the one freed last: its memory is warm
    free_.pop_back();
    slots_[slot] = {use, 1};
    checkpoints_ += checkpoint;
    return slot;
  }

  void ref(int32_t slot) {
    assert(slots_[slot].use == StateSlotUse::checkpoint);
    ++slots_[slot].refs;
  }

  // Drops one reference; true when that freed the slot.
  bool unref(int32_t slot) {
    assert(slots_[slot].refs > 0);
    if (--slots_[slot].refs > 0) return false;
    checkpoints_ -= slots_[slot].use == StateSlotUse::checkpoint;
    slots_[slot].use = StateSlotUse::free;
    free_.push_back(slot);
    return true;
  }

  // Compares with what the holders say: `held` has one entry per reference, requests' and checkpoints' apart.
  // `internal`, naming a slot, when one is held more or less often than is known here, has another use, or when the
  // free list or the counts are wrong.
  Status audit(std::span<const int32_t> held_by_requests, std::span<const int32_t> held_as_checkpoints) const {
    std::vector<Slot> expected(slots_.size());
    for (auto [held, use] : {std::pair{held_by_requests, StateSlotUse::request},
                             std::pair{held_as_checkpoints, StateSlotUse::checkpoint}}) {
      for (int32_t slot : held) {
        if (slot < 0 || slot >= num_slots()) return broken(slot, "is no slot");
        if (expected[slot].refs > 0 && (expected[slot].use != use || use == StateSlotUse::request)) {
          return broken(slot, "belongs to two holders");
        }
        expected[slot].use = use;
        ++expected[slot].refs;
      }
    }
    for (int32_t slot : free_) {
      if (expected[slot].refs < 0) return broken(slot, "is twice on the free list");
      if (expected[slot].refs > 0) return broken(slot, "is held and on the free list");
      expected[slot].refs = -1;
    }
    int checkpoints = 0;
    for (int32_t slot = 0; slot < num_slots(); ++slot) {
      const int refs = std::max(0, expected[slot].refs);
      if (refs != slots_[slot].refs) {
        return broken(
            slot, "has " + std::to_string(slots_[slot].refs) + " references, but " + std::to_string(refs) + " holders");
      }
      if (refs == 0 && expected[slot].refs == 0) return broken(slot, "is neither held nor free");
      if (expected[slot].use != slots_[slot].use) return broken(slot, "has another use than its holder says");
      checkpoints += expected[slot].use == StateSlotUse::checkpoint;
    }
    if (checkpoints != checkpoints_) return Status::internal("state pool: the count of checkpoints is wrong");
    return {};
  }

 private:
  struct Slot {
    StateSlotUse use = StateSlotUse::free;
    int refs = 0;
  };
  static Status broken(int32_t slot, const std::string& what) {
    return Status::internal("state pool: slot " + std::to_string(slot) + " " + what);
  }

  int request_slots_;
  int checkpoints_ = 0;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_;
};

}  // namespace warpweave
