// wgmma with 64 input rows as the M side, half of a tile's weight rows a warpgroup as the N side, both in
// shared memory, brought by TMA. A CTA is a warp that brings weights, a warp that brings
// inputs, and two warpgroups that multiply. The ring fills with weights while the kernels before still run.
//
// The inputs of a CTA with all of a depth of 4096 are 512 KB from the L2, as much as its share of small
// weights: hence tiles of many weight rows, and CTAs that share a tile's depth.
//
// Where rows have adapters four more warps add their chunks to the depth (lora_join.cuh).
//
// Weights in e4m3 are multiplied by inputs rounded to e4m3, up to 128 rows of them, 128 bytes of a row of either at a
// time, too. The tensor cores' own sums of codes keep about 14 bits, so those of each chunk of 128 columns are added up
// in f32; with scales of blocks, by those of the chunk.
#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/stream_gemm.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "device/cuda/compute_capability.h"
#include "device/cuda/ptx.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/wgmma.h"
#include "ops/cuda/activate_all.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/gemm_ring.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/lora_join.cuh"
#include "ops/cuda/split_args.h"
#include "ops/cuda/stream_codes.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;
using ptx::u64;

constexpr int kProducers = 64;

struct Args {
  CUtensorMap w, x;
  void* y;
  int64_t y_stride;
  int64_t split_stride;  // of partial sums
  int rows;
  int columns;           // of y
  int chunks;            // of the depth
  int splits;
  int stages;
  int together, in_flight;  // StreamPlan
  bool f32_out;
  GluActivation glu;     // none: not fused. Up rows follow all gate rows
  const float *w_scales, *x_scales;  // by row, or where Config::kBlocks by block, where Config::kCodes
  int scale_stride;      // from one block of weight rows to the next
  LoraJoin join;         // where Config::kAdapted
};

// Under a GLU a tile is gate rows, then as many up rows; a warpgroup has half of each.
enum class Kind { halves, adapted, codes, blocks };  // blocks: codes with scales of blocks

// kRowBlocks: of 64 input rows.
template <int kTile_, bool kGlu_, Kind kKind, int kRowBlocks_ = 1>
struct Config {
  static constexpr int kTile = kTile_;        // weight rows
  static constexpr int kRowBlocks = kRowBlocks_;
  static constexpr bool kGlu = kGlu_, kAdapted = kKind == Kind::adapted, kBlocks = kKind == Kind::blocks;
  static constexpr bool kCodes = kKind == Kind::codes || kBlocks;
  static constexpr int kThreads = kConsumers + kProducers + (kAdapted ? kLoraThreads : 0);
  static constexpr bool kRehearses = kKind == Kind::halves;
  // Registers for two CTAs on an SM: one brings weights while the norm before it still has its own.
  static constexpr int kRegisterCtas = kKind == Kind::halves ? 2 : 1;
  static constexpr int kBoxes = kGlu ? 2 : 1;
  static constexpr int kBoxRows = kTile / kBoxes;
  static constexpr int kColumns = kBoxRows / kGroups;  // of a box, a warpgroup's
  static constexpr int kBoxBytes = kBoxRows * kRowBytes;
  static constexpr int kWeightBytes = kTile * kRowBytes;
  static constexpr int kInputRows = kRowBlocks * kStreamGemmRows;
  static constexpr int kInputBytes = kInputRows * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes;
  static constexpr int kSharedBytes = kAdapted ? sizeof(LoraJoinShared) + alignof(LoraJoinShared) : 0;  // behind the ring
  static constexpr int kStages = (kMostSmemBytes - kSharedBytes) / (kStageBytes + kBarrierBytes);
  static_assert(kColumns % 8 == 0 && kBoxRows <= 256 && kStages >= 2 && (kRowBlocks == 1 || kCodes));
  static_assert(!kBlocks || (kTile == kFp8Block && !kGlu));
};

template <class C>
using Ring = GemmRing<C::kStageBytes>;

template <class C>
__device__ LoraJoinShared& join_memory(const Args& a, char* memory) {
  constexpr size_t kAlign = alignof(LoraJoinShared);
  const size_t ring_bytes = size_t(a.stages) * (C::kStageBytes + kBarrierBytes);
  return *reinterpret_cast<LoraJoinShared*>(memory + (ring_bytes + kAlign - 1) / kAlign * kAlign);
}

// The adapters' chunks of this CTA, once they are counted.
template <class C>
__device__ int count_adapters_chunks(const Args& a, char* memory) {
  if constexpr (!C::kAdapted) return 0;
  const LoraJoinShared& shared = join_memory<C>(a, memory);
  int chunks = shared.chunks;
  while (chunks < 0) chunks = shared.chunks;
  return chunks;
}

// One thread. What it does for a stage must not take longer than the stage's bytes: no divisions. Weights come before
// the predecessor has ended, but never so many at a time that its own loads, and the inputs, wait behind them.
template <class C>
__device__ void bring_weights(const Args& a, Ring<C> ring, const DepthShare& share, char* memory) {
  const u64 policy = ptx::evict_first_policy();
  const int row = share.tile * C::kBoxRows, turn = a.splits * kDepth;
  Ring<C> landing = ring;
  int depth = share.rank * kDepth;
  JoinOrder order(share.count, 0);  // adapters' chunks are in the second half: counted when they matter
  bool counted = !C::kAdapted || share.count < JoinOrder::kShortest;
  int stages = 0;
  for (int i = 0; i < share.count; i += stages) {
    stages = min(a.together, share.count - i);
    if (C::kAdapted) stages = min(stages, JoinOrder::kApart - i % JoinOrder::kApart);  // none stands amid them
    if (!counted && i + JoinOrder::kApart >= share.count / 2) {
      order = JoinOrder(share.count, count_adapters_chunks<C>(a, memory));
      counted = true;
    }
    if (order.before(i)) ring.next();
    Ring<C> at = ring;
    for (int j = 0; j < stages; ++j) {
      ptx::mbarrier_wait(at.empty(), at.parity ^ 1);  // the first round is free
      if (i + j >= a.in_flight) {
        if (order.before(i + j - a.in_flight)) landing.next();
        ptx::mbarrier_wait(landing.weights_full(), landing.parity);
        landing.next();
      }
      ptx::mbarrier_arrive_expect_tx(at.weights_full(), C::kWeightBytes);
      at.next();
    }
#pragma unroll
    for (int box = 0; box < C::kBoxes; ++box) {
      at = ring;
      for (int j = 0; j < stages; ++j) {
        ptx::tma_load_4d(at.at() + box * C::kBoxBytes, &a.w, at.weights_full(), depth + j * turn, row + box * a.columns, 0, 0,
                         policy);
        at.next();
      }
    }
    ring = at;
    depth += stages * turn;
  }
}

// One thread.
template <class C>
__device__ void bring_inputs(const Args& a, Ring<C> ring, const DepthShare& share, char* memory) {
  wait_for_predecessor();
  JoinOrder order(share.count, 0);  // as in bring_weights()
  bool counted = !C::kAdapted || share.count < JoinOrder::kShortest;
  int reached = 0;
  const int turn = a.splits * kDepth;
  int depth = share.rank * kDepth;
  for (int i = 0; i < share.count; ++i, depth += turn) {
    if (!counted && i + JoinOrder::kApart >= share.count / 2) {
      order = JoinOrder(share.count, count_adapters_chunks<C>(a, memory));
      counted = true;
    }
    if (order.before(i)) {
      join_memory<C>(a, memory).reached = ++reached;
      ring.next();
    }
    const u32 full = ring.inputs_full();
    ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, C::kInputBytes);
    ptx::tma_load_4d(ring.at() + C::kWeightBytes, &a.x, full, depth, 0, 0, 0);
    ring.next();
  }
  if constexpr (C::kAdapted) join_memory<C>(a, memory).reached = count_adapters_chunks<C>(a, memory);
}

template <class E, class C>
__device__ __forceinline__ void multiply_halves(u32 x, u32 w, BlockSums<C>& sum) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
    for (int box = 0; box < C::kBoxes; ++box) {
      ptx::Wgmma<E, C::kColumns>::qk(sum[box], ptx::wgmma_advance(x, k * 32),
                                     ptx::wgmma_advance(w, box * C::kBoxBytes + k * 32), 1);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
}

template <class E, class C>
__device__ __forceinline__ void multiply(u32 stage, int group, const RowScales<C>& scales, Sums<C>& sum) {
  const u32 w = ptx::wgmma_descriptor(stage + group * C::kColumns * kRowBytes, 0);
  const u32 x = ptx::wgmma_descriptor(stage + C::kWeightBytes, 0);
#pragma unroll
  for (int block = 0; block < C::kRowBlocks; ++block) {
    if constexpr (C::kCodes) {
      multiply_codes<C>(ptx::wgmma_advance(x, block * kStreamGemmRows * kRowBytes), w, scales.of[block], sum[block]);
    } else {
      multiply_halves<E, C>(x, w, sum[block]);
    }
  }
}

// Of the four warps of adapters: the stage of their `chunk`, once it is free.
template <class C>
__device__ Ring<C> free_stage(Ring<C> at, int place, const LoraJoinShared& shared, int chunk, int thread) {
  // A barrier's parity says nothing to one who is two turns of the ring ahead.
  if (thread == 0) {
    while (shared.reached <= chunk) {
    }
  }
  join_sync();
  at.skip(place);
  ptx::mbarrier_wait(at.empty(), at.parity ^ 1);
  return at;
}

template <class C>
__device__ void publish(const Ring<C>& at, int thread) {
  ptx::fence_proxy_async();  // wgmma reads what these threads have written
  join_sync();
  if (thread != 0) return;
  ptx::mbarrier_arrive(at.weights_full());
  ptx::mbarrier_arrive(at.inputs_full());
}

// Four warps: the adapters' chunks, among the CTA's own.
template <class E, class C>
__device__ void bring_adapters(const Args& a, Ring<C> ring, const DepthShare& share, char* memory) {
  const int thread = static_cast<int>(threadIdx.x) - kConsumers - kProducers, cta = static_cast<int>(blockIdx.x);
  LoraJoinShared& shared = join_memory<C>(a, memory);
  const JoinTile tile = {C::kBoxes, C::kBoxRows, share.tile * C::kBoxRows, a.columns, share.rank, a.splits};
  list_adapters(a.join, tile, thread, shared);
  const int chunks = shared.chunks;
  const JoinOrder order(share.count, chunks);
  const auto piece_of = [&](int chunk) { return find_piece(a.join, shared, tile, chunk, thread % 8 / 2); };
  make_sums<E>(a.join, cta, thread, shared);

  const auto stage_of = [&](int chunk) { return free_stage<C>(ring, order.place(chunk), shared, chunk, thread); };
  // Where sums come late the matrices do not wait for them.
  const bool ahead = chunks > 0 && order.inside == 0;
  Ring<C> at = ring, before = ring;
  if (ahead) {
    at = stage_of(0);
    lay_weights(a.join, tile, piece_of(0), thread, at.at());
    ptx::cp_async_commit();
  }
  const JoinRow row(a.join, shared, thread);
  await_sums(a.join, static_cast<int>(gridDim.x), thread);
  keep_ranks<E>(a.join, shared, tile, row, thread);
  for (int i = 0; i < chunks; ++i) {
    if (i > 0 || !ahead) {
      at = stage_of(i);
      lay_weights(a.join, tile, piece_of(i), thread, at.at());
      ptx::cp_async_commit();
    }
    lay_ranks<E>(a.join, shared, tile, row, {thread, i, memory + at.stage * C::kStageBytes + C::kWeightBytes});
    if (i > order.inside) {  // the one before is at the end, too: published once this one is under way
      ptx::cp_async_wait<1>();
      publish<C>(before, thread);
    }
    before = at;
    if (i >= order.inside) continue;
    ptx::cp_async_wait<0>();
    publish<C>(at, thread);
  }
  if (chunks == order.inside) return;
  ptx::cp_async_wait<0>();
  publish<C>(before, thread);
}

// wgmma leaves a thread two neighbours of every 8 columns, of two rows. put(where, two neighbours): from a.y on.
template <class C, class Put>
__device__ __forceinline__ void write(const Args& a, const DepthShare& share, const Sums<C>& sum, int columns, const Put& put) {
  const int first = share.tile * C::kBoxRows + threadIdx.x / 128 * C::kColumns + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2 * C::kRowBlocks; ++i) {
    const int below = i % 2, token = i / 2 * kStreamGemmRows + 8 * below + row_of_thread();
    if (token >= a.rows) continue;
    const int64_t row = share.rank * a.split_stride + token * a.y_stride + first;
#pragma unroll
    for (int j = 0; j < C::kColumns / 8; ++j) {
      const int at = 4 * j + 2 * below;
      if (first + 8 * j < columns) put(row, 8 * j, sum[i / 2][0][at], sum[i / 2][0][at + 1]);
    }
  }
}

// `columns`: of y.
template <class E, class C>
__device__ __forceinline__ void write(const Args& a, const DepthShare& share, int columns, Sums<C>& sum) {
  if constexpr (C::kGlu) {
#pragma unroll
    for (int block = 0; block < C::kRowBlocks; ++block) {
      activate_all<C::kColumns / 2>(a.glu, sum[block][0], sum[block][1]);
    }
  }
  if (a.f32_out) {
    float* const y = static_cast<float*>(a.y);
    write<C>(a, share, sum, columns, [=](int64_t row, int at, float first, float second) {
      *reinterpret_cast<float2*>(y + row + at) = make_float2(first, second);
    });
  } else {
    uint16_t* const y = static_cast<uint16_t*>(a.y);
    write<C>(a, share, sum, columns, [=](int64_t row, int at, float first, float second) {
      *reinterpret_cast<u32*>(y + row + at) = E::pack(first, second);
    });
  }
}

template <class E, class C>
__global__ void __launch_bounds__(C::kThreads, C::kRegisterCtas) stream_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  Ring<C> ring(memory, a.stages, 0);
  const DepthShare share(static_cast<int>(blockIdx.x), a.splits, a.chunks);
  start_successor();
  if (threadIdx.x == kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    ring.init_barriers();
    if constexpr (C::kAdapted) {
      join_memory<C>(a, memory).chunks = -1;
      join_memory<C>(a, memory).reached = 0;
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if constexpr (C::kAdapted) {
    if (threadIdx.x >= kConsumers + kProducers) return bring_adapters<E, C>(a, ring, share, memory);
  }
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) bring_weights<C>(a, ring, share, memory);
    if (threadIdx.x == kConsumers + 32) bring_inputs<C>(a, ring, share, memory);
    return;
  }
  Scales<C> scales;
  if constexpr (Scales<C>::kEarly) scales.read_weights(a, share.tile);
  Sums<C> sum = {};
  // The first turn writes nothing: while the kernel before runs, it has the code of the second one fetched.
#pragma unroll 1
  for (int left = C::kRehearses ? 2 : 1; left > 0; --left) {
    if constexpr (C::kRehearses) asm volatile("" : "+r"(left));  // one copy of the code
    if (left == 1) {
      wait_for_predecessor();
      if constexpr (Scales<C>::kUsed) scales.read_inputs(a);
      ChunkScales<C> chunk_scales(a, share);
      const auto take_chunks = [&](int count) {
        for (int i = 0; i < count; ++i) {
          const RowScales<C> of_rows = chunk_scales.next();
          ring.wait_full();
          multiply<E, C>(ring.at(), threadIdx.x / 128, of_rows, sum);
          if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ring.empty());
          ring.next();
        }
      };
      take_chunks(share.count);
      if constexpr (C::kAdapted) take_chunks(count_adapters_chunks<C>(a, memory));
      if constexpr (Scales<C>::kUsed && !Scales<C>::kEarly) scales.read_weights(a, share.tile);
      if constexpr (Scales<C>::kUsed) scales.apply(sum);
    }
    write<E, C>(a, share, left == 1 ? a.columns : 0, sum);
  }
}

template <class E, class C>
void launch(Args& args, const GemmCall& call, const StreamPlan& plan, cudaStream_t stream) {
  const GpuLinear& linear = *call.linear;
  const int64_t columns = linear.in_features / (C::kCodes ? 2 : 1);  // pairs of codes
  if (cuda::make_matrix_map(&args.w, linear.weight, linear.out_features, columns, C::kBoxRows) != cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, call.rows, columns, C::kInputRows) != cudaSuccess) {
    return;  // the driver is older than the chip: stream_gemm_takes() has asked
  }
  static SharedMemoryLimit limit;
  limit.raise(stream_gemm_kernel<E, C>, kMostSmemBytes);  // where this fails, so does the launch
  const int tiles = (args.columns + C::kBoxRows - 1) / C::kBoxRows;
  args.stages = C::kStages;
  args.join.workers = std::min({args.join.workers, tiles * args.splits, num_sms()});
  args.together = std::min(plan.together, args.stages);
  // Adapters' sums stand in the same queue as the weights: on an H200 8B's step of 64 with 8 adapters takes 7.7 ms with half
  // of them under way, 8.4 with all. CTAs of their own for the sums, on the SMs that are left, took 11.6.
  // A short GEMM ends with the sums, which two stages hold up least.
  const int beside_sums = args.chunks / args.splits < JoinOrder::kShortest ? std::min(plan.in_flight / 2, 2) : plan.in_flight / 2;
  args.in_flight = std::clamp(C::kAdapted ? beside_sums : plan.in_flight, args.together, args.stages);
  const size_t used_bytes = size_t(args.stages) * (C::kStageBytes + kBarrierBytes) + C::kSharedBytes;
  launch_dependent({static_cast<unsigned>(tiles * args.splits), C::kThreads, used_bytes, stream},
                   stream_gemm_kernel<E, C>, static_cast<const Args&>(args));
}

template <class E, Kind kKind>
void launch(Args& args, const GemmCall& call, const StreamPlan& plan, cudaStream_t stream) {
  if (args.glu != GluActivation::none) return launch<E, Config<kGluTile, true, kKind>>(args, call, plan, stream);
  plan.tile == 128 ? launch<E, Config<128, false, kKind>>(args, call, plan, stream)
                   : launch<E, Config<192, false, kKind>>(args, call, plan, stream);
}

template <class E>
void launch(Args& args, const GemmCall& call, const StreamPlan& plan, cudaStream_t stream) {
  if (call.linear->dtype == DType::fp8_e4m3) {
    args.w_scales = call.linear->scales;
    args.x_scales = call.x_scales;
    if (call.linear->scaling == Fp8Scaling::block) {
      args.scale_stride = static_cast<int>(fp8_scale_stride(call.linear->in_features));
      if (call.rows > kStreamGemmRows) return launch<E, Config<kFp8Block, false, Kind::blocks, 2>>(args, call, plan, stream);
      return launch<E, Config<kFp8Block, false, Kind::blocks>>(args, call, plan, stream);
    }
    // Two row blocks of wider tiles do not fit into the registers.
    if (call.rows > kStreamGemmRows) return launch<E, Config<128, false, Kind::codes, 2>>(args, call, plan, stream);
    return launch<E, Kind::codes>(args, call, plan, stream);
  }
  if (call.adapters == nullptr) return launch<E, Kind::halves>(args, call, plan, stream);
  args.join = lora_join(*call.adapters, call.x);
  launch<E, Kind::adapted>(args, call, plan, stream);
}

// Of a row's 128 bytes.
int columns_of_chunk(const GpuLinear& linear) { return linear.dtype == DType::fp8_e4m3 ? 2 * kDepth : kDepth; }
bool by_block(const GpuLinear& linear) { return linear.dtype == DType::fp8_e4m3 && linear.scaling == Fp8Scaling::block; }
// Of inputs as they are given, and of a GLU's outputs.
DType serving_dtype(const GpuLinear& linear) {
  return linear.dtype == DType::fp8_e4m3 ? linear.x_dtype : linear.dtype;
}

}  // namespace

bool has_wgmma() {
  static const bool value = [] {
    CUtensorMap map;
    return current_compute_capability() / 10 == 9 &&
           cuda::make_matrix_map(&map, reinterpret_cast<const void*>(1024), 64, 64, 64) == cudaSuccess;
  }();
  return value;
}

bool stream_gemm_takes(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  const DType dtype = serving_dtype(linear);
  const bool codes = linear.dtype == DType::fp8_e4m3, halves = dtype == DType::f16 || dtype == DType::bf16;
  const int of_16_bytes = codes ? 16 : 8;
  const bool fits = linear.in_features >= columns_of_chunk(linear) && linear.in_features % of_16_bytes == 0 &&
                    linear.out_features % 16 == 0 && call.y_stride % 2 == 0 &&
                    reinterpret_cast<uintptr_t>(linear.weight) % 16 == 0 &&
                    (!codes || call.adapters == nullptr);
  const bool glu_fits = linear.glu != GluActivation::none && call.y_dtype == dtype && !by_block(linear);
  const int most_rows = codes && !call.fused_glu ? kStreamGemmCodeRows : kStreamGemmRows;
  return call.norm.x == nullptr && call.rows >= 1 && call.rows <= most_rows && halves && fits && !call.accumulate &&
         linear.bias == nullptr && (!call.fused_glu || glu_fits) && has_wgmma();
}

bool stream_gemm_pays_whole(const GemmCall& call) {
  constexpr int kTileRows = 192;  // as many as keep every SM busy without splits
  return call.rows <= kStreamGemmRows && !by_block(*call.linear) && call.linear->out_features >= int64_t{kTileRows} * num_sms();
}

StreamPlan stream_plan(const GemmCall& call) {
  const bool two_blocks = call.rows > kStreamGemmRows, narrow = two_blocks || by_block(*call.linear);
  if (call.fused_glu) return {kGluTile, 1, 2, 4};
  constexpr int kTiles[] = {128, 192};
  const int rows = two_blocks ? kStreamGemmCodeRows : kStreamGemmRows;
  const auto [tile, splits] = cheapest_split(*call.linear, std::span(kTiles).first(narrow ? 1 : 2),
                                             columns_of_chunk(*call.linear), rows, num_sms());
  return {tile, splits, splits <= 2 ? 2 : 1, tile == 128 ? 6 : 4};
}

void stream_gemm(const GemmCall& call, const StreamPlan& plan, float* partials, Stream stream) {
  Args args = args_of<Args>(call, columns_of_chunk(*call.linear), plan.splits, partials);
  const auto on = static_cast<cudaStream_t>(stream);
  serving_dtype(*call.linear) == DType::f16 ? launch<ptx::F16>(args, call, plan, on) : launch<ptx::Bf16>(args, call, plan, on);
}

}  // namespace warpweave::gpu
