// A CUDA runtime and a cuBLASLt without a GPU, for tests of what the host does when the n-th call fails.
//
// A test that links `fake_cuda` gets these in place of the toolkit's: device memory is host memory, set to zero, copies
// and fills are done at once, kernels do nothing. Every function that the code under test calls must be here, or the
// linker takes the real runtime beside it and says that symbols are defined twice. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "device/cuda/testing/alive.h"

namespace warpweave::fake_cuda {

// What happens after the call that fails: the runtime keeps working, as after a launch with bad arguments, or it fails
// every call, as after a kernel that read where it must not.
enum class After { works, lost };

// The call with this number fails, counted from now and from 1; 0: none. Out of memory is what fails an allocation,
// cudaErrorUnknown any other call.
void fail_call(int64_t number, After after = After::works);
// Since fail_call(). Calls that cannot fail in a way that a caller could act on are not counted: what frees, and what
// only reads the last error.
int64_t calls();
// The name of the call that failed since fail_call(), or empty.
std::string failed_call();

using Alive = AliveHandles;
Alive alive();

// For the fakes' own parts: counts a call. True: it is the one that fails.
bool count_call(const char* name);
// Of what alive() counts.
void count_blas_object(int change);

}  // namespace warpweave::fake_cuda

// For the fake cuBLASLt, which is a library of its own, opened at run time as the real one.
extern "C" bool ww_fake_cuda_count_call(const char* name);
extern "C" void ww_fake_cuda_count_blas_object(int change);
