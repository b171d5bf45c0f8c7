// Memory for the intermediate values of a model's layers, taken once when the model is made.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/cuda/memory.h"

namespace warpweave {

class GpuWorkspace {
 public:
  // `count` elements, or null for none. After the first failure nothing is taken; status() says why.
  template <typename T>
  void get(T*& pointer, int64_t count, size_t element_bytes,
           std::string_view what = "activations; lower --chunked-prefill-size") {
    if (!status_.ok() || count == 0) return;
    auto memory = memory_.allocate(count * element_bytes, what);
    if (memory.ok()) {
      pointer = static_cast<T*>(*memory);
    } else {
      status_ = memory.status();
    }
  }
  const Status& status() const { return status_; }

 private:
  DeviceArena memory_{size_t{8} << 20};
  Status status_;
};

}  // namespace warpweave
