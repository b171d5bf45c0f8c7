// Memory of request bodies: all of them together have a limit. Bytes are taken as they arrive and given
// back when the request's handler has read them. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace warpweave::server {

class BodyMemory {
 public:
  explicit BodyMemory(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  bool take(size_t bytes) {
    size_t used = used_bytes_;
    do {
      if (bytes > limit_bytes_ - used) return false;
    } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void give(size_t bytes) { used_bytes_ -= bytes; }
  size_t used_bytes() const { return used_bytes_; }

 private:
  const size_t limit_bytes_;
  std::atomic<size_t> used_bytes_{0};
};

// What one body holds; given back once, at release() or at the end of its life.
class BodyLease {
 public:
  explicit BodyLease(std::shared_ptr<BodyMemory> memory) : memory_(std::move(memory)) {}
  ~BodyLease() { release(); }
  BodyLease(const BodyLease&) = delete;
  BodyLease& operator=(const BodyLease&) = delete;

  bool take(size_t bytes) {
    if (!memory_->take(bytes)) return false;
    bytes_ += bytes;
    return true;
  }
  void release() { memory_->give(bytes_.exchange(0)); }
  size_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<BodyMemory> memory_;
  std::atomic<size_t> bytes_{0};
};

}  // namespace warpweave::server
