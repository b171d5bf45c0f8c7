// The linear attention kernels of the current NVIDIA GPU. Only for builds with GPU kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "linear/dispatch.h"
#include "linear/cuda/chunked_kernel.h"

namespace warpweave::linear {

std::unique_ptr<LinearAttnKernelBase> make_cuda_linear_kernel(bool wgmma);
// The names that run on the current GPU, for a dispatcher: "triton" is tile everywhere; the others are wgmma on Hopper.
std::vector<LinearAttnBackend> cuda_linear_attn_backends();
std::unique_ptr<LinearDevice> make_cuda_device();

// One file each (decode.cu, decode_slices.cu, recurrent.cu, recurrent_extend.cu, prepare_*.cu, scan_*.cu).
void launch_decode(const LinearParams& p, cudaStream_t stream);
void launch_decode_slices(const LinearParams& p, cudaStream_t stream);
void launch_commit(const LinearParams& p, cudaStream_t stream);
void launch_extend_exactly(const LinearParams& p, cudaStream_t stream);
void launch_verify_few(const LinearParams& p, bool f16, cudaStream_t stream);
void launch_prepare_bf16(const LinearParams& p, cudaStream_t stream);
void launch_prepare_f16(const LinearParams& p, cudaStream_t stream);
void launch_fused(const LinearParams& p, bool f16, cudaStream_t stream);
void launch_piece_ends(const LinearParams& p, bool f16, cudaStream_t stream);
void launch_piece_scan(const LinearParams& p, bool f16, cudaStream_t stream);
void launch_join_pieces(const LinearParams& p, cudaStream_t stream);
void launch_tile_scan_bf16(const LinearParams& p, cudaStream_t stream);
void launch_tile_scan_f16(const LinearParams& p, cudaStream_t stream);
void launch_wgmma_scan_bf16(const LinearParams& p, int groups, cudaStream_t stream);
void launch_wgmma_scan_f16(const LinearParams& p, int groups, cudaStream_t stream);

}  // namespace warpweave::linear
