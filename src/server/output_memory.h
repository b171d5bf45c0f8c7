// Bytes of answers that their readers have not taken: those of all connections are counted, so that they can have a
// limit together. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>

namespace warpweave::server {

class OutputMemory {
 public:
  explicit OutputMemory(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // What one answer holds changes from `before_bytes` to `after_bytes`.
  void change(size_t before_bytes, size_t after_bytes) { used_bytes_ += after_bytes - before_bytes; }
  size_t used_bytes() const { return used_bytes_; }
  bool is_over() const { return used_bytes_ > limit_bytes_; }

 private:
  const size_t limit_bytes_;
  std::atomic<size_t> used_bytes_{0};
};

}  // namespace warpweave::server
