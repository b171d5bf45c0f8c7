// The row-wise kernels of latent.h: a block for a row's token and one for its queries.
#include "ops/cuda/latent_rows.cuh"

#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kThreads = 128;  // as latent_inputs.cu's, for the same bits

template <typename T>
__device__ void rotate_queries(const LatentRowsCall& call, int64_t row, int position) {
  const int half = call.rope_dim / 2;
  for (int i = threadIdx.x; i < call.num_heads * half; i += kThreads) {
    rotate_query<T>(call, row, i / half, turn_of(call, position, i % half));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) latent_rows_kernel(LatentRowsCall call) {
  const int64_t row = blockIdx.x;
  const int32_t slot = call.kv_slots[row];
  const int position = call.positions[row];
  wait_for_predecessor();
  start_successor();  // not before: the queries' GEMM beside this takes its input as settled
  if (blockIdx.y == 1) return rotate_queries<T>(call, row, position);
  extern __shared__ float values[];  // [kv_rank + rope_dim]
  if (slot >= 0) write_token<kThreads, T>(call, values, row, slot, position);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) norm_rows_kernel(NormRowsCall call) {
  start_successor();
  wait_for_predecessor();
  const T* const x = static_cast<const T*>(call.x) + blockIdx.x * call.x_stride;
  T* const out = static_cast<T*>(call.out) + blockIdx.x * call.cols;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) {
    const float value = to_f32(x[i]);
    squares += value * value;
  }
  const float scale = 1.0f / sqrtf(block_sum<kThreads>(squares) / static_cast<float>(call.cols) + call.eps);
  for (int64_t i = threadIdx.x; i < call.cols; i += kThreads) out[i] = from_f32<T>(to_f32(x[i]) * scale * call.weight[i]);
}

}  // namespace

void norm_rope_write_latent(const LatentRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(call.rows), 2);
  const size_t shared_bytes = sizeof(float) * (call.kv_rank + call.rope_dim);
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({grid, kThreads, shared_bytes, static_cast<cudaStream_t>(stream)}, latent_rows_kernel<T>, call);
  });
}

void norm_rows(const NormRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&]<typename T>(T*) {
    launch_dependent({dim3(static_cast<unsigned>(call.rows)), kThreads, 0, static_cast<cudaStream_t>(stream)},
                     norm_rows_kernel<T>, call);
  });
}

}  // namespace warpweave::gpu
