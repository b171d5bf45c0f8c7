// Routing: a warp a row chooses; pairs are counted by expert and put into places. Few rows: the CTA that comes last places
// them all. Many: one kernel chooses and counts by blocks of rows, the next places, each block behind those before it.
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/expert_choice.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {
namespace {

constexpr int kFewRows = 256, kFewThreads = 256;  // that the last CTA places; a warp a row
constexpr int kMostBlocks = 128, kBlockThreads = 512;
// Of the kernel that chooses for many rows, where a lane has `each` experts: without spills.
constexpr int choose_threads(int each) { return each == 2 || each == 4 ? 1024 : kBlockThreads; }
constexpr int kMostExperts = kMaxGpuExperts + kMaxGpuSharedExperts;

// The most that a lane has of one more number than there are experts, shared ones with them; `each`: of routed experts.
constexpr int most_each(int each) { return each + kMaxGpuSharedExperts / 32 + 1; }

// values[i] becomes the sum of those before it, for i <= n; values has n + 1. One warp, each lane a run of at most
// kMostEach neighbours, which it has in registers, so that no load waits for a store.
template <int kMostEach>
__device__ void exclusive_scan(int32_t* values, int n) {
  const int lane = threadIdx.x % 32, each = n / 32 + 1, begin = lane * each;
  int own[kMostEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    own[i] = i < each && begin + i < n ? values[begin + i] : 0;
    sum += own[i];
  }
  const int of_lane = sum;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  sum -= of_lane;
#pragma unroll
  for (int i = 0; i < kMostEach; ++i) {
    if (i < each && begin + i <= n) values[begin + i] = sum;
    sum += own[i];
  }
}

// The sum of all threads' values, of one CTA.
__device__ int cta_sum(int value) {
  __shared__ int of_warps[32];
  const int lane = threadIdx.x % 32;
  value = __reduce_add_sync(~0u, value);
  if (lane == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  return __reduce_add_sync(~0u, lane < static_cast<int>(blockDim.x) / 32 ? of_warps[lane] : 0);
}

// Writes how many tiles of at most tile_places places each expert has. Returns a positive number where longer tiles are faster: where
// tiles behind an expert's first, each of which reads its weights again, are more than a quarter of the chosen experts. All threads of
// one CTA, which meet.
__device__ int count_tiles(const int32_t* counts, int experts, int tile_places, int32_t* tiles) {
  constexpr int kAgain = 4;
  int excess = 0;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    const int count = counts[e], places = expert_tile_places(count, tile_places);
    tiles[e] = (count + places - 1) / places;
    if (count > 0) excess += kAgain * (tiles[e] - 1) - 1;
  }
  return cta_sum(excess);
}

// From the experts' counts: offsets and tiles. All threads of one CTA. `counts` becomes the offsets. Tiles of shared experts, which
// have all rows, come first: the longest should not be the last to begin.
template <int kMostEach>
__device__ void write_tiles(const ExpertPlanCall& call, int32_t* counts, int32_t* first_tile) {
  const int experts = call.rule.all_experts();
  const bool crowded = count_tiles(counts, experts, call.tile_places, first_tile) > 0 && call.crowded_places > 0;
  const int tile_places = crowded ? call.crowded_places : call.tile_places;
  if (crowded) {
    __syncthreads();  // all have their sum
    count_tiles(counts, experts, tile_places, first_tile);
  }
  if (threadIdx.x / 32 < 2) exclusive_scan<kMostEach>(threadIdx.x < 32 ? counts : first_tile, experts);
  __syncthreads();
  for (int e = threadIdx.x; e <= experts; e += blockDim.x) call.plan.offsets[e] = counts[e];
  const int routed_tiles = first_tile[call.rule.num_experts], shared_tiles = first_tile[experts] - routed_tiles;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    const int end = counts[e + 1], places = expert_tile_places(end - counts[e], tile_places);
    int tile = first_tile[e] + (e < call.rule.num_experts ? shared_tiles : -routed_tiles);
    for (int first = counts[e]; first < end; first += places, ++tile) {
      call.plan.tiles[tile] = {e, first, min(places, end - first), crowded};
    }
  }
  if (threadIdx.x == 0) *call.plan.num_tiles = first_tile[experts];
}

// Pairs [begin, end) to their places: each behind those of its expert that came before it, of which choose() left the number
// where the place will stand. kTogether loads of each are under way.
template <int kTogether>
__device__ void place(const ExpertPlan& plan, int k, int begin, int end, const int32_t* firsts) {
  for (int base = begin + threadIdx.x; base < end; base += kTogether * blockDim.x) {
    int expert[kTogether], rank[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int pair = min(base + i * static_cast<int>(blockDim.x), end - 1);
      expert[i] = __ldcg(plan.chosen + pair);
      rank[i] = __ldcg(plan.place_of + pair);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int pair = base + i * static_cast<int>(blockDim.x), at = firsts[expert[i]] + rank[i];
      if (pair >= end) break;
      plan.place_of[pair] = at;
      if (plan.row_of != nullptr) plan.row_of[at] = pair / k;
    }
  }
}

// x . gate of a warp's row.
template <typename T>
__device__ float gate_product(const SharedGate& shared, int64_t row) {
  const T* const x = static_cast<const T*>(shared.x) + row * shared.hidden;
  float sum = 0;
#pragma unroll 8  // the loads of 2048 dimensions under way at once
  for (int64_t i = threadIdx.x % 32 * 8; i < shared.hidden; i += 32 * 8) {
    float of_row[8], of_gate[8];
    load_f32(x + i, of_row);
    load_f32(shared.gate + i, of_gate);
#pragma unroll
    for (int c = 0; c < 8; ++c) sum += of_row[c] * of_gate[c];
  }
  return warp_sum(sum);
}
__device__ float gate_product(const SharedGate& shared, int64_t row) {
  if (shared.gate == nullptr) return 0;
  if (shared.dtype == DType::bf16) return gate_product<__nv_bfloat16>(shared, row);
  return shared.dtype == DType::f16 ? gate_product<__half>(shared, row) : gate_product<float>(shared, row);
}

// A warp's row; `counts`, of rows from first_row on, gets its experts, and place_of how many pairs of an expert came before, of
// a shared one how many rows. Lane j's expert.
template <int kEach>
__device__ int choose(const ExpertPlanCall& call, int row, int first_row, bool padding, int32_t* counts) {
  const int k = call.rule.of_row(), lane = threadIdx.x % 32, from = padding ? 0 : row;
  const float* const logits = call.logits + int64_t{from} * call.rule.num_experts;
  Choice choice = choose_row<kEach>(call.rule, logits, call.correction, call.dice, from);
  if (call.rule.shared > 0) weigh_shared(call.rule, call.shared_gate.gate != nullptr, gate_product(call.shared_gate, from), choice);
  if (lane >= k) return choice.expert;
  call.plan.chosen[int64_t{row} * k + lane] = choice.expert;
  call.plan.weights[int64_t{row} * k + lane] = choice.weight;
  const int before = atomicAdd(&counts[choice.expert], 1);
  call.plan.place_of[int64_t{row} * k + lane] = choice.expert < call.rule.num_experts ? before : row - first_row;
  return choice.expert;
}

template <int kEach>
__global__ void __launch_bounds__(kFewThreads, 1) plan_kernel(const __grid_constant__ ExpertPlanCall call) {
  __shared__ int32_t counts[kMostExperts + 1], first_tile[kMostExperts + 1];
  const int experts = call.rule.all_experts(), rows = static_cast<int>(call.rows);
  const int row = static_cast<int>(blockIdx.x) * (kFewThreads / 32) + threadIdx.x / 32;
  start_successor();
  const bool padding = row < rows && is_padding(call.kv_slots, row);  // of a step's arrays, which are there early
  wait_for_predecessor();
  if (row < rows) {
    const int expert = choose<kEach>(call, row, 0, padding, call.plan.histogram);
    if (threadIdx.x % 32 < call.rule.of_row() && !padding) count_row(call.plan.load, expert);
  }
  if (!arrives_last(call.plan.arrived, static_cast<int>(gridDim.x))) return;
#pragma unroll 4
  for (int e = threadIdx.x; e < experts; e += kFewThreads) {
    counts[e] = __ldcg(call.plan.histogram + e);
    call.plan.histogram[e] = 0;
  }
  write_tiles<most_each(kEach)>(call, counts, first_tile);
  __syncthreads();
  place<8>(call.plan, call.rule.of_row(), 0, rows * call.rule.of_row(), counts);
}

template <int kEach>
__global__ void __launch_bounds__(choose_threads(kEach), 1) choose_kernel(const __grid_constant__ ExpertPlanCall call, int block_rows) {
  __shared__ int32_t counts[kMostExperts];
  const int experts = call.rule.all_experts(), begin = static_cast<int>(blockIdx.x) * block_rows;
  const int end = min(begin + block_rows, static_cast<int>(call.rows));
  for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = 0;
  start_successor();
  wait_for_predecessor();
  __syncthreads();
  for (int row = begin + threadIdx.x / 32; row < end; row += blockDim.x / 32) choose<kEach>(call, row, begin, is_padding(call.kv_slots, row), counts);
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += blockDim.x) call.plan.counts[int64_t{blockIdx.x} * experts + e] = counts[e];
}

// All threads of one CTA. Rows of padding, the last ones, have the first row's experts and are not counted.
__device__ void count_rows(const ExpertPlanCall& call, const int32_t* totals) {
  const int experts = call.rule.all_experts(), rows = static_cast<int>(call.rows);
  if (call.plan.load == nullptr || is_padding(call.kv_slots, 0)) return;
  for (int e = threadIdx.x; e < experts; e += kBlockThreads) call.plan.load[e] += totals[e];
  if (!is_padding(call.kv_slots, rows - 1)) return;
  int padding = 0;
  for (int base = 0; base < rows; base += kBlockThreads) {
    const int row = base + static_cast<int>(threadIdx.x);
    padding += __syncthreads_count(row < rows && is_padding(call.kv_slots, row));
  }
  if (threadIdx.x < call.rule.of_row()) call.plan.load[__ldcg(call.plan.chosen + threadIdx.x)] -= padding;
}

// An expert's pairs in all blocks of rows, and in those before this one. All threads, so many an expert as there are.
__device__ void add_counts(const ExpertPlanCall& call, int32_t* totals, int32_t* before) {
  const int experts = call.rule.all_experts(), parts = max(1, kBlockThreads / experts);
  for (int e = threadIdx.x; e < experts; e += kBlockThreads) totals[e] = before[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < experts * parts; i += kBlockThreads) {
    const int e = i % experts;
    int total = 0, earlier = 0;
#pragma unroll 16
    for (int block = i / experts; block < static_cast<int>(gridDim.x); block += parts) {
      const int count = __ldcg(call.plan.counts + int64_t{block} * experts + e);
      total += count;
      earlier += block < static_cast<int>(blockIdx.x) ? count : 0;
    }
    atomicAdd(&totals[e], total);
    atomicAdd(&before[e], earlier);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kBlockThreads) place_kernel(const __grid_constant__ ExpertPlanCall call, int block_rows) {
  constexpr int kMostEach = most_each(kMaxGpuExperts / 32);
  __shared__ int32_t totals[kMostExperts + 1], before[kMostExperts], first_tile[kMostExperts + 1];
  const int experts = call.rule.all_experts(), k = call.rule.of_row();
  start_successor();
  wait_for_predecessor();
  add_counts(call, totals, before);
  if (blockIdx.x == 0) {
    count_rows(call, totals);
    write_tiles<kMostEach>(call, totals, first_tile);
  } else {
    if (threadIdx.x < 32) exclusive_scan<kMostEach>(totals, experts);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += blockDim.x) before[e] += totals[e];
  __syncthreads();
  const int begin = static_cast<int>(blockIdx.x) * block_rows;
  place<4>(call.plan, k, begin * k, min(begin + block_rows, static_cast<int>(call.rows)) * k, before);
}

}  // namespace

int64_t most_expert_tiles(int64_t pairs, int experts, int tile_places) {
  return pairs / tile_places + std::min<int64_t>(pairs, experts);
}

int64_t expert_plan_blocks(int64_t rows) { return std::min<int64_t>(kMostBlocks, (rows + 15) / 16); }

void plan_experts(const ExpertPlanCall& call, Stream stream) {
  if (call.rows == 0) return;
  const auto on = static_cast<cudaStream_t>(stream);
  const int rows = static_cast<int>(call.rows);
  with_experts_a_lane(call.rule.num_experts, [&]<typename Each>(Each) {
    if (rows <= kFewRows) {
      const auto ctas = static_cast<unsigned>((rows * 32 + kFewThreads - 1) / kFewThreads);
      return launch_dependent({ctas, kFewThreads, 0, on}, plan_kernel<Each::value>, call);
    }
    const int most = static_cast<int>(expert_plan_blocks(rows)), block_rows = (rows + most - 1) / most;
    const auto blocks = static_cast<unsigned>((rows + block_rows - 1) / block_rows);
    launch_dependent({blocks, static_cast<unsigned>(choose_threads(Each::value)), 0, on}, choose_kernel<Each::value>, call, block_rows);
    launch_dependent({blocks, kBlockThreads, 0, on}, place_kernel, call, block_rows);
  });
}

}  // namespace warpweave::gpu
