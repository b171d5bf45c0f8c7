#include "linear/cuda/chunk_kernels.cuh"

namespace warpweave::linear {
namespace {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) fused_kernel(const __grid_constant__ LinearParams p, const __grid_constant__ FusedMaps maps) {
  await_prepared(p);
  fused_chunks<C>(p, &maps, chunk_memory);
}

// As few blocks as need no more rounds than one for each multiprocessor would.
template <class C>
void launch(const LinearParams& given, cudaStream_t stream) {
  LinearParams p = given;
  const FusedMaps maps = make_fused_maps(p);
  const int pairs = p.batch.num_requests * p.v_heads, rounds = (pairs + gpu::num_sms() - 1) / gpu::num_sms();
  p.fused_blocks = (pairs + rounds - 1) / rounds;
  launch_chunks<C>(fused_kernel<C>, dim3(p.fused_blocks), stream, p, maps);
}

}  // namespace

void launch_fused(const LinearParams& p, bool f16, cudaStream_t stream) {
  f16 ? launch<FusedConfig<ptx::F16>>(p, stream) : launch<FusedConfig<ptx::Bf16>>(p, stream);
}

}  // namespace warpweave::linear
