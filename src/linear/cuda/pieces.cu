#include "linear/cuda/chunk_kernels.cuh"

namespace warpweave::linear {
namespace {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 2) piece_ends_kernel(const __grid_constant__ LinearParams p,
                                                                    const __grid_constant__ ScanMaps maps) {
  await_prepared(p);
  chunk_scan<C>(p, &maps, chunk_memory);
}

__global__ void __launch_bounds__(JoinConfig::kThreads) join_kernel(const __grid_constant__ LinearParams p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  join_pieces(p, chunk_memory);
}

// Blocks that each have a multiprocessor to themselves ask for more shared memory than two have room for: else they stand in pairs on
// those whose preparing blocks are done first.
template <class C>
void launch_ends(dim3 grid, const LinearParams& p, const ScanMaps& maps, cudaStream_t stream) {
  constexpr int kAloneBytes = 120 * 1024;
  static_assert(2 * C::kSmemBytes < 227 * 1024 && C::kSmemBytes < kAloneBytes);
  static SharedMemoryLimit limit;
  limit.raise(piece_ends_kernel<C>, kAloneBytes);
  const size_t bytes = static_cast<int>(grid.x * grid.y) <= gpu::num_sms() ? kAloneBytes : C::kSmemBytes;
  gpu::launch_dependent({grid, dim3(C::kThreads), bytes, stream}, piece_ends_kernel<C>, p, maps);
}

}  // namespace

void launch_piece_ends(const LinearParams& p, bool f16, cudaStream_t stream) {
  const ScanMaps maps = make_scan_maps(p);
  const auto with = [&]<class C>(int x, int y) { launch_ends<C>(dim3(x, y), p, maps, stream); };
  f16 ? piece_ends_grid<ptx::F16>(p, with) : piece_ends_grid<ptx::Bf16>(p, with);
}

void launch_piece_scan(const LinearParams& p, bool f16, cudaStream_t stream) {
  const ScanMaps maps = make_scan_maps(p);
  const auto with = [&]<class C>(int x, int y) { launch_chunks<C>(wgmma_scan_kernel<C>, dim3(x, y), stream, p, maps); };
  f16 ? piece_scan_grid<ptx::F16>(p, with) : piece_scan_grid<ptx::Bf16>(p, with);
}

void launch_join_pieces(const LinearParams& p, cudaStream_t stream) {
  join_pieces_grid(p, [&]<class C>(int x, int y) { launch_chunks<C>(join_kernel, dim3(x, y), stream, p); });
}

}  // namespace warpweave::linear
