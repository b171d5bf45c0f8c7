// The experts' GEMMs for every GPU and dtype: tiles of 64 places and 64 weight rows, by the tensor cores for 16-bit types
// (e4m3 weights are widened on the way), by FMA for f32.
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <mma.h>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kTileRows = kPortableTilePlaces, kTileCols = 64, kTileDepth = 32;

// Both sum in f32.
template <typename T>
struct TileSums {
  using Sum = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float>;
  // Warp w of 4 owns rows 16 w .. 16 w + 15 of the tile.
  Sum sums[kTileCols / 16];

  __device__ TileSums() {
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
struct TileSums<float> {
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

// The row among gate's rows, then up's, where scales of 8-bit weights are found.
__device__ __forceinline__ int64_t scale_row(const ExpertWeights& w, int64_t row) {
  return w.glu == GluActivation::none ? row : row / 16 * 8 + row % 8 + row / 8 % 2 * (w.rows / 2);
}

// Eight codes in T, exact: times scales of blocks, rounded; scales of rows are left for the sums.
template <typename T>
__device__ Pack<T, 8> widened_codes(const uint8_t* codes, const ExpertWeights& w, const float* scales, int64_t row, int64_t col) {
  const float scale = w.scaling == Fp8Scaling::row
                          ? 1
                          : scales[scale_row(w, row) / kFp8Block * fp8_scale_stride(w.cols) + col / kFp8Block];
  const auto pairs = *reinterpret_cast<const Pack<uint16_t, 4>*>(codes + row * w.cols + col);
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
__device__ __forceinline__ void finish(const ExpertGemmCall& call, const ExpertTile& tile, int64_t first_row,
                                       const float (*out)[kTileCols + 4]) {
  const ExpertWeights& w = call.weights;
  const bool glu = w.glu != GluActivation::none;
  const float* const bias = w.biases != nullptr ? w.biases[tile.expert] : nullptr;
  const auto sum = [&](int place, int col) {
    const int64_t row = first_row + col;
    const bool by_row = kFp8 && w.scaling == Fp8Scaling::row;
    return out[place][col] * (by_row ? w.scales[tile.expert][scale_row(w, row)] : 1.0f) + (bias != nullptr ? bias[row] : 0.0f);
  };
  const int columns = glu ? kTileCols / 2 : kTileCols;
  for (int n = threadIdx.x; n < kTileRows * columns; n += 128) {
    const int place = n / columns, column = n % columns;
    const int col = glu ? column / 8 * 16 + column % 8 : column;
    if (place >= tile.count || first_row + col >= w.rows) continue;
    const float value = glu ? activate(w.glu, sum(place, col), sum(place, col + 8)) : sum(place, col);
    const int64_t at = (tile.first + place) * w.outputs() + (glu ? first_row / 2 : first_row) + column;
    if (call.y_dtype == DType::f32) static_cast<float*>(call.y)[at] = value;
    else static_cast<T*>(call.y)[at] = from_f32<T>(value);
  }
}

template <typename T, bool kFp8>
__global__ void __launch_bounds__(128, 1) expert_tiles_kernel(const __grid_constant__ ExpertGemmCall call) {
  __shared__ __align__(16) T x[kTileRows][kTileDepth + 8];
  __shared__ __align__(16) T w[kTileCols][kTileDepth + 8];
  __shared__ __align__(16) float out[kTileRows][kTileCols + 4];
  wait_for_predecessor();
  start_successor();
  if (static_cast<int>(blockIdx.y) >= *call.plan.num_tiles) return;
  const ExpertTile tile = call.plan.tiles[blockIdx.y];
  const ExpertWeights& weights = call.weights;
  const int64_t first_row = int64_t{blockIdx.x} * kTileCols;
  const auto* const data = static_cast<const char*>(weights.data) + tile.expert * weights.stride_bytes;
  const float* scales = kFp8 ? weights.scales[tile.expert] : nullptr;
  constexpr int kPack = 16 / sizeof(T);
  constexpr int kPacksPerRow = kTileDepth / kPack;
  TileSums<T> sums;
  for (int64_t k = 0; k < weights.cols; k += kTileDepth) {
    for (int n = threadIdx.x; n < kTileRows * kPacksPerRow; n += 128) {
      const int row = n / kPacksPerRow, col = n % kPacksPerRow * kPack;
      Pack<T, kPack> zero{}, from_x = zero, from_w = zero;
      if (row < tile.count && k + col < weights.cols) {
        from_x = *reinterpret_cast<const Pack<T, kPack>*>(static_cast<const T*>(call.x) + int64_t{tile.first + row} * weights.cols + k + col);
      }
      if (first_row + row < weights.rows && k + col < weights.cols) {
        if constexpr (kFp8) {
          from_w = widened_codes<T>(reinterpret_cast<const uint8_t*>(data), weights, scales, first_row + row, k + col);
        } else {
          from_w = *reinterpret_cast<const Pack<T, kPack>*>(reinterpret_cast<const T*>(data) + (first_row + row) * weights.cols + k + col);
        }
      }
      *reinterpret_cast<Pack<T, kPack>*>(&x[row][col]) = from_x;
      *reinterpret_cast<Pack<T, kPack>*>(&w[row][col]) = from_w;
    }
    __syncthreads();
    sums.add(x, w, threadIdx.x / 32);
    __syncthreads();
  }
  sums.store(out, threadIdx.x / 32);
  __syncthreads();
  finish<T, kFp8>(call, tile, first_row, out);
}

}  // namespace

void expert_tiles(const ExpertGemmCall& call, DType x_dtype, Stream stream) {
  if (call.places == 0) return;
  // No more tiles than this can exist; blocks past the last one leave at once.
  const int64_t tiles = most_expert_tiles(call.places, call.weights.experts, kPortableTilePlaces);
  const dim3 grid(static_cast<unsigned>((call.weights.rows + kTileCols - 1) / kTileCols), static_cast<unsigned>(tiles));
  const LaunchShape shape = {grid, 128, 0, static_cast<cudaStream_t>(stream)};
  with_type(x_dtype, [&]<typename T>(T*) {
    if constexpr (sizeof(T) == 2) {
      if (call.weights.scales != nullptr) return launch_dependent(shape, expert_tiles_kernel<T, true>, call);
    }
    launch_dependent(shape, expert_tiles_kernel<T, false>, call);
  });
}

}  // namespace warpweave::gpu
