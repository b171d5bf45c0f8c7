#include "attention/cuda/mla/mla_expand.h"

#include "attention/cuda/mla/mla_chunk.cuh"

namespace warpweave::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = kMlaRopeDim / 8;  // of 16 bytes
constexpr int kValueDim = 128;

__global__ void __launch_bounds__(kThreads) mla_rope_columns(MlaRopeColumns call) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int vector = static_cast<int>(i % kVectors);
  const int64_t row_head = i / kVectors, row = row_head / call.num_heads;
  if (row >= call.rows) return;
  const uint4 x = __ldg(static_cast<const uint4*>(call.rope) + row * kVectors + vector);
  uint16_t* const to = static_cast<uint16_t*>(call.k) + row_head * call.head_stride + call.column;
  reinterpret_cast<uint4*>(to)[vector] = x;
}

// A warp a row of a head, four numbers a lane.
template <class E>
__global__ void __launch_bounds__(kThreads) mla_merge(MlaMerge call) {
  const int64_t row_head = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row_head >= call.row_heads) return;
  const float a = call.lse[row_head], b = call.other_lse[row_head];
  if (!(b > -INFINITY)) return;
  const float top = fmaxf(a, b), of_a = __expf(a - top), of_b = __expf(b - top), scale = 1.0f / (of_a + of_b);
  uint2* const out = reinterpret_cast<uint2*>(static_cast<uint16_t*>(call.out) + row_head * kValueDim) + lane;
  const uint2 y =
      __ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(call.other) + row_head * kValueDim) + lane);
  const uint2 x = *out;
  const auto mixed = [&](ptx::u32 own, ptx::u32 other) {
    return E::pack((E::low(own) * of_a + E::low(other) * of_b) * scale,
                   (E::high(own) * of_a + E::high(other) * of_b) * scale);
  };
  *out = make_uint2(mixed(x.x, y.x), mixed(x.y, y.y));
  if (lane == 0) call.lse[row_head] = top + __logf(of_a + of_b);
}

unsigned blocks_of(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t launch_mla_chunk(const MlaParams& p, const MlaChunkRule& rule, const MlaChunk& chunk, cudaStream_t stream) {
  mla_chunk<<<1, kPlanThreads, 0, stream>>>(p, rule, chunk);
  return cudaPeekAtLastError();
}

cudaError_t launch_mla_rope_columns(const MlaRopeColumns& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  mla_rope_columns<<<blocks_of(call.rows * call.num_heads * kVectors), kThreads, 0, stream>>>(call);
  return cudaPeekAtLastError();
}

cudaError_t launch_mla_merge(MlaElement element, const MlaMerge& call, cudaStream_t stream) {
  if (call.row_heads == 0) return cudaSuccess;
  const auto kernel = element == MlaElement::bf16 ? mla_merge<ptx::Bf16> : mla_merge<ptx::F16>;
  kernel<<<blocks_of(call.row_heads * 32), kThreads, 0, stream>>>(call);
  return cudaPeekAtLastError();
}

}  // namespace warpweave::cuda
