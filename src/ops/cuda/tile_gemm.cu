// wgmma with 128 input rows as the M side, half of them a warpgroup's, a tile of weight rows as the N side, both in shared
// memory, brought by TMA. A CTA is a warp that brings weights, a warp that brings inputs, and two
// warpgroups that multiply; with a GLU the CTAs go through tiles without a stop between them.
#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/tile_gemm.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "device/cuda/ptx.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/wgmma_wide.h"
#include "ops/cuda/activate_all.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/gemm_ring.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/split_args.h"
#include "ops/cuda/stream_gemm.h"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;
using ptx::u64;

constexpr int kThreads = kConsumers + 64;
constexpr int kRows = kTileGemmRows;
static_assert(kRows == 64 * kGroups);
constexpr int kInputBytes = kRows * kRowBytes;

struct Args {
  CUtensorMap w, x;
  void* y;
  int64_t y_stride;
  int64_t split_stride;  // of partial sums
  int rows;
  int columns;           // of y
  int chunks;            // of the depth
  int splits;
  int units;             // tiles, times splits
  int stages;
  int together, in_flight;  // TilePlan
  bool f32_out;
  GluActivation glu;     // none: not fused. Up rows follow all gate rows
};

// Under a GLU a tile is gate rows, then as many up rows.
template <int kTile_, bool kGlu_>
struct Config {
  static constexpr int kTile = kTile_;        // weight rows
  static constexpr bool kGlu = kGlu_;
  static constexpr int kPieces = kGlu ? 2 : 1;  // of a stage's weights
  static constexpr int kPieceRows = kTile / kPieces;
  static constexpr int kPieceBytes = kPieceRows * kRowBytes;
  static constexpr int kColumns = kGlu ? kTile / 2 : kTile;     // of y
  static constexpr int kWeightBytes = kTile * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  // For outputs; with a GLU beside the stages, where the next tile's weights are by then.
  static constexpr int kStagingBytes = kGlu ? kRows * (2 * kColumns + 16) : 0;
  static_assert(kPieceRows % 8 == 0 && kPieceRows <= 256);
};

template <class C>
using Ring = GemmRing<C::kStageBytes>;

// Where outputs are staged: over the stages, or with a GLU behind them.
template <class C>
__device__ u32 staging(const Ring<C>& ring) {
  return C::kGlu ? ring.barriers - C::kStagingBytes : ring.base;
}

// One thread. Weights come before the predecessor has ended, but never so many at a time that its own loads, and the
// inputs, wait behind them.
template <class C>
__device__ void bring_weights(const Args& a, Ring<C> ring) {
  const u64 policy = ptx::evict_first_policy();
  const int turn = a.splits * kDepth;
  Ring<C> landing = ring;
  int asked = 0;
  for (int unit = blockIdx.x; unit < a.units; unit += gridDim.x) {
    const DepthShare share(unit, a.splits, a.chunks);
    const int row = share.tile * C::kColumns;
    int depth = share.rank * kDepth;
    for (int i = 0; i < share.count; i += a.together) {
      const int stages = min(a.together, share.count - i);
      Ring<C> at = ring;
      for (int j = 0; j < stages; ++j) {
        ptx::mbarrier_wait(at.empty(), at.parity ^ 1);  // the first round is free
        if (asked++ >= a.in_flight) {
          ptx::mbarrier_wait(landing.weights_full(), landing.parity);
          landing.next();
        }
        ptx::mbarrier_arrive_expect_tx(at.weights_full(), C::kWeightBytes);
        at.next();
      }
#pragma unroll
      for (int piece = 0; piece < C::kPieces; ++piece) {
        const int piece_row = row + piece * (C::kGlu ? a.columns : C::kPieceRows);
        at = ring;
        for (int j = 0; j < stages; ++j) {
          ptx::tma_load_4d(at.at() + piece * C::kPieceBytes, &a.w, at.weights_full(), depth + j * turn, piece_row, 0, 0,
                           policy);
          at.next();
        }
      }
      ring = at;
      depth += stages * turn;
    }
  }
}

// One thread.
template <class C>
__device__ void bring_inputs(const Args& a, Ring<C> ring) {
  wait_for_predecessor();
  for (int unit = blockIdx.x; unit < a.units; unit += gridDim.x) {
    const DepthShare share(unit, a.splits, a.chunks);
    for (int i = 0; i < share.count; ++i) {
      const u32 full = ring.inputs_full();
      ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, kInputBytes);
      ptx::tma_load_4d(ring.at() + C::kWeightBytes, &a.x, full, (share.rank + i * a.splits) * kDepth, 0, 0, 0);
      ring.next();
    }
  }
}

template <class C>
using Sums = float[C::kTile / 2];

template <class E, class C>
__device__ __forceinline__ void multiply(u32 stage, int group, bool first, Sums<C>& sum) {
  const u32 w = ptx::wgmma_descriptor(stage, 0);
  const u32 x = ptx::wgmma_descriptor(stage + C::kWeightBytes + group * 64 * kRowBytes, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    ptx::Wgmma<E, C::kTile>::qk(sum, ptx::wgmma_advance(x, k * 32), ptx::wgmma_advance(w, k * 32), !first || k > 0);
  }
  ptx::wgmma_commit();
}

// The tile's columns of y, through shared memory at `staging`: rows are written whole, and no thread waits for them.
// put(address, two neighbours).
template <class C, int kElementBytes, class Put>
__device__ __forceinline__ void write(const Args& a, const DepthShare& share, u32 staging, const Sums<C>& sum, const Put& put) {
  // wgmma leaves a thread two neighbours of every 8 columns, of two rows: no two write to one bank.
  constexpr int kPitch = C::kColumns * kElementBytes + 8 * kElementBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 rows = staging + warp * 16 * kPitch, mine = rows + lane / 4 * kPitch + lane % 4 * 2 * kElementBytes;
#pragma unroll
  for (int j = 0; j < C::kColumns / 8; ++j) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int at = 4 * j + 2 * below;
      put(mine + 8 * below * kPitch + 8 * j * kElementBytes, sum[at], sum[at + 1]);
    }
  }
  ptx::fence_proxy_async();
  __syncwarp();
  const int token = warp * 16 + lane, first = share.tile * C::kColumns;
  const int columns = min(C::kColumns, a.columns - first);
  if (lane < 16 && token < a.rows && columns > 0) {
    const int64_t element = share.rank * a.split_stride + token * a.y_stride + first;
    ptx::bulk_store(static_cast<char*>(a.y) + element * kElementBytes, rows + lane * kPitch, columns * kElementBytes);
  }
  ptx::bulk_commit();
}

template <class E, class C>
__device__ __forceinline__ void write(const Args& a, const DepthShare& share, u32 staging, const Sums<C>& sum) {
  if (!C::kGlu && a.f32_out) {
    write<C, 4>(a, share, staging, sum, [](u32 at, float x, float y) { ptx::store_shared_8(at, x, y); });
  } else {
    write<C, 2>(a, share, staging, sum, [](u32 at, float x, float y) { ptx::store_shared_4(at, E::pack(x, y)); });
  }
}

__device__ __forceinline__ void release(u32 empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
}

template <class E, class C>
__global__ void __launch_bounds__(kThreads, 1) tile_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  Ring<C> ring(memory, a.stages, C::kStagingBytes);
  start_successor();
  if (threadIdx.x == kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    ring.init_barriers();
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) bring_weights<C>(a, ring);
    if (threadIdx.x == kConsumers + 32) bring_inputs<C>(a, ring);
    return;
  }
  wait_for_predecessor();
  Sums<C> sum;
  for (int unit = blockIdx.x; unit < a.units; unit += gridDim.x) {
    const DepthShare share(unit, a.splits, a.chunks);
    u32 used = 0;
    for (int i = 0; i < share.count; ++i) {
      ring.wait_full();
      multiply<E, C>(ring.at(), threadIdx.x / 128, i == 0, sum);
      if (i > 0) {
        ptx::wgmma_wait<1>();
        release(used);
      }
      used = ring.empty();
      ring.next();
    }
    ptx::wgmma_wait<0>();
    release(used);
    if constexpr (C::kGlu) {
      activate_all<C::kTile / 4>(a.glu, sum, sum + C::kTile / 4);
      ptx::bulk_wait_read();  // of the tile before
      __syncwarp();
    } else {
      ptx::named_barrier_sync(1, kConsumers);  // the stages, which nobody reads any more
    }
    write<E, C>(a, share, staging<C>(ring), sum);
  }
  ptx::bulk_wait_read();
}

template <class E, class C>
void launch(Args& args, const GemmCall& call, const TilePlan& plan, cudaStream_t stream) {
  const GpuLinear& linear = *call.linear;
  if (cuda::make_matrix_map(&args.w, linear.weight, linear.out_features, linear.in_features, C::kPieceRows) != cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, call.rows, linear.in_features, kRows) != cudaSuccess) {
    return;  // the driver is older than the chip: tile_gemm_takes() has asked
  }
  static SharedMemoryLimit limit;
  limit.raise(tile_gemm_kernel<E, C>, kMostSmemBytes);  // where this fails, so does the launch
  args.stages = (kMostSmemBytes - C::kStagingBytes) / (C::kStageBytes + kBarrierBytes);
  args.together = std::min(plan.together, args.stages);
  args.in_flight = std::clamp(plan.in_flight, args.together, args.stages);
  const size_t used_bytes = size_t(args.stages) * (C::kStageBytes + kBarrierBytes) + C::kStagingBytes;
  args.units = (args.columns + C::kColumns - 1) / C::kColumns * args.splits;
  const int ctas = C::kGlu ? std::min(args.units, num_sms()) : args.units;
  launch_dependent({static_cast<unsigned>(ctas), kThreads, used_bytes, stream}, tile_gemm_kernel<E, C>, static_cast<const Args&>(args));
}

template <class E>
void launch(Args& args, const GemmCall& call, const TilePlan& plan, cudaStream_t stream) {
  if (args.glu != GluActivation::none) return launch<E, Config<kGluTile, true>>(args, call, plan, stream);
  switch (plan.tile) {
    case 96: return launch<E, Config<96, false>>(args, call, plan, stream);
    case 128: return launch<E, Config<128, false>>(args, call, plan, stream);
    case 192: return launch<E, Config<192, false>>(args, call, plan, stream);
    default: return launch<E, Config<256, false>>(args, call, plan, stream);
  }
}

}  // namespace

bool tile_gemm_takes(const GemmCall& call) {
  if (call.rows <= kStreamGemmRows || call.rows > kTileGemmRows || call.y_stride % 8 != 0 ||
      call.linear->in_features < kMostPartials * kDepth || call.linear->dtype == DType::fp8_e4m3) {
    return false;
  }
  GemmCall few = call;
  few.rows = kStreamGemmRows;
  return stream_gemm_takes(few);
}

bool tile_gemm_pays(const GemmCall& call) {
  constexpr int64_t kBusyPercent = 80;  // of the time that all SMs have
  const TilePlan plan = tile_plan(call);
  const int64_t places = num_sms();
  const int64_t weight_rows = call.linear->out_features * plan.splits;
  const int64_t units = (call.linear->out_features + plan.tile - 1) / plan.tile * plan.splits;
  const int64_t waves = (units + places - 1) / places;
  if (waves > 1 && !call.fused_glu) return false;  // not measured
  return weight_rows * 100 >= kBusyPercent * waves * places * plan.tile;
}

TilePlan tile_plan(const GemmCall& call) {
  if (call.fused_glu) return {kGluTile, 1, 1, 4};
  constexpr int kTiles[] = {96, 128, 192, 256};
  const auto [tile, splits] = cheapest_split(*call.linear, kTiles, kDepth, kRows, num_sms());
  return {tile, splits, tile < 192 && splits < 4 ? 2 : 1, tile < 192 ? 6 : tile == 192 ? 4 : 3};
}

void tile_gemm(const GemmCall& call, const TilePlan& plan, float* partials, Stream stream) {
  Args args = args_of<Args>(call, kDepth, plan.splits, partials);
  const auto on = static_cast<cudaStream_t>(stream);
  call.linear->dtype == DType::f16 ? launch<ptx::F16>(args, call, plan, on) : launch<ptx::Bf16>(args, call, plan, on);
}

}  // namespace warpweave::gpu
