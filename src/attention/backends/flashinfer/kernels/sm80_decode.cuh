// Split-KV decode over paged K/V: a few query rows per request, mma.sync with K and V as the A
// operand (S^T = K Q^T, O^T = V^T P^T), so that 16 tokens fill the instruction's rows and the q
// heads of a kv head its 8 columns. bf16 or f16 arithmetic, float32 accumulation and softmax.
//
// Bound by memory bandwidth, hence the shape: every warp is a pipeline of its own (its own ring of
// cp.async stages of 16 tokens (fp4: 32) of K and V, its own softmax state, no CTA barrier in the loop) that
// runs on across the requests of the CTA's run of work (attention_params.h), so that the copies never
// drain. The warps' states are merged at the end of each pair, the pieces of a cut pair by the worker
// that finishes last, in the fixed order of the pieces: results do not depend on timing.
//
// Keys past the visible range are never read. Softmax runs in log2 units. The rows of a request are
// query token * group + head in the group.
#pragma once

#include "attention/backends/flashinfer/kernels/sm80_decode_epilogue.cuh"

namespace warpweave::cuda {

// What the predecessor wrote is there for all who begin after this.
WW_DEVICE void wait_for_predecessor(const DecodeWorkspace& w) {
  ptx::grid_dependency_wait();
  if (w.others_beside) ptx::launch_dependents();
}

// Until this step's Q, K and V are written.
WW_DEVICE void wait_for_query(const DecodeWorkspace& w) {
  if (w.q_ready == nullptr) return wait_for_predecessor(w);
  if (threadIdx.x % 32 == 0) {
    while (ptx::load_acquire(w.q_ready) != w.q_epoch) {}
  }
  __syncwarp();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtasPerSm)
    sm80_decode(const __grid_constant__ AttentionParams p, const __grid_constant__ DecodeWorkspace w,
                const int lockstep_heads) {
  extern __shared__ __align__(128) char smem[];
  const int warp = threadIdx.x / 32;
  if (!w.others_beside) ptx::launch_dependents();
  // Before anything is read: kernels launched early may be chained.
  const bool reads_early = !C::kFixedSplits && w.plan_is_older && p.earlier_kv_settled;
  if (!reads_early) wait_for_query(w);
  const DecodeWorker run = w.workers[blockIdx.x];
  if (run.num_tiles == 0) {
    if (reads_early || w.q_ready != nullptr) wait_for_predecessor(w);
    return;
  }

  char* after_ring = smem + C::kWarps * C::kStages * C::kStageBytes;
  DecodeEpilogue<C> epilogue(after_ring + C::kQueryBytes);
  DecodeState<C> state;
  state.q_shared = reinterpret_cast<uint2*>(after_ring);
  const u32 ring = ptx::smem_address(smem) + warp * C::kStages * C::kStageBytes;
  DecodeSegment segment;
  SegmentWalker<C> walker(run, lockstep_heads);
  DecodeLoader<C> loader(p, walker, w, ring);
  walker.next(p, w, segment);
  if (!reads_early) state.load(p, segment);
  int filled = 0;
  if (reads_early) {
    for (; filled < C::kStages && loader.next_is_earlier(); ++filled) loader.load(p, w);
    wait_for_query(w);
    state.load(p, segment);
  }
  for (; filled < C::kStages; ++filled) loader.load(p, w);

  int stage = 0;
  int unit = run.unit;
  for (bool first_pair = true;; first_pair = false) {
    state.reset(p);
    float scale_log2[C::kHeads];
    state.score_scales(p, segment, scale_log2);
    for (int position = segment.token_begin + warp * C::kStepTokens; position < segment.token_end;
         position += C::kRoundTokens) {
      ptx::cp_async_wait<C::kStages - 1>();
      __syncwarp();
      const u32 tile = ring + stage * C::kStageBytes;
      float s[C::kGroups][C::kTiles][4];
      u32 probability[C::kGroups][C::kTiles][2];
      typename DecodeState<C>::BlockScales block_scales;
      if constexpr (DecodeState<C>::BlockScales::kHere) block_scales.load_k(tile + C::kCodesOffset);
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        state.scores(tile, group, block_scales, s[group]);
        state.mask(p, segment, position + group * 16, scale_log2, s[group]);
      }
      state.softmax(s, probability);
      if constexpr (DecodeState<C>::BlockScales::kHere) block_scales.load_v(tile + C::kCodesOffset);
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) state.accumulate(tile, group, block_scales, probability[group]);
      __syncwarp();
      loader.load(p, w);
      stage = stage + 1 == C::kStages ? 0 : stage + 1;
    }
    typename DecodeEpilogue<C>::Pieces pieces = {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.x),
                                                 lockstep_heads};
    if constexpr (C::kFixedSplits) {
      pieces.first = unit++ - segment.split;
      pieces.last = pieces.first + segment.num_splits - 1;
    } else {
      if (first_pair) pieces = {run.first_pair_begin, run.first_pair_end, lockstep_heads};
      else if (!segment.ends_pair) pieces.last = run.last_pair_end;
    }
    const DecodeSegment done = segment;
    const bool more = walker.next(p, w, segment);
    if (more) state.load(p, segment);  // the next Q arrives while this pair is written
    epilogue.finish(p, w, done, state, pieces);
    if (!more) break;
  }
  ptx::cp_async_wait<0>();
  if (w.q_ready != nullptr) ptx::grid_dependency_wait();  // its own end means both
}

}  // namespace warpweave::cuda
