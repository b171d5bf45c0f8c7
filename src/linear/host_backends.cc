#include "linear/host_backends.h"

#include "linear/cpu/cpu_linear_attn.h"
#if WARPWEAVE_OPENCL
#include "linear/tile/opencl_linear_attn.h"
#endif

namespace warpweave {

std::vector<LinearAttnBackend> host_linear_attn_backends(ThreadTeam& team) {
  std::vector<LinearAttnBackend> backends = cpu_linear_attn_backends(team);
#if WARPWEAVE_OPENCL
  backends.push_back(opencl_linear_attn_backend(team));
#endif
  return backends;
}

}  // namespace warpweave
