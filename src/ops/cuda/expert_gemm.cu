// WGMMA with weight rows as the M side and the places of an expert as the N side, both in shared memory, brought by TMA.
// So a tile has as many places as an expert gave it (in steps of 8 and more), and few places cost little beside the
// weights, which are what a step with few rows waits for.
//
// Persistent CTAs take tile after tile: weight rows of an expert change fastest, so that CTAs that run together read the
// same places from the L2 cache. One thread brings stages ahead, across tiles, one or two warpgroups multiply.
//
// 8-bit operands: a stage is 128 elements deep, the depth of a scale; its sums are scaled and added in f32.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "attention/cuda/ptx.h"
#include "attention/cuda/tensor_map.h"
#include "attention/cuda/wgmma_fp8.h"
#include "attention/cuda/wgmma_wide.h"
#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/stream_gemm.h"

namespace warpweave::gpu {
namespace {

using Args = ExpertGemmArgs;

constexpr int kRowBytes = kExpertRowBytes;
constexpr int kSmBytes = 227 * 1024;
constexpr int kFewTilePlaces = 64, kManyTilePlaces = 128;
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;  // of two warpgroups and one

struct Bf16Operands {
  using Element = ptx::Bf16;
  static constexpr bool kFp8 = false;
  static constexpr int kDepth = 64;             // of a stage
};
struct F16Operands {
  using Element = ptx::F16;
  static constexpr bool kFp8 = false;
  static constexpr int kDepth = 64;
};
// y is Element.
template <class Element_>
struct Fp8Operands {
  using Element = Element_;
  static constexpr bool kFp8 = true;
  static constexpr int kDepth = 128;
};

// Few places a tile: two CTAs of one warpgroup an SM; many, of 8-bit operands alone (expert_wide.cu has the others): one CTA
// of two, which share the places.
template <class Operands_, bool kMany_, Glu kGlu_>
struct Config {
  static constexpr Glu kGlu = kGlu_;
  using Operands = Operands_;
  using Element = typename Operands::Element;
  static constexpr bool kMany = kMany_, kFp8 = Operands::kFp8;
  static constexpr int kGroups = kMany ? 2 : 1;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + (kMany ? 128 : 32);
  static constexpr int kRows = 64 * kGroups;    // weight rows of a tile
  static constexpr int kMostPlaces = kMany ? kManyTilePlaces : kFewTilePlaces;
  static constexpr int kBoxPlaces = kMany ? 32 : 8;
  static constexpr int kWeightBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kMostPlaces * kRowBytes;
  static constexpr int kCtas = kMany ? 1 : 2;   // of an SM
  static constexpr int kRoomBytes = kMany ? kSmBytes : (kSmBytes - 1024) / 2;
  static constexpr int kStages = (kRoomBytes - 1024 - kGroups * kStagingBytes) / (kStageBytes + kBarrierBytes);
  static_assert(kStages >= 4);
};

template <class C>
using Ring = ExpertRing<C>;

// The tiles of a CTA, one after the other.
struct Walk {
  int at, end, row_tiles;
  ExpertTile tile;
  int row;                      // of the weights

  __device__ Walk(const Args& a) : at(blockIdx.x), end(__ldcg(a.num_tiles) * a.row_tiles), row_tiles(a.row_tiles) { locate(a); }
  __device__ bool valid() const { return at < end; }
  __device__ void next(const Args& a) {
    at += gridDim.x;
    locate(a);
  }
  __device__ void locate(const Args& a) {
    if (!valid()) return;
    const int4 found = __ldcg(reinterpret_cast<const int4*>(a.tiles) + at / row_tiles);
    tile = {found.x, found.y, found.z, 0};
    row = at % row_tiles;
  }
};

// Of x, for the tile's first place.
__device__ __forceinline__ int first_x_row(const Args& a, const ExpertTile& tile) { return a.shared_rows ? 0 : tile.first; }

template <class C>
__device__ __forceinline__ int boxes_of(const ExpertTile& tile) { return (tile.count + C::kBoxPlaces - 1) / C::kBoxPlaces; }

template <class C>
__device__ __forceinline__ void bring_weights(const Args& a, const Ring<C>& ring, const Walk& walk, int chunk, u64 policy) {
  ptx::mbarrier_arrive_expect_tx(ring.full(), C::kWeightBytes + boxes_of<C>(walk.tile) * C::kBoxPlaces * kRowBytes);
  ptx::tma_load_4d(ring.at(), &a.w, ring.full(), chunk * 64, walk.row * C::kRows, walk.tile.expert, 0, policy);
}

template <class C>
__device__ __forceinline__ void bring_places(const Args& a, const Ring<C>& ring, const Walk& walk, int chunk) {
  const int boxes = boxes_of<C>(walk.tile);
  for (int box = 0; box < boxes; ++box) {
    ptx::tma_load_4d(ring.at() + C::kWeightBytes + box * C::kBoxPlaces * kRowBytes, &a.x, ring.full(), chunk * 64,
                     first_x_row(a, walk.tile) + box * C::kBoxPlaces, 0, 0);
  }
}

// One thread. Where the plan is known early, the first weights come while the kernel before still runs.
template <class C>
__device__ void bring(const Args& a, Ring<C> ring) {
  const u64 policy = ptx::evict_first_policy();
  if (!a.plan_settled) wait_for_predecessor();
  Walk walk(a);
  int ahead = 0;
  if (walk.valid() && a.plan_settled) {
    ahead = min(C::kStages, a.chunks);
    Ring<C> at = ring;
    for (int chunk = 0; chunk < ahead; ++chunk, at.next()) bring_weights<C>(a, at, walk, chunk, policy);
  }
  if (a.plan_settled) wait_for_predecessor();
  start_successor();
  for (int chunk = 0; chunk < ahead; ++chunk, ring.next()) bring_places<C>(a, ring, walk, chunk);
  for (; walk.valid(); walk.next(a), ahead = 0) {
    for (int chunk = ahead; chunk < a.chunks; ++chunk, ring.next()) {
      ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);  // the first round is free
      bring_weights<C>(a, ring, walk, chunk, policy);
      bring_places<C>(a, ring, walk, chunk);
    }
  }
}

// Adds a stage's sums of 8-bit operands, scaled. Rows beyond the last are not written later: their scales are any.
template <class C, int kPlaces>
struct Fp8Sums {
  const float* row_scales[2];   // of the expert, at the thread's rows
  bool by_block;

  __device__ Fp8Sums(const Args& a, const Walk& walk, int first_row) : by_block(a.scale_stride > 0) {
    const float* const scales = a.scales[walk.tile.expert];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(expert_row(first_row) + 8 * i, a.rows - 1);
      int at = row;  // among gate's rows, then up's
      if constexpr (C::kGlu != Glu::none) at = row / 16 * 8 + row % 8 + row / 8 % 2 * (a.rows / 2);
      row_scales[i] = scales + (by_block ? int64_t{at / int{kFp8Block}} * a.scale_stride : at);
    }
  }
  __device__ void load(const Args& a, const ExpertTile& tile, int chunk, float (&x)[kPlaces / 4]) const {
    const float* const from = a.x_scales + chunk * a.x_rows + first_x_row(a, tile);
#pragma unroll
    for (int i = 0; i < kPlaces / 4; ++i) {
      const int place = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
      x[i] = place < tile.count ? __ldcg(from + place) : 0.0f;
    }
  }
  __device__ void add(int chunk, const float (&x)[kPlaces / 4], const float (&part)[kPlaces / 2], float (&sum)[kPlaces / 2]) const {
    const float first = by_block ? __ldg(row_scales[0] + chunk) : 1.0f;
    const float second = by_block ? __ldg(row_scales[1] + chunk) : 1.0f;
#pragma unroll
    for (int j = 0; j < kPlaces / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = (i < 2 ? first : second) * x[2 * j + i % 2];
        sum[4 * j + i] = part[4 * j + i] * scale + sum[4 * j + i];
      }
    }
  }
  __device__ float row_scale(int i) const { return by_block ? 1.0f : __ldg(row_scales[i]); }
};

// Adds to the sums, or, with 8-bit operands, makes those of the stage alone.
template <class C, int kPlaces>
__device__ __forceinline__ void multiply(u32 stage, int group, float (&sum)[kPlaces / 2]) {
  const u32 w = ptx::wgmma_descriptor(stage + group * 64 * kRowBytes, 0);
  const u32 x = ptx::wgmma_descriptor(stage + C::kWeightBytes, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const u32 a = ptx::wgmma_advance(w, k * 32), b = ptx::wgmma_advance(x, k * 32);
    if constexpr (C::kFp8) {
      ptx::WgmmaE4m3<kPlaces>::template ss<kRowBytes>(sum, a, b, k > 0);
    } else {
      ptx::Wgmma<typename C::Element, kPlaces>::qk(sum, a, b, 1);
    }
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void release(u32 empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
}

template <class C, int kPlaces>
__device__ __forceinline__ void sum_stages(const Args& a, Ring<C>& ring, const Walk& walk, int group, float (&sum)[kPlaces / 2]) {
#pragma unroll
  for (float& value : sum) value = 0;  // not by the first product: ptxas would keep the sums of all widths at once
  if constexpr (C::kFp8) {
    const Fp8Sums<C, kPlaces> scaled(a, walk, walk.row * C::kRows + group * 64);
    float part[kPlaces / 2], x[kPlaces / 4];
    for (int chunk = 0; chunk < a.chunks; ++chunk, ring.next()) {
      scaled.load(a, walk.tile, chunk, x);
      ptx::mbarrier_wait(ring.full(), ring.parity);
      multiply<C, kPlaces>(ring.at(), group, part);
      ptx::wgmma_wait<0>();
      release(ring.empty());
      scaled.add(chunk, x, part, sum);
    }
    const float first = scaled.row_scale(0), second = scaled.row_scale(1);
#pragma unroll
    for (int i = 0; i < kPlaces / 2; ++i) sum[i] *= i % 4 < 2 ? first : second;
  } else {
    for (int chunk = 0; chunk < a.chunks; ++chunk, ring.next()) {
      ptx::mbarrier_wait(ring.full(), ring.parity);
      multiply<C, kPlaces>(ring.at(), group, sum);
      ptx::wgmma_wait<1>();
      if (chunk > 0) release(ring.last().empty());
    }
    ptx::wgmma_wait<0>();
    release(ring.last().empty());
  }
}

template <class C, int kPlaces>
__device__ __forceinline__ Ring<C> run_tile(const Args& a, Ring<C> ring, const Walk& walk, int group) {
  float sum[kPlaces / 2];
  sum_stages<C, kPlaces>(a, ring, walk, group, sum);
  const ExpertOut<C, kPlaces> out = {a, walk.tile, ring.staging(group), group, walk.row * C::kRows + group * 64};
  out.add_bias(sum);
  out.write(sum);
  return ring;
}

// The narrowest product that holds the tile's places.
template <class C>
__device__ __forceinline__ Ring<C> run_tile_of(const Args& a, Ring<C> ring, const Walk& walk, int group) {
  const int count = walk.tile.count;
  if constexpr (!C::kMany) {
    if (count <= 8) return run_tile<C, 8>(a, ring, walk, group);
    if (count <= 16) return run_tile<C, 16>(a, ring, walk, group);
    if (count <= 24) return run_tile<C, 24>(a, ring, walk, group);
    if (count <= 32) return run_tile<C, 32>(a, ring, walk, group);
    if (count <= 48) return run_tile<C, 48>(a, ring, walk, group);
    return run_tile<C, 64>(a, ring, walk, group);
  } else {
    if (count <= 32) return run_tile<C, 32>(a, ring, walk, group);
    if (count <= 64) return run_tile<C, 64>(a, ring, walk, group);
    if (count <= 96) return run_tile<C, 96>(a, ring, walk, group);
    return run_tile<C, 128>(a, ring, walk, group);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtas) expert_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  Ring<C> ring(memory);
  if (threadIdx.x == C::kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    ring.init_barriers(C::kConsumers / 32);
  }
  __syncthreads();
  if (threadIdx.x >= C::kConsumers) {
    if constexpr (C::kMany) ptx::setmaxnreg_decrease<kProducerRegisters>();
    if (threadIdx.x == C::kConsumers) bring<C>(a, ring);
  } else {
    if constexpr (C::kMany) ptx::setmaxnreg_increase<kConsumerRegisters>();
    wait_for_predecessor();
    for (Walk walk(a); walk.valid(); walk.next(a)) ring = run_tile_of<C>(a, ring, walk, threadIdx.x / 128);
  }
}

template <class C>
void launch(Args& args, const ExpertProductCall& call, cudaStream_t stream) {
  const ExpertWeights& weights = call.weights;
  const int of_byte = C::kFp8 ? 2 : 1;  // one-byte elements are taken by twos
  const cuda::MatrixStack stack = {weights.data, weights.experts, weights.stride_bytes, weights.rows, weights.cols / of_byte};
  if (cuda::make_stack_map(&args.w, stack, C::kRows) != cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, args.x_rows, weights.cols / of_byte, C::kBoxPlaces) != cudaSuccess) {
    return;  // the driver is older than the chip: expert_gemm_takes() has asked
  }
  static SharedMemoryLimit limit;
  limit.raise(expert_gemm_kernel<C>, Ring<C>::kSmemBytes);  // where this fails, so does the launch
  args.row_tiles = static_cast<int>((weights.rows + C::kRows - 1) / C::kRows);
  args.chunks = static_cast<int>((weights.cols + C::Operands::kDepth - 1) / C::Operands::kDepth);
  const int64_t most = most_expert_tiles(call.places, weights.experts, call.tile_places) * args.row_tiles;
  const auto ctas = static_cast<unsigned>(std::min<int64_t>(most, int64_t{C::kCtas} * num_sms()));
  launch_dependent({ctas, C::kThreads, Ring<C>::kSmemBytes, stream}, expert_gemm_kernel<C>, static_cast<const Args&>(args));
}

template <class Operands, Glu kGlu>
void launch_of(Args& args, const ExpertProductCall& call, cudaStream_t stream) {
  if constexpr (Operands::kFp8) {
    if (call.tile_places > Config<Operands, false, kGlu>::kMostPlaces) return launch<Config<Operands, true, kGlu>>(args, call, stream);
  }
  launch<Config<Operands, false, kGlu>>(args, call, stream);
}

template <class Operands>
void launch_of(Args& args, const ExpertProductCall& call, cudaStream_t stream) {
  switch (args.glu) {
    case GluActivation::none: return launch_of<Operands, Glu::none>(args, call, stream);
    case GluActivation::silu: return launch_of<Operands, Glu::silu>(args, call, stream);
    default: launch_of<Operands, Glu::other>(args, call, stream);
  }
}

}  // namespace

bool expert_gemm_takes(const ExpertWeights& weights) {
  const bool halves = weights.dtype == DType::f16 || weights.dtype == DType::bf16;
  const bool codes = weights.dtype == DType::fp8_e4m3 && weights.cols % 16 == 0 &&
                     (weights.scaling == Fp8Scaling::row || weights.outputs() % kFp8Block == 0 ||
                      weights.glu == GluActivation::none);
  return (halves || codes) && weights.rows % 8 == 0 && weights.cols % 8 == 0 && weights.cols >= 64 &&
         weights.stride_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(weights.data) % 16 == 0 && has_wgmma();
}

int expert_gemm_tile_places(int64_t pairs, int experts, DType dtype) {
  constexpr int64_t kFewPlaces = 40;  // an expert, from where wide tiles pay
  if (pairs <= kFewPlaces * experts) return kFewTilePlaces;
  return dtype == DType::fp8_e4m3 ? kManyTilePlaces : kExpertWidePlaces;
}

ExpertGemmArgs expert_gemm_args(const ExpertProductCall& call) {
  const ExpertWeights& weights = call.weights;
  ExpertGemmArgs args{};
  args.tiles = call.plan.tiles;
  args.num_tiles = call.plan.num_tiles;
  args.y = static_cast<char*>(call.y);
  args.biases = weights.biases;
  args.scales = weights.scales;
  args.x_scales = call.x_scales;
  args.x_rows = call.shared_rows ? kSharedRows : call.places;
  args.outputs = static_cast<int>(weights.outputs());
  args.rows = static_cast<int>(weights.rows);
  args.scale_stride = weights.scaling == Fp8Scaling::block ? static_cast<int>(fp8_scale_stride(weights.cols)) : 0;
  args.shared_rows = call.shared_rows;
  args.plan_settled = call.plan_settled;
  args.glu = weights.glu;
  return args;
}

void expert_gemm(const ExpertProductCall& call, Stream stream) {
  if (call.places == 0) return;
  const bool codes = call.weights.dtype == DType::fp8_e4m3;
  if (!codes && call.tile_places > kFewTilePlaces) return expert_wide(call, stream);
  Args args = expert_gemm_args(call);
  const auto on = static_cast<cudaStream_t>(stream);
  const bool f16 = call.y_dtype == DType::f16;
  if (codes) {
    f16 ? launch_of<Fp8Operands<ptx::F16>>(args, call, on) : launch_of<Fp8Operands<ptx::Bf16>>(args, call, on);
  } else {
    f16 ? launch_of<F16Operands>(args, call, on) : launch_of<Bf16Operands>(args, call, on);
  }
}

}  // namespace warpweave::gpu
