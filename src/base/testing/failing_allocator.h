// For tests: an allocator that fails, each distinct call stack once.
//
// A program that links failing_allocator.cc has its operator new replaced. Within an
// AllocationFailure the first allocation whose call stack has not failed before throws
// std::bad_alloc, and no other after it; a loop of runs until one of them was not failed tries every
// place once. One AllocationFailure at a time.
#pragma once

#include <cstddef>

namespace warpweave::testing {

enum class FailOn { this_thread, every_thread };

class AllocationFailure {
 public:
  explicit AllocationFailure(FailOn where);
  ~AllocationFailure();
  AllocationFailure(const AllocationFailure&) = delete;
  AllocationFailure& operator=(const AllocationFailure&) = delete;

  // Whether an allocation has failed since the constructor.
  static bool happened();
  // How many places have failed, in all runs.
  static size_t places();
};

}  // namespace warpweave::testing
