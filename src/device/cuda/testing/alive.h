// What a program holds of CUDA and has not given back, as the runtimes of tests count it.
#pragma once

#include <cstdint>

namespace warpweave {

struct AliveHandles {
  int64_t device_buffers = 0, pinned_buffers = 0, streams = 0, events = 0, graphs = 0, graph_execs = 0;
  int64_t blas_objects = 0;
  bool operator==(const AliveHandles&) const = default;
};

}  // namespace warpweave
