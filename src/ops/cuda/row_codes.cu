#include "ops/cuda/row_codes.h"

#include <cuda_runtime.h>

#include "ops/cuda/fp8_codes.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/norm_rows.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

template <class S>
using Values = float[S::kPacks][S::kShare][4];

template <class S>
struct RowShared {
  __align__(16) float sums[S::kSums];
  __align__(8) uint64_t arrived;  // of clusters: not used
  float largest[S::kWarps];
};

// x plus its partial sums. All loads of two packs come before they are used; not `live`: nothing is loaded.
template <class S>
__device__ __forceinline__ void load_sums(const CodeSumsCall& call, int64_t row, bool live, Values<S>& values) {
  const int64_t first = row * call.cols;
#pragma unroll
  for (int at = 0; at < S::kPacks; at += 2) {
    PartialPack<4> partials[2];
#pragma unroll
    for (int pack = at; pack < at + 2; ++pack) {
      const int column = S::column(pack, 0);
      const bool wanted = live && column < call.cols;
      if (wanted) load_f32(call.x + first + column, values[pack][0]);
      partials[pack - at].load(call.partials.data + first + column, wanted ? call.partials.splits : 0, call.partials.stride);
    }
#pragma unroll
    for (int pack = at; pack < at + 2; ++pack) partials[pack - at].add_to(values[pack][0]);
  }
}

template <class S>
__device__ __forceinline__ void norm_values(const CodeSumsCall& call, const Values<S>& weight, RowShared<S>& shared,
                                            Values<S>& values) {
  const int cols = static_cast<int>(call.cols);
  float sum[1] = {};
  for_columns<S>(cols, [&](int pack, int share, int) {
#pragma unroll
    for (float v : values[pack][share]) sum[0] += v * v;
  });
  const float total = sum_row<S>(sum, shared.sums, shared.arrived, [] {});
  const float inverse = rsqrtf(total / static_cast<float>(call.cols) + call.eps);
  for_columns<S>(cols, [&](int pack, int share, int) {
#pragma unroll
    for (int j = 0; j < 4; ++j) values[pack][share][j] *= inverse * (weight[pack][share][j] + call.weight_offset);
  });
}

// The largest magnitude of the row.
template <class S>
__device__ __forceinline__ float row_largest(float largest, RowShared<S>& shared) {
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) shared.largest[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (float of_warp : shared.largest) largest = fmaxf(largest, of_warp);
  return largest;
}

// Not `live`: nothing is loaded or stored.
template <typename T, class S>
__device__ __forceinline__ void code_row(const CodeSumsCall& call, const Values<S>& weight, RowShared<S>& shared, bool live) {
  const int64_t row = blockIdx.x, first = row * call.cols;
  const int cols = static_cast<int>(call.cols);
  Values<S> values = {};
  load_sums<S>(call, row, live, values);
  if (live && call.x_out != nullptr) {
    for_columns<S>(cols, [&](int pack, int share, int i) { store_f32(call.x_out + first + i, values[pack][share]); });
  }
  if (call.weight != nullptr) norm_values<S>(call, weight, shared, values);
  float largest = 0;
  for_columns<S>(cols, [&](int pack, int share, int) {
#pragma unroll
    for (float& v : values[pack][share]) {
      v = to_f32(from_f32<T>(v));
      largest = fmaxf(largest, fabsf(v));
    }
  });
  const CodeScale scale(row_largest<S>(largest, shared));
  if (!live) return;
  if (threadIdx.x == 0) call.to.scales[row] = scale.scale;
  T* const kept = call.kept != nullptr ? static_cast<T*>(call.kept) + call.keep[row] * call.cols : nullptr;
  for_columns<S>(cols, [&](int pack, int share, int i) {
    const float(&v)[4] = values[pack][share];
    if (kept != nullptr) store_f32(kept + i, v);
    const uint16_t low = codes_of(v[0], v[1], scale.inverse), high = codes_of(v[2], v[3], scale.inverse);
    *reinterpret_cast<uint32_t*>(call.to.codes + first + i) = low | uint32_t{high} << 16;
  });
}

// A block a row, which is done twice, first for nothing, as in rms_norm().
template <typename T, class S>
__global__ void __launch_bounds__(S::kThreads, 1) code_sums_kernel(const __grid_constant__ CodeSumsCall call) {
  __shared__ RowShared<S> shared;
  start_successor();
  Values<S> weight = {};
  if (call.weight != nullptr) {
    for_columns<S>(static_cast<int>(call.cols), [&](int pack, int share, int i) { load_f32(call.weight + i, weight[pack][share]); });
  }
#pragma unroll 1
  for (int left = 2; left > 0; --left) {
    asm volatile("" : "+r"(left));  // one copy of the code
    if (left == 1) {
      wait_for_predecessor();
      __syncthreads();  // what warps share has been read
    }
    code_row<T, S>(call, weight, shared, left == 1);
  }
}

template <typename T, int kSummed, int kPacks>
void launch(const CodeSumsCall& call, Stream stream) {
  using S = NormShape<kSummed, 1, 1, kPacks, Added::partials>;
  launch_dependent({static_cast<unsigned>(call.rows), S::kThreads, 0, static_cast<cudaStream_t>(stream)}, code_sums_kernel<T, S>,
                   call);
}

template <typename T>
void launch(const CodeSumsCall& call, Stream stream) {
  constexpr int kPack = 4 * kNormThreads;  // columns
  if (call.cols < kPack) return launch<T, kNarrowThreads, kPack / 4 / kNarrowThreads>(call, stream);
  call.cols <= 2 * kPack ? launch<T, kNormThreads, 2>(call, stream) : launch<T, kNormThreads, 6>(call, stream);
}

}  // namespace

bool code_sums_takes(int64_t cols) { return cols % 4 == 0 && cols <= kNormPartialCols; }

void code_sums(const CodeSumsCall& call, Stream stream) {
  if (call.rows == 0) return;
  call.dtype == DType::f16 ? launch<__half>(call, stream) : launch<__nv_bfloat16>(call, stream);
}

}  // namespace warpweave::gpu
