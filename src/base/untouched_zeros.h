// An array of zeros of which only what is written takes memory: for bookkeeping by page or slot, where most are never
// used. Throws std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace warpweave {

template <typename T>
class UntouchedZeros {
  static_assert(std::is_arithmetic_v<T>);

 public:
  // The C library takes large blocks from the system as zeros and leaves them as they are.
  explicit UntouchedZeros(size_t size) : values_(static_cast<T*>(std::calloc(size, sizeof(T)))) {
    if (values_ == nullptr) throw std::bad_alloc();
  }

  T& operator[](size_t index) { return values_[index]; }
  const T& operator[](size_t index) const { return values_[index]; }

 private:
  struct Free {
    void operator()(T* values) const { std::free(values); }
  };
  std::unique_ptr<T[], Free> values_;
};

}  // namespace warpweave
