#include "base/memory_reserve.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>

namespace warpweave {
namespace {

constexpr size_t kReserveBytes = size_t{4} << 20;

std::atomic<void*> reserve{nullptr};

thread_local bool has_failed = false;  // an allocation of this thread, once

void on_no_memory() {
  has_failed = true;
  if (std::uncaught_exceptions() == 0) throw std::bad_alloc();
  void* const kept = reserve.exchange(nullptr);
  if (kept == nullptr) throw std::bad_alloc();
  std::free(kept);  // operator new tries again
}

std::terminate_handler usual_terminate = std::abort;

// Memory ended in a destructor, say, or in a library that cannot fail.
void on_terminate() {
  if (!has_failed) usual_terminate();
  static constexpr char kText[] = "error: the process ran out of memory at a point from which it cannot go on\n";
  const bool written = write(STDERR_FILENO, kText, sizeof kText - 1) > 0;
  _exit(written ? 1 : 2);
}

}  // namespace

void refill_memory_reserve() noexcept {
  if (reserve.load() != nullptr) return;
  void* fresh = std::malloc(kReserveBytes);
  void* expected = nullptr;
  if (!reserve.compare_exchange_strong(expected, fresh)) std::free(fresh);
}

void hold_memory_reserve() {
  refill_memory_reserve();
  std::set_new_handler(on_no_memory);
  if (std::get_terminate() != on_terminate) usual_terminate = std::set_terminate(on_terminate);
}

}  // namespace warpweave
