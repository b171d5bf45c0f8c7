// The fake model: a KV pool of (token, position, salt) and a next-token rule over what it reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "batch/forward_batch.h"

namespace warpweave::sim {

// Hash of a token history, one token at a time.
inline uint64_t extend_hash(uint64_t hash, int32_t token) {
  hash = (hash ^ (static_cast<uint32_t>(token) + 0x9e3779b9u)) * 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 29);
}
inline int32_t next_token(uint64_t hash, int vocab_size) {
  return static_cast<int32_t>((hash >> 16) % vocab_size);
}

class FakeKv {
 public:
  struct Slot {
    int32_t token = -1;
    int32_t position = -1;
    int32_t salt = -1;
    int32_t group = -1;  // of layers
    bool operator==(const Slot&) const = default;
  };

  FakeKv(int num_pages, int page_size)
      : page_size_(page_size), slots_(static_cast<size_t>(num_pages) * page_size) {}

  void write(int32_t slot, const Slot& value) { slots_[slot] = value; }
  const Slot& read(int32_t slot) const { return slots_[slot]; }
  const Slot& read(const int32_t* pages, int position) const {
    return slots_[static_cast<size_t>(pages[position / page_size_]) * page_size_ +
                  position % page_size_];
  }
  void copy(int32_t src_page, int32_t dst_page, int num_tokens) {
    for (int i = 0; i < num_tokens; ++i) {
      slots_[dst_page * page_size_ + i] = slots_[src_page * page_size_ + i];
    }
  }
  void poison(int32_t page) {
    for (int i = 0; i < page_size_; ++i) slots_[page * page_size_ + i] = Slot{};
  }

 private:
  int page_size_;
  std::vector<Slot> slots_;
};

}  // namespace warpweave::sim
