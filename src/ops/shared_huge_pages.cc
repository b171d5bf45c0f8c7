#include "ops/shared_huge_pages.h"

#include <sys/mman.h>

#include <iterator>

namespace warpweave {
namespace {

constexpr size_t kAlignment = 64, kPageBytes = 4096;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

SharedHugePages::~SharedHugePages() {
  for (const auto& [begin, chunk] : chunks_) munmap(begin, kChunkBytes);
}

std::byte* SharedHugePages::take(size_t bytes) {
  const size_t rounded = round_up(bytes, kAlignment);
  const std::lock_guard lock(mutex_);
  if (filling_ == chunks_.end() || filling_->second.used + rounded > kChunkBytes) {
    std::byte* const begin = map_(kChunkBytes);
    if (begin == nullptr) return nullptr;
    filling_ = chunks_.try_emplace(begin).first;
  }
  Chunk& chunk = filling_->second;
  std::byte* const block = filling_->first + chunk.used;
  chunk.used += rounded;
  ++chunk.blocks;
  return block;
}

void SharedHugePages::give_back(std::byte* block, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto chunk = std::prev(chunks_.upper_bound(block));
  if (--chunk->second.blocks == 0) {
    munmap(chunk->first, kChunkBytes);
    if (filling_ == chunk) filling_ = chunks_.end();
    chunks_.erase(chunk);
    return;
  }
  // Neighbours may stand in the first and the last page.
  const size_t begin = round_up(static_cast<size_t>(block - chunk->first), kPageBytes);
  const size_t end = static_cast<size_t>(block - chunk->first) + bytes;
  const size_t whole_end = end / kPageBytes * kPageBytes;
  if (whole_end > begin) madvise(chunk->first + begin, whole_end - begin, MADV_DONTNEED);
}

size_t SharedHugePages::num_chunks() const {
  const std::lock_guard lock(mutex_);
  return chunks_.size();
}

}  // namespace warpweave
