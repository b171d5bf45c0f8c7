// What the kernels that norm and route a few rows share (expert_route.cu, expert_route_one.cu).
#pragma once

#include <cstdint>

#include "ops/cuda/expert_choice.cuh"
#include "ops/cuda/experts.h"

namespace warpweave::gpu {

// Of one row, where its router is small enough for one cluster: norm_route() asks.
bool route_one_takes(const NormRouteCall& call);
void route_one(const NormRouteCall& call, Stream stream);

// A tile for every expert that rows chose, in ascending order.
static __device__ void write_tiles(const NormRouteCall& call, const Choice& choice) {
  __shared__ int32_t place[kMaxGpuExperts + kMaxGpuSharedExperts];
  const int experts = call.rule.all_experts(), k = call.rule.of_row(), row = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool real = row < call.rows && lane < k;
  for (int e = threadIdx.x; e < experts; e += static_cast<int>(blockDim.x)) place[e] = 0;
  __syncthreads();
  if (real) {
    place[choice.expert] = 1;
    call.plan.chosen[row * k + lane] = choice.expert;
    call.plan.weights[row * k + lane] = choice.weight;
    if (!is_padding(call.kv_slots, row)) count_row(call.plan.load, choice.expert);
  }
  __syncthreads();
  if (row == 0) {
    int active = 0;
    for (int base = 0; base < experts; base += 32) {
      const int e = base + lane;
      const bool chosen = e < experts && place[e] != 0;
      const unsigned votes = __ballot_sync(~0u, chosen);
      const int at = active + __popc(votes & ((1u << lane) - 1));
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

}  // namespace warpweave::gpu
