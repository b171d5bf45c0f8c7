// What the GEMMs of experts with many places share (expert_wide.cu, expert_wide_fp8.cu): a CTA has kRows weight rows of a
// tile of places, one warp brings stages, two warpgroups multiply. Two CTAs of a cluster have neighbouring weight rows of the
// same places, of which each brings half for both: the L2 could not give every CTA all of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu::expert_wide {

constexpr int kWarpgroups = 2;                  // that multiply
constexpr int kConsumers = 128 * kWarpgroups;
constexpr int kThreads = kConsumers + 128;
constexpr int kAssistants = 96;                 // threads beside the warp that brings stages
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;  // 168 for each of 384 at the start
constexpr int kCtas = 2;                        // of a cluster
constexpr int kRows = 128;                      // weight rows of a tile
constexpr int kRowBytes = kExpertRowBytes;
constexpr int kBoxPlaces = 16;
constexpr int kWeightBytes = kRows * kRowBytes;
constexpr int kBoxColumns = 64;                 // of tensor maps: 16-bit elements, or pairs of 8-bit ones

struct Stages {
  static constexpr int kGroups = kWarpgroups;
  static constexpr int kStagingBytes = 2 * kPassBytes;
  static constexpr int kStageBytes = kWeightBytes + kExpertWidePlaces * kRowBytes;
  static constexpr int kStages = (227 * 1024 - kGroups * kStagingBytes) / (kStageBytes + kBarrierBytes);
  static_assert(kStages >= 4);
};
using Ring = ExpertRing<Stages>;

// The tiles of a CTA, one after the other; those of a cluster are pairs.
struct Walk {
  int unit, end, row_pairs;
  ExpertTile tile;
  int row;                      // of the weights

  __device__ explicit Walk(const ExpertGemmArgs& a)
      : unit(static_cast<int>(blockIdx.x) / kCtas), row_pairs((a.row_tiles + 1) / kCtas) {
    const int tiles = __ldcg(a.num_tiles);  // beside it the first tile: the array has room for one a cluster
    locate(a);
    end = tiles * row_pairs;
  }
  static __device__ int rank() { return static_cast<int>(blockIdx.x) % kCtas; }
  static __device__ int step() { return static_cast<int>(gridDim.x) / kCtas; }
  __device__ bool valid() const { return unit < end; }
  __device__ bool followed() const { return unit + step() < end; }
  __device__ void next(const ExpertGemmArgs& a) {
    unit += step();
    if (valid()) locate(a);
  }
  __device__ void locate(const ExpertGemmArgs& a) {
    const int4 found = __ldcg(reinterpret_cast<const int4*>(a.tiles) + unit / row_pairs);
    take({found.x, found.y, found.z, 0});
  }
  // The tile of `unit`, by who knows it.
  __device__ void take(const ExpertTile& of_unit) {
    tile = of_unit;
    row = (unit % row_pairs * kCtas + rank()) * kRows;
  }
};

// One thread.
static __device__ __forceinline__ void bring(const ExpertGemmArgs& a, Ring ring) {
  wait_for_predecessor();
  start_successor();
  for (Walk walk(a); walk.valid(); walk.next(a)) {
    const int boxes = (walk.tile.count + kBoxPlaces - 1) / kBoxPlaces;
    for (int chunk = 0; chunk < a.chunks; ++chunk, ring.next()) {
      ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);  // the first round is free
      ptx::mbarrier_arrive_expect_tx(ring.full(), kWeightBytes + boxes * kBoxPlaces * kRowBytes);
      ptx::tma_load_4d(ring.at(), &a.w, ring.full(), chunk * kBoxColumns, walk.row, walk.tile.expert, 0);
      for (int box = Walk::rank(); box < boxes; box += kCtas) {
        ptx::tma_multicast_4d(ring.at() + kWeightBytes + box * kBoxPlaces * kRowBytes, &a.x, ring.full(), chunk * kBoxColumns,
                              walk.tile.first + box * kBoxPlaces, 0, 0, 3);
      }
    }
  }
}

constexpr int kBringers = kThreads / 32 - kConsumers / 32;  // warps beside those that multiply
static_assert(32 * kBringers * kCtas >= kExpertWidePlaces);

// The same by all of those warps, where places' rows are taken from x as they are: a lane has a place of a tile, a box is one
// row. A box takes a multiprocessor 17 cycles, so this is for places that are few beside the weights.
static __device__ __forceinline__ void bring_rows(const ExpertGemmArgs& a, Ring ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = (static_cast<int>(threadIdx.x) - kConsumers) / 32;
  const int place = (lane * kBringers + warp) * kCtas + Walk::rank();
  wait_for_predecessor();
  start_successor();
  for (Walk walk(a); walk.valid(); walk.next(a)) {
    const bool mine = place < walk.tile.count;
    const int row = mine ? __ldcg(a.row_of + walk.tile.first + place) : 0;
    for (int chunk = 0; chunk < a.chunks; ++chunk, ring.next()) {
      ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
      if (warp == 0 && lane == 0) {
        ptx::mbarrier_arrive_expect_tx(ring.full(), kWeightBytes + walk.tile.count * kRowBytes);
        ptx::tma_load_4d(ring.at(), &a.w, ring.full(), chunk * kBoxColumns, walk.row, walk.tile.expert, 0);
      }
      __syncwarp();
      if (mine) {
        ptx::tma_multicast_4d(ring.at() + kWeightBytes + place * kRowBytes, &a.x, ring.full(), chunk * kBoxColumns, row, 0, 0, 3);
      }
      __syncwarp();
    }
  }
}

// It is free when the consumers of both CTAs, to which its bytes went, have multiplied it.
static __device__ __forceinline__ void release(const Ring& stage) {
  const int lane = threadIdx.x % 32;
  if (lane < kCtas) ptx::mbarrier_arrive_at(stage.empty(), lane);
}

// Calls run(std::integral_constant) with the narrowest WGMMA that holds a tile's places.
template <class Run>
__device__ __forceinline__ void with_width(int count, const Run& run) {
  if (count <= 32) return run(std::integral_constant<int, 32>());
  if (count <= 64) return run(std::integral_constant<int, 64>());
  if (count <= 96) return run(std::integral_constant<int, 96>());
  if (count <= 128) return run(std::integral_constant<int, 128>());
  if (count <= 144) return run(std::integral_constant<int, 144>());
  if (count <= 160) return run(std::integral_constant<int, 160>());
  if (count <= 176) return run(std::integral_constant<int, 176>());
  run(std::integral_constant<int, 192>());
}

// C says its Element, its kGlu, how many warpgroups multiply a stage (kSharers), how many elements two bytes have
// (kElements), whether places' rows may be taken from x as they are (kTakesRows), what its warpgroups do (consume) and what the
// warps beside the one that brings stages do (assist), with so much shared memory of their own (kOwnBytes), whose barriers one
// thread makes (init).
template <class C>
__global__ void __launch_bounds__(kThreads, 1) expert_wide_kernel(const __grid_constant__ ExpertGemmArgs a) {
  extern __shared__ __align__(1024) char memory[];
  Ring ring(memory);
  char* const own = memory + Ring::kSmemBytes;
  if (threadIdx.x == kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    C::init(own);
    ring.init_barriers(C::kSharers * 4 * kCtas);
  }
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
  if (threadIdx.x >= kConsumers) {
    ptx::setmaxnreg_decrease<kProducerRegisters>();
    if (C::kTakesRows && a.row_of != nullptr) {
      bring_rows(a, ring);
    } else if (threadIdx.x == kConsumers) {
      bring(a, ring);
    }
    if (threadIdx.x >= kThreads - kAssistants) C::assist(a, own);
    __syncwarp();
  } else {
    ptx::setmaxnreg_increase<kConsumerRegisters>();
    wait_for_predecessor();
    C::consume(a, ring, own);
  }
  ptx::cluster_arrive_relaxed();  // the other's stages and arrivals may still be on their way here
  ptx::cluster_wait();
}

template <class C>
void launch(ExpertGemmArgs& args, const ExpertGemmCall& call, cudaStream_t stream) {
  const ExpertWeights& weights = call.weights;
  const int64_t columns = weights.cols / C::kElements;
  const cuda::MatrixStack stack = {weights.data, weights.experts, weights.stride_bytes, weights.rows, columns};
  if (cuda::make_stack_map(&args.w, stack, kRows) != cudaSuccess ||
      (call.x_rows > 0 ? cuda::make_matrix_map(&args.x, call.x, call.x_rows, columns, 1)
                       : cuda::make_matrix_map(&args.x, call.x, call.places, columns, kBoxPlaces)) != cudaSuccess) {
    return;  // the driver is older than the chip: expert_gemm_takes() has asked
  }
  static SharedMemoryLimit limit;
  constexpr int kBytes = Ring::kSmemBytes + C::kOwnBytes;
  static_assert(kBytes <= 227 * 1024);
  limit.raise(expert_wide_kernel<C>, kBytes);  // where this fails, so does the launch
  args.row_tiles = static_cast<int>((weights.rows + kRows - 1) / kRows);
  args.chunks = static_cast<int>((columns + kBoxColumns - 1) / kBoxColumns);
  const int64_t most = most_expert_tiles(call.places, weights.experts, call.tile_places) * ((args.row_tiles + 1) / kCtas);
  const auto ctas = static_cast<unsigned>(kCtas * std::min<int64_t>(most, num_sms() / kCtas));
  launch_dependent({ctas, kThreads, kBytes, stream, kCtas}, expert_wide_kernel<C>, static_cast<const ExpertGemmArgs&>(args));
}

// Config<Element, Glu>.
template <template <class, Glu> class Config, class E>
void launch_of(ExpertGemmArgs& args, const ExpertGemmCall& call, cudaStream_t stream) {
  switch (args.glu) {
    case GluActivation::none: return launch<Config<E, Glu::none>>(args, call, stream);
    case GluActivation::silu: return launch<Config<E, Glu::silu>>(args, call, stream);
    default: launch<Config<E, Glu::other>>(args, call, stream);
  }
}

template <template <class, Glu> class Config>
void run(const ExpertGemmCall& call, Stream stream) {
  ExpertGemmArgs args = expert_gemm_args(call);
  const auto on = static_cast<cudaStream_t>(stream);
  call.y_dtype == DType::f16 ? launch_of<Config, ptx::F16>(args, call, on) : launch_of<Config, ptx::Bf16>(args, call, on);
}

}  // namespace warpweave::gpu::expert_wide
