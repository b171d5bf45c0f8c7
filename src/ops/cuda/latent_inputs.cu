// The way of a decode step's rows into latent attention in one kernel (latent.h): a block for a row's token, some for its
// queries' rotation, the rest for the queries' GEMMs. What no kernel writes is read before the predecessor's end.
#include "ops/cuda/head_gemm_call.h"
#include "ops/cuda/latent_rows.cuh"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kThreads = 32 * kHeadWarps;
constexpr int kPairsEach = 4;        // that a thread rotates
constexpr int kMaxTokenDim = 1024;   // kv_rank + rope_dim
constexpr int64_t kMostRows = 64;    // more have GEMMs of their own shape (head_gemm.cu)

struct Args {
  LatentRowsCall rows;
  HeadGemmArgs gemm;
  int rotating_blocks;               // of a row
  int gemm_blocks;                // of a head
};

template <typename T>
__device__ __forceinline__ void rotate_queries(const LatentRowsCall& call, int64_t row, int part) {
  const int half = call.rope_dim / 2, position = call.positions[row];
  const int first = part * kThreads * kPairsEach + static_cast<int>(threadIdx.x), end = call.num_heads * half;
  Turn turns[kPairsEach];
#pragma unroll
  for (int i = 0; i < kPairsEach; ++i) {
    const int pair = first + i * kThreads;
    if (pair < end) turns[i] = turn_of(call, position, pair % half);
  }
  wait_for_predecessor();
#pragma unroll
  for (int i = 0; i < kPairsEach; ++i) {
    const int pair = first + i * kThreads;
    if (pair < end) rotate_query<T>(call, row, pair / half, turns[i]);
  }
}

// For what is read behind the norm's sum.
__device__ __forceinline__ void ask_ahead(const LatentRowsCall& call, int position) {
  constexpr int kLine = 32;  // floats
  const int line = static_cast<int>(threadIdx.x) * kLine;
  if (line < call.kv_rank) ptx::prefetch_l2(call.latent_norm + line);
  if (call.cos == nullptr || line >= call.rope_dim / 2) return;
  const int64_t at = int64_t{position} * (call.rope_dim / 2) + line;
  ptx::prefetch_l2(call.cos + at);
  ptx::prefetch_l2(call.sin + at);
}

// With many rows and a depth of one step, five blocks fit an SM, so that all of a decode step of 64 rows stand ready at
// once.
template <typename T, class E, int kRowBlocks, int kAhead>
__global__ void __launch_bounds__(kThreads, kRowBlocks == 4 && kAhead == 1 ? 5 : 1)
    latent_inputs_kernel(const __grid_constant__ Args a) {
  using Gemm = HeadGemm<E, kRowBlocks, kAhead>;
  __shared__ union {
    typename Gemm::Sums sums;
    float values[kMaxTokenDim];
  } shared;
  start_successor();
  int block = static_cast<int>(blockIdx.x);
  const int rows = a.gemm.rows;
  if (block < rows) {
    const int32_t slot = a.rows.kv_slots[block];
    const int position = a.rows.positions[block];
    ask_ahead(a.rows, position);
    wait_for_predecessor();
    if (slot >= 0) write_token<kThreads, T>(a.rows, shared.values, block, slot, position);
    return;
  }
  block -= rows;
  if (block < rows * a.rotating_blocks) return rotate_queries<T>(a.rows, block / a.rotating_blocks, block % a.rotating_blocks);
  block -= rows * a.rotating_blocks;
  Gemm(a.gemm, block % a.gemm_blocks, block / a.gemm_blocks).run(shared.sums);
}

template <typename T, class E>
void launch(Args& args, const HeadGemmCall& gemm, cudaStream_t stream) {
  with_head_row_blocks(gemm, [&](auto row_blocks) {
    args.gemm_blocks = head_gemm_blocks(args.gemm, row_blocks);
    const int rows = args.gemm.rows;
    const auto blocks = static_cast<unsigned>(rows + rows * args.rotating_blocks + args.gemm_blocks * args.rows.num_heads);
    const auto run = [&](auto kernel) {
      launch_dependent({dim3(blocks), kThreads, 0, stream}, kernel, static_cast<const Args&>(args));
    };
    args.gemm.in_dim == kHeadDepthMultiple ? run(latent_inputs_kernel<T, E, row_blocks, 1>)
                                           : run(latent_inputs_kernel<T, E, row_blocks, kHeadStepsAhead>);
  });
}

}  // namespace

void write_latent_and_absorb(const LatentRowsCall& rows, const HeadGemmCall& gemm, Stream stream) {
  if (rows.rows == 0) return;
  if (!head_gemm_by_mma(gemm) || rows.kv_rank + rows.rope_dim > kMaxTokenDim || rows.rows != gemm.rows ||
      rows.rows > kMostRows) {
    norm_rope_write_latent(rows, stream);
    HeadGemmCall beside = gemm;
    beside.x_settled = true;
    return head_gemm(beside, stream);
  }
  constexpr int kPairs = kThreads * kPairsEach;
  Args args{rows, head_gemm_args(gemm), (rows.num_heads * (rows.rope_dim / 2) + kPairs - 1) / kPairs, 0};
  const auto on = static_cast<cudaStream_t>(stream);
  rows.dtype == DType::bf16 ? launch<__nv_bfloat16, ptx::Bf16>(args, gemm, on) : launch<__half, ptx::F16>(args, gemm, on);
}

}  // namespace warpweave::gpu
