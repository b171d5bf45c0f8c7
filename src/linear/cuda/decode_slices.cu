#include "linear/cuda/decode_slices.cuh"

#include "linear/cuda/chunk_kernels.cuh"

namespace warpweave::linear {
namespace {

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) slice_kernel(const __grid_constant__ LinearParams p) {
  decode_slice<C>(p, chunk_memory);
}

}  // namespace

void launch_decode_slices(const LinearParams& p, cudaStream_t stream) {
  slices_grid(p, gpu::num_sms(), [&]<class C>(int x, int y) {
    static const cudaError_t asked = cudaFuncSetAttribute(reinterpret_cast<const void*>(slice_kernel<C>),
                                                          cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (asked == cudaSuccess) launch_chunks<C>(slice_kernel<C>, dim3(x, y), stream, p);
  });
}

}  // namespace warpweave::linear
