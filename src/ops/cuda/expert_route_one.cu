// RMS norm, router and choice of one row by one cluster. Each CTA has a share of the experts, each thread some columns of all of
// these, so that the row goes straight to registers; its squares are one sum more. Logits go to the shared memory of the first
// CTA, which chooses: nothing waits for memory between the row's arrival and the plan. More rows would keep so few CTAs busy.
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/expert_choice.cuh"
#include "ops/cuda/expert_route.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8_codes.cuh"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kCtas = 8, kThreads = 512, kWarps = kThreads / 32;
constexpr int kColumns = 4, kStep = kColumns * kThreads;  // of a thread at a time, and of the CTA
constexpr int kMostExperts = 128, kMostF32Experts = 64;
constexpr int64_t kMostRouterValues = 512 * 1024;         // that so few CTAs read as fast as more would

template <typename T_, typename R_, int kEach_>
struct Config {
  using T = T_;                                   // of the normed row
  using R = R_;                                   // of the router
  static constexpr int kEach = kEach_;            // experts of a lane that chooses
  static constexpr int kExperts = 32 * kEach / kCtas;  // of a CTA, at most
};

template <class C>
struct Shared {
  float parts[kWarps][C::kExperts + 1];           // sums of the experts, and of the row's squares
  float tops[kWarps];                             // largest magnitudes of the row times the norm's weights
  float logits[32 * C::kEach];                    // of the first CTA: all experts'
  uint64_t arrived;
};

__device__ __forceinline__ float4 load_4(const float* from) { return __ldcg(reinterpret_cast<const float4*>(from)); }

// A thread's columns of the CTA's experts and of the norm.
template <class C>
struct Weights {
  Pack<typename C::R, kColumns> router[C::kExperts];
  float4 norm;

  __device__ __forceinline__ void load(const NormRouteCall& call, int first, int count, int column) {
    const auto* const from = static_cast<const typename C::R*>(call.router) + int64_t{first} * call.hidden + column;
#pragma unroll
    for (int e = 0; e < C::kExperts; ++e) {
      router[e] = {};
      if (e < count) router[e] = *reinterpret_cast<const Pack<typename C::R, kColumns>*>(from + e * call.hidden);
    }
    norm = *reinterpret_cast<const float4*>(call.norm_weight + column);
  }
};

template <class C>
struct Sums {
  float experts[C::kExperts] = {};
  float squares = 0, top = 0;

  __device__ __forceinline__ void add(const NormRouteCall& call, const float4& x, const Weights<C>& weights) {
    const float of_row[kColumns] = {x.x, x.y, x.z, x.w};
    const float norm[kColumns] = {weights.norm.x, weights.norm.y, weights.norm.z, weights.norm.w};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float scaled = of_row[c] * (norm[c] + call.norm_weight_offset);
      squares += of_row[c] * of_row[c];
      top = fmaxf(top, fabsf(scaled));
#pragma unroll
      for (int e = 0; e < C::kExperts; ++e) experts[e] += scaled * to_f32(weights.router[e].value[c]);
    }
  }
};

// The sum over the warp's lanes of expert lane / (32 / kCount): in each step a lane keeps half of its sums.
template <int kCount>
__device__ __forceinline__ float sum_over_lanes(float (&sums)[kCount]) {
  const int lane = threadIdx.x % 32;
  int step = 16;
#pragma unroll
  for (int left = kCount; left > 1; left /= 2, step /= 2) {
    const bool high = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < left / 2; ++i) {
      const float own = high ? sums[i + left / 2] : sums[i], other = high ? sums[i] : sums[i + left / 2];
      sums[i] = own + __shfl_xor_sync(~0u, other, step);
    }
  }
  float sum = sums[0];
#pragma unroll
  for (; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

template <class C>
__device__ __forceinline__ float sum_of_warps(const Shared<C>& shared, int of) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += shared.parts[warp][of];
  return sum;
}

// By the last CTA.
template <class C>
__device__ void write_normed(const NormRouteCall& call, float scale, const Shared<C>& shared) {
  float largest = 0;
  for (int warp = 0; call.codes != nullptr && warp < kWarps; ++warp) largest = fmaxf(largest, shared.tops[warp]);
  const CodeScale codes_of_row(largest * scale);
  for (int at = threadIdx.x * kColumns; at < call.hidden; at += kStep) {
    const float4 x = load_4(call.x + at);
    float weight[kColumns], value[kColumns] = {x.x, x.y, x.z, x.w};
    load_f32(call.norm_weight + at, weight);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) value[c] *= (weight[c] + call.norm_weight_offset) * scale;
    store_f32(static_cast<typename C::T*>(call.h) + at, value);
    if (call.codes == nullptr) continue;
    Pack<uint16_t, 2> codes;
    codes.value[0] = codes_of(value[0], value[1], codes_of_row.inverse);
    codes.value[1] = codes_of(value[2], value[3], codes_of_row.inverse);
    *reinterpret_cast<Pack<uint16_t, 2>*>(call.codes + at) = codes;
  }
  if (call.codes != nullptr && threadIdx.x == 0) *call.code_scales = codes_of_row.scale;
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) route_one_kernel(const __grid_constant__ NormRouteCall call) {
  __shared__ Shared<C> shared;
  const int rank = static_cast<int>(blockIdx.x), experts = call.rule.num_experts, each = (experts + kCtas - 1) / kCtas;
  const int first = rank * each, count = max(0, min(each, experts - first)), column = threadIdx.x * kColumns;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Weights<C> early = {};
  if (column < call.hidden) early.load(call, first, count, column);
  if (threadIdx.x == 0) cluster::expect(&shared.arrived, experts * 4);
  cluster::meet();
  start_successor();
  wait_for_predecessor();
  Sums<C> sums;
  if (column < call.hidden) sums.add(call, load_4(call.x + column), early);
  for (int at = column + kStep; at < call.hidden; at += kStep) {
    Weights<C> weights;
    weights.load(call, first, count, at);
    sums.add(call, load_4(call.x + at), weights);
  }
  constexpr int kLanes = 32 / C::kExperts;  // an expert
  const float of_expert = sum_over_lanes(sums.experts), squares = warp_sum(sums.squares), top = warp_max(sums.top);
  if (lane % kLanes == 0) shared.parts[warp][lane / kLanes] = of_expert;
  if (lane == 0) shared.parts[warp][C::kExperts] = squares, shared.tops[warp] = top;
  __syncthreads();
  const bool sends = static_cast<int>(threadIdx.x) < count, writes = rank == kCtas - 1;
  if (!sends && !writes && rank != 0) return;
  const float scale = rsqrtf(sum_of_warps(shared, C::kExperts) / static_cast<float>(call.hidden) + call.norm_eps);
  if (sends) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const float bias = call.router_bias != nullptr ? call.router_bias[expert] : 0.0f;
    cluster::send(&shared.logits[expert], &shared.arrived, 0, sum_of_warps(shared, threadIdx.x) * scale + bias);
  }
  if (writes) write_normed(call, scale, shared);
  if (rank != 0) return;
  cluster::wait(&shared.arrived);
  Choice choice = {};
  if (warp == 0) {
    const auto logit = [&](int expert) { return shared.logits[expert]; };
    choice = choose_row<C::kEach>(call.rule, logit, call.correction, call.dice, 0);
    if (call.rule.shared > 0) add_shared(call.rule, false, 0, choice);
  }
  write_tiles(call, choice);
}

template <typename T, typename R>
void launch(const NormRouteCall& call, cudaStream_t stream) {
  const auto run = [&]<typename Each>(Each) {
    launch_dependent({kCtas, kThreads, 0, stream, kCtas}, route_one_kernel<Config<T, R, Each::value>>, call);
  };
  if (call.rule.num_experts <= 32) return run(std::integral_constant<int, 1>());
  if (call.rule.num_experts <= 64) return run(std::integral_constant<int, 2>());
  if constexpr (sizeof(R) == 2) run(std::integral_constant<int, 4>());
}

}  // namespace

bool route_one_takes(const NormRouteCall& call) {
  const int most = call.router_dtype == DType::f32 ? kMostF32Experts : kMostExperts;  // that registers hold
  return call.rows == 1 && call.rule.num_experts <= most && call.rule.num_experts * call.hidden <= kMostRouterValues &&
         call.shared_gate == nullptr;
}

void route_one(const NormRouteCall& call, Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  with_type(call.dtype, [&]<typename T>(T*) {
    if constexpr (sizeof(T) == 2) call.router_dtype == DType::f32 ? launch<T, float>(call, on) : launch<T, T>(call, on);
  });
}

}  // namespace warpweave::gpu
