#include "base/memory_reserve.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>

namespace warpweave {
namespace {

constexpr size_t kReserveBytes = size_t{4} << 20;

std::atomic<void*> reserve{nullptr};

void on_no_memory() {
  if (std::uncaught_exceptions() == 0) throw std::bad_alloc();
  void* const kept = reserve.exchange(nullptr);
  if (kept == nullptr) throw std::bad_alloc();
  std::free(kept);  // operator new tries again
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
}

}  // namespace warpweave
