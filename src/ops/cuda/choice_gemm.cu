// stream_gemm's way of weights in e4m3 (its warps, ring and products), by CTAs that stay: while a tile's values are
// looked at, the next one's weights are on their way. A CTA's tiles are as far apart as there are CTAs, and a thread
// keeps what it saw of its two rows until the end.
#include "ops/cuda/choice_gemm.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda/ptx.h"
#include "device/cuda/shared_memory_limit.h"
#include "device/cuda/tensor_map.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/gemm_ring.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/stream_codes.cuh"
#include "ops/cuda/stream_gemm.h"
#include "ops/cuda/top_seen.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;
using ptx::u64;

constexpr int kProducers = 64;
constexpr int kThreads = kConsumers + kProducers;

// Of 24 and of 64 rows one of the fastest ways of 33 (docs/gpu-tuning.md).
constexpr int kTile = 256;     // weight rows
constexpr int kTogether = 2;   // stages asked for at once, whose bytes of a row are neighbours
constexpr int kInFlight = 3;   // stages of weights asked for that have not arrived, at most

struct Args {
  CUtensorMap w, x;
  TopPart* parts;
  const float *w_scales, *x_scales;
  int rows;
  int columns;  // of y
  int chunks;   // of the depth
  int tiles;
};

// As stream_codes.cuh asks for it.
struct Config {
  static constexpr int kBoxes = 1, kRowBlocks = 1;
  static constexpr int kBoxRows = kTile, kColumns = kTile / kGroups;
  static constexpr bool kCodes = true, kBlocks = false;
  static constexpr int kBoxBytes = kTile * kRowBytes;
};

constexpr int kWeightBytes = Config::kBoxBytes, kInputBytes = kChoiceGemmRows * kRowBytes;
constexpr int kStageBytes = kWeightBytes + kInputBytes;
constexpr int kStages = kMostSmemBytes / (kStageBytes + kBarrierBytes);
static_assert(kTogether <= kInFlight && kInFlight <= kStages);

using Ring = GemmRing<kStageBytes>;
using TileSums = Sums<Config>;

// One thread, of all tiles of the CTA. Weights come before the predecessor has ended.
__device__ void bring_weights(const Args& a, Ring ring) {
  const u64 policy = ptx::evict_first_policy();
  Ring landing = ring;
  int asked = 0;  // stages
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    int stages = 0;
    for (int i = 0; i < a.chunks; i += stages) {
      stages = min(kTogether, a.chunks - i);
      Ring at = ring;
      for (int j = 0; j < stages; ++j, ++asked) {
        ptx::mbarrier_wait(at.empty(), at.parity ^ 1);  // the first round is free
        if (asked >= kInFlight) {
          ptx::mbarrier_wait(landing.weights_full(), landing.parity);
          landing.next();
        }
        ptx::mbarrier_arrive_expect_tx(at.weights_full(), kWeightBytes);
        at.next();
      }
      for (int j = 0; j < stages; ++j) {
        ptx::tma_load_4d(ring.at(), &a.w, ring.weights_full(), (i + j) * kDepth, tile * kTile, 0, 0, policy);
        ring.next();
      }
    }
  }
}

// One thread, likewise.
__device__ void bring_inputs(const Args& a, Ring ring) {
  wait_for_predecessor();
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    for (int i = 0; i < a.chunks; ++i) {
      ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(ring.inputs_full(), kInputBytes);
      ptx::tma_load_4d(ring.at() + kWeightBytes, &a.x, ring.inputs_full(), i * kDepth, 0, 0, 0);
      ring.next();
    }
  }
}

__device__ __forceinline__ void multiply_tile(const Args& a, Ring& ring, TileSums& sum) {
  const RowScales<Config> none = {};
  for (int i = 0; i < a.chunks; ++i) {
    ring.wait_full();
    const u32 w = ptx::wgmma_descriptor(ring.at() + threadIdx.x / 128 * Config::kColumns * kRowBytes, 0);
    multiply_codes<Config>(ptx::wgmma_descriptor(ring.at() + kWeightBytes, 0), w, none.of[0], sum[0]);
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ring.empty());
    ring.next();
  }
}

// wgmma leaves a thread two neighbours of every 8 columns, of two rows.
__device__ __forceinline__ void see_tile(const Args& a, int tile, const TileSums& sum, TopSeen (&seen)[2]) {
  const int first = tile * kTile + threadIdx.x / 128 * Config::kColumns + threadIdx.x % 4 * 2;
  const auto id_of = [=](int k) { return first + k / 2 * 8 + k % 2; };
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float values[Config::kColumns / 4];
#pragma unroll
    for (int k = 0; k < Config::kColumns / 4; ++k) {
      const float value = number_or_least(sum[0][0][k / 2 * 4 + row * 2 + k % 2]);
      values[k] = id_of(k) < a.columns ? value : -INFINITY;
    }
    seen[row].add(values, id_of);
  }
}

// A part is what the four threads of a row saw that are in a warp.
__device__ __forceinline__ void write_parts(const Args& a, TopSeen (&seen)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    unsigned long long key = seen[row].key();
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      key = max(key, __shfl_xor_sync(~0u, key, step));
      seen[row].add_sum(__shfl_xor_sync(~0u, seen[row].largest_possible(), step), __shfl_xor_sync(~0u, seen[row].sum, step));
    }
    const int token = row_of_thread() + row * 8;
    if (threadIdx.x % 4 != 0 || token >= a.rows) continue;
    const int part = static_cast<int>(blockIdx.x) * kGroups + threadIdx.x / 128;
    a.parts[token * static_cast<int>(gridDim.x) * kGroups + part] = {key, seen[row].largest_possible() + logf(seen[row].sum)};
  }
}

__global__ void __launch_bounds__(kThreads, 1) choice_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  Ring ring(memory, kStages, 0);
  start_successor();
  if (threadIdx.x == kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    ring.init_barriers();
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) bring_weights(a, ring);
    if (threadIdx.x == kConsumers + 32) bring_inputs(a, ring);
    return;
  }
  Scales<Config> scales;
  TopSeen seen[2];
  wait_for_predecessor();
  scales.read_inputs(a);
#pragma unroll 1
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    const int column = tile * kTile + static_cast<int>(threadIdx.x);
    if (threadIdx.x % 32 == 0 && column < a.columns) ptx::prefetch_l2(a.w_scales + column);  // a line of scales
    TileSums sum = {};
    multiply_tile(a, ring, sum);
    scales.read_weights(a, tile);  // not before: there are no registers for them
    scales.apply(sum);
    see_tile(a, tile, sum, seen);
  }
  write_parts(a, seen);
}

}  // namespace

bool choice_gemm_takes(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  return linear.dtype == DType::fp8_e4m3 && call.rows <= kChoiceGemmRows && linear.scaling == Fp8Scaling::row && stream_gemm_takes(call);
}

int choice_gemm_parts() { return num_sms() * kGroups; }

void choice_gemm(const GemmCall& call, TopPart* parts, Stream stream) {
  const GpuLinear& linear = *call.linear;
  constexpr int kColumnsOfChunk = 2 * kDepth;
  Args args{};
  args.parts = parts;
  args.w_scales = linear.scales;
  args.x_scales = call.x_scales;
  args.rows = static_cast<int>(call.rows);
  args.columns = static_cast<int>(linear.out_features);
  args.chunks = static_cast<int>((linear.in_features + kColumnsOfChunk - 1) / kColumnsOfChunk);
  args.tiles = (args.columns + kTile - 1) / kTile;
  const int64_t pairs = linear.in_features / 2;  // of codes
  if (cuda::make_matrix_map(&args.w, linear.weight, linear.out_features, pairs, kTile) != cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, call.rows, pairs, kChoiceGemmRows) != cudaSuccess) {
    return;  // the driver is older than the chip: stream_gemm_takes() has asked
  }
  static SharedMemoryLimit limit;
  limit.raise(choice_gemm_kernel, kMostSmemBytes);  // where this fails, so does the launch
  constexpr size_t kUsedBytes = size_t{kStages} * (kStageBytes + kBarrierBytes);
  launch_dependent({static_cast<unsigned>(num_sms()), kThreads, kUsedBytes, static_cast<cudaStream_t>(stream)},
                   choice_gemm_kernel, static_cast<const Args&>(args));
}

}  // namespace warpweave::gpu
