// wgmma with input rows as the M side and a tile of weight rows as the N side, both in shared memory, brought by TMA through the
// ring of gemm_ring.cuh. With 64 input rows the two warpgroups have half of the tile each, with 128 half of the rows.
//
// A cluster's CTAs own each a run of a tile's columns: every thread sends what it summed of the others' columns to the thread
// of its own number there, 16 bytes at a time, and adds up what arrives for it in the order of the CTAs.
#include "ops/cuda/cluster_gemm.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "device/cuda/ptx.h"
#include "device/cuda/shared_memory_limit.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/wgmma_wide.h"
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/gemm_ring.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/small_gemm.h"
#include "ops/cuda/stream_gemm.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;
using ptx::u64;

constexpr int kThreads = kConsumers + 64;
constexpr int kMostSplits = 4;
constexpr int kArrivedBytes = 16;  // a barrier, behind those of the ring

struct Args {
  CUtensorMap w, x;
  void* y;
  int64_t y_stride;
  int rows;
  int columns;       // of y
  int chunks;        // of the depth
  int splits;
  int tiles;         // of a block of rows
  int stages;
  int in_flight;     // stages of weights asked for that have not arrived, at most
  bool f32_out, accumulate;
  bool settles;      // GemmCall's
};

template <int kTile_, int kRows_>
struct Config {
  static constexpr int kTile = kTile_, kRows = kRows_;
  static constexpr int kColumns = kRows == 128 ? kTile : kTile / kGroups;  // of a warpgroup
  static constexpr int kRuns = kColumns / 8;                               // of 8 columns: 4 sums of a thread
  static constexpr int kWeightBytes = kTile * kRowBytes;
  static constexpr int kInputBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  static constexpr int kRunBytes = kConsumers * 16;                        // what all threads have of a run
};

template <class C>
using Ring = GemmRing<C::kStageBytes>;

// What a CTA gets of the others: all its own runs, of each of them.
template <class C>
__host__ __device__ constexpr int exchange_bytes(int splits) {
  return splits == 1 ? 0 : (splits - 1) * (C::kRuns / splits) * C::kRunBytes;
}

// Of a row block's tiles, tile by tile.
struct Place {
  DepthShare share;
  int row, column;
  template <class C>
  __device__ Place(const Args& a, C)
      : share(static_cast<int>(blockIdx.x), a.splits, a.chunks),
        row(share.tile / a.tiles * C::kRows),
        column(share.tile % a.tiles * C::kTile) {}
};

// One thread; before the predecessor has ended.
template <class C>
__device__ void bring_weights(const Args& a, Ring<C> ring, const Place& place) {
  const u64 policy = ptx::evict_first_policy();
  Ring<C> landing = ring;
  for (int i = 0; i < place.share.count; ++i) {
    ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);  // the first round is free
    if (i >= a.in_flight) {
      ptx::mbarrier_wait(landing.weights_full(), landing.parity);
      landing.next();
    }
    ptx::mbarrier_arrive_expect_tx(ring.weights_full(), C::kWeightBytes);
    ptx::tma_load_4d(ring.at(), &a.w, ring.weights_full(), (place.share.rank + i * a.splits) * kDepth, place.column, 0, 0, policy);
    ring.next();
  }
}

// One thread.
template <class C>
__device__ void bring_inputs(const Args& a, Ring<C> ring, const Place& place) {
  wait_for_predecessor();
  start_successor();  // where the call settles; else all threads have said so
  for (int i = 0; i < place.share.count; ++i) {
    ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(ring.inputs_full(), C::kInputBytes);
    ptx::tma_load_4d(ring.at() + C::kWeightBytes, &a.x, ring.inputs_full(), (place.share.rank + i * a.splits) * kDepth, place.row,
                     0, 0);
    ring.next();
  }
}

template <class C>
using Sums = float[C::kColumns / 2];

template <class E, class C>
__device__ __forceinline__ void multiply(u32 stage, int group, bool first, Sums<C>& sum) {
  constexpr bool kOwnRows = C::kRows == 128;
  const u32 w = ptx::wgmma_descriptor(stage + (kOwnRows ? 0 : group * C::kColumns * kRowBytes), 0);
  const u32 x = ptx::wgmma_descriptor(stage + C::kWeightBytes + (kOwnRows ? group * 64 * kRowBytes : 0), 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    ptx::Wgmma<E, C::kColumns>::qk(sum, ptx::wgmma_advance(x, k * 32), ptx::wgmma_advance(w, k * 32), !first || k > 0);
  }
  ptx::wgmma_commit();
}

// Two neighbours of a row of y.
template <class E>
__device__ __forceinline__ void store_2(const Args& a, int64_t at, float first, float second) {
  if (!a.f32_out) {
    *reinterpret_cast<u32*>(static_cast<char*>(a.y) + 2 * at) = E::pack(first, second);
    return;
  }
  auto* const y = reinterpret_cast<float2*>(static_cast<float*>(a.y) + at);
  if (a.accumulate) {
    const float2 before = *y;
    first += before.x, second += before.y;
  }
  *y = make_float2(first, second);
}

// wgmma leaves a thread two neighbours of every 8 columns, of two rows.
template <class E, class C>
__device__ __forceinline__ void write_run(const Args& a, const Place& place, int run, const float (&sum)[4]) {
  constexpr bool kOwnRows = C::kRows == 128;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
  const int column = place.column + (kOwnRows ? 0 : group * C::kColumns) + run * 8 + lane % 4 * 2;
  const int first = place.row + (kOwnRows ? group * 64 : 0) + warp % 4 * 16 + lane / 4;
  if (column >= a.columns) return;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const int row = first + 8 * below;
    if (row < a.rows) store_2<E>(a, row * a.y_stride + column, sum[2 * below], sum[2 * below + 1]);
  }
}

// The columns of the other CTAs to their owners, then this CTA's own, added up in the order of the CTAs.
template <class E, class C, int kSplits>
__device__ __forceinline__ void exchange(const Args& a, const Place& place, u32 room, u32 arrived, const Sums<C>& sum) {
  constexpr int kOwn = C::kRuns / kSplits;  // runs of a CTA
  static_assert(C::kRuns % kSplits == 0);
  const int rank = place.share.rank;
  const u32 mine = room + threadIdx.x * 16;
  ptx::cluster_wait();
#pragma unroll
  for (int owner = 0; owner < kSplits; ++owner) {
    if (owner == rank) continue;
    const int sender = rank < owner ? rank : rank - 1;  // among those who send to it
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float* const from = sum + (owner * kOwn + i) * 4;
      u32 values[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) values[c] = __float_as_uint(from[c]);
      cluster::send_16(mine + (sender * kOwn + i) * C::kRunBytes, arrived, owner, values);
    }
  }
  float total[kOwn][4];
#pragma unroll
  for (int i = 0; i < kOwn * 4; ++i) {
    total[i / 4][i % 4] = sum[i];
#pragma unroll
    for (int owner = 1; owner < kSplits; ++owner) {
      total[i / 4][i % 4] = owner == rank ? sum[owner * kOwn * 4 + i] : total[i / 4][i % 4];
    }
  }
  ptx::mbarrier_wait(arrived, 0);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    float all[4] = {};
#pragma unroll
    for (int from = 0; from < kSplits; ++from) {
      u32 values[4];
      ptx::load_shared_16(values, mine + ((from < rank ? from : max(from - 1, 0)) * kOwn + i) * C::kRunBytes);
#pragma unroll
      for (int c = 0; c < 4; ++c) all[c] += from == rank ? total[i][c] : __uint_as_float(values[c]);
    }
    write_run<E, C>(a, place, rank * kOwn + i, all);
  }
}

template <class E, class C, int kSplits>
__global__ void __launch_bounds__(kThreads, 1) cluster_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  constexpr int kExchange = exchange_bytes<C>(kSplits);
  Ring<C> ring(memory, a.stages, kExchange);
  const u32 room = ring.barriers - kExchange, arrived = ring.barriers + kBarrierBytes * a.stages;
  const Place place(a, C());
  if (!a.settles) start_successor();
  if (threadIdx.x == kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    ring.init_barriers();
    if constexpr (kSplits > 1) ptx::mbarrier_init(arrived, 1);
    ptx::mbarrier_init_fence();
    if constexpr (kSplits > 1) ptx::mbarrier_arrive_expect_tx(arrived, kExchange);
  }
  __syncthreads();
  if constexpr (kSplits > 1) ptx::cluster_arrive_relaxed();
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) bring_weights<C>(a, ring, place);
    if (threadIdx.x == kConsumers + 32) bring_inputs<C>(a, ring, place);
    return;
  }
  wait_for_predecessor();
  Sums<C> sum;
  u32 used = 0;
  for (int i = 0; i < place.share.count; ++i) {
    ring.wait_full();
    multiply<E, C>(ring.at(), threadIdx.x / 128, i == 0, sum);
    if (i > 0) {
      ptx::wgmma_wait<1>();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(used);
    }
    used = ring.empty();
    ring.next();
  }
  ptx::wgmma_wait<0>();
#pragma unroll
  for (float& value : sum) asm volatile("" : "+f"(value));  // branches on the rank come after the last wgmma
  if constexpr (kSplits > 1) {
    exchange<E, C, kSplits>(a, place, room, arrived, sum);
  } else {
#pragma unroll
    for (int run = 0; run < C::kRuns; ++run) {
      write_run<E, C>(a, place, run, {sum[run * 4], sum[run * 4 + 1], sum[run * 4 + 2], sum[run * 4 + 3]});
    }
  }
}

template <class E, class C, int kSplits>
void launch(Args& args, const GemmCall& call, cudaStream_t stream) {
  const GpuLinear& linear = *call.linear;
  if (cuda::make_matrix_map(&args.w, linear.weight, linear.out_features, linear.in_features, C::kTile) != cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, call.rows, linear.in_features, C::kRows) != cudaSuccess) {
    return;  // the driver is older than the chip: cluster_gemm_takes() has asked
  }
  const auto kernel = cluster_gemm_kernel<E, C, kSplits>;
  static SharedMemoryLimit limit;
  limit.raise(kernel, kMostSmemBytes);  // where this fails, so does the launch
  constexpr int kRest = exchange_bytes<C>(kSplits) + kArrivedBytes;
  constexpr int kMost = (kMostSmemBytes - kRest) / (C::kStageBytes + kBarrierBytes);
  static_assert(kMost >= 2);
  constexpr int kBytesInFlight = 96 * 1024;  // of an SM: see stream_gemm.h
  args.stages = std::min(kMost, std::max(2, args.chunks / kSplits));
  args.in_flight = std::clamp(kBytesInFlight / C::kWeightBytes, 1, args.stages);
  args.tiles = (args.columns + C::kTile - 1) / C::kTile;
  const int blocks = (args.rows + C::kRows - 1) / C::kRows;
  const size_t used_bytes = size_t(args.stages) * (C::kStageBytes + kBarrierBytes) + kRest;
  launch_dependent({static_cast<unsigned>(args.tiles * blocks * kSplits), kThreads, used_bytes, stream, kSplits}, kernel,
                   static_cast<const Args&>(args));
}

template <class E, class C>
void launch(Args& args, const GemmCall& call, const ClusterPlan& plan, cudaStream_t stream) {
  if (plan.splits == 1) return launch<E, C, 1>(args, call, stream);
  if constexpr (C::kTile * C::kRows <= 64 * 128) {
    plan.splits == 2 ? launch<E, C, 2>(args, call, stream) : launch<E, C, 4>(args, call, stream);
  }
}

template <class E>
void launch(Args& args, const GemmCall& call, const ClusterPlan& plan, cudaStream_t stream) {
  if (plan.rows == 64) {
    return plan.tile == 64 ? launch<E, Config<64, 64>>(args, call, plan, stream)
                           : launch<E, Config<128, 64>>(args, call, plan, stream);
  }
  plan.tile == 64 ? launch<E, Config<64, 128>>(args, call, plan, stream)
                  : launch<E, Config<128, 128>>(args, call, plan, stream);
}

int64_t tiles_of(const GemmCall& call, const ClusterPlan& plan) {
  return (call.linear->out_features + plan.tile - 1) / plan.tile * ((call.rows + plan.rows - 1) / plan.rows);
}
// CTAs that run at once: clusters of four leave SMs over.
int64_t waves_of(const GemmCall& call, const ClusterPlan& plan) {
  const int64_t places = plan.splits < 4 ? num_sms() : num_sms() * 10 / 11;
  return (tiles_of(call, plan) * plan.splits + places - 1) / places;
}

}  // namespace

bool cluster_gemm_takes(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  const bool halves = linear.dtype == DType::f16 || linear.dtype == DType::bf16;
  const bool fits = linear.in_features >= kMostSplits * kDepth && linear.in_features % 8 == 0 && linear.out_features % 16 == 0 &&
                    call.y_stride % 2 == 0 && reinterpret_cast<uintptr_t>(linear.weight) % 16 == 0;
  const bool y_fits = call.y_dtype == linear.dtype ? !call.accumulate : call.y_dtype == DType::f32;
  return call.norm.x == nullptr && call.partials == nullptr && !call.fused_glu && call.rows >= 1 && call.rows <= kClusterGemmRows &&
         halves && fits && y_fits && linear.bias == nullptr && has_wgmma();
}

std::vector<ClusterPlan> all_cluster_plans(const GemmCall& call) {
  std::vector<ClusterPlan> out;
  for (const int splits : {1, 2, 4}) {
    out.push_back({64, 64, splits});
    out.push_back({128, 64, splits});
    if (call.rows > 64) out.push_back({64, 128, splits});
  }
  if (call.rows > 64) out.push_back({128, 128, 1});
  return out;
}

ClusterPlan cluster_plan(const GemmCall& call) {
  // us, from times of GEMMs of 64 to 12352 x 2048 and 2048 x 4096: of a wave, of a KB that a CTA reads and of a MB that all
  // do, of a KB that a CTA sends, of a cluster of two and of four.
  constexpr double kWave = 1.03, kCtaKb = 0.0073, kAllMb = 0.0413, kSentKb = 0.0269, kOfTwo = 1.05, kOfFour = 0.69;
  const int64_t chunks = (call.linear->in_features + kDepth - 1) / kDepth;
  ClusterPlan best;
  double best_us = std::numeric_limits<double>::infinity();
  for (const ClusterPlan& plan : all_cluster_plans(call)) {
    const int64_t own_chunks = (chunks + plan.splits - 1) / plan.splits;
    const double read_kb = 1e-3 * static_cast<double>(own_chunks * (plan.tile + plan.rows) * kRowBytes);
    const double sent_kb = 4e-3 * plan.tile * plan.rows * (plan.splits - 1) / plan.splits;
    const double all_mb = 1e-3 * read_kb * static_cast<double>(tiles_of(call, plan) * plan.splits);
    const double of_cluster = plan.splits == 1 ? 0 : plan.splits == 2 ? kOfTwo : kOfFour;
    const double of_wave = kWave + read_kb * kCtaKb + sent_kb * kSentKb + of_cluster;
    const double us = static_cast<double>(waves_of(call, plan)) * of_wave + all_mb * kAllMb;
    if (us >= best_us) continue;
    best_us = us;
    best = plan;
  }
  return best;
}

bool cluster_gemm_pays(const GemmCall& call) {
  constexpr int64_t kFewRows = 64, kSomeRows = 128, kMostColumns = 16384, kMostLogits = 1024, kNarrow = 2560, kShallow = 2560,
                    kSomeColumns = 4096;
  if (call.rows <= kSmallGemmRows || !cluster_gemm_takes(call)) return false;
  const int64_t columns = call.linear->out_features, depth = call.linear->in_features;
  if (call.accumulate) return call.rows <= kSomeRows && columns <= kNarrow && (call.rows > kFewRows || depth <= kShallow);
  if (call.rows > kSomeRows) return depth <= kShallow && columns <= kSomeColumns && waves_of(call, cluster_plan(call)) == 1;
  return columns <= (call.y_dtype == DType::f32 ? kMostLogits : kMostColumns);
}

bool cluster_gemm_pays_added(const GemmCall& call) {
  GemmCall added = call;
  added.accumulate = true;
  return call.y_dtype == DType::f32 && cluster_gemm_pays(added);
}

void cluster_gemm(const GemmCall& call, const ClusterPlan& plan, Stream stream) {
  const GpuLinear& linear = *call.linear;
  Args args{};
  args.rows = static_cast<int>(call.rows);
  args.columns = static_cast<int>(linear.out_features);
  args.chunks = static_cast<int>((linear.in_features + kDepth - 1) / kDepth);
  args.splits = plan.splits;
  args.y = call.y;
  args.y_stride = call.y_stride;
  args.f32_out = call.y_dtype == DType::f32;
  args.accumulate = call.accumulate;
  args.settles = call.settles;
  const auto on = static_cast<cudaStream_t>(stream);
  linear.dtype == DType::f16 ? launch<ptx::F16>(args, call, plan, on) : launch<ptx::Bf16>(args, call, plan, on);
}

}  // namespace warpweave::gpu
