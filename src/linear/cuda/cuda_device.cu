// The kernels on an NVIDIA GPU: the row-wise ones, and which file has the others.
#include "linear/cuda/cuda_device.h"
#include "ops/cuda/launch.cuh"

#include "device/cuda/compute_capability.h"
#include "linear/cuda/chunk_list.cuh"
#include "linear/cuda/conv_step.cuh"
#include "linear/cuda/prompt_rows.cuh"
#include "linear/cuda/recurrent_verify.h"
#include "linear/cuda/rows.cuh"

namespace warpweave::linear {
namespace {

// What follows may read ahead of its own wait what the kernels before this one wrote: it starts behind this one's.
__global__ void __launch_bounds__(kRowsThreads) rows_kernel(const __grid_constant__ RowsParams p) {
  ptx::grid_dependency_wait();
  ptx::launch_dependents();
  make_rows(p);
}
__global__ void __launch_bounds__(kRowsThreads) conv_step_kernel(const __grid_constant__ RowsParams p) {
  conv_step(p, [] {
    ptx::grid_dependency_wait();
    ptx::launch_dependents();
  });
}
__global__ void __launch_bounds__(kRowsThreads) norm_kernel(const __grid_constant__ RowsParams p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  norm_rows(p);
}
template <class E>
__global__ void __launch_bounds__(kPromptThreads, 3) prompt_rows_kernel(const __grid_constant__ RowsParams p) {
  make_prompt_rows<E>(p, [] {
    ptx::grid_dependency_wait();
    ptx::launch_dependents();
  });
}
template <class E>
__global__ void __launch_bounds__(kPromptThreads, 6) prompt_norm_kernel(const __grid_constant__ RowsParams p) {
  ptx::launch_dependents();
  norm_prompt_rows<E>(p, [] { ptx::grid_dependency_wait(); });
}

bool aligned(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % (2 * kPromptChannels) == 0 && stride % kPromptChannels == 0;
}
bool takes_prompt_rows(const RowsParams& p) {
  const LinearAttnConv& conv = p.conv;
  return p.has_conv && conv.width == kConvStepWidth && conv.v_weight.data == nullptr && conv.x.dtype != DType::f32 &&
         conv.x.dtype == p.packed_dtype && aligned(conv.x.data, conv.x.token_stride) && aligned(p.packed, p.channels) &&
         reinterpret_cast<uintptr_t>(conv.weight) % 16 == 0 && p.linear.batch.parents == nullptr && p.linear.batch.accepted == nullptr;
}
bool takes_prompt_norm(const RowsParams& p) {
  const LinearParams& l = p.linear;
  const LinearAttnRows& z = p.norm.z;
  const bool whole = l.v_dim == 64 || l.v_dim == 128 || l.v_dim == 256;  // a warp has whole heads
  const bool gate_fits = z.data == nullptr || (z.dtype == l.out_dtype && aligned(z.data, z.token_stride) && z.head_stride % kPromptChannels == 0);
  return whole && l.out_dtype != DType::f32 && p.norm_from_dtype == l.out_dtype && gate_fits && aligned(l.out, l.out_token_stride) &&
         aligned(p.norm_from, p.norm_from_stride);
}
dim3 prompt_grid(int columns, int blocks, int tokens_of_run) {
  constexpr int kColumns = kPromptThreads * kPromptChannels;
  return {static_cast<unsigned>((columns + kColumns - 1) / kColumns), static_cast<unsigned>(blocks * (kChunk / tokens_of_run))};
}

__global__ void __launch_bounds__(kListThreads) list_kernel(const __grid_constant__ LinearParams p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  list_chunks(p, const_cast<Chunk*>(p.work.list), const_cast<int*>(p.work.list_first));
}

class CudaLinearDevice : public LinearDevice {
 public:
  int multiprocessors() const override { return gpu::num_sms(); }
  bool has_wgmma() const override { return current_compute_capability() == 90; }

  void decode(const LinearParams& p, void* stream) override {
    launch_decode(p, static_cast<cudaStream_t>(stream));
  }
  void commit(const LinearParams& p, void* stream) override { launch_commit(p, static_cast<cudaStream_t>(stream)); }
  void extend_exactly(const LinearParams& p, void* stream) override {
    const auto on = static_cast<cudaStream_t>(stream);
    p.writes_state ? launch_extend_exactly(p, on) : launch_verify_exactly(p, on);
  }
  void verify_few(const LinearParams& p, DType element, void* stream) override {
    launch_verify_few(p, element == DType::f16, static_cast<cudaStream_t>(stream));
  }
  void make_rows(const RowsParams& p, void* stream) override {
    if (p.conv_step) {
      constexpr int kChannels = ConvStep::kChannels * kRowsThreads;
      const dim3 grid((p.channels + kChannels - 1) / kChannels, p.linear.batch.num_requests);
      return gpu::launch_dependent({grid, dim3(kRowsThreads), 0, static_cast<cudaStream_t>(stream)}, conv_step_kernel, p);
    }
    if (takes_prompt_rows(p)) {
      const auto kernel = p.packed_dtype == DType::f16 ? prompt_rows_kernel<ptx::F16> : prompt_rows_kernel<ptx::Bf16>;
      return gpu::launch_dependent({prompt_grid(p.channels, p.blocks, kConvTokens), dim3(kPromptThreads), 0, static_cast<cudaStream_t>(stream)}, kernel, p);
    }
    const dim3 grid((p.channels + kRowsThreads - 1) / kRowsThreads, p.blocks);
    gpu::launch_dependent({grid, dim3(kRowsThreads), 0, static_cast<cudaStream_t>(stream)}, rows_kernel, p);
  }
  void norm_rows(const RowsParams& p, void* stream) override {
    if (takes_prompt_norm(p)) {
      const auto kernel = p.linear.out_dtype == DType::f16 ? prompt_norm_kernel<ptx::F16> : prompt_norm_kernel<ptx::Bf16>;
      const dim3 grid = prompt_grid(p.linear.v_heads * p.linear.v_dim, p.blocks, kNormTokens);
      return gpu::launch_dependent({grid, dim3(kPromptThreads), 0, static_cast<cudaStream_t>(stream)}, kernel, p);
    }
    const dim3 grid(p.linear.v_heads, p.blocks);
    gpu::launch_dependent({grid, dim3(kRowsThreads), 0, static_cast<cudaStream_t>(stream)}, norm_kernel, p);
  }
  void list_chunks(const LinearParams& p, void* stream) override {
    gpu::launch_dependent({dim3(1), dim3(kListThreads), 0, static_cast<cudaStream_t>(stream)}, list_kernel, p);
  }
  void prepare(const LinearParams& p, DType element, void* stream) override {
    const auto on = static_cast<cudaStream_t>(stream);
    element == DType::f16 ? launch_prepare_f16(p, on) : launch_prepare_bf16(p, on);
  }
  void prepare_and_scan(const LinearParams& p, DType element, void* stream) override {
    launch_fused(p, element == DType::f16, static_cast<cudaStream_t>(stream));
  }
  void scan(const LinearParams& p, DType element, const ScanShape& shape, void* stream) override {
    const auto on = static_cast<cudaStream_t>(stream);
    if (shape.wgmma) element == DType::f16 ? launch_wgmma_scan_f16(p, shape.groups, on) : launch_wgmma_scan_bf16(p, shape.groups, on);
    else element == DType::f16 ? launch_tile_scan_f16(p, on) : launch_tile_scan_bf16(p, on);
  }
  void piece_ends(const LinearParams& p, DType element, void* stream) override {
    launch_piece_ends(p, element == DType::f16, static_cast<cudaStream_t>(stream));
  }
  void piece_scan(const LinearParams& p, DType element, void* stream) override {
    launch_piece_scan(p, element == DType::f16, static_cast<cudaStream_t>(stream));
  }
  void join_pieces(const LinearParams& p, void* stream) override { launch_join_pieces(p, static_cast<cudaStream_t>(stream)); }
};

}  // namespace

std::unique_ptr<LinearDevice> make_cuda_device() { return std::make_unique<CudaLinearDevice>(); }

}  // namespace warpweave::linear
