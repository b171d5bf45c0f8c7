// y^T = W * x^T by wgmma: 64 weight rows are the M side, 32 to 128 input rows the N side, both in shared
// memory, brought by the bulk copy engine. One CTA an SM: a warp that loads, and two warpgroups that
// multiply, each with one or two tiles of 64 weight rows.
//
// The count, for 64 rows of Llama-3.1-8B on an H200 (132 SMs; 4.3 TB/s were measured for streams):
//   bytes      15.0 GB of weights a step: 3.49 ms, 19 bytes a cycle and SM. A stage of 128 weight rows by 64
//              of the depth (16 KB) comes every 860 cycles at 1.7 GHz.
//   products   4 wgmma m64n64k16 of 32 cycles for each warpgroup: 256 cycles a stage, 30 % of the time.
//   inputs     8 KB a stage from the L2: half the weights' bytes, with 256 weight rows a quarter.
//   in flight  8 stages of 16 KB an SM, 17 MB in all; 4.3 TB/s for 1 us of latency need 4.3 MB.
// Units of work are (tile, 64 of the depth), numbered tile by tile, and every CTA takes an equal run of them
// (stream-K), so that 4096 weight rows occupy 132 SMs as evenly as 128256. A tile's first CTA owns it; a
// CTA that begins within a tile does that part first and leaves its sums in memory (32 KB at 64 rows),
// where the owner, for whom the tile is the last, picks them up.
// The ring is filled with weights before the kernel's predecessor has ended.
#include "ops/cuda/stream_gemm.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "attention/cuda/ptx.h"
#include "attention/cuda/tensor_map.h"
#include "attention/cuda/wgmma.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;
using ptx::u64;

constexpr int kGroups = 2;                 // of 4 warps that multiply
constexpr int kConsumers = 128 * kGroups;
constexpr int kThreads = kConsumers + 32;
constexpr int kDepth = 64;                 // of a stage: 128 bytes of a row, the swizzle's width
constexpr int kRowBytes = 2 * kDepth;
constexpr int kMaxSmemBytes = 227 * 1024;
constexpr int kConsumersBarrier = 1;
constexpr int kMostPartialFloats = 256 * kStreamGemmRows;  // of a CTA
constexpr int kLeastUnits = 4;             // of a CTA

struct Args {
  CUtensorMap w, x;
  void* y;
  float4* partials;  // [CTAs][floats of a tile / 4]
  u32* flags;        // [CTAs]: its partial sums are there
  int rows;
  int out_rows;      // columns of y
  int up_row;        // of a fused GLU's first up row
  int chunks;        // of the depth
  int64_t units;
  int64_t y_stride;
  bool accumulate;
  bool f32_out;
  GluActivation glu; // none: not fused
};

template <int kTokens_, int kTiles_>
struct Config {
  static constexpr int kTokens = kTokens_;          // input rows, padded
  static constexpr int kTiles = kTiles_;            // of 64 weight rows, a warpgroup
  static constexpr int kGroupRows = 64 * kTiles;
  static constexpr int kRows = kGroups * kGroupRows;
  static constexpr int kWeightBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kRowBytes;
  static constexpr int kStagedStride = 128 + 4;     // floats of an input row on its way out; no bank conflicts
  static constexpr int kStagedBytes = kTokens * kStagedStride * 4;
  static constexpr int kStages = (kMaxSmemBytes - kStagedBytes - 256) / kStageBytes;
  static constexpr int kBarriers = kStages * kStageBytes + kStagedBytes;
  static constexpr int kUsedBytes = kBarriers + 2 * 8 * kStages;
  static constexpr int kPieces = kTokens / 8;       // of 4 sums a thread has of a tile
  static constexpr int kSlot = kTiles * kPieces * kConsumers;  // partial sums of a CTA, in float4
  static_assert(kStages >= 3 && kStages <= 16 && kStageBytes % 1024 == 0 && kSlot * 4 <= kMostPartialFloats);
};

__device__ __forceinline__ int64_t first_unit(const Args& a, int cta) { return a.units * cta / gridDim.x; }

// A CTA's units, cut where tiles end.
struct Run {
  int64_t unit, end;
  int tile, chunk, count;

  __device__ explicit Run(const Args& a) : unit(first_unit(a, blockIdx.x)), end(first_unit(a, blockIdx.x + 1)) {
    enter(a);
  }
  __device__ void enter(const Args& a) {
    tile = static_cast<int>(unit / a.chunks);
    chunk = static_cast<int>(unit % a.chunks);
    count = static_cast<int>(min(int64_t{a.chunks - chunk}, end - unit));
  }
  __device__ bool more() const { return unit < end; }
  __device__ void next(const Args& a) {
    unit += count;
    enter(a);
  }
};

template <class C>
struct Smem {
  u32 ring, barriers;
  float* staged;

  __device__ explicit Smem(char* base)
      : ring(ptx::smem_address(base)), barriers(ring + C::kBarriers),
        staged(reinterpret_cast<float*>(base + C::kStages * C::kStageBytes)) {}
  __device__ u32 stage(int i) const { return ring + i * C::kStageBytes; }
  __device__ u32 full(int i) const { return barriers + 8 * i; }
  __device__ u32 empty(int i) const { return barriers + 8 * (C::kStages + i); }
};

template <class C>
__device__ void load_weights(const Args& a, const Smem<C>& smem, int stage, int64_t unit, u64 policy) {
  const int tile = static_cast<int>(unit / a.chunks), k = static_cast<int>(unit % a.chunks) * kDepth;
  const bool paired = a.glu != GluActivation::none;
  const int first = tile * (paired ? C::kGroupRows : C::kRows);
  const int second = first + (paired ? a.up_row : C::kGroupRows);
  ptx::mbarrier_arrive_expect_tx(smem.full(stage), C::kStageBytes);
  ptx::tma_load_4d(smem.stage(stage), &a.w, smem.full(stage), k, first, 0, 0, policy);
  ptx::tma_load_4d(smem.stage(stage) + C::kWeightBytes / 2, &a.w, smem.full(stage), k, second, 0, 0, policy);
}

template <class C>
__device__ void load_inputs(const Args& a, const Smem<C>& smem, int stage, int64_t unit) {
  ptx::tma_load_4d(smem.stage(stage) + C::kWeightBytes, &a.x, smem.full(stage),
                   static_cast<int>(unit % a.chunks) * kDepth, 0, 0, 0);
}

// One thread.
template <class C>
__device__ void produce(const Args& a, const Smem<C>& smem) {
  const u64 policy = ptx::evict_first_policy();
  const int64_t begin = first_unit(a, blockIdx.x), end = first_unit(a, blockIdx.x + 1);
  const int filled = static_cast<int>(min(end - begin, int64_t{C::kStages}));
  for (int i = 0; i < filled; ++i) load_weights<C>(a, smem, i, begin + i, policy);
  wait_for_predecessor();
  for (int i = 0; i < filled; ++i) load_inputs<C>(a, smem, i, begin + i);
  int stage = 0;
  u32 parity = 0;
  for (int64_t unit = begin + filled; unit < end; ++unit) {
    ptx::mbarrier_wait(smem.empty(stage), parity);
    load_weights<C>(a, smem, stage, unit, policy);
    load_inputs<C>(a, smem, stage, unit);
    if (++stage == C::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

template <class C>
using Sums = float[C::kTiles][C::kTokens / 2];

template <class E, class C>
__device__ __forceinline__ void multiply(u32 stage, int group, Sums<C>& sum) {
  const u32 w = ptx::wgmma_descriptor(stage + group * (C::kWeightBytes / 2), 0);
  const u32 x = ptx::wgmma_descriptor(stage + C::kWeightBytes, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
    for (int t = 0; t < C::kTiles; ++t) {
      ptx::Wgmma<E, C::kTokens>::qk(sum[t], ptx::wgmma_advance(w, t * 64 * kRowBytes + k * 32),
                                    ptx::wgmma_advance(x, k * 32), 1);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
}

// Leaves the sums of a tile that an earlier CTA owns.
template <class C>
__device__ void hand_over(const Args& a, const Sums<C>& sum) {
  float4* const slot = a.partials + int64_t{blockIdx.x} * C::kSlot + threadIdx.x;
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < C::kPieces; ++j) {
      slot[(t * C::kPieces + j) * kConsumers] =
          make_float4(sum[t][4 * j], sum[t][4 * j + 1], sum[t][4 * j + 2], sum[t][4 * j + 3]);
    }
  }
  __threadfence();
  ptx::named_barrier_sync(kConsumersBarrier, kConsumers);
  if (threadIdx.x == 0) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(a.flags + blockIdx.x), "r"(1) : "memory");
  }
}

// Adds what the CTAs after this one computed of its last tile, which ends at unit `tile_end`.
template <class C>
__device__ void take_over(const Args& a, int64_t tile_end, Sums<C>& sum) {
  const int ctas = static_cast<int>(gridDim.x), first = static_cast<int>(blockIdx.x) + 1;
  for (int cta = first + static_cast<int>(threadIdx.x); cta < ctas && first_unit(a, cta) < tile_end; cta += kConsumers) {
    u32 there = 0;
    while (there == 0) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(a.flags + cta) : "memory");
    }
    a.flags[cta] = 0;
  }
  ptx::named_barrier_sync(kConsumersBarrier, kConsumers);
  for (int cta = first; cta < ctas && first_unit(a, cta) < tile_end; ++cta) {
    const float4* const slot = a.partials + int64_t{cta} * C::kSlot + threadIdx.x;
#pragma unroll
    for (int t = 0; t < C::kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < C::kPieces; ++j) {
        const float4 v = __ldcg(slot + (t * C::kPieces + j) * kConsumers);
        sum[t][4 * j] += v.x;
        sum[t][4 * j + 1] += v.y;
        sum[t][4 * j + 2] += v.z;
        sum[t][4 * j + 3] += v.w;
      }
    }
  }
}

template <class E>
__device__ __forceinline__ void store_4(const Args& a, int token, int column, const float4& v) {
  const int64_t at = token * a.y_stride + column;
  if (!a.f32_out) {
    *reinterpret_cast<uint2*>(static_cast<char*>(a.y) + 2 * at) = make_uint2(E::pack(v.x, v.y), E::pack(v.z, v.w));
  } else if (a.accumulate) {  // one addition an element: no order to depend on
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(static_cast<float*>(a.y) + at),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
  } else {
    *reinterpret_cast<float4*>(static_cast<float*>(a.y) + at) = v;
  }
}

// Writes 128 staged columns, half of them each warpgroup's; under a GLU those of the first are the gates.
template <class E, class C>
__device__ void write_staged(const Args& a, const float* staged, int tile, int t) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (a.glu == GluActivation::none) {
    const int at = 4 * lane, column = tile * C::kRows + at / 64 * C::kGroupRows + 64 * t + at % 64;
    if (column >= a.out_rows) return;
#pragma unroll 4
    for (int token = warp; token < a.rows; token += kConsumers / 32) {
      store_4<E>(a, token, column, *reinterpret_cast<const float4*>(staged + token * C::kStagedStride + at));
    }
    return;
  }
  const int at = 4 * (lane % 16), column = tile * C::kGroupRows + 64 * t + at;
  if (column >= a.out_rows) return;
#pragma unroll 4
  for (int token = 2 * warp + lane / 16; token < a.rows; token += kConsumers / 16) {
    const float4 gate = *reinterpret_cast<const float4*>(staged + token * C::kStagedStride + at);
    const float4 up = *reinterpret_cast<const float4*>(staged + token * C::kStagedStride + 64 + at);
    store_4<E>(a, token, column, make_float4(activate(a.glu, gate.x, up.x), activate(a.glu, gate.y, up.y),
                                             activate(a.glu, gate.z, up.z), activate(a.glu, gate.w, up.w)));
  }
}

template <class E, class C>
__device__ void write_tile(const Args& a, float* staged, int tile, const Sums<C>& sum) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t) {
    ptx::named_barrier_sync(kConsumersBarrier, kConsumers);  // what was staged before has been written
    float* const to = staged + threadIdx.x / 32 * 16 + lane / 4 + lane % 4 * 2 * C::kStagedStride;
#pragma unroll
    for (int j = 0; j < C::kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(8 * j + i % 2) * C::kStagedStride + i / 2 * 8] = sum[t][4 * j + i];
    }
    ptx::named_barrier_sync(kConsumersBarrier, kConsumers);
    write_staged<E, C>(a, staged, tile, t);
  }
}

template <class E, class C>
__device__ void consume(const Args& a, const Smem<C>& smem) {
  wait_for_predecessor();
  const int group = threadIdx.x / 128;
  int stage = 0;
  u32 parity = 0;
  for (Run run(a); run.more(); run.next(a)) {
    Sums<C> sum = {};
    for (int i = 0; i < run.count; ++i) {
      ptx::mbarrier_wait(smem.full(stage), parity);
      multiply<E, C>(smem.stage(stage), group, sum);
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(smem.empty(stage));
      if (++stage == C::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if (run.chunk > 0) {
      hand_over<C>(a, sum);
      continue;
    }
    if (run.count < a.chunks) take_over<C>(a, int64_t{run.tile + 1} * a.chunks, sum);
    write_tile<E, C>(a, smem.staged, run.tile, sum);
  }
}

template <class E, class C>
__global__ void __launch_bounds__(kThreads, 1) stream_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  const Smem<C> smem(memory);
  start_successor();
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(smem.full(i), 1);
      ptx::mbarrier_init(smem.empty(i), kConsumers / 32);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) produce<C>(a, smem);
  } else {
    consume<E, C>(a, smem);
  }
}

template <class E, class C>
void launch(Args& args, const GemmCall& call, cudaStream_t stream) {
  const GpuLinear& linear = *call.linear;
  if (cuda::make_matrix_map(&args.w, linear.weight, linear.out_features, linear.in_features, C::kGroupRows) !=
          cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, call.rows, linear.in_features, C::kTokens) != cudaSuccess) {
    return;  // the driver is older than the chip: stream_gemm_takes() has asked
  }
  // Where this fails, so does the launch.
  [[maybe_unused]] static const cudaError_t ready = cudaFuncSetAttribute(
      stream_gemm_kernel<E, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kUsedBytes);
  const int tile_rows = args.glu == GluActivation::none ? C::kRows : C::kGroupRows;
  args.chunks = static_cast<int>((linear.in_features + kDepth - 1) / kDepth);
  args.units = int64_t{(args.out_rows + tile_rows - 1) / tile_rows} * args.chunks;
  const int64_t ctas = std::min<int64_t>(num_sms(), (args.units + kLeastUnits - 1) / kLeastUnits);
  launch_dependent({static_cast<unsigned>(ctas), kThreads, C::kUsedBytes, stream}, stream_gemm_kernel<E, C>,
                   static_cast<const Args&>(args));
}

template <class E>
void launch(Args& args, const GemmCall& call, int variant, cudaStream_t stream) {
  if (args.rows <= 32) {
    return variant == 0 ? launch<E, Config<32, 1>>(args, call, stream) : launch<E, Config<32, 2>>(args, call, stream);
  }
  if (args.rows <= 64) {
    return variant == 0 ? launch<E, Config<64, 1>>(args, call, stream) : launch<E, Config<64, 2>>(args, call, stream);
  }
  launch<E, Config<128, 2>>(args, call, stream);
}

bool is_sm_90() {
  static const bool value = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    CUtensorMap map;
    return major == 9 && cuda::make_matrix_map(&map, reinterpret_cast<const void*>(1024), 64, 64, 64) == cudaSuccess;
  }();
  return value;
}

}  // namespace

size_t StreamGemmScratch::partials_bytes() { return size_t{4} * kMostPartialFloats * num_sms(); }
size_t StreamGemmScratch::flags_bytes() { return size_t{4} * num_sms(); }

bool stream_gemm_takes(const GemmCall& call, int variant) {
  const GpuLinear& linear = *call.linear;
  const bool halves = linear.dtype == DType::f16 || linear.dtype == DType::bf16;
  if (call.norm.x != nullptr || !is_sm_90() || !halves || call.rows < 1 || call.rows > kStreamGemmRows || linear.in_features % 8 != 0 ||
      linear.out_features % 16 != 0 || call.y_stride % 4 != 0) {
    return false;
  }
  if (call.fused_glu && (linear.glu == GluActivation::none || linear.bias != nullptr || call.y_dtype != linear.dtype || call.accumulate)) return false;
  return variant == 1 || (variant == 0 && call.rows <= 64);
}

void stream_gemm(const GemmCall& call, int variant, const StreamGemmScratch& scratch, Stream stream) {
  const GpuLinear& linear = *call.linear;
  Args args{};
  args.y = call.y;
  args.partials = static_cast<float4*>(scratch.memory);
  args.flags = reinterpret_cast<u32*>(static_cast<char*>(scratch.memory) + StreamGemmScratch::partials_bytes());
  args.rows = static_cast<int>(call.rows);
  args.out_rows = static_cast<int>(call.fused_glu ? linear.out_features / 2 : linear.out_features);
  args.up_row = args.out_rows;
  args.y_stride = call.y_stride;
  args.accumulate = call.accumulate;
  args.f32_out = call.y_dtype == DType::f32;
  args.glu = call.fused_glu ? linear.glu : GluActivation::none;
  const auto on = static_cast<cudaStream_t>(stream);
  linear.dtype == DType::f16 ? launch<ptx::F16>(args, call, variant, on) : launch<ptx::Bf16>(args, call, variant, on);
}

}  // namespace warpweave::gpu
