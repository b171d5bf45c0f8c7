// Experts with many places: as expert_gemm.cu, but two warpgroups take tiles in turns, so that one multiplies while the other
// writes its sums, and two CTAs of a cluster have neighbouring weight rows of the same places, of which each brings half for
// both: the L2 could not give every CTA all of its own.
#include <algorithm>
#include <cstdint>

#include "attention/cuda/wgmma_wide.h"
#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {
namespace {

using Args = ExpertGemmArgs;

constexpr int kWarpgroups = 2;                  // that multiply
constexpr int kConsumers = 128 * kWarpgroups;
constexpr int kThreads = kConsumers + 128;
constexpr int kConsumerRegisters = 232, kProducerRegisters = 32;  // 168 for each of 384 at the start
constexpr int kCtas = 2;                        // of a cluster
constexpr int kRows = 128;                      // weight rows of a tile
constexpr int kBlocks = kRows / 64;
constexpr int kDepth = 64;                      // of a stage
constexpr int kRowBytes = kExpertRowBytes;
constexpr int kBoxPlaces = 16;
constexpr int kWeightBytes = kRows * kRowBytes;

struct Stages {
  static constexpr int kGroups = kWarpgroups;
  static constexpr int kStageBytes = kWeightBytes + kExpertWidePlaces * kRowBytes;
  static constexpr int kStages = (227 * 1024 - kGroups * kStagingBytes) / (kStageBytes + kBarrierBytes);
  static_assert(kStages >= 4);
};
using Ring = ExpertRing<Stages>;

template <class Element_, Glu kGlu_>
struct Config {
  using Element = Element_;
  static constexpr Glu kGlu = kGlu_;
};

// The tiles of a CTA, one after the other; those of a cluster are pairs.
struct Walk {
  int unit, end, row_pairs;
  ExpertTile tile;
  int row;                      // of the weights

  __device__ explicit Walk(const Args& a) : unit(static_cast<int>(blockIdx.x) / kCtas), row_pairs((a.row_tiles + 1) / kCtas) {
    end = __ldcg(a.num_tiles) * row_pairs;
    locate(a);
  }
  static __device__ int rank() { return static_cast<int>(blockIdx.x) % kCtas; }
  static __device__ int step() { return static_cast<int>(gridDim.x) / kCtas; }
  __device__ bool valid() const { return unit < end; }
  __device__ bool followed() const { return unit + step() < end; }
  __device__ void next(const Args& a) {
    unit += step();
    locate(a);
  }
  __device__ void locate(const Args& a) {
    if (!valid()) return;
    const int4 found = __ldcg(reinterpret_cast<const int4*>(a.tiles) + unit / row_pairs);
    tile = {found.x, found.y, found.z, 0};
    row = (unit % row_pairs * kCtas + rank()) * kRows;
  }
};

// One thread.
__device__ void bring(const Args& a, Ring ring) {
  wait_for_predecessor();
  start_successor();
  for (Walk walk(a); walk.valid(); walk.next(a)) {
    const int boxes = (walk.tile.count + kBoxPlaces - 1) / kBoxPlaces;
    for (int chunk = 0; chunk < a.chunks; ++chunk, ring.next()) {
      ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);  // the first round is free
      ptx::mbarrier_arrive_expect_tx(ring.full(), kWeightBytes + boxes * kBoxPlaces * kRowBytes);
      ptx::tma_load_4d(ring.at(), &a.w, ring.full(), chunk * kDepth, walk.row, walk.tile.expert, 0);
      for (int box = Walk::rank(); box < boxes; box += kCtas) {
        ptx::tma_multicast_4d(ring.at() + kWeightBytes + box * kBoxPlaces * kRowBytes, &a.x, ring.full(), chunk * kDepth,
                              walk.tile.first + box * kBoxPlaces, 0, 0, 3);
      }
    }
  }
}

template <class C, int kPlaces>
__device__ __forceinline__ void multiply(u32 stage, float (&sum)[kBlocks][kPlaces / 2]) {
  const u32 w = ptx::wgmma_descriptor(stage, 0), x = ptx::wgmma_descriptor(stage + kWeightBytes, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      ptx::Wgmma<typename C::Element, kPlaces>::qk(sum[block], ptx::wgmma_advance(w, block * 64 * kRowBytes + k * 32),
                                                   ptx::wgmma_advance(x, k * 32), 1);
    }
  }
  ptx::wgmma_commit();
}

// The stage before this one. It is free when the consumers of both CTAs, to which its bytes went, have multiplied it.
__device__ __forceinline__ void release_last(const Ring& ring) {
  const int lane = threadIdx.x % 32;
  if (lane < kCtas) ptx::mbarrier_arrive_at(ring.last().empty(), lane);
}

template <class C, int kPlaces>
__device__ __forceinline__ void run_tile(const Args& a, Ring& ring, const Walk& walk, int group) {
  float sum[kBlocks][kPlaces / 2];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (float& value : sum[block]) value = 0;  // as in expert_gemm.cu
  }
  const bool followed = walk.followed();
  for (int chunk = 0; chunk < a.chunks; ++chunk) {
    ptx::mbarrier_wait(ring.full(), ring.parity);
    if (followed && chunk == a.chunks - 1) ptx::named_barrier_arrive(3 + (group ^ 1), kConsumers);
    multiply<C, kPlaces>(ring.at(), sum);
    ptx::wgmma_wait<1>();
    if (chunk > 0) release_last(ring);
    ring.next();
  }
  ptx::wgmma_wait<0>();
  release_last(ring);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const ExpertOut<C, kPlaces> out = {a, walk.tile, ring.staging(group), group, walk.row + block * 64};
    out.add_bias(sum[block]);
    out.write(sum[block]);
  }
}

template <class C>
__device__ __forceinline__ void run_tile_of(const Args& a, Ring& ring, const Walk& walk, int group) {
  const int count = walk.tile.count;
  if (count <= 32) return run_tile<C, 32>(a, ring, walk, group);
  if (count <= 64) return run_tile<C, 64>(a, ring, walk, group);
  if (count <= 96) return run_tile<C, 96>(a, ring, walk, group);
  if (count <= 128) return run_tile<C, 128>(a, ring, walk, group);
  if (count <= 144) return run_tile<C, 144>(a, ring, walk, group);
  if (count <= 160) return run_tile<C, 160>(a, ring, walk, group);
  if (count <= 176) return run_tile<C, 176>(a, ring, walk, group);
  run_tile<C, 192>(a, ring, walk, group);
}

// A warpgroup has every second tile, and every second run of stages. It looks for its stages when the other has seen its
// last one: a barrier's parity tells only one round of the ring from the next.
template <class C>
__device__ void consume(const Args& a, Ring ring) {
  const int group = threadIdx.x / 128;
  Walk walk(a);
  if (group == 1) {
    walk.next(a);
    ring.skip(a.chunks);
  }
  for (bool first = group == 0; walk.valid(); first = false) {
    if (!first) ptx::named_barrier_sync(3 + group, kConsumers);
    run_tile_of<C>(a, ring, walk, group);
    ring.skip(a.chunks);
    walk.next(a);
    walk.next(a);
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) expert_wide_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  Ring ring(memory);
  if (threadIdx.x == kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    ring.init_barriers(kConsumers / kWarpgroups / 32 * kCtas);
  }
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
  if (threadIdx.x >= kConsumers) {
    ptx::setmaxnreg_decrease<kProducerRegisters>();
    if (threadIdx.x == kConsumers) bring(a, ring);
    __syncwarp();
  } else {
    ptx::setmaxnreg_increase<kConsumerRegisters>();
    wait_for_predecessor();
    consume<C>(a, ring);
  }
  ptx::cluster_arrive_relaxed();  // the other's stages and arrivals may still be on their way here
  ptx::cluster_wait();
}

template <class C>
void launch(Args& args, const ExpertProductCall& call, cudaStream_t stream) {
  const ExpertWeights& weights = call.weights;
  const cuda::MatrixStack stack = {weights.data, weights.experts, weights.stride_bytes, weights.rows, weights.cols};
  if (cuda::make_stack_map(&args.w, stack, kRows) != cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, call.places, weights.cols, kBoxPlaces) != cudaSuccess) {
    return;  // the driver is older than the chip: expert_gemm_takes() has asked
  }
  static SharedMemoryLimit limit;
  limit.raise(expert_wide_kernel<C>, Ring::kSmemBytes);  // where this fails, so does the launch
  args.row_tiles = static_cast<int>((weights.rows + kRows - 1) / kRows);
  args.chunks = static_cast<int>((weights.cols + kDepth - 1) / kDepth);
  const int64_t most = most_expert_tiles(call.places, weights.experts, call.tile_places) * ((args.row_tiles + 1) / kCtas);
  const auto ctas = static_cast<unsigned>(kCtas * std::min<int64_t>(most, num_sms() / kCtas));
  launch_dependent({ctas, kThreads, Ring::kSmemBytes, stream, kCtas}, expert_wide_kernel<C>, static_cast<const Args&>(args));
}

template <class E>
void launch_of(Args& args, const ExpertProductCall& call, cudaStream_t stream) {
  switch (args.glu) {
    case GluActivation::none: return launch<Config<E, Glu::none>>(args, call, stream);
    case GluActivation::silu: return launch<Config<E, Glu::silu>>(args, call, stream);
    default: launch<Config<E, Glu::other>>(args, call, stream);
  }
}

}  // namespace

void expert_wide(const ExpertProductCall& call, Stream stream) {
  Args args = expert_gemm_args(call);
  const auto on = static_cast<cudaStream_t>(stream);
  call.y_dtype == DType::f16 ? launch_of<ptx::F16>(args, call, on) : launch_of<ptx::Bf16>(args, call, on);
}

}  // namespace warpweave::gpu
