// Ids by the hash of what they stand for: a multimap by open addressing, which looks at one place in memory where a
// table of lists looks at several. Not thread-safe. Entries are never removed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace warpweave::grammar {

class IdTable {
 public:
  static constexpr int32_t kNone = -1;

  // The first id under `hash` for which `is_it(id)` holds, or kNone.
  template <typename IsIt>
  int32_t find(uint64_t hash, const IsIt& is_it) const {
    const auto tag = static_cast<uint32_t>(hash);
    for (size_t at = place(hash); slots_[at].id != kNone; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].tag == tag && is_it(slots_[at].id)) return slots_[at].id;
    }
    return kNone;
  }
  void insert(uint64_t hash, int32_t id) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    put({static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32), id});
    ++count_;
  }
  size_t memory_bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t tag = 0, high = 0;  // the two halves of the hash; an entry's place is by the high one
    int32_t id = kNone;
  };

  size_t place(uint64_t hash) const { return (hash >> 32) & (slots_.size() - 1); }
  void put(const Slot& slot) {
    size_t at = slot.high & (slots_.size() - 1);
    while (slots_[at].id != kNone) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    std::swap(old, slots_);
    for (const Slot& slot : old) {
      if (slot.id != kNone) put(slot);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // a power of two
  size_t count_ = 0;
};

}  // namespace warpweave::grammar
