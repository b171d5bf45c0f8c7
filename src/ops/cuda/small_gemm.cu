// A block owns 16 weight rows (the M side of mma.m16n8k16, so that 8 or 16 input rows are its N side);
// its warps take the depth in turns and sum their shares through shared memory. Both operands come
// straight from memory in 16-byte loads: thread t of a quad holds elements 8t .. 8t + 7 of every 32,
// which permutes the depth within the 32 the same way on both sides. The first weights are loaded,
// and the next ones asked for, before the kernel's predecessor has ended.
#include "ops/cuda/small_gemm.h"

#include <cuda_runtime.h>

#include "ops/cuda/gemm.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kWarps = 8;
constexpr int kRowsPerBlock = 16;
constexpr int kDepth = 32;                // of one 16-byte load per thread of a quad
constexpr int kUnroll = 4;                // loads of each weight row in flight
constexpr int kStep = kDepth * kUnroll;   // of a warp; neighbouring warps read neighbouring steps
constexpr int kPrefetchedSteps = 4;

struct Args {
  const void* w;
  const void* x;
  void* y;
  int rows;
  int depth;
  int64_t y_stride;
  bool accumulate;
};

__device__ __forceinline__ uint4 load_weights(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

template <typename T>
__device__ __forceinline__ void mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

template <typename T>
__device__ __forceinline__ void load_step(const T* w0, const T* w1, int k, int depth, uint4 (&a0)[kUnroll],
                                          uint4 (&a1)[kUnroll]) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const bool inside = k + u * kDepth < depth;
    a0[u] = inside ? load_weights(w0 + k + u * kDepth) : uint4{};
    a1[u] = inside ? load_weights(w1 + k + u * kDepth) : uint4{};
  }
}

// kTokens is 8 or 16.
template <typename T, typename Y, int kTokens>
__global__ void __launch_bounds__(32 * kWarps, 2) small_gemm_kernel(const __grid_constant__ Args args) {
  __shared__ float partial[kWarps][kRowsPerBlock][kTokens + 1];
  constexpr int kTiles = kTokens / 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const int first = blockIdx.x * kRowsPerBlock;
  const T* block_w = static_cast<const T*>(args.w) + int64_t{first} * args.depth;
  const T* w0 = block_w + group * args.depth + quad * 8;
  const T* w1 = w0 + 8 * args.depth;
  const T* x[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) x[t] = static_cast<const T*>(args.x) + (group + t * 8) * args.depth + quad * 8;

  uint4 a0[kUnroll], a1[kUnroll];
  int k = warp * kStep;
  load_step(w0, w1, k, args.depth, a0, a1);
  // A warp's step is 16 rows of two 128-byte lines: one line a lane.
  for (int step = 1; step <= kPrefetchedSteps; ++step) {
    const int ahead = k + step * kWarps * kStep + lane % 2 * 64;
    if (ahead < args.depth) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(block_w + lane / 2 * args.depth + ahead));
    }
  }
  wait_for_predecessor();
  start_successor();

  float sum[kTiles][4] = {};
  while (k < args.depth) {
    uint4 b[kTiles][kUnroll];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const bool inside = group + t * 8 < args.rows && k + u * kDepth < args.depth;
        b[t][u] = inside ? __ldg(reinterpret_cast<const uint4*>(x[t] + k + u * kDepth)) : uint4{};
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        mma<T>(sum[t], a0[u].x, a1[u].x, a0[u].y, a1[u].y, b[t][u].x, b[t][u].y);
        mma<T>(sum[t], a0[u].z, a1[u].z, a0[u].w, a1[u].w, b[t][u].z, b[t][u].w);
      }
    }
    k += kWarps * kStep;
    load_step(w0, w1, k, args.depth, a0, a1);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    partial[warp][group][t * 8 + quad * 2] = sum[t][0];
    partial[warp][group][t * 8 + quad * 2 + 1] = sum[t][1];
    partial[warp][group + 8][t * 8 + quad * 2] = sum[t][2];
    partial[warp][group + 8][t * 8 + quad * 2 + 1] = sum[t][3];
  }
  __syncthreads();
  const int row = threadIdx.x % kRowsPerBlock, token = threadIdx.x / kRowsPerBlock;
  if (token >= args.rows || token >= kTokens) return;
  float total = 0;
#pragma unroll
  for (int v = 0; v < kWarps; ++v) total += partial[v][row][token];
  Y* y = static_cast<Y*>(args.y) + token * args.y_stride + first + row;
  *y = from_f32<Y>(args.accumulate ? to_f32(*y) + total : total);
}

template <typename T, typename Y>
void launch(const Args& args, unsigned blocks, cudaStream_t stream) {
  const LaunchShape shape = {blocks, 32 * kWarps, 0, stream};
  if (args.rows <= 8) {
    launch_dependent(shape, small_gemm_kernel<T, Y, 8>, args);
  } else {
    launch_dependent(shape, small_gemm_kernel<T, Y, 16>, args);
  }
}

}  // namespace

bool small_gemm_takes(const GemmCall& call) {
  return call.rows <= kSmallGemmRows && call.linear->dtype != DType::f32 && call.linear->in_features % 64 == 0 &&
         call.linear->out_features % kRowsPerBlock == 0;
}

void small_gemm(const GemmCall& call, Stream stream) {
  const GpuLinear& linear = *call.linear;
  const Args args = {linear.weight, call.x, call.y, static_cast<int>(call.rows),
                     static_cast<int>(linear.in_features), call.y_stride, call.accumulate};
  const auto blocks = static_cast<unsigned>(linear.out_features / kRowsPerBlock);
  const auto on = static_cast<cudaStream_t>(stream);
  const bool f32_out = call.y_dtype == DType::f32;
  if (linear.dtype == DType::f16) {
    f32_out ? launch<__half, float>(args, blocks, on) : launch<__half, __half>(args, blocks, on);
  } else {
    f32_out ? launch<__nv_bfloat16, float>(args, blocks, on) : launch<__nv_bfloat16, __nv_bfloat16>(args, blocks, on);
  }
}

}  // namespace warpweave::gpu
