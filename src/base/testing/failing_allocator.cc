#include "base/testing/failing_allocator.h"

#include <execinfo.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

namespace warpweave::testing {
namespace {

constexpr int kMostFrames = 14;
constexpr size_t kPlaces = 1 << 16;

enum Mode : int { off, on_owner, on_all };

std::atomic<int> mode{off};
std::atomic<bool> failed{false};
std::atomic<int> burst_left{0};       // allocations that fail wherever they are
std::atomic<int> frames_told{kMostFrames};
std::atomic<size_t> largest_bytes{0};

// Shared with forked processes.
struct Places {
  std::atomic<size_t> known;
  std::array<std::atomic<uint64_t>, kPlaces> seen;
};
Places& places() {
  static Places* const shared = reinterpret_cast<Places*>(
      syscall(SYS_mmap, nullptr, sizeof(Places), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *shared;
}

thread_local bool is_owner = false;
thread_local bool is_inside = false;  // backtrace() may allocate

uint64_t stack_hash() {
  std::array<void*, kMostFrames + 2> frames{};
  const int count = backtrace(frames.data(), frames_told + 2);
  uint64_t hash = 0xCBF29CE484222325u;
  for (int i = 2; i < count; ++i) hash = (hash ^ reinterpret_cast<uintptr_t>(frames[i])) * 0x100000001B3u;
  return hash | 1;
}

// True for a stack seen for the first time.
bool remember(uint64_t hash) {
  for (size_t at = hash % kPlaces;; at = (at + 1) % kPlaces) {
    uint64_t expected = 0;
    if (places().seen[at].compare_exchange_strong(expected, hash)) {
      ++places().known;
      return true;
    }
    if (expected == hash) return false;
  }
}

bool fails() {
  const int now = mode.load(std::memory_order_relaxed);
  if (now == off || is_inside || (now == on_owner && !is_owner)) return false;
  if (std::uncaught_exceptions() > 0) return false;  // the reserve of base/memory_reserve.h helps then
  if (failed) {  // only the burst is left
    if (--burst_left >= 0) return true;
    mode = off;
    return false;
  }
  is_inside = true;
  const bool fail = places().known < kPlaces / 2 && remember(stack_hash());
  is_inside = false;
  // Of two threads that come here together one fails.
  bool expected = false;
  return fail && failed.compare_exchange_strong(expected, true);
}

void remember_size(size_t bytes) {
  size_t largest = largest_bytes.load(std::memory_order_relaxed);
  while (bytes > largest && !largest_bytes.compare_exchange_weak(largest, bytes)) {
  }
}

void* allocate(size_t bytes, size_t alignment) {
  remember_size(bytes);
  if (fails()) {  // as operator new does
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes)
                     : memalign(alignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

AllocationFailure::AllocationFailure(AllocationFailureOptions options) {
  frames_told = std::min(options.frames, kMostFrames);
  is_inside = true;
  stack_hash();  // the first call loads a library
  is_inside = false;
  failed = false;
  burst_left = options.burst - 1;
  is_owner = true;
  mode = options.where == FailOn::this_thread ? on_owner : on_all;
}

AllocationFailure::~AllocationFailure() {
  mode = off;
  is_owner = false;
}

bool AllocationFailure::happened() { return failed; }
size_t AllocationFailure::places() { return testing::places().known; }

void AllocationFailure::forget_places() {
  for (auto& place : testing::places().seen) place = 0;
  testing::places().known = 0;
}

size_t largest_allocation_bytes() { return largest_bytes; }
void forget_largest_allocation() { largest_bytes = 0; }

NoAllocationFailure::NoAllocationFailure() : was_inside_(std::exchange(is_inside, true)) {}
NoAllocationFailure::~NoAllocationFailure() { is_inside = was_inside_; }

}  // namespace warpweave::testing

void* operator new(size_t bytes) { return warpweave::testing::allocate(bytes, 1); }
void* operator new[](size_t bytes) { return warpweave::testing::allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return warpweave::testing::allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return warpweave::testing::allocate(bytes, static_cast<size_t>(alignment));
}
// As the library's own: a sanitizer's would take memory that the operators below give back elsewhere.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept try {
  return warpweave::testing::allocate(bytes, 1);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept try {
  return warpweave::testing::allocate(bytes, 1);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

// In place of the C library's, for the program's own calls.
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return warpweave::testing::fails() ? nullptr : memalign(alignment, bytes);
}
extern "C" void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  if (warpweave::testing::fails()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
