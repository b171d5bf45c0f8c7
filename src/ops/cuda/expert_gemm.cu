// WGMMA with weight rows as the M side and the places of an expert as the N side, both in shared memory, brought by TMA.
// So a tile has as many places as an expert gave it (in steps of 8 and more), and few places cost little beside the
// weights, which are what a step with few rows waits for.
//
// Persistent CTAs take tile after tile: weight rows of an expert change fastest, so that CTAs that run together read the
// same places from the L2 cache. One thread brings stages ahead, across tiles, a warpgroup multiplies. Tiles of many places
// are for expert_wide.cuh; where they are not yet worth it, but places are a good part of what is read, two warpgroups of a CTA
// share them, each with weight rows of its own.
//
// Tiles' widths follow the mean of rows an expert. Where rows crowd into few experts, so that these would be read again and again,
// the plan has longer tiles, and one kernel has the code of both kinds (expert_crowds_kernel).
//
// Where few tiles leave most CTAs without one, those of a cluster share a tile's depth (kSplit). Each of them adds up and writes
// some runs of 8 places, whose sums the others send to its shared memory.
//
// 8-bit operands: a block of a stage is 128 elements deep, the depth of a block's scale; its sums are scaled and added in f32.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "device/cuda/ptx.h"
#include "device/cuda/shared_memory_limit.h"
#include "device/cuda/wgmma_wide.h"
#include "ops/cuda/expert_config.cuh"
#include "ops/cuda/expert_fp8_sums.cuh"
#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/expert_maps.cuh"
#include "ops/cuda/expert_sharing.cuh"
#include "ops/cuda/expert_walk.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/stream_gemm.h"

namespace warpweave::gpu {
namespace {

using Args = ExpertShareArgs;

template <class C>
using Ring = ExpertRing<C>;
template <class C>
using Walk = ExpertWalk<C>;

// Of a.early.x: the places of an early tile's expert are the rows in their order.
__device__ __forceinline__ int first_early_row(const Args& a, const ExpertTile& tile) {
  return (tile.first - a.early.first_place) % a.early.rows;
}

// How a stage's places come: as one box, since a box takes TMA some 35 ns, whatever it holds.
struct PlaceBox {
  const CUtensorMap* x;
  int first_row;
  u32 bytes;
};
template <class C>
__device__ __forceinline__ PlaceBox box_of(const Args& a, const Walk<C>& walk) {
  const int index = PlaceMaps::index<C::kMostPlaces>(walk.tile.count);
  const u32 bytes = C::kBlocks * PlaceMaps::width<C::kMostPlaces>(index) * kRowBytes;
  if (C::kCrowded) return {&a.other_places.of[index], walk.tile.first, bytes};
  if (walk.early(a)) return {&a.other_places.of[index], first_early_row(a, walk.tile), bytes};
  return {&a.places.of[index], first_x_row(a, walk.tile), bytes};
}

template <class C>
__device__ __forceinline__ void bring_weights(const Args& a, const Ring<C>& ring, const Walk<C>& walk, int chunk, u32 place_bytes) {
  const CUtensorMap* const w = C::kCrowded ? &a.crowded_w : &a.w;
  ptx::mbarrier_arrive_expect_tx(ring.full(), C::kWeightBytes + place_bytes);
  if constexpr (C::kBlocks > 1) {
    return ptx::tma_load_4d(ring.at(), w, ring.full(), 0, walk.row * C::kRows, chunk * C::kBlocks, walk.tile.expert,
                            ptx::evict_first_policy());
  }
  ptx::tma_load_4d(ring.at(), w, ring.full(), chunk * kBoxColumns, walk.row * C::kRows, walk.tile.expert, 0, ptx::evict_first_policy());
}

template <class C>
__device__ __forceinline__ void bring_places(const PlaceBox& box, const Ring<C>& ring, int chunk) {
  constexpr bool kByBlock = C::kBlocks > 1;  // as make_blocks_map() has it
  ptx::tma_load_4d(ring.at() + C::kWeightBytes, box.x, ring.full(), kByBlock ? 0 : chunk * kBoxColumns, box.first_row,
                   kByBlock ? chunk * C::kBlocks : 0, 0);
}

// A tile whose first stages of weights, `ahead`, are on their way.
template <class C>
__device__ __forceinline__ void bring_tile(const Args& a, Ring<C>& ring, const Walk<C>& walk, int ahead) {
  const Depth<C> depth(a);
  const PlaceBox box = box_of<C>(a, walk);
  for (int i = 0; i < ahead; ++i, ring.next()) bring_places<C>(box, ring, depth.begin + i);
  for (int i = ahead, together = 0; i < depth.count; i += together) {
    together = min(C::kTogether, depth.count - i);
    Ring<C> at = ring;
    for (int j = 0; j < together; ++j, at.next()) ptx::mbarrier_wait(at.empty(), at.parity ^ 1);  // the first round is free
    at = ring;
    for (int j = 0; j < together; ++j, at.next()) bring_weights<C>(a, at, walk, depth.begin + i + j, box.bytes);
    for (int j = 0; j < together; ++j, ring.next()) bring_places<C>(box, ring, depth.begin + i + j);
  }
}

// The first tile's first stages of weights, whose expert is known before its places are there. Returns how many.
template <class C>
__device__ int bring_ahead(const Args& a, Ring<C> ring, const Walk<C>& walk) {
  const int ahead = min(C::kStages, Depth<C>(a).count);
  for (int i = 0; i < ahead; ++i, ring.next()) bring_weights<C>(a, ring, walk, Depth<C>(a).begin + i, box_of<C>(a, walk).bytes);
  return ahead;
}

// One thread. Early tiles come while the kernels before still run; else, where the plan or an expert is known early, the first weights.
template <class C>
__device__ void bring(const Args& a, Ring<C> ring) {
  Walk<C> walk(a);
  if (a.plan_settled) walk.start(a);
  for (; walk.early(a); walk.next_early(a)) bring_tile<C>(a, ring, walk, 0);
  int ahead = 0;
  if (a.plan_settled ? walk.valid() : walk.certain(a)) ahead = bring_ahead<C>(a, ring, walk);
  wait_for_predecessor();
  if (!a.plan_settled) walk.start(a);
  start_successor();
  for (; walk.valid(); walk.next(a), ahead = 0) bring_tile<C>(a, ring, walk, ahead);
}

// The same for a walk that has read the plan. Where a.plan_settled, the rows of its places may still be on their way.
template <class C>
__device__ void bring_planned(const Args& a, Ring<C> ring, Walk<C> walk) {
  int ahead = a.plan_settled && walk.valid() ? bring_ahead<C>(a, ring, walk) : 0;
  wait_for_predecessor();
  start_successor();
  for (; walk.valid(); walk.next(a), ahead = 0) bring_tile<C>(a, ring, walk, ahead);
}

template <class C>
__device__ __forceinline__ int warpgroup() { return C::kGroups > 1 ? static_cast<int>(threadIdx.x) / kGroupThreads : 0; }

template <class C, int kPlaces>
__device__ __forceinline__ void multiply(u32 stage, bool add, float (&sum)[kPlaces / 2]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int block = 0; block < C::kBlocks; ++block) {
    const u32 w = ptx::wgmma_descriptor(stage + (block * C::kRows + warpgroup<C>() * kGroupRows) * kRowBytes, 0);
    const u32 x = ptx::wgmma_descriptor(stage + C::kWeightBytes + block * kPlaces * kRowBytes, 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ptx::Wgmma<typename C::Element, kPlaces>::qk(sum, ptx::wgmma_advance(w, k * 32), ptx::wgmma_advance(x, k * 32),
                                                   add || block > 0 || k > 0);
    }
  }
  ptx::wgmma_commit();
}

template <class C, int kPlaces>
__device__ __forceinline__ void sum_stages(const Args& a, Ring<C>& ring, const Walk<C>& walk, float (&sum)[kPlaces / 2]) {
  const Depth<C> depth(a);
#pragma unroll
  for (float& value : sum) value = 0;  // not by the first WGMMA: ptxas would keep the sums of all widths at once
  if constexpr (C::kFp8) {
    if constexpr (C::kGroupScaleBytes > 0) {
      if (a.x_by_group) return sum_grouped_codes<C, kPlaces>(a, ring, walk, sum);
    }
    sum_codes<C, kPlaces>(a, ring, walk, sum);
  } else if constexpr (C::kSplit) {
    float part[kPlaces / 2];    // were it the sum itself, ptxas would wait for each WGMMA
    for (int i = 0; i < depth.count; ++i, ring.next()) {
      ptx::mbarrier_wait(ring.full(), ring.parity);
      multiply<C, kPlaces>(ring.at(), false, part);
      ptx::wgmma_wait<0>();
      release(ring.empty());
#pragma unroll
      for (int at = 0; at < kPlaces / 2; ++at) sum[at] += part[at];
    }
  } else if constexpr (C::kBlocks > 1 && C::kMostPlaces <= kNarrowTilePlaces) {  // soon multiplied: each is free at once
    for (int chunk = 0; chunk < depth.count; ++chunk, ring.next()) {
      ptx::mbarrier_wait(ring.full(), ring.parity);
      multiply<C, kPlaces>(ring.at(), true, sum);
      ptx::wgmma_wait<0>();
      release(ring.empty());
    }
  } else {
    for (int chunk = 0; chunk < depth.count; ++chunk, ring.next()) {
      ptx::mbarrier_wait(ring.full(), ring.parity);
      multiply<C, kPlaces>(ring.at(), true, sum);
      ptx::wgmma_wait<1>();
      if (chunk > 0) release(ring.last().empty());
    }
    ptx::wgmma_wait<0>();
    release(ring.last().empty());
  }
}

template <class C, int kPlaces>
__device__ __forceinline__ void leave(const ExpertOut<C, kPlaces>& out, const float (&sum)[kPlaces / 2]) {
  if constexpr (C::kFp8 && C::kMostPlaces == kSharedRows && C::kGlu != Glu::none) {
    if (out.a.codes != nullptr) return write_codes(out, sum);
  }
  out.write(sum);
}

// The runs of a tile that are this CTA's, of which it has sums of a part of the depth.
template <class C, int kPlaces>
__device__ __forceinline__ void write_own(const Args& a, const Walk<C>& walk, u32 staging, const SumsOfSharers<C>& shared,
                                          const float (&sum)[kPlaces / 2]) {
  const int rank = Depth<C>::rank(a), places = walk.tile.count;
  shared.send(a, places, sum);
  if (rank * kRun >= places) return;
  shared.wait(a, places);
#pragma unroll
  for (int run = 0; run < kPlaces / kRun; ++run) {
    if ((run & (a.sharers - 1)) != rank || run * kRun >= places) continue;
    float own[4] = {sum[4 * run], sum[4 * run + 1], sum[4 * run + 2], sum[4 * run + 3]};
    shared.add(a, run, own);
    const ExpertTile tile = {walk.tile.expert, walk.tile.first + run * kRun, min(kRun, places - run * kRun), 0};
    const ExpertOut<C, kRun> out = {a, tile, staging, 0, walk.row * C::kRows};
    out.add_bias(own);
    leave(out, own);
  }
}

template <class C, int kPlaces>
__device__ __forceinline__ Ring<C> run_tile(const Args& a, Ring<C> ring, const Walk<C>& walk, const SumsOfSharers<C>& shared) {
  float sum[kPlaces / 2];
  sum_stages<C, kPlaces>(a, ring, walk, sum);
  if constexpr (C::kSplit) {
    write_own<C, kPlaces>(a, walk, ring.staging(0), shared, sum);
  } else {
    const int group = warpgroup<C>();
    const ExpertOut<C, kPlaces> out = {a, walk.tile, ring.staging(group), group, walk.row * C::kRows + group * kGroupRows};
    out.add_bias(sum);
    leave(out, sum);
  }
  return ring;
}

// The narrowest WGMMA that holds the tile's places, of kPlaces and more.
template <class C, int kPlaces = 8>
__device__ __forceinline__ Ring<C> run_tile_of(const Args& a, Ring<C> ring, const Walk<C>& walk, const SumsOfSharers<C>& shared) {
  constexpr int kNext = kPlaces + (kPlaces < 32 ? 8 : kPlaces < 64 ? 16 : 32);
  if constexpr (kNext <= C::kMostPlaces) {
    if (walk.tile.count > kPlaces) return run_tile_of<C, kNext>(a, ring, walk, shared);
  }
  return run_tile<C, kPlaces>(a, ring, walk, shared);
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kResident) expert_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  Ring<C> ring(memory);
  const SumsOfSharers<C> shared(memory);
  if (threadIdx.x == C::kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.places.of[0]);
    ring.init_barriers(C::kConsumers / 32);
    if constexpr (C::kSplit) shared.init();
  }
  if constexpr (C::kSplit) {
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
  if (threadIdx.x >= C::kConsumers) {
    if (threadIdx.x == C::kConsumers) bring<C>(a, ring);
  } else {
    Walk<C> walk(a);
    for (walk.begin(a); walk.valid(); walk.advance(a)) ring = run_tile_of<C>(a, ring, walk, shared);
  }
}

template <class C>
__device__ __forceinline__ void run_planned(const Args& a, Ring<C> ring, Walk<C> walk) {
  for (; walk.valid(); walk.next(a)) ring = run_tile_of<C>(a, ring, walk, SumsOfSharers<C>(nullptr));
}

// The plan's tiles are all of one kind and say of which (ExpertTile::crowded). There are no early tiles. The compiler is told to
// expect the usual kind, so that its instructions stand together.
template <class Kinds>
__global__ void __launch_bounds__(Kinds::Usual::kThreads, Kinds::Usual::kResident) expert_crowds_kernel(const __grid_constant__ Args a) {
  using Usual = typename Kinds::Usual;
  using Crowded = typename Kinds::Crowded;
  extern __shared__ __align__(1024) char memory[];
  if (threadIdx.x == Usual::kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.places.of[0]);
    Ring<typename Kinds::More>(memory).init_barriers(Usual::kConsumers / 32);
  }
  __syncthreads();
  if (threadIdx.x > Usual::kConsumers) return;
  Walk<Usual> walk(a);
  if (threadIdx.x == Usual::kConsumers) {
    if (!a.plan_settled) wait_for_predecessor();
    walk.start(a);
    if (__builtin_expect(walk.tile.crowded == 0, 1)) return bring_planned<Usual>(a, Ring<Usual>(memory), walk);
    return bring_planned<Crowded>(a, Ring<Crowded>(memory), Walk<Crowded>(walk));
  }
  walk.begin(a);
  if (__builtin_expect(walk.tile.crowded == 0, 1)) return run_planned<Usual>(a, Ring<Usual>(memory), walk);
  run_planned<Crowded>(a, Ring<Crowded>(memory), Walk<Crowded>(walk));
}

template <class C>
void launch(Args& args, const ExpertGemmCall& call, int64_t ctas, cudaStream_t stream) {
  if (!make_maps<C>(args, call)) return;  // the driver is older than the chip: expert_gemm_takes() has asked
  constexpr int kBytes = Ring<C>::kSmemBytes + SumsOfSharers<C>::kBytes;
  static SharedMemoryLimit limit;
  limit.raise(expert_gemm_kernel<C>, kBytes);  // where this fails, so does the launch
  const int64_t most = C::kSplit ? ctas : std::min<int64_t>(ctas, int64_t{C::kResident} * num_sms());
  launch_dependent({static_cast<unsigned>(most), C::kThreads, kBytes, stream, static_cast<unsigned>(args.sharers)},
                   expert_gemm_kernel<C>, static_cast<const Args&>(args));
}

template <class Usual, class Crowded>
void launch_either(Args& args, const ExpertGemmCall& call, int64_t ctas, cudaStream_t stream) {
  using Kinds = EitherKind<Usual, Crowded>;
  if (!make_maps<Usual>(args, call) || !make_crowded_maps<Crowded>(args, call)) return;  // as in launch()
  static SharedMemoryLimit limit;
  limit.raise(expert_crowds_kernel<Kinds>, Kinds::kSmemBytes);  // where this fails, so does the launch
  const int64_t most = std::min<int64_t>(ctas, int64_t{Usual::kResident} * num_sms());
  launch_dependent({static_cast<unsigned>(most), Usual::kThreads, Kinds::kSmemBytes, stream}, expert_crowds_kernel<Kinds>,
                   static_cast<const Args&>(args));
}

// CTAs share the depth of tiles where so many would leave half of the CTAs or more without one.
void share_depth(Args& args, int64_t tiles) {
  const int64_t ctas = int64_t{kCtas} * num_sms();
  int& sharers = args.sharers;
  while (sharers < kMostSharers && 2 * sharers * tiles <= ctas && args.chunks >= 2 * sharers * kLeastSharedChunks) sharers *= 2;
}

// Whether so many tiles, each by `sharers` CTAs, run at once by kManyCtas of an SM, but not by kCtas.
bool only_many_ctas_hold(int64_t tiles, int sharers) {
  return tiles * sharers > int64_t{kCtas} * num_sms() && tiles * sharers <= int64_t{kManyCtas} * num_sms();
}

// Turns that the CTAs take where every expert has a tile of places for so many weight rows.
int64_t turns(const ExpertWeights& weights, int64_t rows) {
  const int64_t ctas = int64_t{kCtas} * num_sms(), tiles = (weights.rows + rows - 1) / rows * weights.experts;
  return (tiles + ctas - 1) / ctas;
}

// Whether two warpgroups of a CTA pay: experts have many places, hardly a CTA has rows for one alone, and the last turn, which
// is twice as long, is not too empty.
bool broad_tiles_pay(const ExpertWeights& weights, int64_t places) {
  constexpr int64_t kManyPlaces = 28, kManyRows = 1024;
  return weights.dtype != DType::fp8_e4m3 && places >= kManyPlaces * weights.experts &&
         (weights.rows % (2 * kGroupRows) == 0 || weights.rows >= kManyRows) &&
         20 * turns(weights, 2 * kGroupRows) <= 11 * turns(weights, kGroupRows);
}

// Whether a kernel with the code of both kinds of tiles multiplies these weights.
bool may_crowd(const ExpertWeights& weights, int64_t pairs, int tile_places) {
  const bool narrow = tile_places == kNarrowTilePlaces;
  if ((!narrow && tile_places != kFewTilePlaces) || weights.dtype == DType::fp8_e4m3) return false;
  if (weights.cols % kBoxColumns != 0 || (!narrow && broad_tiles_pay(weights, pairs))) return false;
  const int64_t tiles = (weights.rows + kGroupRows - 1) / kGroupRows * most_expert_tiles(pairs, weights.experts, tile_places);
  return 2 * tiles > int64_t{kCtas} * num_sms();  // else CTAs may share their depth: share_depth()
}

template <class T>
void launch_tiles(Args& args, const ExpertGemmCall& call, cudaStream_t stream) {
  const int64_t few = call.few_tiles * args.row_tiles;
  const int64_t tiles = args.row_tiles * (call.tile_places == kSharedRows
                                              ? call.places / kSharedRows
                                              : most_expert_tiles(call.places, call.weights.experts, call.tile_places));
  args.most_tiles = static_cast<int>(tiles / args.row_tiles);
  if constexpr (T::kMostPlaces == kSharedRows) {
    if (only_many_ctas_hold(tiles, 1)) return launch<Config<T, false, kManyCtas>>(args, call, tiles, stream);
    if (few > 0 && only_many_ctas_hold(few, 2) && args.chunks >= 4 * kLeastSharedChunks) {
      args.sharers = 2;
      return launch<Config<T, true, kManyCtas>>(args, call, 2 * few, stream);
    }
  }
  if (few > 0 && call.early.rows == 0) share_depth(args, few);
  if (args.sharers > 1) return launch<Config<T, true>>(args, call, few * args.sharers, stream);
  const bool broad = T::kMostPlaces == kFewTilePlaces && broad_tiles_pay(call.weights, call.places);
  constexpr int64_t kColumns = T::kFp8 ? 2 * kBoxColumns : kBoxColumns;  // of a block
  using Blocks = Config<T, false, T::kCtasOfBlocks, 1, 2>;
  if constexpr (T::kMostPlaces == kFewTilePlaces && !T::kFp8) {
    if (broad) {
      using Broad = Config<T, false, kCtas, 2>;
      args.row_tiles = static_cast<int>((call.weights.rows + Broad::kRows - 1) / Broad::kRows);
      return launch<Broad>(args, call, tiles, stream);
    }
  }
  if constexpr (T::kMostPlaces != kSharedRows && !T::kFp8) {
    constexpr int kPlaces = T::kNarrow ? kCrowdedNarrowPlaces : kCrowdedFewPlaces;
    using Crowded = Config<Tiles<typename T::Element, false, T::kGlu, kPlaces>, false, T::kCtasOfBlocks>;
    if (call.crowded_places > 0) return launch_either<Blocks, Crowded>(args, call, tiles, stream);
  }
  if (call.weights.cols % kColumns == 0) return launch<Blocks>(args, call, tiles, stream);
  launch<Config<T>>(args, call, tiles, stream);
}

template <class Element, bool kFp8, Glu kGlu>
void launch(Args& args, const ExpertGemmCall& call, cudaStream_t stream) {
  const int64_t columns = call.weights.cols / (kFp8 ? 2 : 1);
  args.row_tiles = static_cast<int>((call.weights.rows + kGroupRows - 1) / kGroupRows);
  args.chunks = static_cast<int>((columns + kBoxColumns - 1) / kBoxColumns);
  if (call.tile_places == kSharedRows) return launch_tiles<Tiles<Element, kFp8, kGlu, kSharedRows>>(args, call, stream);
  if (call.tile_places == kNarrowTilePlaces) return launch_tiles<Tiles<Element, kFp8, kGlu, kNarrowTilePlaces>>(args, call, stream);
  launch_tiles<Tiles<Element, kFp8, kGlu, kFewTilePlaces>>(args, call, stream);
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
                     (weights.scaling == Fp8Scaling::row ||
                      (weights.cols <= kExpertCodeColumns &&
                       (weights.outputs() % kFp8Block == 0 || weights.glu == GluActivation::none)));
  return (halves || codes) && weights.rows % 8 == 0 && weights.cols % 8 == 0 && weights.cols >= 64 &&
         weights.stride_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(weights.data) % 16 == 0 && has_wgmma();
}

bool expert_gemm_codes_outputs(const ExpertWeights& weights, int tile_places) {
  const int64_t chunks = weights.outputs() / (4 * kExpertCodeGroup);
  return weights.dtype == DType::fp8_e4m3 && weights.glu != GluActivation::none && tile_places == kSharedRows &&
         weights.outputs() % (4 * kExpertCodeGroup) == 0 && chunks * tile_places <= kGroupThreads;  // ExpertGroupScales
}

int expert_gemm_tile_places(int64_t pairs, int experts, DType dtype) {
  constexpr int64_t kFewPlaces = 40;       // an expert, from where wide tiles pay
  constexpr int64_t kFewPlacesOfMany = 20, kManyPairs = 8192;  // so many leave out much where their rows stay where they are
  if (pairs == 0) return kSharedRows;
  if (pairs <= kNarrowPlaces * experts && std::min<int64_t>(pairs, experts) >= kSharingExperts) return kNarrowTilePlaces;
  const bool many = pairs >= kManyPairs && dtype != DType::fp8_e4m3;
  return pairs <= (many ? kFewPlacesOfMany : kFewPlaces) * experts ? kFewTilePlaces : kExpertWidePlaces;
}

int expert_gemm_crowded_places(const ExpertWeights& gate_up, const ExpertWeights& down, int64_t rows, int64_t pairs, int tile_places) {
  if (rows <= tile_places || !may_crowd(gate_up, pairs, tile_places) || !may_crowd(down, pairs, tile_places)) return 0;
  return tile_places == kNarrowTilePlaces ? kCrowdedNarrowPlaces : kCrowdedFewPlaces;
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
  args.x_by_group = call.x_by_group;
  args.row_of = call.x_rows > 0 ? call.plan.row_of : nullptr;
  args.codes = call.codes;
  args.code_scales = call.code_scales;
  args.glu = weights.glu;
  return args;
}

void expert_gemm(const ExpertGemmCall& call, Stream stream) {
  if (call.places == 0) return;
  const bool codes = call.weights.dtype == DType::fp8_e4m3;
  if (call.tile_places > kFewTilePlaces) return codes ? expert_wide_codes(call, stream) : expert_wide_halves(call, stream);
  Args args = {expert_gemm_args(call)};
  args.certain = call.certain;
  args.first_certain = call.weights.experts - call.certain;
  args.early = early_tiles(call);
  const auto on = static_cast<cudaStream_t>(stream);
  const bool f16 = call.y_dtype == DType::f16;
  if (codes) {
    f16 ? launch_of<ptx::F16, true>(args, call, on) : launch_of<ptx::Bf16, true>(args, call, on);
  } else {
    f16 ? launch_of<ptx::F16, false>(args, call, on) : launch_of<ptx::Bf16, false>(args, call, on);
  }
}

}  // namespace warpweave::gpu
