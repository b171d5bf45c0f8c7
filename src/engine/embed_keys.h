// Keys of prompt rows that are brought as embeddings: what the prefix cache knows them by, in place of token ids.
//
// Rows have one key when they and all rows before them in their prompt are equal bit by bit, so prompts share what is
// cached of an equal beginning, and nothing else. Keys are no ids of the vocabulary. Equal means an equal hash of 128
// bits under a random secret of the process. Keys are handed out in turn and never twice, within an epoch; what is
// cached in one must not be found in another. Rows that were not seen for long may get a new key. Thread-safe: rows are
// hashed side by side.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace warpweave {

class EmbedKeys {
 public:
  // Keys are `first_key` (the vocabulary's size) and up. At most `max_known` rows are remembered.
  explicit EmbedKeys(int32_t first_key, size_t max_known = size_t{1} << 18, int32_t last_key = INT32_MAX - 1);

  struct Prompt {
    std::vector<int32_t> keys;  // [rows]
    uint64_t epoch = 0;
  };
  // Of rows of `width` values each; width > 0 divides their number. With `places` [3, rows] where a row stands is part
  // of what it is.
  Prompt keys_of(std::span<const float> rows, size_t width, std::span<const int32_t> places = {});

 private:
  struct Content {
    uint64_t low = 0, high = 0;
    bool operator==(const Content&) const = default;
  };
  struct Hash {
    size_t operator()(const Content& content) const { return content.low; }
  };
  Content behind(const Content& before, std::span<const float> row) const;
  void make_room(size_t rows);

  const int32_t first_key_, last_key_;
  const size_t max_known_;
  const Content secret_;
  std::mutex mutex_;  // guards what follows
  int32_t next_key_;
  uint64_t epoch_ = 0;
  std::unordered_map<Content, int32_t, Hash> known_;
};

}  // namespace warpweave
