// Blocks of memory side by side in huge pages: matrices below 2 MiB, and the ends of larger ones, would stand in pages
// of 4 KiB, of which a small model has more than a CPU's TLB has entries.
//
// A chunk of address space is filled from its beginning, and only what is touched takes memory. What is given back
// returns its whole pages to the system and is not used again; a chunk without blocks is unmapped. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace warpweave {

class SharedHugePages {
 public:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kLeastBytes = SIZE_MAX;  // every block is its own, so that reads past an end are found
#else
  static constexpr size_t kLeastBytes = size_t{32} << 10;
#endif
  static constexpr size_t kMostBytes = size_t{16} << 20;  // the end of a larger one matters little
  static constexpr size_t kChunkBytes = size_t{64} << 20;

  using Map = std::byte* (*)(size_t bytes);  // zeros that begin at a huge page, or null
  explicit SharedHugePages(Map map) : map_(map) {}
  ~SharedHugePages();
  SharedHugePages(const SharedHugePages&) = delete;
  SharedHugePages& operator=(const SharedHugePages&) = delete;

  // `bytes` of zeros, at most kChunkBytes, 64-byte aligned; null: the system refuses.
  std::byte* take(size_t bytes);
  // A block of take(), of that size.
  void give_back(std::byte* block, size_t bytes);

  size_t num_chunks() const;

 private:
  struct Chunk {
    size_t used = 0;                // bytes from its beginning
    int blocks = 0;                 // not given back
  };

  const Map map_;
  mutable std::mutex mutex_;
  std::map<std::byte*, Chunk> chunks_;
  std::map<std::byte*, Chunk>::iterator filling_ = chunks_.end();
};

}  // namespace warpweave
