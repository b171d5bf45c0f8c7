// The names of --linear-attn-backend that run on CPUs, for a dispatcher: cpu, and triton in builds with OpenCL.
#pragma once

#include <vector>

#include "base/threads.h"
#include "linear/dispatch.h"

namespace warpweave {

// `team` is not owned and outlives the kernels.
std::vector<LinearAttnBackend> host_linear_attn_backends(ThreadTeam& team);

}  // namespace warpweave
