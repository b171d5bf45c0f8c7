#include "base/testing/failing_allocator.h"

#include <execinfo.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>

namespace warpweave::testing {
namespace {

constexpr int kFrames = 14;         // of a call stack that tell it from others
constexpr size_t kPlaces = 1 << 16;

enum Mode : int { off, on_owner, on_all };

std::atomic<int> mode{off};
std::atomic<bool> failed{false};
std::atomic<size_t> known{0};
std::array<std::atomic<uint64_t>, kPlaces> seen{};
thread_local bool is_owner = false;
thread_local bool is_inside = false;  // backtrace() may allocate

uint64_t stack_hash() {
  std::array<void*, kFrames + 2> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  uint64_t hash = 0xCBF29CE484222325u;
  for (int i = 2; i < count; ++i) hash = (hash ^ reinterpret_cast<uintptr_t>(frames[i])) * 0x100000001B3u;
  return hash | 1;
}

// True for a stack seen for the first time.
bool remember(uint64_t hash) {
  for (size_t at = hash % kPlaces;; at = (at + 1) % kPlaces) {
    uint64_t expected = 0;
    if (seen[at].compare_exchange_strong(expected, hash)) {
      ++known;
      return true;
    }
    if (expected == hash) return false;
  }
}

bool fails() {
  const int now = mode.load(std::memory_order_relaxed);
  if (now == off || is_inside || (now == on_owner && !is_owner)) return false;
  if (std::uncaught_exceptions() > 0) return false;  // the reserve of base/memory_reserve.h helps then
  is_inside = true;
  const bool fail = known < kPlaces / 2 && remember(stack_hash());
  is_inside = false;
  // Of two threads that come here together one fails.
  int expected = now;
  if (!fail || !mode.compare_exchange_strong(expected, off)) return false;
  failed = true;
  return true;
}

void* allocate(size_t bytes, size_t alignment) {
  if (fails()) throw std::bad_alloc();
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

AllocationFailure::AllocationFailure(FailOn where) {
  is_inside = true;
  stack_hash();  // the first call loads a library
  is_inside = false;
  failed = false;
  is_owner = true;
  mode = where == FailOn::this_thread ? on_owner : on_all;
}

AllocationFailure::~AllocationFailure() {
  mode = off;
  is_owner = false;
}

bool AllocationFailure::happened() { return failed; }
size_t AllocationFailure::places() { return known; }

}  // namespace warpweave::testing

void* operator new(size_t bytes) { return warpweave::testing::allocate(bytes, 1); }
void* operator new[](size_t bytes) { return warpweave::testing::allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return warpweave::testing::allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return warpweave::testing::allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
