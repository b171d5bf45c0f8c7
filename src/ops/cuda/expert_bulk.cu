#include "ops/cuda/expert_bulk.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda/ptx.h"
#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/norm_codes.cuh"
#include "ops/cuda/norm_rows.cuh"
#include "ops/cuda/stream_gemm.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;

constexpr int64_t kLeastRows = 1024;  // with fewer, CTAs would have no second row
constexpr int kCtas = 2;              // of a multiprocessor
constexpr int kMostStages = 4, kRingBytes = 110 * 1024;  // of a CTA
constexpr int kMostChoices = 32;      // of a row: one a lane

int64_t stage_bytes(const NormExpertsCall& call) {
  const auto element = static_cast<int64_t>(dtype_info(call.norm.out_dtype).block_bytes);
  return call.norm.cols * (4 + call.sums.k * element);
}

// Rows of x and of their experts' results, one a stage, that a CTA has asked for. A stage is x's row, then those of the results.
struct Ring {
  u32 base, full;               // the first stage's; barriers
  float* weights;               // [stages][kMostChoices]
  int stages, stage_bytes;
};

// What the first warp of a CTA does: it asks for rows, a choice a lane. place and weight are of the next row to ask for.
template <typename T>
struct Asking {
  const NormExpertsCall& of;
  Ring ring;
  int place = 0;
  float weight = 0;

  __device__ __forceinline__ void look_up(int64_t row) {
    const int lane = threadIdx.x % 32;
    if (row >= of.norm.rows || lane >= of.sums.k) return;
    place = __ldcg(of.sums.place_of + row * of.sums.k + lane);
    weight = __ldcg(of.sums.weights + row * of.sums.k + lane);
  }
  __device__ __forceinline__ void ask(int64_t row, int stage) {
    const int lane = threadIdx.x % 32;
    if (row >= of.norm.rows) return;
    const int64_t cols = of.norm.cols;
    const u32 to = ring.base + stage * ring.stage_bytes, full = ring.full + 8 * stage;
    if (lane < of.sums.k) ring.weights[stage * kMostChoices + lane] = weight;
    __syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive_expect_tx(full, ring.stage_bytes);
      ptx::bulk_load(to, of.norm.x + row * cols, static_cast<int>(cols * 4), full);
    }
    __syncwarp();
    if (lane >= of.sums.k) return;
    const int bytes = static_cast<int>(cols * sizeof(T));
    ptx::bulk_load(to + static_cast<u32>(cols * 4) + lane * bytes, static_cast<const T*>(of.sums.results) + place * cols, bytes, full);
  }
};

// x plus what its experts left, of a stage.
template <typename T, class S>
__device__ __forceinline__ void add_stage(const NormExpertsCall& of, const char* stage, const float* weights,
                                          float (&kept)[S::kPacks][S::kShare][4]) {
  const int cols = static_cast<int>(of.norm.cols), k = of.sums.k;
  for_columns<S>(cols, [&](int pack, int share, int i) { load_f32(reinterpret_cast<const float*>(stage) + i, kept[pack][share]); });
  const T* results = reinterpret_cast<const T*>(stage + cols * 4);
#pragma unroll 4
  for (int j = 0; j < k; ++j, results += cols) add_expert<S>(results, weights[j], cols, kept);
}

template <typename T, class S>
__global__ void __launch_bounds__(S::kThreads, kCtas)
norm_experts_kernel(const __grid_constant__ NormExpertsCodesCall of, int stages, int stage_bytes) {
  extern __shared__ __align__(128) char memory[];
  __shared__ __align__(16) float sums[2][S::kSums];  // by turns: a row's are read while the next row's are written
  __shared__ __align__(8) uint64_t full[kMostStages];
  __shared__ float weights[kMostStages * kMostChoices];
  const RmsNormCall& call = of.norm;
  const int cols = static_cast<int>(call.cols);
  const int64_t step = gridDim.x;
  Asking<T> asking = {of, {ptx::smem_address(memory), ptx::smem_address(full), weights, stages, stage_bytes}};
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) ptx::mbarrier_init(asking.ring.full + 8 * i, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  start_successor();
  float weight[S::kPacks][S::kShare][4];
  for_columns<S>(cols, [&](int pack, int share, int i) { load_f32(call.weight + i, weight[pack][share]); });
  wait_for_predecessor();
  if (threadIdx.x < 32) {
    for (int i = 0; i < stages; ++i) {
      asking.look_up(blockIdx.x + i * step);
      asking.ask(blockIdx.x + i * step, i);
    }
    asking.look_up(blockIdx.x + stages * step);
  }
  int stage = 0, turn = 0;
  u32 parity = 0;
  for (int64_t row = blockIdx.x; row < call.rows; row += step, turn ^= 1) {
    float kept[S::kPacks][S::kShare][4], sum[S::kShare] = {};
    ptx::mbarrier_wait(asking.ring.full + 8 * stage, parity);
    add_stage<T, S>(of, memory + stage * stage_bytes, weights + stage * kMostChoices, kept);
    for_columns<S>(cols, [&](int pack, int share, int) {
#pragma unroll
      for (float v : kept[pack][share]) sum[share] += v * v;
    });
    const float total = sum_row<S>(sum, sums[turn], *full, [] {});
    if (threadIdx.x < 32) {     // all have read the stage
      asking.ask(row + stages * step, stage);
      asking.look_up(row + (stages + 1) * step);
    }
    const float inverse = rsqrtf(total / static_cast<float>(call.cols) + call.eps);
    const int64_t base = row * call.cols;
    for_columns<S>(cols, [&](int pack, int share, int i) {
      auto& value = kept[pack][share];
      store_f32(call.x + base + i, value);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[j] *= inverse * (weight[pack][share][j] + call.weight_offset);
      if (of.to.codes != nullptr) {
        code_block<T>(of, row, i, value);
      } else {
        store_f32(static_cast<T*>(call.out) + base + i, value);
      }
      if (call.out_f32 != nullptr) store_f32(call.out_f32 + base + i, value);
    });
    if (++stage == stages) stage = 0, parity ^= 1;
  }
}

template <typename T, int kPacks>
void launch_norm(const NormExpertsCodesCall& call, cudaStream_t stream) {
  const auto kernel = norm_experts_kernel<T, NormShape<kNormThreads, 1, 1, kPacks, Added::experts>>;
  static SharedMemoryLimit limit;
  limit.raise(kernel, kRingBytes);  // where this fails, so does the launch
  const auto bytes = static_cast<int>(stage_bytes(call));
  const int stages = std::min(kMostStages, kRingBytes / bytes);
  const auto ctas = static_cast<unsigned>(std::min<int64_t>(call.norm.rows, int64_t{kCtas} * num_sms()));
  launch_dependent({ctas, kNormThreads, static_cast<size_t>(stages * bytes), stream}, kernel, call, stages, bytes);
}

}  // namespace

bool norm_experts_bulk_takes(const NormExpertsCall& call) {
  return has_wgmma() && call.norm.rows >= kLeastRows && call.norm.cols % 8 == 0 && call.norm.cols >= 4 * kNormThreads &&
         call.norm.cols <= 16 * kNormThreads && !call.norm.accumulate && call.sums.k <= kMostChoices &&
         call.norm.out_dtype != DType::f32 && 2 * stage_bytes(call) <= kRingBytes;
}

void norm_experts_bulk(const NormExpertsCodesCall& call, Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const int packs = static_cast<int>((call.norm.cols + 4 * kNormThreads - 1) / (4 * kNormThreads));
  with_type(call.norm.out_dtype, [&]<typename T>(T*) {
    if constexpr (sizeof(T) == 2) packs == 1 ? launch_norm<T, 1>(call, on) : packs == 2 ? launch_norm<T, 2>(call, on) : launch_norm<T, 4>(call, on);
  });
}

}  // namespace warpweave::gpu
