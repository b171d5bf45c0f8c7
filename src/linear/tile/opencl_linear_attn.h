// GDN and KDA by the tile kernels on OpenCL: what --linear-attn-backend triton is on CPUs.
//
// prepare() builds the program, which is kept for the process and on disk (program_cache.h); a call that was not
// prepared builds it first. Calls run on as many threads as the team has and return when they have ended. Of a program
// that cannot be built or a launch that fails take_failure() tells. A request's bits do not depend on its batch.
#pragma once

#include <memory>
#include <vector>

#include "base/threads.h"
#include "linear/dispatch.h"

namespace warpweave {

std::unique_ptr<LinearAttnKernelBase> make_opencl_linear_attn(int threads);

// The name for a dispatcher, with a probe that says what this machine lacks.
LinearAttnBackend opencl_linear_attn_backend(const ThreadTeam& team);

}  // namespace warpweave
