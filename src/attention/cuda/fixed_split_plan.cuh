// The plan of fixed splits (plan_input.h), by one CTA: pieces, where each ends in the line, the workers' runs. For
// plan.cu, and for its test, which runs it on the host.
#pragma once

#include "attention/cuda/block_scan.cuh"
#include "attention/cuda/plan_input.h"

namespace warpweave::cuda {
namespace {

__device__ DecodePiece make_piece(const PlanInput& in, const FixedSplitPlan& plan, int request, int index) {
  const int q_begin = in.q_indptr[request], q_len = in.q_indptr[request + 1] - q_begin;
  const int kv_len = in.kv_lens[request];
  const int first = index * plan.tokens_per_piece;
  DecodePiece piece;
  piece.request = request;
  piece.q_begin = q_begin + first;
  piece.q_len = min(plan.tokens_per_piece, q_len - first);
  piece.tree_begin = kv_len - q_len;
  piece.position = piece.tree_begin + first;
  piece.visible_end = max(0, in.causal ? piece.position + piece.q_len : kv_len);
  if (in.window_left >= 0) piece.visible_begin = min(max(0, piece.position - in.window_left), piece.visible_end);
  return piece;
}

// Returns the number of pieces.
__device__ int make_pieces(const PlanInput& in, const FixedSplitPlan& plan, long long* warp_sums) {
  __shared__ int counts[kPlanThreads];
  __shared__ int ends[kPlanThreads];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int base = 0;
  for (int chunk = 0; chunk < in.num_requests; chunk += kPlanThreads) {
    const int request = chunk + threadIdx.x;
    const int q_len = request < in.num_requests ? in.q_indptr[request + 1] - in.q_indptr[request] : 0;
    counts[threadIdx.x] = (q_len + plan.tokens_per_piece - 1) / plan.tokens_per_piece;
    ends[threadIdx.x] = base + static_cast<int>(block_inclusive_scan(counts[threadIdx.x], warp_sums));
    __syncthreads();
    for (int r = warp; r < min(kPlanThreads, in.num_requests - chunk); r += kPlanThreads / 32) {
#pragma unroll 1
      for (int i = lane; i < counts[r]; i += 32)
        plan.pieces[ends[r] - counts[r] + i] = make_piece(in, plan, chunk + r, i);
    }
    base = ends[kPlanThreads - 1];
    __syncthreads();
  }
  return base;
}

// The first piece that ends behind `unit`.
__device__ int piece_at(const long long* unit_ends, int num_pieces, long long unit) {
  int low = 0, high = num_pieces - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (unit_ends[middle] > unit) high = middle; else low = middle + 1;
  }
  return low;
}

struct LinePlace {
  int piece, head, split;
};

__device__ LinePlace place_at(const PlanInput& in, const FixedSplitPlan& plan, int num_pieces, long long unit) {
  const int piece = piece_at(plan.unit_ends, num_pieces, unit);
  const int splits = fixed_splits(plan.pieces[piece].visible_begin, plan.pieces[piece].visible_end, plan.split_tokens);
  const long long offset = unit - (plan.unit_ends[piece] - static_cast<long long>(splits) * in.num_kv_heads);
  return {piece, static_cast<int>(offset / splits), static_cast<int>(offset % splits)};
}

// The first begin of a pair at or behind `unit`.
__device__ long long pair_begin(const PlanInput& in, const FixedSplitPlan& plan, int num_pieces, long long unit,
                                long long total) {
  if (unit >= total) return total;
  const LinePlace place = place_at(in, plan, num_pieces, unit);
  if (place.split == 0) return unit;
  const DecodePiece& piece = plan.pieces[place.piece];
  return unit - place.split + fixed_splits(piece.visible_begin, piece.visible_end, plan.split_tokens);
}

__global__ void __launch_bounds__(kPlanThreads) fixed_split_plan(PlanInput in, FixedSplitPlan plan) {
  __shared__ long long warp_sums[32];
  __shared__ long long chunk_end;
  const int num_pieces = make_pieces(in, plan, warp_sums);

  long long total = 0;
  for (int chunk = 0; chunk < num_pieces; chunk += kPlanThreads) {
    const int piece = chunk + threadIdx.x;
    long long units = 0;
    if (piece < num_pieces) {
      units = in.num_kv_heads *
              fixed_splits(plan.pieces[piece].visible_begin, plan.pieces[piece].visible_end, plan.split_tokens);
    }
    const long long end = total + block_inclusive_scan(units, warp_sums);
    if (piece < num_pieces) plan.unit_ends[piece] = end;
    if (threadIdx.x == kPlanThreads - 1) chunk_end = end;
    __syncthreads();
    total = chunk_end;
    __syncthreads();
  }

  const bool cut = total <= plan.max_cut_units;
  const long long active = min(static_cast<long long>(plan.num_workers), total);
#pragma unroll 1
  for (int worker = threadIdx.x; worker < plan.num_workers; worker += kPlanThreads) {
    DecodeWorker run;
    if (worker < active) {
      long long begin = worker * total / active, end = (worker + 1) * total / active;
      if (!cut) {
        begin = pair_begin(in, plan, num_pieces, begin, total);
        end = pair_begin(in, plan, num_pieces, end, total);
      }
      if (begin < end) {
        const LinePlace place = place_at(in, plan, num_pieces, begin);
        run.request = place.piece;
        run.head = place.head;
        run.tile = place.split;
        run.num_tiles = static_cast<int>(end - begin);
        run.unit = static_cast<int>(begin);
        run.cut_pairs = cut;
      }
    }
    plan.workers[worker] = run;
  }
}

}  // namespace
}  // namespace warpweave::cuda
