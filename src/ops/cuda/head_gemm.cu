#include "ops/cuda/head_gemm_call.h"

#include <cuda_runtime.h>

#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/head_gemm_wide.cuh"

#include "ops/cuda/latent.h"
#include "ops/cuda/latent_wgmma.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kPlainThreads = 128;

// Any type and size: a thread a number.
template <typename T>
__global__ void __launch_bounds__(kPlainThreads) plain_head_gemm(HeadGemmCall call) {
  start_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < call.num_heads * call.out_dim; i += kPlainThreads) {
    const int head = i / call.out_dim, column = i % call.out_dim;
    const T* const weight = static_cast<const T*>(call.weight) + head * call.weight_head_stride + int64_t{column} * call.in_dim;
    const T* const x = static_cast<const T*>(call.x) + row * call.x_stride + head * call.x_head_stride;
    float sum = 0;
    for (int k = 0; k < call.in_dim; ++k) sum += to_f32(weight[k]) * to_f32(x[k]);
    static_cast<T*>(call.y)[row * call.y_stride + head * call.y_head_stride + column] = from_f32<T>(sum);
  }
}

template <class E, int kRowBlocks>
void launch_mma(const HeadGemmCall& call, cudaStream_t stream) {
  const HeadGemmArgs args = head_gemm_args(call);
  const dim3 grid(static_cast<unsigned>(head_gemm_blocks(args, kRowBlocks)), static_cast<unsigned>(call.num_heads));
  launch_dependent({grid, 32 * kHeadWarps, 0, stream}, head_gemm_kernel<E, kRowBlocks>, args);
}

// From so many rows on: with fewer there are few CTAs, or their rows do not fill one.
constexpr int64_t kLeastWideRows = 65;

template <class E>
bool launch_wide(const HeadGemmCall& call, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  if (call.rows < kLeastWideRows || call.out_dim % kWideCols != 0) return false;
  if (limit.raise(head_gemm_wide_kernel<E>, kWideSmemBytes) != cudaSuccess) return false;
  const HeadGemmArgs args = head_gemm_args(call);
  const int blocks = (args.rows + kWideRows - 1) / kWideRows * (args.out_dim / kWideCols);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(call.num_heads));
  launch_dependent({grid, 32 * kHeadWarps, kWideSmemBytes, stream}, head_gemm_wide_kernel<E>, args);
  return true;
}

template <class E>
void launch(const HeadGemmCall& call, cudaStream_t stream) {
  if (launch_wide<E>(call, stream)) return;
  with_head_row_blocks(call, [&](auto row_blocks) { launch_mma<E, row_blocks>(call, stream); });
}

}  // namespace

bool head_gemm_by_mma(const HeadGemmCall& call) {
  const int64_t strides = call.weight_head_stride | call.x_stride | call.x_head_stride | call.y_stride | call.y_head_stride;
  return call.dtype != DType::f32 && call.in_dim % kHeadDepthMultiple == 0 && call.out_dim % kHeadCols == 0 &&
         strides % 8 == 0 && reinterpret_cast<uintptr_t>(call.x) % 16 == 0 && reinterpret_cast<uintptr_t>(call.y) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(call.weight) % 16 == 0;
}

HeadGemmArgs head_gemm_args(const HeadGemmCall& call) {
  HeadGemmArgs args;
  args.weight = call.weight;
  args.weight_head_stride = call.weight_head_stride;
  args.x = call.x;
  args.y = call.y;
  args.x_stride = call.x_stride;
  args.x_head_stride = call.x_head_stride;
  args.y_stride = call.y_stride;
  args.y_head_stride = call.y_head_stride;
  args.rows = static_cast<int>(call.rows);
  args.in_dim = call.in_dim;
  args.out_dim = call.out_dim;
  return args;
}

void head_gemm(const HeadGemmCall& call, Stream stream) {
  if (call.rows == 0) return;
  const auto on = static_cast<cudaStream_t>(stream);
  if (latent_wgmma_takes(call)) return head_gemm_wgmma(call, stream);
  if (head_gemm_by_mma(call)) return call.dtype == DType::bf16 ? launch<ptx::Bf16>(call, on) : launch<ptx::F16>(call, on);
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({dim3(static_cast<unsigned>(call.rows)), kPlainThreads, 0, on}, plain_head_gemm<T>, call);
  });
}

}  // namespace warpweave::gpu
