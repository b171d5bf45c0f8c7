// WGMMA with weight rows as the M side and the places of an expert as the N side, both in shared memory, brought by TMA.
// So a tile has as many places as an expert gave it (in steps of 8 and more), and few places cost little beside the
// weights, which are what a step with few rows waits for.
//
// Persistent CTAs take tile after tile: weight rows of an expert change fastest, so that CTAs that run together read the
// same places from the L2 cache. One thread brings stages ahead, across tiles, a warpgroup multiplies. Tiles of many places
// are for expert_wide.cuh.
//
// Where few rows leave most CTAs without a tile, those of a cluster share a tile's depth (kSplit): each sends its sums to the
// first one's shared memory, which adds them in the order of the depth and writes.
//
// 8-bit operands: a stage is 128 elements deep, the depth of a block's scale; its sums are scaled and added in f32.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "device/cuda/ptx.h"
#include "device/cuda/shared_memory_limit.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/wgmma_wide.h"
#include "ops/cuda/expert_fp8.cuh"
#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/stream_gemm.h"

namespace warpweave::gpu {
namespace {

struct Args : ExpertGemmArgs {
  int sharers = 1;              // CTAs of a tile, a cluster
  int each = 0;                 // of its chunks
};

constexpr int kRowBytes = kExpertRowBytes;
constexpr int kSmBytes = 227 * 1024;
constexpr int kFewTilePlaces = 64;
constexpr int kConsumers = 128, kThreads = kConsumers + 32;
constexpr int kRows = 64;                       // weight rows of a tile
constexpr int kBoxPlaces = 8, kBoxColumns = 64;
constexpr int kCtas = 2;                        // of an SM

constexpr int kMostSharers = 8;                 // CTAs of a cluster
constexpr int kLeastSharedChunks = 4;           // of the depth, for each
constexpr int kSharedSums = kSharedRows / 2;    // of a thread

// Two CTAs of one warpgroup an SM.
template <class Element_, bool kFp8_, Glu kGlu_, bool kSplit_ = false>
struct Config {
  using Element = Element_;     // of y, and of 16-bit operands
  static constexpr bool kFp8 = kFp8_;
  static constexpr Glu kGlu = kGlu_;
  static constexpr bool kSplit = kSplit_;
  static constexpr int kGroups = 1;
  static constexpr int kWeightBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kFewTilePlaces * kRowBytes;
  static constexpr int kRoomBytes = (kSmBytes - 1024) / kCtas;
  static constexpr int kSumsBytes = kSplit ? (kMostSharers - 1) * kSharedSums * kConsumers * 4 : 0;
  static constexpr int kStages = (kRoomBytes - 1024 - kStagingBytes - kSumsBytes) / (kStageBytes + kBarrierBytes);
  static_assert(kStages >= 4);
};

template <class C>
using Ring = ExpertRing<C>;

// A CTA's part of the chunks of a tile's depth, at least one.
template <class C>
struct Depth {
  int begin, count;

  __device__ explicit Depth(const Args& a)
      : begin(C::kSplit ? rank() * a.each : 0), count(C::kSplit ? min(a.each, a.chunks - begin) : a.chunks) {}
  static __device__ int rank() { return static_cast<int>(__clusterRelativeBlockRank()); }
};

// The tiles of a CTA, one after the other; CTAs that share tiles have one at most.
template <class C>
struct Walk {
  int at, end, row_tiles;
  ExpertTile tile;
  int row;                      // of the weights

  // The first tile is read beside their number: the array has room for one a CTA.
  __device__ Walk(const Args& a) : at(C::kSplit ? __clusterIdx().x : blockIdx.x), row_tiles(a.row_tiles) {
    const int tiles = __ldcg(a.num_tiles);
    locate(a);
    end = tiles * row_tiles;
  }
  __device__ bool valid() const { return at < end; }
  __device__ void next(const Args& a) {
    at += gridDim.x;
    if (valid()) locate(a);
  }
  __device__ void locate(const Args& a) {
    const int4 found = __ldcg(reinterpret_cast<const int4*>(a.tiles) + at / row_tiles);
    tile = {found.x, found.y, found.z, 0};
    row = at % row_tiles;
  }
};

// Of x, for the tile's first place.
__device__ __forceinline__ int first_x_row(const Args& a, const ExpertTile& tile) { return a.shared_rows ? 0 : tile.first; }

__device__ __forceinline__ int boxes_of(const ExpertTile& tile) { return (tile.count + kBoxPlaces - 1) / kBoxPlaces; }

template <class C>
__device__ __forceinline__ void bring_weights(const Args& a, const Ring<C>& ring, const Walk<C>& walk, int chunk, u64 policy) {
  ptx::mbarrier_arrive_expect_tx(ring.full(), C::kWeightBytes + boxes_of(walk.tile) * kBoxPlaces * kRowBytes);
  ptx::tma_load_4d(ring.at(), &a.w, ring.full(), chunk * kBoxColumns, walk.row * kRows, walk.tile.expert, 0, policy);
}

template <class C>
__device__ __forceinline__ void bring_places(const Args& a, const Ring<C>& ring, const Walk<C>& walk, int chunk) {
  const int boxes = boxes_of(walk.tile);
  for (int box = 0; box < boxes; ++box) {
    ptx::tma_load_4d(ring.at() + C::kWeightBytes + box * kBoxPlaces * kRowBytes, &a.x, ring.full(), chunk * kBoxColumns,
                     first_x_row(a, walk.tile) + box * kBoxPlaces, 0, 0);
  }
}

// One thread. Where the plan is known early, the first weights come while the kernel before still runs.
template <class C>
__device__ void bring(const Args& a, Ring<C> ring) {
  const u64 policy = ptx::evict_first_policy();
  if (!a.plan_settled) wait_for_predecessor();
  Walk<C> walk(a);
  const Depth<C> depth(a);
  int ahead = 0;
  if (walk.valid() && a.plan_settled) {
    ahead = min(C::kStages, depth.count);
    Ring<C> at = ring;
    for (int i = 0; i < ahead; ++i, at.next()) bring_weights<C>(a, at, walk, depth.begin + i, policy);
  }
  if (a.plan_settled) wait_for_predecessor();
  start_successor();
  for (int i = 0; i < ahead; ++i, ring.next()) bring_places<C>(a, ring, walk, depth.begin + i);
  for (; walk.valid(); walk.next(a), ahead = 0) {
    for (int i = ahead; i < depth.count; ++i, ring.next()) {
      ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);  // the first round is free
      bring_weights<C>(a, ring, walk, depth.begin + i, policy);
      bring_places<C>(a, ring, walk, depth.begin + i);
    }
  }
}

template <class C, int kPlaces>
__device__ __forceinline__ void multiply(u32 stage, bool add, float (&sum)[kPlaces / 2]) {
  const u32 w = ptx::wgmma_descriptor(stage, 0), x = ptx::wgmma_descriptor(stage + C::kWeightBytes, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    ptx::Wgmma<typename C::Element, kPlaces>::qk(sum, ptx::wgmma_advance(w, k * 32), ptx::wgmma_advance(x, k * 32), add || k > 0);
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void release(u32 empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
}

template <class C, int kPlaces>
__device__ __forceinline__ void sum_stages(const Args& a, Ring<C>& ring, const Walk<C>& walk, float (&sum)[kPlaces / 2]) {
  const Depth<C> depth(a);
  if constexpr (C::kFp8 || !C::kSplit) {
#pragma unroll
    for (float& value : sum) value = 0;  // not by the first WGMMA: ptxas would keep the sums of all widths at once
  }
  if constexpr (C::kFp8) {
    const ExpertFp8Scales<C> scales(a, walk.tile.expert, walk.row * kRows);
    float part[kPlaces / 2];
    for (int i = 0; i < depth.count; ++i, ring.next()) {
      const float first = scales.of_chunk(0, depth.begin + i), second = scales.of_chunk(1, depth.begin + i);
      ptx::mbarrier_wait(ring.full(), ring.parity);
      multiply_codes<kPlaces>(ring.at(), ring.at() + C::kWeightBytes, part);
      ptx::wgmma_wait<0>();
      release(ring.empty());
      scales.add(first, second, part, sum);
    }
    scales.finish(a.x_scales + first_x_row(a, walk.tile), walk.tile.count, sum);
  } else if constexpr (C::kSplit) {
    for (int i = 0; i < depth.count; ++i, ring.next()) {  // with more under way ptxas would wait for each WGMMA
      ptx::mbarrier_wait(ring.full(), ring.parity);
      multiply<C, kPlaces>(ring.at(), i > 0, sum);
      ptx::wgmma_wait<0>();
      release(ring.empty());
    }
  } else {
    for (int chunk = 0; chunk < a.chunks; ++chunk, ring.next()) {
      ptx::mbarrier_wait(ring.full(), ring.parity);
      multiply<C, kPlaces>(ring.at(), true, sum);
      ptx::wgmma_wait<1>();
      if (chunk > 0) release(ring.last().empty());
    }
    ptx::wgmma_wait<0>();
    release(ring.last().empty());
  }
}

// Where the sums of other CTAs arrive in the first one's shared memory, behind the ring.
template <class C>
struct SumsOfSharers {
  u32 base, arrived;

  __device__ explicit SumsOfSharers(const char* memory)
      : base(ptx::smem_address(memory) + Ring<C>::kSmemBytes), arrived(base + C::kSumsBytes) {}
  static constexpr int kBytes = C::kSplit ? C::kSumsBytes + 8 : 0;

  // By one thread, before the cluster meets.
  __device__ void expect(const Args& a) const {
    ptx::mbarrier_init(arrived, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_arrive_expect_tx(arrived, (a.sharers - 1) * kSharedSums * kConsumers * 4);
  }
  __device__ u32 at(int sharer, int i) const { return base + (((sharer - 1) * kSharedSums + i) * kConsumers + threadIdx.x) * 4; }
  // Whether this CTA is the first one, which has all sums then.
  __device__ bool gather(const Args& a, float (&sum)[kSharedSums]) const {
    const int rank = Depth<C>::rank();
    if (rank > 0) {
#pragma unroll
      for (int i = 0; i < kSharedSums; ++i) ptx::store_async_4(at(rank, i), arrived, 0, __float_as_uint(sum[i]));
      return false;
    }
    ptx::mbarrier_wait(arrived, 0);
    for (int sharer = 1; sharer < a.sharers; ++sharer) {
#pragma unroll
      for (int i = 0; i < kSharedSums; ++i) sum[i] += __uint_as_float(ptx::load_shared_4(at(sharer, i)));
    }
    return true;
  }
};

template <class C, int kPlaces>
__device__ __forceinline__ Ring<C> run_tile(const Args& a, Ring<C> ring, const Walk<C>& walk, const SumsOfSharers<C>& shared) {
  float sum[kPlaces / 2];
  sum_stages<C, kPlaces>(a, ring, walk, sum);
  if constexpr (C::kSplit) {
    if (!shared.gather(a, sum)) return ring;
  }
  const ExpertOut<C, kPlaces> out = {a, walk.tile, ring.staging(0), 0, walk.row * kRows};
  out.add_bias(sum);
  out.write(sum);
  return ring;
}

// The narrowest WGMMA that holds the tile's places.
template <class C>
__device__ __forceinline__ Ring<C> run_tile_of(const Args& a, Ring<C> ring, const Walk<C>& walk, const SumsOfSharers<C>& shared) {
  const int count = walk.tile.count;
  if (count <= 8) return run_tile<C, 8>(a, ring, walk, shared);
  if (count <= 16) return run_tile<C, 16>(a, ring, walk, shared);
  if (count <= 24) return run_tile<C, 24>(a, ring, walk, shared);
  if (count <= 32) return run_tile<C, 32>(a, ring, walk, shared);
  if (count <= 48) return run_tile<C, 48>(a, ring, walk, shared);
  return run_tile<C, 64>(a, ring, walk, shared);
}

template <class C>
__global__ void __launch_bounds__(kThreads, kCtas) expert_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  Ring<C> ring(memory);
  const SumsOfSharers<C> shared(memory);
  if (threadIdx.x == kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    ring.init_barriers(kConsumers / 32);
    if constexpr (C::kSplit) shared.expect(a);
  }
  if constexpr (C::kSplit) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) bring<C>(a, ring);
  } else {
    wait_for_predecessor();
    if constexpr (C::kSplit) {
      const Walk<C> walk(a);
      if (walk.valid()) run_tile<C, kSharedRows>(a, ring, walk, shared);
    } else {
      for (Walk<C> walk(a); walk.valid(); walk.next(a)) ring = run_tile_of<C>(a, ring, walk, shared);
    }
  }
}

template <class C>
void launch(const Args& args, unsigned ctas, cudaStream_t stream) {
  constexpr int kBytes = Ring<C>::kSmemBytes + SumsOfSharers<C>::kBytes;
  static SharedMemoryLimit limit;
  limit.raise(expert_gemm_kernel<C>, kBytes);  // where this fails, so does the launch
  launch_dependent({ctas, kThreads, kBytes, stream, static_cast<unsigned>(args.sharers)}, expert_gemm_kernel<C>, args);
}

// CTAs share the depth of tiles where so many would leave half of the CTAs or more without one.
void share_depth(Args& args, int64_t tiles) {
  const int64_t ctas = int64_t{kCtas} * num_sms();
  int sharers = 1;
  while (sharers < kMostSharers && 2 * sharers * tiles <= ctas && args.chunks >= 2 * sharers * kLeastSharedChunks) sharers *= 2;
  args.each = (args.chunks + sharers - 1) / sharers;
  args.sharers = (args.chunks + args.each - 1) / args.each;  // none without chunks
}

template <class Element, bool kFp8, Glu kGlu>
void launch(Args& args, const ExpertGemmCall& call, cudaStream_t stream) {
  const ExpertWeights& weights = call.weights;
  const int64_t columns = weights.cols / (kFp8 ? 2 : 1);  // one-byte elements are taken by twos
  const cuda::MatrixStack stack = {weights.data, weights.experts, weights.stride_bytes, weights.rows, columns};
  if (cuda::make_stack_map(&args.w, stack, kRows) != cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, args.x_rows, columns, kBoxPlaces) != cudaSuccess) {
    return;  // the driver is older than the chip: expert_gemm_takes() has asked
  }
  args.row_tiles = static_cast<int>((weights.rows + kRows - 1) / kRows);
  args.chunks = static_cast<int>((columns + kBoxColumns - 1) / kBoxColumns);
  const int64_t few = call.few_tiles * args.row_tiles;
  if (few > 0) share_depth(args, few);
  if (args.sharers > 1) {
    return launch<Config<Element, kFp8, kGlu, true>>(args, static_cast<unsigned>(few * args.sharers), stream);
  }
  const int64_t most = most_expert_tiles(call.places, weights.experts, call.tile_places) * args.row_tiles;
  launch<Config<Element, kFp8, kGlu>>(args, static_cast<unsigned>(std::min<int64_t>(most, int64_t{kCtas} * num_sms())), stream);
}

template <class Element, bool kFp8>
void launch_of(Args& args, const ExpertGemmCall& call, cudaStream_t stream) {
  switch (args.glu) {
    case GluActivation::none: return launch<Element, kFp8, Glu::none>(args, call, stream);
    case GluActivation::silu: return launch<Element, kFp8, Glu::silu>(args, call, stream);
    default: launch<Element, kFp8, Glu::other>(args, call, stream);
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

int expert_gemm_tile_places(int64_t pairs, int experts) {
  constexpr int64_t kFewPlaces = 40;  // an expert, from where wide tiles pay
  return pairs <= kFewPlaces * experts ? kFewTilePlaces : kExpertWidePlaces;
}

ExpertGemmArgs expert_gemm_args(const ExpertGemmCall& call) {
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

void expert_gemm(const ExpertGemmCall& call, Stream stream) {
  if (call.places == 0) return;
  const bool codes = call.weights.dtype == DType::fp8_e4m3;
  if (call.tile_places > kFewTilePlaces) return codes ? expert_wide_codes(call, stream) : expert_wide_halves(call, stream);
  Args args = {expert_gemm_args(call)};
  const auto on = static_cast<cudaStream_t>(stream);
  const bool f16 = call.y_dtype == DType::f16;
  if (codes) {
    f16 ? launch_of<ptx::F16, true>(args, call, on) : launch_of<ptx::Bf16, true>(args, call, on);
  } else {
    f16 ? launch_of<ptx::F16, false>(args, call, on) : launch_of<ptx::Bf16, false>(args, call, on);
  }
}

}  // namespace warpweave::gpu
