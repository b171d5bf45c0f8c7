// RMS norm, router and choice of a few rows in one kernel: four warps an expert make its logits of all rows, and the CTA that
// comes last chooses. Three kernels for the same would cost a small step more than the router's own bytes do. The router's
// weights come while the kernel before still runs.
#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda/ptx.h"
#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/expert_choice.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8_codes.cuh"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kNormStep = kThreads * 4;   // columns that all threads have at a time
constexpr int kMostSmemBytes = 200 * 1024;
constexpr int kExperts = 2, kSharers = kWarps / kExperts;  // of a CTA, and the warps that share an expert's depth
static_assert(kSharedRows == kWarps);     // a warp a row

// What the norm makes of rows of x: a row's scale, and the largest magnitude before it.
struct RowNorms {
  float scale[kSharedRows], largest[kSharedRows];
};

// Where column i of a kept row stands, and the 3 behind it if i is a multiple of 4: lanes that each read 8 neighbours meet in
// no bank.
__device__ __forceinline__ int kept_at(int i) { return i ^ (i >> 3 & 4); }
__device__ __forceinline__ void load_kept(const float* row, int i, float (&to)[8]) {
  float low[4], high[4];
  load_f32(row + kept_at(i), low);
  load_f32(row + kept_at(i + 4), high);
#pragma unroll
  for (int c = 0; c < 4; ++c) to[c] = low[c], to[c + 4] = high[c];
}

// A thread's first weights of the norm, for one row: before the wait, as they come from memory and x from the L2 cache.
struct EarlyNorm {
  static constexpr int kPacks = 4;
  float4 weights[kPacks];

  __device__ void read(const NormRouteCall& call) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int i = (p * kThreads + static_cast<int>(threadIdx.x)) * 4;
      if (i < call.hidden) weights[p] = *reinterpret_cast<const float4*>(call.norm_weight + i);
    }
  }
};

// Rows of x times the norm's weights to shared memory, and what they are to be multiplied with. `early`: of one row.
template <int kRows>
__device__ void keep_rows(const NormRouteCall& call, const EarlyNorm& early, float* kept, RowNorms& norms) {
  __shared__ float squares[kWarps][kRows], tops[kWarps][kRows];
  const int hidden = static_cast<int>(call.hidden), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float offset = call.norm_weight_offset;
  float sum[kRows] = {}, top[kRows] = {};
  using Columns = float4[kRows];  // 4 of each row
  const auto load = [&](int i, Columns& x) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      x[row] = row < call.rows ? __ldcg(reinterpret_cast<const float4*>(call.x + int64_t{row} * hidden + i)) : float4{};
    }
  };
  const auto keep = [&](int i, const float4& w, const Columns& x) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float4 v = x[row];
      sum[row] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
      if (row < call.rows) {
        const float4 of_row = make_float4(v.x * (w.x + offset), v.y * (w.y + offset), v.z * (w.z + offset), v.w * (w.w + offset));
        *reinterpret_cast<float4*>(kept + row * hidden + kept_at(i)) = of_row;
        top[row] = fmaxf(fmaxf(top[row], fmaxf(fabsf(of_row.x), fabsf(of_row.y))), fmaxf(fabsf(of_row.z), fabsf(of_row.w)));
      }
    }
  };
  const int first = threadIdx.x * 4;
  if constexpr (kRows == 1) {
    Columns x[EarlyNorm::kPacks];
#pragma unroll
    for (int p = 0; p < EarlyNorm::kPacks; ++p) {
      if (first + p * kNormStep < hidden) load(first + p * kNormStep, x[p]);
    }
#pragma unroll
    for (int p = 0; p < EarlyNorm::kPacks; ++p) {
      if (first + p * kNormStep < hidden) keep(first + p * kNormStep, early.weights[p], x[p]);
    }
  }
#pragma unroll (kRows > 4 ? 2 : 4)
  for (int i = first + (kRows == 1 ? EarlyNorm::kPacks * kNormStep : 0); i < hidden; i += kNormStep) {
    Columns x;
    load(i, x);
    keep(i, *reinterpret_cast<const float4*>(call.norm_weight + i), x);
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const float of_warp = warp_sum(sum[row]), top_of_warp = warp_max(top[row]);
    if (lane == 0) squares[warp][row] = of_warp, tops[warp][row] = top_of_warp;
  }
  __syncthreads();
  if (threadIdx.x < kRows) {
    float total = 0, largest = 0;
#pragma unroll
    for (int of = 0; of < kWarps; ++of) {
      total += squares[of][threadIdx.x];
      largest = fmaxf(largest, tops[of][threadIdx.x]);
    }
    norms.scale[threadIdx.x] = rsqrtf(total / static_cast<float>(hidden) + call.norm_eps);
    norms.largest[threadIdx.x] = largest;
  }
  __syncthreads();
}

// Each CTA writes its part of the normed rows.
template <typename T>
__device__ void write_normed(const NormRouteCall& call, const float* kept, const RowNorms& norms) {
  const int hidden = static_cast<int>(call.hidden), pieces = static_cast<int>(call.rows) * hidden / 8;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x; i < pieces; i += static_cast<int>(gridDim.x) * kThreads) {
    const int row = i * 8 / hidden;
    const float scale = norms.scale[row];
    float value[8];
    load_kept(kept + row * hidden, i * 8 - row * hidden, value);
#pragma unroll
    for (float& v : value) v *= scale;
    store_f32(static_cast<T*>(call.h) + i * 8, value);
    if (call.codes != nullptr) {
      const float inverse = CodeScale(norms.largest[row] * scale).inverse;
      Pack<uint16_t, 4> codes;
#pragma unroll
      for (int c = 0; c < 4; ++c) codes.value[c] = codes_of(value[2 * c], value[2 * c + 1], inverse);
      *reinterpret_cast<Pack<uint16_t, 4>*>(call.codes + i * 8) = codes;
    }
  }
  if (call.codes != nullptr && blockIdx.x == 0 && threadIdx.x < call.rows) {
    call.code_scales[threadIdx.x] = CodeScale(norms.largest[threadIdx.x] * norms.scale[threadIdx.x]).scale;
  }
}

// A warp's part of an expert: its first weights, and its share of the logits of all rows.
template <typename R, int kRows>
struct Router {
  static constexpr int kEarlyPacks = sizeof(R) == 2 ? 8 : 4;  // of 8 weights, kept by a lane before the wait
  Pack<R, 8> early[kEarlyPacks];
  float bias = 0;               // of the logit that this thread writes
  const R* weight;
  int hidden, first;            // of the warp's lane; every kStep-th pack is its own
  static constexpr int kStep = kSharers * 256;

  __device__ explicit Router(const NormRouteCall& call)
      : hidden(static_cast<int>(call.hidden)), first(static_cast<int>(threadIdx.x) % (kSharers * 32) * 8) {
    const int expert = expert_of(threadIdx.x / 32);
    weight = static_cast<const R*>(call.router) + int64_t{expert < call.rule.num_experts ? expert : 0} * hidden;
#pragma unroll
    for (int p = 0; p < kEarlyPacks; ++p) {
      const int i = first + p * kStep;
      if (i < hidden) early[p] = *reinterpret_cast<const Pack<R, 8>*>(weight + i);
    }
    if (writes_logit(call) && call.router_bias != nullptr) bias = call.router_bias[expert_of_logit()];
  }
  static __device__ __forceinline__ int expert_of_logit() {
    return static_cast<int>(blockIdx.x) * kExperts + static_cast<int>(threadIdx.x) / kRows;
  }
  static __device__ __forceinline__ bool writes_logit(const NormRouteCall& call) {
    return threadIdx.x / kRows < kExperts && threadIdx.x % kRows < call.rows && expert_of_logit() < call.rule.num_experts;
  }
  static __device__ __forceinline__ int expert_of(int warp) { return static_cast<int>(blockIdx.x) * kExperts + warp / kSharers; }
  __device__ __forceinline__ void add(const NormRouteCall& call, const Pack<R, 8>& w, const float* kept, int i, float (&sum)[kRows]) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= call.rows) break;
      float x[8];
      load_kept(kept + row * hidden, i, x);
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[row] += to_f32(w.value[c]) * x[c];
    }
  }
  __device__ void write_logits(const NormRouteCall& call, const float* kept, const float* scales) const {
    __shared__ float parts[kWarps][kRows];
    float sum[kRows] = {};
#pragma unroll
    for (int p = 0; p < kEarlyPacks; ++p) {
      if (first + p * kStep < hidden) add(call, early[p], kept, first + p * kStep, sum);
    }
#pragma unroll 2
    for (int i = first + kEarlyPacks * kStep; i < hidden; i += kStep) {
      add(call, *reinterpret_cast<const Pack<R, 8>*>(weight + i), kept, i, sum);
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float of_warp = warp_sum(sum[row]);
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][row] = of_warp;
    }
    __syncthreads();
    if (!writes_logit(call)) return;
    const int row = threadIdx.x % kRows;
    float total = 0;
#pragma unroll
    for (int of = 0; of < kSharers; ++of) total += parts[threadIdx.x / kRows * kSharers + of][row];
    call.logits[row * call.rule.num_experts + expert_of_logit()] = total * scales[row] + bias;
  }
};

// x . gate of a warp's row.
__device__ float gate_product(const NormRouteCall& call, const float* kept, const float* scales, int row) {
  if (call.shared_gate == nullptr) return 0;
  const int hidden = static_cast<int>(call.hidden);
  float sum = 0;
#pragma unroll 2
  for (int i = threadIdx.x % 32 * 4; i < hidden; i += 32 * 4) {
    const float4 x = *reinterpret_cast<const float4*>(kept + row * hidden + kept_at(i));
    const float4 gate = *reinterpret_cast<const float4*>(call.shared_gate + i);
    sum += x.x * gate.x + x.y * gate.y + x.z * gate.z + x.w * gate.w;
  }
  return warp_sum(sum) * scales[row];
}

// One row's tiles, those of shared experts first, then in the order of its choices. One warp.
__device__ void write_row_tiles(const NormRouteCall& call, const Choice& choice, bool padding) {
  const int lane = threadIdx.x % 32, k = call.rule.of_row();
  if (lane >= k) return;
  const int at = lane < call.rule.k ? lane + call.rule.shared : lane - call.rule.k;
  call.plan.tiles[at] = {choice.expert, at * kSharedRows, 1, 0};
  call.plan.chosen[lane] = choice.expert;
  call.plan.weights[lane] = choice.weight;
  call.plan.place_of[lane] = at * kSharedRows;
  if (lane == 0) *call.plan.num_tiles = k;
  if (!padding) count_row(call.plan.load, choice.expert);
}

// A tile for every expert that rows chose, shared ones first, in ascending order.
__device__ void write_tiles(const NormRouteCall& call, const Choice& choice, bool padding) {
  __shared__ int32_t place[kMaxGpuExperts + kMaxGpuSharedExperts];
  const int experts = call.rule.all_experts(), k = call.rule.of_row(), row = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool real = row < call.rows && lane < k;
  for (int e = threadIdx.x; e < experts; e += kThreads) place[e] = 0;
  __syncthreads();
  if (real) {
    place[choice.expert] = 1;
    call.plan.chosen[row * k + lane] = choice.expert;
    call.plan.weights[row * k + lane] = choice.weight;
    if (!padding) count_row(call.plan.load, choice.expert);
  }
  __syncthreads();
  if (row == 0) {
    int active = 0;
    for (int base = 0; base < experts; base += 32) {
      const int e = base + lane;
      const bool chosen = e < experts && place[e] != 0;
      const unsigned votes = __ballot_sync(~0u, chosen);
      const int before = active + __popc(votes & ((1u << lane) - 1));
      const int at = e < call.rule.num_experts ? before + call.rule.shared : e - call.rule.num_experts;
      if (chosen) {
        place[e] = at * kSharedRows;
        call.plan.tiles[at] = {e, at * kSharedRows, static_cast<int32_t>(call.rows), 0};
      }
      active += __popc(votes);
    }
    if (lane == 0) *call.plan.num_tiles = active;
  }
  __syncthreads();
  if (real) call.plan.place_of[row * k + lane] = place[choice.expert] + row;
}

template <typename T, typename R, int kEach, int kRows>
__global__ void __launch_bounds__(kThreads, 1) norm_route_kernel(const __grid_constant__ NormRouteCall call) {
  extern __shared__ __align__(16) float kept[];
  __shared__ RowNorms norms;
  constexpr bool kAlone = kRows == 1;  // what it begins early, and does while it waits, does not pay with more
  const Router<R, kRows> router(call);
  EarlyNorm early;
  if constexpr (kAlone) early.read(call);
  const int row = threadIdx.x / 32;
  const bool padding = row < call.rows && is_padding(call.kv_slots, row);  // of a step's arrays, which are there early
  start_successor();
  wait_for_predecessor();
  keep_rows<kRows>(call, early, kept, norms);
  router.write_logits(call, kept, norms.scale);
  const auto write = [&] { write_normed<T>(call, kept, norms); };
  if constexpr (!kAlone) write();
  if (!arrives_last(call.plan.arrived, [&] { if constexpr (kAlone) write(); })) return;
  Choice choice = {};
  if (row < call.rows) {
    const int from = padding ? 0 : row;
    choice = choose_row<kEach>(call.rule, call.logits + int64_t{from} * call.rule.num_experts, call.correction, call.dice, from);
    if (call.rule.shared > 0) add_shared(call.rule, call.shared_gate != nullptr, gate_product(call, kept, norms.scale, from), choice);
  }
  if constexpr (kRows == 1) {
    if (row == 0) write_row_tiles(call, choice, padding);
  } else {
    write_tiles(call, choice, padding);
  }
}

template <typename T, typename R>
void launch(const NormRouteCall& call, cudaStream_t stream) {
  with_experts_a_lane(call.rule.num_experts, [&]<typename Each>(Each) {
    const auto run = [&]<typename Rows>(Rows) {
      const auto kernel = norm_route_kernel<T, R, Each::value, Rows::value>;
      static SharedMemoryLimit limit;
      limit.raise(kernel, kMostSmemBytes);  // where this fails, so does the launch
      const auto ctas = static_cast<unsigned>((call.rule.num_experts + kExperts - 1) / kExperts);
      launch_dependent({ctas, kThreads, static_cast<size_t>(call.rows * call.hidden * 4), stream}, kernel, call);
    };
    if (call.rows == 1) return run(std::integral_constant<int, 1>());
    call.rows <= 4 ? run(std::integral_constant<int, 4>()) : run(std::integral_constant<int, kSharedRows>());
  });
}

}  // namespace

bool norm_route_takes(const NormRouteCall& call) {
  return has_dependent_launch() && call.rows >= 1 && call.rows <= kSharedRows && call.hidden % 8 == 0 &&
         call.rows * call.hidden * 4 <= kMostSmemBytes && call.dtype != DType::f32 &&
         (call.router_dtype == DType::f32 || call.router_dtype == call.dtype);
}

void norm_route(const NormRouteCall& call, Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  with_type(call.dtype, [&]<typename T>(T*) {
    if constexpr (sizeof(T) == 2) call.router_dtype == DType::f32 ? launch<T, float>(call, on) : launch<T, T>(call, on);
  });
}

}  // namespace warpweave::gpu
