#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/experts.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/fp8_codes.cuh"
#include "ops/cuda/gpu_ops.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kThreads = 256, kEach = 8;

// Rows of turn_cols elements that alternate with another matrix's, kGluTurn at a time; turn_cols 0: the rows are dense.
struct Turns {
  int64_t cols = 0;
  int second = 0;  // whether the other matrix begins

  __device__ int64_t operator()(int64_t i) const {
    if (cols == 0) return i;
    const int64_t row = i / cols;
    return ((row / kGluTurn * 2 + second) * kGluTurn + row % kGluTurn) * cols + i % cols;
  }
};

template <typename T>
__global__ void fill_random_kernel(RandomMatrix rule, int64_t count, Turns turns, T* out) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kEach;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach; i < count; i += step) {
    float value[kEach];
    const int64_t first = rule.index(i);  // the others follow in its row
#pragma unroll
    for (int j = 0; j < kEach; ++j) value[j] = rule.scale * random_unit(rule.base, first + j * rule.col_step);
    if (i + kEach <= count) {
      store_f32(out + turns(i), value);
    } else {
      for (int j = 0; j < count - i; ++j) out[turns(i) + j] = from_f32<T>(value[j]);
    }
  }
}

struct Fill {
  const RandomMatrix& rule;
  int64_t count;
  Turns turns;
};

void fill(const Fill& call, DType dtype, void* out, Stream stream) {
  constexpr int64_t kMostBlocks = 1 << 16;
  const int64_t blocks = std::min(kMostBlocks, (call.count + kThreads * kEach - 1) / (kThreads * kEach));
  if (blocks == 0) return;
  with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    fill_random_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        call.rule, call.count, call.turns, static_cast<T*>(out));
  });
}

// A CTA a block of one scale; twice over its elements, as they are soon made.
template <typename T>
__global__ void __launch_bounds__(kThreads) random_codes_kernel(RandomCodes call, int block_rows, int64_t block_cols) {
  __shared__ float largest_of_warp[kThreads / 32];
  const int64_t first_row = int64_t{blockIdx.x} * block_rows, first_col = blockIdx.y * block_cols;
  const int64_t rows = min(int64_t{block_rows}, call.rows - first_row), packs = min(block_cols, call.cols - first_col) / kEach;
  const auto each_pack = [&](const auto& take) {
    for (int64_t i = threadIdx.x; i < rows * packs; i += kThreads) {
      const int64_t row = first_row + i / packs, col = first_col + i % packs * kEach;
      float value[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        value[j] = to_f32(from_f32<T>(call.rule.scale * random_unit(call.rule.base, row * call.cols + col + j)));
      }
      take(row, col, value);
    }
  };
  float largest = 0;
  each_pack([&](int64_t, int64_t, const float (&value)[kEach]) {
    for (const float v : value) largest = fmaxf(largest, fabsf(v));
  });
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) largest_of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  for (const float of_warp : largest_of_warp) largest = fmaxf(largest, of_warp);
  constexpr float kLargestCode = 448.0f, kSmallestScale = 0x1p-126f;
  const float scale = largest == 0 ? 1 : fmaxf(largest / kLargestCode, kSmallestScale);
  if (threadIdx.x == 0) call.scales[blockIdx.x * (block_rows == 1 ? 1 : fp8_scale_stride(call.cols)) + blockIdx.y] = scale;
  const Turns turns = {call.turn == kNoTurn ? 0 : call.cols, call.turn};
  each_pack([&](int64_t row, int64_t col, const float (&value)[kEach]) {
    Pack<uint16_t, kEach / 2> codes;
#pragma unroll
    for (int j = 0; j < kEach / 2; ++j) codes.value[j] = codes_of(value[2 * j] / scale, value[2 * j + 1] / scale, 1.0f);
    *reinterpret_cast<Pack<uint16_t, kEach / 2>*>(call.codes + turns(row * call.cols + col)) = codes;
  });
}

}  // namespace

void fill_random_codes(const RandomCodes& call, Stream stream) {
  const bool by_row = call.scaling == Fp8Scaling::row;
  const int block_rows = by_row ? 1 : static_cast<int>(kFp8Block);
  const int64_t block_cols = by_row ? call.cols : kFp8Block;
  const dim3 grid(static_cast<unsigned>((call.rows + block_rows - 1) / block_rows),
                  static_cast<unsigned>((call.cols + block_cols - 1) / block_cols));
  with_type(call.dtype, [&](auto* type) {
    random_codes_kernel<std::remove_pointer_t<decltype(type)>>
        <<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(call, block_rows, block_cols);
  });
}

void fill_random(const RandomMatrix& rule, int64_t count, DType dtype, void* out, Stream stream) {
  fill({rule, count, {}}, dtype, out, stream);
}

void fill_random_turns(const RandomTurns& call, DType dtype, void* out, Stream stream) {
  fill({call.rule, call.rows * call.cols, {call.cols, call.second}}, dtype, out, stream);
}

}  // namespace warpweave::gpu
