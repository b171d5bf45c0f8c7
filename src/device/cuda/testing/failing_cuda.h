// CUDA's real runtime whose calls fail one place after the other, for tests of what the host does then on a GPU.
//
// A test links `failing_cuda`, which has the linker send the calls of the code under test through here (--wrap). A place
// is where it calls; for memory, streams and events, which have owners that make all of them, where the owner was asked.
// A call that fails is not made. Libraries that NVIDIA opens at run time call past this. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "device/cuda/testing/alive.h"

namespace warpweave::failing_cuda {

// The next call from a place that has not failed yet fails, and no other until this is called again. Out of memory is
// what fails an allocation, cudaErrorUnknown any other call.
void fail_next_place();
void fail_nothing();

// The call that failed since fail_next_place(), or empty.
std::string failed_call();
// Places that have failed since the test began.
int num_failed_places();

// What the code under test holds.
AliveHandles alive();

}  // namespace warpweave::failing_cuda
