// Configuration of the decode kernel (sm80_decode.cuh), and what fills its warps' rings.
#pragma once

#include <type_traits>

#include "attention/cuda/attention_params.h"
#include "attention/cuda/fp4_fragment.h"
#include "attention/cuda/kv_fragment.h"
#include "attention/cuda/page_lookup.cuh"
#include "attention/cuda/plan_input.h"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

// How the work of an SM is laid out. Fixed splits need rounds that divide kDecodeTileTokens, so that a token's warp
// follows from its position.
struct DecodeTuning {
  int warps = 4;
  int groups = 1;  // of 16 tokens a warp takes at a time
  int ctas = 2;    // wanted an SM
  int heads = 1;   // neighbouring kv heads that a warp takes at once
  bool share = false;  // they share a tile's 8 columns, 4 rows each
  bool bulk = false;   // TMA brings K and V (sm90_fp4_decode.cuh)
};

constexpr DecodeTuning decode_tuning(KvStorage storage, int dim, int column_tiles, bool fixed_splits) {
  DecodeTuning tuning;
  const bool few_registers = column_tiles == 1 && dim <= 128;
  // fp8: a third CTA hides more of the arithmetic's latencies than deeper rings do.
  if ((storage == KvStorage::e4m3 || storage == KvStorage::e5m2) && few_registers) tuning.ctas = 3;
  // fp4: what a step does beside its MMAs weighs more, and more warps hide latencies. A third CTA would
  // keep the heads of a request, which share the sectors of their scales, from being read at the same time.
  if (storage == KvStorage::e2m1 && few_registers && !fixed_splits) tuning = {6, 2, 2};
  return tuning;
}

// fp4, d 128. The L2 cache answers so many lines at a time, and 64 bytes of K, 16 of scales are a line each: taken
// alone, a head costs as many of them as in bf16, which takes 237 us at 64 x 8192 tokens where the bytes take 140. Two
// heads share lines: half as many.
inline constexpr DecodeTuning kHeadPairs = {4, 2, 2, 2};
// Of up to four q heads each: their scores and sums share a tile's columns, half of the registers and of the softmax.
inline constexpr DecodeTuning kHeadPairsOfFour = {4, 2, 2, 2, true};
inline constexpr DecodeTuning kHeadPairsOfFourBulk = {4, 2, 2, 2, true, true};

template <class Element_, KvStorage kStorage_, int kDim_, int kColumnTiles_, bool kMultiRow_,
          bool kFixedSplits_ = false,
          DecodeTuning kTuning_ = decode_tuning(kStorage_, kDim_, kColumnTiles_, kFixedSplits_)>
struct DecodeConfig {
  using Element = Element_;
  static constexpr bool kFp4 = kStorage_ == KvStorage::e2m1;
  // The type of the MMAs' operands: fp4 is widened to f16 for models of either type.
  using Arithmetic = std::conditional_t<kFp4, ptx::F16, Element_>;
  using Fragment = std::conditional_t<kFp4, Fp4Halves, KvFragment<Element_, kStorage_>>;
  static constexpr KvStorage kStorage = kStorage_;
  static constexpr int kDim = kDim_;
  static constexpr int kColumnTiles = kColumnTiles_;  // 8 rows of the request each
  static constexpr int kHeads = kTuning_.heads;
  static constexpr bool kShare = kTuning_.share;
  static constexpr int kTiles = kShare ? 1 : kHeads * kColumnTiles_;  // head by head
  static constexpr int kHeadRows = kShare ? 4 : 8 * kColumnTiles_;
  static constexpr int kRows = kHeads * kHeadRows;
  static constexpr bool kMultiRow = kMultiRow_;       // several query tokens: masks per row
  static constexpr bool kFixedSplits = kFixedSplits_; // attention_params.h
  static constexpr int kWarps = kTuning_.warps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kGroups = kTuning_.groups;
  static constexpr int kStepTokens = 16 * kGroups;
  static constexpr int kRoundTokens = kWarps * kStepTokens;
  static constexpr bool kBulk = kTuning_.bulk;
  static constexpr int kHeadBytes = kDim * Fragment::kBits / 8;
  static constexpr int kRowBytes = kHeads * kHeadBytes;
  // fp4: a row's scales are copied with 16 bytes around them, the only size of cp.async that bypasses the L1,
  // which scales would fill; scale_row says where in the 16 bytes they are.
  static constexpr int kScaleSlotBytes = kStorage_ == KvStorage::e2m1 ? 16 : 0;
  // K, V, scales of K, scales of V, places
  static constexpr int kCodesOffset = 2 * kStepTokens * kRowBytes;
  static constexpr int kStageBytes = kCodesOffset + (2 * kStepTokens + 1) * kScaleSlotBytes;
  // How far V and its scales stand behind K and its scales; with TMA each has a ring of its own.
  static constexpr int kValuesOffset = kBulk ? 0 : kStepTokens * kRowBytes;
  static constexpr int kValueCodesOffset = kBulk ? 0 : kStepTokens * 16;
  // Many rows' Q fragments live in shared memory, each thread's own, to keep the accumulators in
  // registers.
  static constexpr bool kQueryInShared = kColumnTiles * kDim == 512;
  static constexpr int kQueryBytes = kQueryInShared ? kThreads * kColumnTiles * kDim / 2 : 0;
  static constexpr int kMergeStride = kDim + 4;       // floats; the pad spreads the banks
  static constexpr int kMergeBytes = kWarps * (8 * kMergeStride + 4 * kRows) * 4 + kQueryBytes;
  // As many stages as let the CTAs share an SM's 228 KB, of which each costs one more; one CTA where the rows
  // take the room.
  static constexpr int kCtasWanted = kTuning_.ctas;
  static constexpr int kBudgetBytes = 228 * 1024 / kCtasWanted - 1024;
  static constexpr int kFit = (kBudgetBytes - kMergeBytes) / (kWarps * kStageBytes);
  static constexpr int kCtasPerSm = kFit >= 2 ? kCtasWanted : 1;
  static constexpr int kFitAlone = (226 * 1024 - kMergeBytes) / (kWarps * kStageBytes);
  static constexpr int kStagesWanted = kCtasPerSm > 1 ? kFit : kFitAlone;
  static constexpr int kStages = kStagesWanted > 6 ? 6 : kStagesWanted;
  static constexpr int kSmemBytes = kWarps * kStages * kStageBytes + kMergeBytes;
  // A barrier of the warps that compute.
  static WW_DEVICE void sync() {
    if constexpr (kBulk) ptx::named_barrier_sync(1, kThreads);
    else __syncthreads();
  }
  // Two heads fill the 16 bytes of scales.
  static_assert(kHeads == 1 || (kFp4 && kHeads * kDim == 256 && !kFixedSplits));
  static_assert((!kFixedSplits || kDecodeTileTokens % kRoundTokens == 0) && kStages >= 2);
};

// A request's part of one kv head (or kHeads of them, `head` counting these) that this worker computes.
struct DecodeSegment {
  int request = 0, head = 0;
  int q_begin = 0, q_len = 0;
  int position = 0;                    // of the first row
  int tree_begin = 0;                  // kv position of the request's first query token
  int visible_begin = 0;               // the first kv position that some row sees
  int token_begin = 0, token_end = 0;  // kv positions of the piece
  bool begins_pair = true, ends_pair = true;
  int split = 0, num_splits = 0;       // fixed splits: place in the pair, and their number
};

// Walks over the segments of a worker's run.
template <class C>
class SegmentWalker {
 public:
  WW_DEVICE SegmentWalker(const DecodeWorker& run, int lockstep_heads)
      : request_(run.request), head_(run.head), tile_(run.tile), tiles_left_(run.num_tiles), head_step_(lockstep_heads),
        q_begin_(run.q_begin), q_len_(run.q_len), kv_len_(run.kv_len) {}

  WW_DEVICE bool next(const AttentionParams& p, const DecodeWorkspace& w, DecodeSegment& s) {
    if (tiles_left_ <= 0) return false;
    if constexpr (C::kFixedSplits) {
      return next_split(p, w, s);
    } else {
      return next_run(p, s);
    }
  }

 private:
  WW_DEVICE bool next_run(const AttentionParams& p, DecodeSegment& s) {
    if (head_ >= p.num_kv_heads / C::kHeads) {
      head_ -= p.num_kv_heads / C::kHeads;
      do {
        read_request(p, request_ + 1);
      } while (q_len_ > p.decode_q_len);
    }
    s.request = request_;
    s.head = head_;
    head_ += head_step_;
    s.q_begin = q_begin_;
    s.q_len = q_len_;
    s.position = s.tree_begin = kv_len_ - q_len_;
    const int first = first_visible(kv_len_, s.q_len, p.window_left);
    s.visible_begin = first;
    const int pair_tiles = max(1, (kv_len_ - first + kDecodeTileTokens - 1) / kDecodeTileTokens);
    const int tiles = min(tiles_left_, pair_tiles - tile_);
    s.token_begin = first + tile_ * kDecodeTileTokens;
    s.token_end = min(kv_len_, s.token_begin + tiles * kDecodeTileTokens);
    s.begins_pair = tile_ == 0;
    s.ends_pair = tile_ + tiles == pair_tiles;
    tiles_left_ -= tiles;
    tile_ = 0;
    return true;
  }

  // Tiles stand at multiples of kDecodeTileTokens from position 0, whichever rows share the piece.
  WW_DEVICE bool next_split(const AttentionParams& p, const DecodeWorkspace& w, DecodeSegment& s) {
    if (head_ == p.num_kv_heads) {
      head_ = 0;
      ++request_;
    }
    const DecodePiece piece = w.pieces[request_];
    s.request = piece.request;
    s.head = head_;
    s.q_begin = piece.q_begin;
    s.q_len = piece.q_len;
    s.position = piece.position;
    s.tree_begin = piece.tree_begin;
    s.visible_begin = piece.visible_begin;
    const int first_split = piece.visible_begin / w.split_tokens;
    s.split = tile_;
    s.token_begin = max((first_split + tile_) * w.split_tokens,
                        piece.visible_begin / kDecodeTileTokens * kDecodeTileTokens);
    s.token_end = min(piece.visible_end, (first_split + tile_ + 1) * w.split_tokens);
    s.num_splits = fixed_splits(piece.visible_begin, piece.visible_end, w.split_tokens);
    s.begins_pair = tile_ == 0;
    s.ends_pair = tile_ + 1 == s.num_splits;
    --tiles_left_;
    ++tile_;
    if (s.ends_pair) {
      tile_ = 0;
      ++head_;
    }
    return true;
  }

  WW_DEVICE void read_request(const AttentionParams& p, int request) {
    request_ = request;
    q_begin_ = p.q_indptr[request];
    q_len_ = p.q_indptr[request + 1] - q_begin_;
    kv_len_ = p.kv_lens[request];
  }

  int request_, head_, tile_, tiles_left_, head_step_;
  int q_begin_, q_len_, kv_len_;
};

// Fills this warp's ring, 16 tokens of K and V a call, running ahead of the arithmetic. The page ids of
// four calls are read at once, and those of the next four one round ahead: a read of the page table
// takes as long as one of K.
template <class C>
class DecodeLoader {
 public:
  WW_DEVICE DecodeLoader(const AttentionParams& p, const SegmentWalker<C>& walker, const DecodeWorkspace& w, u32 ring)
      : walker_(walker), ring_(ring) {
    position_ = segment_.token_end = 0;
    seek(p, w);
  }

  // Commits exactly one group, empty when the run has ended.
  WW_DEVICE void load(const AttentionParams& p, const DecodeWorkspace& w) {
    if (position_ < segment_.token_end) {
      issue(p);
      position_ += C::kRoundTokens;
      ++step_;
      seek(p, w);
    }
    ptx::cp_async_commit();
    stage_ = stage_ + 1 == C::kStages ? 0 : stage_ + 1;
  }

  // Whether the next call reads no token of this forward, whose K and V the kernel before this one writes.
  WW_DEVICE bool next_is_earlier() const {
    return min(position_ + C::kStepTokens, segment_.token_end) <= segment_.tree_begin;
  }

 private:
  static constexpr int kStepsPerRead = 64 / C::kStepTokens;

  // Moves to the warp's next tokens.
  WW_DEVICE void seek(const AttentionParams& p, const DecodeWorkspace& w) {
    bool fresh = false;
    while (position_ >= segment_.token_end) {
      if (!walker_.next(p, w, segment_)) {
        position_ = segment_.token_end = 0;
        return;
      }
      position_ = segment_.token_begin + threadIdx.x / 32 * C::kStepTokens;
      fresh = true;
    }
    if (fresh) {
      step_ = 0;
      read_pages(p, position_, pages_);
      read_pages(p, position_ + kStepsPerRead * C::kRoundTokens, next_pages_);
    } else if (step_ == kStepsPerRead) {
      step_ = 0;
      pages_[0] = next_pages_[0];
      pages_[1] = next_pages_[1];
      read_pages(p, position_ + kStepsPerRead * C::kRoundTokens, next_pages_);
    }
  }

  // Of 64 tokens in the order of the steps from `position` on: 32 in the lanes of pages[0], 32 in pages[1]'s.
  WW_DEVICE void read_pages(const AttentionParams& p, int position, int (&pages)[2]) const {
    const int32_t* table = p.page_table + static_cast<int64_t>(segment_.request) * p.page_table_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = i * 32 + threadIdx.x % 32;
      const int token = position + at / C::kStepTokens * C::kRoundTokens + at % C::kStepTokens;
      pages[i] = seen(token) ? __ldg(table + page_index(p, token)) : 0;
    }
  }
  WW_DEVICE bool seen(int token) const {
    return token < segment_.token_end && (!C::kFixedSplits || token >= segment_.visible_begin);
  }

  WW_DEVICE void issue(const AttentionParams& p) {
    constexpr int kChunks = C::kRowBytes / 16;
    constexpr int kRowsPerCopy = 32 / kChunks;
    const int lane = threadIdx.x % 32;
    int page;
    if constexpr (C::kGroups == 1) {
      page = __shfl_sync(~0u, step_ & 2 ? pages_[1] : pages_[0], lane % 16 + (step_ & 1) * 16);
    } else {
      page = step_ & 1 ? pages_[1] : pages_[0];
    }
    const int token = position_ + lane % C::kStepTokens;
    const int in_page = token - page_index(p, token) * p.page_size;
    // fp4: in units of 16 bytes, of which 32 bits count those of 64 GB.
    using Offset = std::conditional_t<C::kFp4, u32, int64_t>;
    constexpr int kUnit = C::kFp4 ? 32 : 1;
    const Offset element = page * static_cast<Offset>(p.page_stride / kUnit) +
                           in_page * static_cast<Offset>(p.token_stride / kUnit) +
                           segment_.head * C::kHeads * static_cast<Offset>(p.head_stride / kUnit);
    const Offset offset = C::kFp4 ? element : element * C::Fragment::kBits / 8;
    const int chunk = lane % kChunks;
    const u32 stage = ring_ + stage_ * C::kStageBytes;
#pragma unroll
    for (int i = 0; i < C::kStepTokens / kRowsPerCopy; ++i) {
      const int row = i * kRowsPerCopy + lane / kChunks;
      int64_t row_offset;
      if constexpr (C::kFp4) row_offset = static_cast<ptx::u64>(__shfl_sync(~0u, offset, row) + chunk) * 16;
      else row_offset = __shfl_sync(~0u, offset, row) + chunk * 16;
      const int bytes = seen(position_ + row) ? 16 : 0;
      const u32 target = stage + swizzled<C::kRowBytes>(row, chunk);
      copy(target, static_cast<const char*>(p.k) + row_offset, bytes);
      copy(target + C::kStepTokens * C::kRowBytes, static_cast<const char*>(p.v) + row_offset, bytes);
    }
    if constexpr (C::kStorage == KvStorage::e2m1) copy_scales(p, stage, element, seen(token));
  }

  // A lane's token's, of K and V; their places as one mask of lanes for each bit of them.
  WW_DEVICE void copy_scales(const AttentionParams& p, u32 stage, u32 chunk, bool real) const {
    const int lane = threadIdx.x % 32;
    const int64_t slot = static_cast<ptx::u64>(chunk / 8) * 16;
    const int bytes = real ? 16 : 0;
    const u32 target = stage + 2 * C::kStepTokens * C::kRowBytes + lane * 16;
    if constexpr (C::kGroups == 2) {
      ptx::cp_async_16_alone(target, p.k_block_scales + slot, bytes);
      ptx::cp_async_16_alone(target + C::kStepTokens * 16, p.v_block_scales + slot, bytes);
    } else {
      ptx::cp_async_16_alone(target, (lane < 16 ? p.k_block_scales : p.v_block_scales) + slot, bytes);
    }
    if constexpr (C::kHeads * C::kDim < 256) {
      const u32 eights = __ballot_sync(~0u, chunk & 4);
      const u32 fours = C::kDim < 128 ? __ballot_sync(~0u, chunk & 2) : 0;
      if (lane == 0) ptx::store_shared_8(stage + C::kStageBytes - 16, eights, fours);
    }
  }

  // The policy's register pair is one too many where the rows fill the registers.
  static constexpr bool kHasPolicy = !C::kQueryInShared || C::kStorage == KvStorage::same16;
  WW_DEVICE void copy(u32 target, const char* source, int bytes) const {
    // A prefetch past the row would bring another head's, which nobody wants yet.
    if constexpr (kHasPolicy) ptx::cp_async_16<C::kRowBytes < 128 ? 64 : 128>(target, source, bytes, policy_);
    else ptx::cp_async_16(target, source, bytes);
  }

  const ptx::u64 policy_ = ptx::evict_first_policy();
  SegmentWalker<C> walker_;
  DecodeSegment segment_;
  u32 ring_;
  int stage_ = 0;
  int position_;
  int step_ = 0;  // within the steps whose pages are read
  int pages_[2], next_pages_[2];
};

}  // namespace warpweave::cuda
