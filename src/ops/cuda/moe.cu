// Mixture of experts: route, sort by expert, grouped products, sum. Everything stays on the GPU, so
// that a graph can hold it.
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <mma.h>

#include "ops/cuda/fp8.h"
#include "ops/cuda/gpu_ops.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kRouteThreads = 256;

// Thread 0's part: the k largest in descending order, ties to the lower index.
__device__ void choose(const float* logits, const RouterCall& call, int32_t* chosen, float* weights) {
  int found = 0;
  for (int e = 0; e < call.rule.num_experts; ++e) {
    int at = found;
    while (at > 0 && logits[e] > logits[chosen[at - 1]]) --at;
    if (at == call.rule.k) continue;
    found = min(found + 1, call.rule.k);
    for (int j = found - 1; j > at; --j) chosen[j] = chosen[j - 1];
    chosen[at] = e;
  }
  const float top = logits[chosen[0]];
  float sum = 0;
  for (int j = 0; j < call.rule.k; ++j) {
    weights[j] = expf(logits[chosen[j]] - top);
    sum += weights[j];
  }
  if (!call.rule.renormalise) {
    sum = 0;
    for (int e = 0; e < call.rule.num_experts; ++e) sum += expf(logits[e] - top);
  }
  for (int j = 0; j < call.rule.k; ++j) weights[j] /= sum;
}

__global__ void __launch_bounds__(kRouteThreads) route_kernel(RouterCall call) {
  __shared__ float logits[kMaxExperts];
  __shared__ int32_t chosen[64];
  __shared__ float weights[64];
  const int64_t row = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* x = call.x + row * call.hidden;
  for (int e = warp; e < call.rule.num_experts; e += kRouteThreads / 32) {
    const float* w = call.weight + e * call.hidden;
    float sum = 0;
    for (int64_t i = lane; i < call.hidden; i += 32) sum += x[i] * w[i];
    sum = warp_sum(sum);
    if (lane == 0) logits[e] = sum + (call.bias != nullptr ? call.bias[e] : 0.0f);
  }
  __syncthreads();
  if (threadIdx.x == 0) choose(logits, call, chosen, weights);
  __syncthreads();
  for (int j = threadIdx.x; j < call.rule.k; j += blockDim.x) {
    call.chosen[row * call.rule.k + j] = chosen[j];
    call.weights[row * call.rule.k + j] = weights[j];
  }
}

constexpr int kGroupThreads = 256;

// Block e places the pairs of expert e: how many belong to lower experts says where they start.
__global__ void __launch_bounds__(kGroupThreads) group_kernel(const int32_t* chosen, int64_t pairs,
                                                              int32_t* pair_of, int32_t* place_of, int32_t* offsets) {
  __shared__ int lower_of_warp[kGroupThreads / 32], mine_of_warp[kGroupThreads / 32];
  const int expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int lower = 0;
  for (int64_t i = threadIdx.x; i < pairs; i += kGroupThreads) lower += chosen[i] < expert;
  lower = __reduce_add_sync(~0u, lower);
  if (lane == 0) lower_of_warp[warp] = lower;
  __syncthreads();
  int place = 0;
  for (int w = 0; w < kGroupThreads / 32; ++w) place += lower_of_warp[w];
  if (threadIdx.x == 0) {
    offsets[expert] = place;
    if (expert == gridDim.x - 1) offsets[gridDim.x] = static_cast<int32_t>(pairs);
  }
  for (int64_t base = 0; base < pairs; base += kGroupThreads) {
    const int64_t i = base + threadIdx.x;
    const bool mine = i < pairs && chosen[i] == expert;
    const unsigned votes = __ballot_sync(~0u, mine);
    if (lane == 0) mine_of_warp[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < kGroupThreads / 32; ++w) {
      before += w < warp ? mine_of_warp[w] : 0;
      all += mine_of_warp[w];
    }
    if (mine) {
      pair_of[place + before] = static_cast<int32_t>(i);
      place_of[i] = place + before;
    }
    place += all;
    __syncthreads();
  }
}

constexpr int kTileRows = 64, kTileCols = 64, kTileDepth = 32;

struct Tile {
  int expert = -1;
  int first = 0;  // places
  int end = 0;
};

// The `wanted`-th tile of kTileRows places, counted over the experts in order.
__device__ Tile find_tile(const int32_t* offsets, int experts, int wanted) {
  for (int e = 0; e < experts; ++e) {
    const int tiles = (offsets[e + 1] - offsets[e] + kTileRows - 1) / kTileRows;
    if (wanted < tiles) return {e, offsets[e] + wanted * kTileRows, offsets[e + 1]};
    wanted -= tiles;
  }
  return {};
}

// Products of 16-bit types by the tensor cores, of f32 by FMA; both sum in f32.
template <typename T>
struct TileProduct {
  using Sum = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float>;
  // Warp w of 4 owns rows 16 w .. 16 w + 15 of the tile.
  Sum sums[kTileCols / 16];

  __device__ TileProduct() {
    for (Sum& sum : sums) nvcuda::wmma::fill_fragment(sum, 0.0f);
  }
  __device__ void add(const T (*x)[kTileDepth + 8], const T (*w)[kTileDepth + 8], int warp) {
    namespace wmma = nvcuda::wmma;
    for (int k = 0; k < kTileDepth; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a;
      wmma::load_matrix_sync(a, &x[warp * 16][k], kTileDepth + 8);
#pragma unroll
      for (int j = 0; j < kTileCols / 16; ++j) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> b;
        wmma::load_matrix_sync(b, &w[j * 16][k], kTileDepth + 8);
        wmma::mma_sync(sums[j], a, b, sums[j]);
      }
    }
  }
  __device__ void store(float (*out)[kTileCols + 4], int warp) {
#pragma unroll
    for (int j = 0; j < kTileCols / 16; ++j) {
      nvcuda::wmma::store_matrix_sync(&out[warp * 16][j * 16], sums[j], kTileCols + 4, nvcuda::wmma::mem_row_major);
    }
  }
};

template <>
struct TileProduct<float> {
  float sums[32] = {};  // thread (warp, lane): rows warp*16 .. +15, columns lane and lane + 32

  __device__ void add(const float (*x)[kTileDepth + 8], const float (*w)[kTileDepth + 8], int warp) {
    const int lane = threadIdx.x % 32;
    for (int k = 0; k < kTileDepth; ++k) {
      const float b0 = w[lane][k], b1 = w[lane + 32][k];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        sums[i * 2] += x[warp * 16 + i][k] * b0;
        sums[i * 2 + 1] += x[warp * 16 + i][k] * b1;
      }
    }
  }
  __device__ void store(float (*out)[kTileCols + 4], int warp) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[warp * 16 + i][lane] = sums[i * 2];
      out[warp * 16 + i][lane + 32] = sums[i * 2 + 1];
    }
  }
};

// Eight codes in T, exact: times scales of blocks, rounded; scales of rows are left for the sums.
template <typename T>
__device__ Pack<T, 8> widened_codes(const uint8_t* codes, const GroupedGemmCall& call, const float* scales, int64_t row,
                                    int64_t col) {
  const float scale = call.scaling == Fp8Scaling::row
                          ? 1
                          : scales[row / kFp8Block * fp8_scale_stride(call.k) + col / kFp8Block];
  const auto pairs = *reinterpret_cast<const Pack<uint16_t, 4>*>(codes + row * call.k + col);
  Pack<T, 8> out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pairs.value[i], __NV_E4M3)));
    out.value[2 * i] = from_f32<T>(values.x * scale);
    out.value[2 * i + 1] = from_f32<T>(values.y * scale);
  }
  return out;
}

template <typename T, bool kFp8>
__global__ void __launch_bounds__(128, 1) grouped_gemm_kernel(GroupedGemmCall call) {
  __shared__ __align__(16) T x[kTileRows][kTileDepth + 8];
  __shared__ __align__(16) T w[kTileCols][kTileDepth + 8];
  __shared__ __align__(16) float out[kTileRows][kTileCols + 4];
  const Tile tile = find_tile(call.offsets, call.experts, blockIdx.y);
  if (tile.expert < 0) return;
  const int64_t first_col = int64_t{blockIdx.x} * kTileCols;
  const T* weight = static_cast<const T*>(call.weights[tile.expert]);
  const float* scales = kFp8 ? call.weight_scales[tile.expert] : nullptr;
  constexpr int kPack = 16 / sizeof(T);
  constexpr int kPacksPerRow = kTileDepth / kPack;
  TileProduct<T> product;
  for (int64_t k = 0; k < call.k; k += kTileDepth) {
    for (int n = threadIdx.x; n < kTileRows * kPacksPerRow; n += 128) {
      const int row = n / kPacksPerRow, col = n % kPacksPerRow * kPack;
      Pack<T, kPack> zero{}, from_x = zero, from_w = zero;
      if (tile.first + row < tile.end && k + col < call.k) {
        const int place = tile.first + row;
        const int64_t source = call.pair_of != nullptr ? call.pair_of[place] / call.pairs_per_row : place;
        from_x = *reinterpret_cast<const Pack<T, kPack>*>(static_cast<const T*>(call.x) + source * call.k + k + col);
      }
      if (first_col + row < call.n && k + col < call.k) {
        if constexpr (kFp8) {
          from_w = widened_codes<T>(static_cast<const uint8_t*>(call.weights[tile.expert]), call, scales,
                                    first_col + row, k + col);
        } else {
          from_w = *reinterpret_cast<const Pack<T, kPack>*>(weight + (first_col + row) * call.k + k + col);
        }
      }
      *reinterpret_cast<Pack<T, kPack>*>(&x[row][col]) = from_x;
      *reinterpret_cast<Pack<T, kPack>*>(&w[row][col]) = from_w;
    }
    __syncthreads();
    product.add(x, w, threadIdx.x / 32);
    __syncthreads();
  }
  product.store(out, threadIdx.x / 32);
  __syncthreads();
  const float* bias = call.biases != nullptr ? call.biases[tile.expert] : nullptr;
  for (int n = threadIdx.x; n < kTileRows * kTileCols; n += 128) {
    const int row = n / kTileCols, col = n % kTileCols;
    if (tile.first + row >= tile.end || first_col + col >= call.n) continue;
    const float scale = kFp8 && call.scaling == Fp8Scaling::row ? scales[first_col + col] : 1.0f;
    const float value = out[row][col] * scale + (bias != nullptr ? bias[first_col + col] : 0.0f);
    const int64_t at = (tile.first + row) * call.n + first_col + col;
    if (call.y_dtype == DType::f32) {
      static_cast<float*>(call.y)[at] = value;
    } else {
      static_cast<T*>(call.y)[at] = from_f32<T>(value);
    }
  }
}

__global__ void combine_kernel(const float* results, const int32_t* place_of, const float* weights, int k,
                               int64_t hidden, float* y) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    float sum = y[row * hidden + i];
    for (int j = 0; j < k; ++j) sum += weights[row * k + j] * results[place_of[row * k + j] * hidden + i];
    y[row * hidden + i] = sum;
  }
}

}  // namespace

void route(const RouterCall& call, Stream stream) {
  if (call.rows == 0) return;
  route_kernel<<<call.rows, kRouteThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
}

void group_by_expert(const ExpertGroupsCall& call, Stream stream) {
  if (call.pairs == 0) return;
  group_kernel<<<call.experts, kGroupThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      call.chosen, call.pairs, call.pair_of, call.place_of, call.offsets);
}

void grouped_gemm(const GroupedGemmCall& call, Stream stream) {
  if (call.pairs == 0) return;
  // No more tiles than this can exist; blocks past the last one leave at once.
  const int64_t full = (call.pairs + kTileRows - 1) / kTileRows;
  const int64_t tiles = full + std::min<int64_t>(call.pairs, call.experts);
  const dim3 grid(static_cast<unsigned>((call.n + kTileCols - 1) / kTileCols), static_cast<unsigned>(tiles));
  with_type(call.dtype, [&]<typename T>(T*) {
    const auto on = static_cast<cudaStream_t>(stream);
    if constexpr (sizeof(T) == 2) {
      if (call.weight_scales != nullptr) {
        grouped_gemm_kernel<T, true><<<grid, 128, 0, on>>>(call);
        return;
      }
    }
    grouped_gemm_kernel<T, false><<<grid, 128, 0, on>>>(call);
  });
}

void combine_experts(const CombineExpertsCall& call, Stream stream) {
  if (call.rows == 0) return;
  combine_kernel<<<call.rows, 256, 0, static_cast<cudaStream_t>(stream)>>>(call.results, call.place_of, call.weights, call.k,
                                                                           call.hidden, call.y);
}

}  // namespace warpweave::gpu
