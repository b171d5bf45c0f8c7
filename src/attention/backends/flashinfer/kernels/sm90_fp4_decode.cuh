// fp4 decode with K, V and their block scales brought by TMA (sm_90): kv heads in pairs of four q heads each,
// pages of kLeastBoxTokens tokens or a multiple, no window. As sm80_decode.cuh, but two warps of their own issue the
// copies of K and of V, a round of all computing warps' tokens at a time, so that these spend no instructions and
// registers on them: an eighth of the instructions of a step, and arithmetic is what limits fp4.
//
// K and V have a ring of stages each; a stage is a round's tokens, then their scales. A box is some tokens of a page.
// Boxes past the request's end are not read; in one that the end falls into, V's scales past it are cleared, since they
// may be NaN and would meet probabilities of 0.
#pragma once

#include "attention/backends/flashinfer/kernels/sm80_decode_launch.cuh"
#include "attention/cuda/pool_map.h"
#include "device/cuda/shared_memory_limit.h"
#include "device/cuda/tensor_map.h"

namespace warpweave::cuda {

struct BulkDecodeMaps {
  CUtensorMap k, v, k_scales, v_scales;
  int box_tokens = 0;
};

template <class C>
struct BulkDecodeLayout {
  static constexpr int kThreads = C::kThreads + 64;
  static constexpr int kCodesOffset = C::kRoundTokens * C::kRowBytes;
  static constexpr int kStageBytes = kCodesOffset + C::kRoundTokens * 16;
  static constexpr int kBarrierBytes = 1024;  // so much, that the rings are aligned behind them
  static constexpr int kStages = (C::kBudgetBytes - kBarrierBytes - C::kMergeBytes) / kStageBytes;
  static constexpr int kValueStages = kStages / 2, kKeyStages = kStages - kValueStages;
  static constexpr int kSmemBytes = kStages * kStageBytes + C::kMergeBytes;
  static_assert(C::kBulk && C::kFp4 && C::kHeads == 2 && C::kRoundTokens % kDecodeTileTokens == 0);
  static_assert(kValueStages >= 2 && kStageBytes % 1024 == 0);
};

// Stages in shared memory, and for each a barrier that says that it is full and one that it is empty.
struct BulkRing { u32 stages, full, empty; };

// A copying warp, of K or of V. All lanes run it; lane i takes the round's box i.
template <class C>
class BulkDecodeProducer {
 public:
  WW_DEVICE BulkDecodeProducer(const AttentionParams& p, const DecodeWorkspace& w, const SegmentWalker<C>& walker,
                               const BulkDecodeMaps& maps, bool of_values)
      : p_(p), w_(w), walker_(walker), box_tokens_(maps.box_tokens), rows_(of_values ? &maps.v : &maps.k),
        scales_(of_values ? &maps.v_scales : &maps.k_scales) {}

  // `waits`: for the kernel before, though not before a token is read that it writes.
  WW_DEVICE void run(const BulkRing& ring, int num_stages, bool waits) {
    using Layout = BulkDecodeLayout<C>;
    const ptx::u64 policy = ptx::evict_first_policy();
    const int lane = threadIdx.x % 32;
    int stage = 0;
    u32 parity = 1;
    seek();
    while (more_) {
      const int begin = position_, page = page_, head = segment_.head;
      const int tokens = min(C::kRoundTokens, segment_.token_end - begin);
      if (waits && begin + tokens > segment_.tree_begin) {
        ptx::grid_dependency_wait();
        waits = false;
      }
      position_ += C::kRoundTokens;
      seek();  // reads the next round's page ids meanwhile
      const u32 full = ring.full + stage * 8;
      ptx::mbarrier_wait(ring.empty + stage * 8, parity);
      const int boxes = (tokens + box_tokens_ - 1) / box_tokens_;
      if (lane == 0) {
        ptx::mbarrier_arrive_expect_tx(full, boxes * box_tokens_ * (C::kRowBytes + 16));
      }
      __syncwarp();
      if (lane < boxes) {
        const int at = lane * box_tokens_;
        const int in_page = (begin + at) % p_.page_size;
        const u32 target = ring.stages + stage * Layout::kStageBytes;
        ptx::tma_load_4d(target + at * C::kRowBytes, rows_, full, 0, in_page, head, page, policy);
        ptx::tma_load_4d(target + Layout::kCodesOffset + at * 16, scales_, full, 0, in_page, head, page);
      }
      __syncwarp();
      if (++stage == num_stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if (waits) ptx::grid_dependency_wait();
  }

 private:
  // To the next round that has tokens.
  WW_DEVICE void seek() {
    while (position_ >= segment_.token_end) {
      more_ = walker_.next(p_, w_, segment_);
      if (!more_) return;
      position_ = segment_.token_begin;
    }
    const int token = position_ + static_cast<int>(threadIdx.x % 32) * box_tokens_;
    if (token < min(segment_.token_end, position_ + C::kRoundTokens)) {
      page_ = page_at(p_, segment_.request, page_index(p_, token));
    }
  }

  const AttentionParams& p_;
  const DecodeWorkspace& w_;
  SegmentWalker<C> walker_;
  const int box_tokens_;
  const CUtensorMap *rows_, *scales_;
  DecodeSegment segment_;
  int position_ = 0, page_ = 0;
  bool more_ = true;
};

// A computing warp's part of a round: its place in the rings, and one step of the sums.
template <class C>
class BulkDecodeConsumer {
 public:
  using Layout = BulkDecodeLayout<C>;
  WW_DEVICE BulkDecodeConsumer(const BulkRing& keys, const BulkRing& values) : keys_(keys), values_(values) {}

  // `position`: of the warp's first token; none of its tokens may be in the round, which it goes through all the same.
  WW_DEVICE void step(const AttentionParams& p, const DecodeSegment& segment, int position,
                      const float (&scale_log2)[C::kHeads], DecodeState<C>& state) {
    const int first_row = threadIdx.x / 32 * C::kStepTokens;
    const bool here = position < segment.token_end;
    const u32 k_stage = keys_.stages + k_stage_ * Layout::kStageBytes;
    const u32 v_stage = values_.stages + v_stage_ * Layout::kStageBytes;
    const u32 row_offset = first_row * C::kRowBytes, code_offset = Layout::kCodesOffset + first_row * 16;
    u32 probability[C::kGroups][C::kTiles][2];
    DecodeBlockScales<C> block_scales;
    ptx::mbarrier_wait(keys_.full + k_stage_ * 8, k_parity_);
    if (here) {
      float s[C::kGroups][C::kTiles][4];
      block_scales.load_k(k_stage + code_offset);
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        state.scores(k_stage + row_offset, group, block_scales, s[group]);
        state.mask(p, segment, position + group * 16, scale_log2, s[group]);
      }
      release(keys_, k_stage_);
      state.softmax(s, probability);
    } else {
      release(keys_, k_stage_);
    }
    ptx::mbarrier_wait(values_.full + v_stage_ * 8, v_parity_);
    if (here) {
      if (position + C::kStepTokens > segment.token_end) {
        clear_codes(v_stage + code_offset, segment.token_end - position);
      }
      block_scales.load_v(v_stage + code_offset);
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        state.accumulate(v_stage + row_offset, group, block_scales, probability[group]);
      }
    }
    release(values_, v_stage_);
    if (++k_stage_ == Layout::kKeyStages) {
      k_stage_ = 0;
      k_parity_ ^= 1;
    }
    if (++v_stage_ == Layout::kValueStages) {
      v_stage_ = 0;
      v_parity_ ^= 1;
    }
  }

 private:
  static WW_DEVICE void release(const BulkRing& ring, int stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ring.empty + stage * 8);
  }

  // Of the warp's tokens from `first` on.
  static WW_DEVICE void clear_codes(u32 codes, int first) {
    const int token = threadIdx.x % 32;
    if (token >= first && token < C::kStepTokens) {
      ptx::clear_shared_16(codes + token * 16);
      ptx::fence_proxy_async();  // TMA writes there next
    }
    __syncwarp();
  }

  const BulkRing keys_, values_;
  int k_stage_ = 0, v_stage_ = 0;
  u32 k_parity_ = 0, v_parity_ = 0;
};

// The worker's run, of so many KV heads in lockstep.
struct LockstepRun {
  const DecodeWorker& worker;
  int heads;
};

// What the computing warps do.
template <class C>
WW_DEVICE void consume(const AttentionParams& p, const DecodeWorkspace& w, LockstepRun of,
                       BulkDecodeConsumer<C>& consumer, DecodeEpilogue<C>& epilogue) {
  const auto& [run, lockstep_heads] = of;
  SegmentWalker<C> walker(run, lockstep_heads);
  DecodeState<C> state;
  DecodeSegment segment;
  walker.next(p, w, segment);
  state.load(p, segment);
  for (bool first_pair = true;; first_pair = false) {
    state.reset(p);
    float scale_log2[C::kHeads];
    state.score_scales(p, segment, scale_log2);
    for (int round = segment.token_begin; round < segment.token_end; round += C::kRoundTokens) {
      consumer.step(p, segment, round + threadIdx.x / 32 * C::kStepTokens, scale_log2, state);
    }
    typename DecodeEpilogue<C>::Pieces pieces = {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.x),
                                                 lockstep_heads};
    if (first_pair) pieces = {run.first_pair_begin, run.first_pair_end, lockstep_heads};
    else if (!segment.ends_pair) pieces.last = run.last_pair_end;
    const DecodeSegment done = segment;
    const bool more = walker.next(p, w, segment);
    if (more) state.load(p, segment);  // the next Q arrives while this pair is written
    epilogue.finish(p, w, done, state, pieces);
    if (!more) return;
  }
}

template <class C>
__global__ void __launch_bounds__(BulkDecodeLayout<C>::kThreads, C::kCtasPerSm)
    sm90_fp4_decode(const __grid_constant__ AttentionParams p, const __grid_constant__ DecodeWorkspace w,
                    const int lockstep_heads, const __grid_constant__ BulkDecodeMaps maps) {
#if __CUDA_ARCH__ >= 900
  using Layout = BulkDecodeLayout<C>;
  extern __shared__ __align__(1024) char bulk_smem[];
  __shared__ ptx::u64 barriers[2 * Layout::kStages];
  const int warp = threadIdx.x / 32;
  ptx::launch_dependents();
  // As in sm80_decode; q_ready is of 16-bit pools alone, beside whose tiles decode may run.
  const bool reads_early = w.plan_is_older && p.earlier_kv_settled;
  if (!reads_early) ptx::grid_dependency_wait();
  const DecodeWorker run = w.workers[blockIdx.x];
  if (run.num_tiles == 0) {
    if (reads_early) ptx::grid_dependency_wait();
    return;
  }
  const u32 stages = ptx::smem_address(bulk_smem), full = ptx::smem_address(barriers),
            empty = full + Layout::kStages * 8;
  constexpr int kKeys = Layout::kKeyStages;
  const BulkRing keys = {stages, full, empty};
  const BulkRing values = {stages + kKeys * Layout::kStageBytes, full + kKeys * 8, empty + kKeys * 8};
  if (threadIdx.x == 0) {
    for (int i = 0; i < Layout::kStages; ++i) {
      ptx::mbarrier_init(full + i * 8, 1);
      ptx::mbarrier_init(empty + i * 8, C::kWarps);
    }
    ptx::mbarrier_init_fence();
    ptx::fence_proxy_async();
  }
  __syncthreads();
  if (warp >= C::kWarps) {
    const bool of_values = warp > C::kWarps;
    BulkDecodeProducer<C> producer(p, w, SegmentWalker<C>(run, lockstep_heads), maps, of_values);
    const BulkRing ring = {of_values ? values.stages : keys.stages, of_values ? values.full : keys.full,
                           of_values ? values.empty : keys.empty};
    producer.run(ring, of_values ? Layout::kValueStages : kKeys, reads_early);
    return;
  }
  DecodeEpilogue<C> epilogue(bulk_smem + Layout::kStages * Layout::kStageBytes);
  BulkDecodeConsumer<C> consumer(keys, values);
  if (reads_early) ptx::grid_dependency_wait();
  consume(p, w, {run, lockstep_heads}, consumer, epilogue);
#endif
}

// box_tokens is 0 where the kernel does not take the pools.
template <class C>
BulkDecodeMaps bulk_decode_maps(const AttentionParams& p) {
  BulkDecodeMaps maps;
  if (!copied_in_boxes(p) || !has_tensor_copies()) return maps;
  const int box = box_tokens_of(p.page_size, kDecodeTileTokens);
  AttentionParams bytes = p;  // a pair of heads as one
  bytes.num_kv_heads /= C::kHeads;
  bytes.head_stride = C::kRowBytes;
  bytes.token_stride /= 2;
  bytes.page_stride /= 2;
  cudaError_t error = make_byte_pool_map(&maps.k, p.k, bytes, C::kRowBytes, box);
  if (error == cudaSuccess) error = make_byte_pool_map(&maps.v, p.v, bytes, C::kRowBytes, box);
  bytes.head_stride /= 8;
  bytes.token_stride /= 8;
  bytes.page_stride /= 8;
  if (error == cudaSuccess) error = make_byte_pool_map(&maps.k_scales, p.k_block_scales, bytes, 16, box);
  if (error == cudaSuccess) error = make_byte_pool_map(&maps.v_scales, p.v_block_scales, bytes, 16, box);
  if (error == cudaSuccess) maps.box_tokens = box;
  return maps;
}

// With TMA where it takes the pools; C is that of the kernel that takes all.
template <class C>
cudaError_t launch_fp4_pairs_of_four(const AttentionParams& p, const DecodeWorkspace& w, int num_workers,
                                     cudaStream_t stream) {
  using Bulk = DecodeConfig<typename C::Element, C::kStorage, C::kDim, 1, false, false, kHeadPairsOfFourBulk>;
  using Layout = BulkDecodeLayout<Bulk>;
  static_assert(Bulk::kCtasPerSm == C::kCtasPerSm && Bulk::kRows == C::kRows);
  const BulkDecodeMaps maps = bulk_decode_maps<Bulk>(p);
  if (maps.box_tokens == 0) return launch_sm80_decode<C>(p, w, num_workers, stream);
  static SharedMemoryLimit limit;
  if (const cudaError_t error = limit.raise(sm90_fp4_decode<Bulk>, Layout::kSmemBytes); error != cudaSuccess) {
    return error;
  }
  const int lockstep = lockstep_heads(p.num_kv_heads / Bulk::kHeads, num_workers);
  const LaunchShape shape = {.grid = static_cast<unsigned>(num_workers), .block = Layout::kThreads,
                             .shared_bytes = Layout::kSmemBytes, .stream = stream};
  return launch_kernel(shape, w.plan_is_older, sm90_fp4_decode<Bulk>, p, w, lockstep, maps);
}

}  // namespace warpweave::cuda
