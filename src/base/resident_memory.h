// How much of this process's memory is in RAM, from /proc/self/statm. Thread-safe.
#pragma once

#include <cstdint>

namespace warpweave {

struct ResidentMemory {
  int64_t bytes = 0;            // all of it; 0 where /proc is not there
  int64_t anonymous_bytes = 0;  // of that, what no file stands behind: heaps, stacks, pools
};

ResidentMemory resident_memory();

}  // namespace warpweave
