// Rounding activations to e4m3 and widening weights from it.
#include "ops/cuda/fp8.h"

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/fp8_codes.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 8;  // elements of a thread at a time

// A row's packs from one thread's first one on: kKept of them, which are asked for together and kept, or any number, which
// are read again from the cache.
template <typename T, int kSharers, int kKept>
class RowPacks {
 public:
  __device__ RowPacks(const T* row, int first, int64_t cols) : row_(row), first_(first), cols_(cols) {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      kept_[k] = column(k) < cols ? *reinterpret_cast<const uint4*>(row + column(k)) : uint4{};
    }
  }
  // Calls visit(column, values).
  template <typename Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    float values[kPack];
    if constexpr (kKept > 0) {
#pragma unroll
      for (int k = 0; k < kKept; ++k) {
        load_f32(reinterpret_cast<const T*>(&kept_[k]), values);
        if (column(k) < cols_) visit(column(k), values);
      }
    } else {
      for (int64_t c = first_; c < cols_; c += kSharers * kPack) {
        load_f32(row_ + c, values);
        visit(c, values);
      }
    }
  }

 private:
  __device__ int column(int k) const { return first_ + k * (kSharers * kPack); }

  const T* row_;
  int first_;
  int64_t cols_;
  uint4 kept_[kKept > 0 ? kKept : 1];
};

// A block a row, or a warp.
template <typename T, int kWarps, int kKept>
__global__ void __launch_bounds__(kThreads) code_rows_kernel(const __grid_constant__ CodeRowsCall call) {
  constexpr int kSharers = kWarps * 32;  // threads of a row
  if (call.place_of == nullptr) start_successor();
  wait_for_predecessor();
  if (call.place_of != nullptr) start_successor();  // not before: the successor may take the plan as settled
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kSharers) + threadIdx.x / kSharers;
  const int first = static_cast<int>(threadIdx.x) % kSharers * kPack;
  if (kWarps == 1 && row >= call.rows) return;
  const RowPacks<T, kSharers, kKept> x(static_cast<const T*>(call.x) + row * call.cols, first, call.cols);
  float largest = 0;
  x.each([&](int64_t, const float (&values)[kPack]) {
#pragma unroll
    for (float value : values) largest = fmaxf(largest, fabsf(value));
  });
  largest = warp_max(largest);
  if constexpr (kWarps > 1) {
    __shared__ float largest_of_warp[kWarps];
    if (threadIdx.x % 32 == 0) largest_of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (float of_warp : largest_of_warp) largest = fmaxf(largest, of_warp);
  }
  const CodeScale scale(largest);
  const int32_t* const places = call.place_of != nullptr ? call.place_of + row * call.copies : nullptr;
  for (int j = first / kPack; j < call.copies; j += kSharers) call.scales[places != nullptr ? places[j] : row] = scale.scale;
  x.each([&](int64_t c, const float (&values)[kPack]) {
    Pack<uint16_t, kPack / 2> out;
#pragma unroll
    for (int i = 0; i < kPack / 2; ++i) out.value[i] = codes_of(values[2 * i], values[2 * i + 1], scale.inverse);
    for (int j = 0; j < call.copies; ++j) {
      const int64_t to = places != nullptr ? places[j] : row;
      *reinterpret_cast<Pack<uint16_t, kPack / 2>*>(call.codes + to * call.cols + c) = out;
    }
  });
}

// A warp a row of at most kPacks * 256 columns, which it has in registers: all loads are under way together.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kThreads) code_whole_rows_kernel(const __grid_constant__ CodeRowsCall call) {
  if (call.place_of == nullptr) start_successor();
  wait_for_predecessor();
  if (call.place_of != nullptr) start_successor();  // as above
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, cols = static_cast<int>(call.cols);
  if (row >= call.rows) return;
  int64_t place = row;          // lane j's: of the row's copy j
  if (call.place_of != nullptr && lane < call.copies) place = __ldcg(call.place_of + row * call.copies + lane);
  const T* const x = static_cast<const T*>(call.x) + row * call.cols;
  Pack<T, kPack> packs[kPacks] = {};
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = (i * 32 + lane) * kPack;
    if (c < cols) packs[i] = *reinterpret_cast<const Pack<T, kPack>*>(x + c);
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (const T value : packs[i].value) largest = fmaxf(largest, fabsf(to_f32(value)));
  }
  const CodeScale scale(warp_max(largest));
  if (lane < call.copies) call.scales[place] = scale.scale;
  Pack<uint16_t, kPack / 2> out[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
#pragma unroll
    for (int j = 0; j < kPack / 2; ++j) {
      out[i].value[j] = codes_of(to_f32(packs[i].value[2 * j]), to_f32(packs[i].value[2 * j + 1]), scale.inverse);
    }
  }
  for (int j = 0; j < call.copies; ++j) {
    uint8_t* const to = call.codes + __shfl_sync(~0u, place, j) * call.cols;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = (i * 32 + lane) * kPack;
      if (c < cols) *reinterpret_cast<Pack<uint16_t, kPack / 2>*>(to + c) = out[i];
    }
  }
}

constexpr int kBlockLanes = static_cast<int>(kFp8Block) / kPack;  // that have 128 columns of a row
constexpr int kRun = 4;                                           // such blocks, neighbours whose loads are under way together

// kBlockLanes threads for a run of blocks of a row; their neighbours have the next row's, so that scales leave side by side.
template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_blocks_kernel(const __grid_constant__ QuantizeRowsCall call) {
  start_successor();
  wait_for_predecessor();
  const int64_t index = int64_t{blockIdx.x} * (kThreads / kBlockLanes) + threadIdx.x / kBlockLanes;
  const int64_t row = index % call.rows, first = index / call.rows * kRun;
  const int64_t c = first * kFp8Block + threadIdx.x % kBlockLanes * kPack;
  if (first * kFp8Block >= call.cols) return;
  const T* const x = static_cast<const T*>(call.x) + row * call.cols + c;
  float values[kRun][kPack] = {};
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (c + i * kFp8Block < call.cols) load_f32(x + i * kFp8Block, values[i]);
  }
  const unsigned sharers = ((1u << kBlockLanes) - 1) << (threadIdx.x % 32 / kBlockLanes * kBlockLanes);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    float largest = 0;
#pragma unroll
    for (const float value : values[i]) largest = fmaxf(largest, fabsf(value));
#pragma unroll
    for (int step = kBlockLanes / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(sharers, largest, step));
    if ((first + i) * kFp8Block >= call.cols) return;
    const CodeScale scale(largest);
    if (threadIdx.x % kBlockLanes == 0) call.scales[(first + i) * call.rows + row] = scale.scale;
    if (c + i * kFp8Block >= call.cols) continue;
    Pack<uint16_t, kPack / 2> out;
#pragma unroll
    for (int j = 0; j < kPack / 2; ++j) out.value[j] = codes_of(values[i][2 * j], values[i][2 * j + 1], scale.inverse);
    *reinterpret_cast<Pack<uint16_t, kPack / 2>*>(call.codes + row * call.cols + c + i * kFp8Block) = out;
  }
}

struct WidenArgs {
  const uint8_t* codes;  // of the first row
  const float* scales;   // of the whole matrix
  int64_t first_row;
  int64_t rows;
  int64_t cols;
  int64_t scale_stride;  // of blocks; 0: scales of rows
};

template <typename T>
__global__ void __launch_bounds__(kThreads) widen_rows_kernel(const __grid_constant__ WidenArgs a, T* out) {
  start_successor();
  wait_for_predecessor();
  const int64_t packs = a.cols / kPack;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < a.rows * packs; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = a.first_row + i / packs, col = i % packs * kPack;
    const float scale = a.scale_stride == 0 ? a.scales[row]
                                            : a.scales[row / kFp8Block * a.scale_stride + col / kFp8Block];
    const auto codes = *reinterpret_cast<const Pack<uint16_t, kPack / 2>*>(a.codes + i * kPack);
    float values[kPack];
#pragma unroll
    for (int j = 0; j < kPack / 2; ++j) {
      const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes.value[j], __NV_E4M3)));
      values[2 * j] = pair.x * scale;
      values[2 * j + 1] = pair.y * scale;
    }
    store_f32(out + i * kPack, values);
  }
}

template <typename Run>
void with_half_type(DType dtype, const Run& run) {
  if (dtype == DType::f16) {
    run(static_cast<__half*>(nullptr));
  } else {
    run(static_cast<__nv_bfloat16*>(nullptr));
  }
}

}  // namespace

bool keeps_fp8() { return has_dependent_launch(); }

void code_rows(const CodeRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  constexpr int kRowsOfBlock = kThreads / 32;
  constexpr int64_t kNarrow = 512, kWide = 4096;  // columns: fewer leave most of a block idle, more keep a warp too long
  const auto on = static_cast<cudaStream_t>(stream);
  const bool many = call.rows >= int64_t{kRowsOfBlock} * num_sms();
  with_half_type(call.dtype, [&]<typename T>(T*) {
    const auto by_warps = static_cast<unsigned>((call.rows + kRowsOfBlock - 1) / kRowsOfBlock);
    if (many && call.copies <= 32 && call.cols <= 4 * 32 * kPack) {
      return launch_dependent({by_warps, kThreads, 0, on}, code_whole_rows_kernel<T, 4>, call);
    }
    if (many && call.copies <= 32 && call.cols <= 8 * 32 * kPack) {
      return launch_dependent({by_warps, kThreads, 0, on}, code_whole_rows_kernel<T, 8>, call);
    }
    if (call.cols <= kNarrow || (many && call.cols <= kWide)) {
      return launch_dependent({by_warps, kThreads, 0, on}, code_rows_kernel<T, 1, 0>, call);
    }
    constexpr int kWarps = kThreads / 32, kPacksOfBlock = kThreads * kPack;  // columns
    const auto kernel = call.cols <= 2 * kPacksOfBlock   ? code_rows_kernel<T, kWarps, 2>
                        : call.cols <= 8 * kPacksOfBlock ? code_rows_kernel<T, kWarps, 8>
                                                         : code_rows_kernel<T, kWarps, 0>;
    launch_dependent({static_cast<unsigned>(call.rows), kThreads, 0, on}, kernel, call);
  });
}

void quantize_rows(const QuantizeRowsCall& call, Stream stream) {
  if (call.rows == 0) return;
  if (call.scaling == Fp8Scaling::row) {
    return code_rows({.x = call.x, .dtype = call.dtype, .rows = call.rows, .cols = call.cols, .codes = call.codes, .scales = call.scales},
                     stream);
  }
  const auto on = static_cast<cudaStream_t>(stream);
  with_half_type(call.dtype, [&]<typename T>(T*) {
    constexpr int64_t kRunColumns = kRun * kFp8Block, kRunsOfBlock = kThreads / kBlockLanes;
    const int64_t runs = call.rows * ((call.cols + kRunColumns - 1) / kRunColumns);
    const auto blocks = static_cast<unsigned>((runs + kRunsOfBlock - 1) / kRunsOfBlock);
    launch_dependent({blocks, kThreads, 0, on}, quantize_blocks_kernel<T>, call);
  });
}

void widen_rows(const GpuLinear& linear, int64_t first_row, int64_t rows, void* out, Stream stream) {
  const bool blocks = linear.scaling == Fp8Scaling::block;
  const WidenArgs args = {static_cast<const uint8_t*>(linear.weight) + first_row * linear.in_features, linear.scales,
                          first_row, rows, linear.in_features, blocks ? fp8_scale_stride(linear.in_features) : 0};
  const int64_t wanted = (rows * linear.in_features / kPack + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(wanted, int64_t{num_sms()} * 8));
  with_half_type(linear.x_dtype, [&]<typename T>(T*) {
    launch_dependent({grid, kThreads, 0, static_cast<cudaStream_t>(stream)}, widen_rows_kernel<T>, args,
                     static_cast<T*>(out));
  });
}

}  // namespace warpweave::gpu
