#include "linear/cuda/cuda_device.h"

namespace warpweave::linear {

std::unique_ptr<LinearAttnKernelBase> make_cuda_linear_kernel(bool wgmma) {
  return std::make_unique<ChunkedLinearKernel>(make_cuda_device(), wgmma);
}

std::vector<LinearAttnBackend> cuda_linear_attn_backends() {
  const bool hopper = make_cuda_device()->has_wgmma();
  const LinearAttnBackend tile = {"triton", &chunked_kernel_caps(false), [] { return make_cuda_linear_kernel(false); }};
  if (!hopper) return {tile, {"flashinfer", tile.caps, tile.create}};
  const LinearAttnBackend wgmma = {"cutedsl", &chunked_kernel_caps(true), [] { return make_cuda_linear_kernel(true); }};
  return {tile, wgmma, {"flashinfer", wgmma.caps, wgmma.create}};
}

}  // namespace warpweave::linear
