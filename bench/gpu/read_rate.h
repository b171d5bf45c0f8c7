// How fast this GPU reads memory, for floors of what waits for bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace warpweave::bench {

// Reads `bytes` (a multiple of 16) from `data` and keeps nothing. `never` is written where the words' combination is one that
// random data does not have, so that the compiler keeps the loads.
void read_memory(const void* data, int64_t bytes, uint32_t* never, cudaStream_t stream);

}  // namespace warpweave::bench
