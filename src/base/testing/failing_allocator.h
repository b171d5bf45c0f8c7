// For tests: an allocator that fails, each distinct call stack once.
//
// A program that links failing_allocator.cc has its operator new, aligned_alloc and mmap replaced. Within an
// AllocationFailure the first allocation whose call stack has not failed before throws
// std::bad_alloc (or returns what those two do), and with it the `burst - 1` allocations that follow, as when memory
// stays short for a while; no other after them. A loop of runs until one of them was not failed tries every place once;
// runs in forked processes count, too. One AllocationFailure at a time.
#pragma once

#include <cstddef>

namespace warpweave::testing {

enum class FailOn { this_thread, every_thread };

struct AllocationFailureOptions {
  FailOn where = FailOn::every_thread;
  int burst = 1;
  int frames = 14;  // innermost ones that tell a call stack from others, at most 14
};

class AllocationFailure {
 public:
  explicit AllocationFailure(AllocationFailureOptions options);
  explicit AllocationFailure(FailOn where) : AllocationFailure(AllocationFailureOptions{.where = where}) {}
  ~AllocationFailure();
  AllocationFailure(const AllocationFailure&) = delete;
  AllocationFailure& operator=(const AllocationFailure&) = delete;

  // Whether an allocation has failed since the constructor.
  static bool happened();
  // How many places have failed, in all runs.
  static size_t places();
  // From now on every place may fail again.
  static void forget_places();
};

// What the test itself allocates on threads that it does not own, a sink's notes above all.
class NoAllocationFailure {
 public:
  NoAllocationFailure();
  ~NoAllocationFailure();
  NoAllocationFailure(const NoAllocationFailure&) = delete;
  NoAllocationFailure& operator=(const NoAllocationFailure&) = delete;

 private:
  const bool was_inside_;
};

// The largest allocation since `forget_largest_allocation`, in bytes.
size_t largest_allocation_bytes();
void forget_largest_allocation();

}  // namespace warpweave::testing
