// GDN and KDA by the tile kernels on OpenCL: what --linear-attn-backend triton is on CPUs.
//
// prepare() builds the program, which is kept for the process and on disk (program_cache.h); a call that was not
// prepared builds it first. Calls run on as many threads as the team has and return when they have ended. A launch that
// fails stops the program, saying why: a call has no way to. A request's bits do not depend on its batch.
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
