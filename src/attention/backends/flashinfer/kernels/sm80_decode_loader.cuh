// Configuration of the decode kernel (sm80_decode.cuh), and what fills its warps' rings.
#pragma once

#include "attention/cuda/attention_params.h"
#include "attention/cuda/kv_fragment.h"
#include "attention/cuda/plan.h"
#include "attention/cuda/ptx.h"

namespace warpweave::cuda {

template <class Element_, KvStorage kStorage_, int kDim_, int kColumnTiles_, bool kMultiRow_>
struct DecodeConfig {
  using Element = Element_;
  using Fragment = KvFragment<Element_, kStorage_>;
  static constexpr KvStorage kStorage = kStorage_;
  static constexpr int kDim = kDim_;
  static constexpr int kColumnTiles = kColumnTiles_;  // 8 rows of the request each
  static constexpr int kRows = 8 * kColumnTiles_;
  static constexpr bool kMultiRow = kMultiRow_;       // several query tokens: masks per row
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kStepTokens = 16;
  static constexpr int kRowBytes = kDim * Fragment::kBytes;
  static constexpr int kStageBytes = 2 * kStepTokens * kRowBytes;
  // Many rows' Q fragments live in shared memory, each thread's own, to keep the accumulators in
  // registers.
  static constexpr bool kQueryInShared = kColumnTiles * kDim == 512;
  static constexpr int kQueryBytes = kQueryInShared ? kThreads * kColumnTiles * kDim / 2 : 0;
  static constexpr int kMergeStride = kDim + 4;       // floats; the pad spreads the banks
  static constexpr int kMergeBytes = kWarps * (8 * kMergeStride + 4 * kRows) * 4 + kQueryBytes;
  // As many stages as let two CTAs share an SM's 227 KB; one CTA where the rows take the room.
  static constexpr int kBudgetBytes = 113 * 1024;
  static constexpr int kFit = (kBudgetBytes - kMergeBytes) / (kWarps * kStageBytes);
    static constexpr int kCtasPerSm = kFit >= 2 ? 2 : 1;
  static constexpr int kFitAlone = (2 * kBudgetBytes - kMergeBytes) / (kWarps * kStageBytes);
  static constexpr int kStagesWanted = kCtasPerSm == 2 ? kFit : kFitAlone;
  static constexpr int kStages = kStagesWanted > 6 ? 6 : kStagesWanted;
  static constexpr int kSmemBytes = kWarps * kStages * kStageBytes + kMergeBytes;
  static_assert(kWarps * kStepTokens == kDecodeTileTokens && kStages >= 2);
};

// A request's part of one kv head that this worker computes.
struct DecodeSegment {
  int request = 0, head = 0;
  int q_begin = 0, q_len = 0;
  int kv_len = 0;
  int token_begin = 0, token_end = 0;  // kv positions of the piece
  bool begins_pair = true, ends_pair = true;
};

// Walks over the segments of a worker's run.
class SegmentWalker {
 public:
  WW_DEVICE SegmentWalker(const DecodeWorker& run)
      : request_(run.request), head_(run.head), tile_(run.tile), tiles_left_(run.num_tiles),
        q_begin_(run.q_begin), q_len_(run.q_len), kv_len_(run.kv_len) {}

  WW_DEVICE bool next(const AttentionParams& p, DecodeSegment& s) {
    if (tiles_left_ <= 0) return false;
    if (head_ == p.num_kv_heads) {
      head_ = 0;
      do {
        read_request(p, request_ + 1);
      } while (q_len_ > p.decode_q_len);
    }
    s.request = request_;
    s.head = head_++;
    s.q_begin = q_begin_;
    s.q_len = q_len_;
    s.kv_len = kv_len_;
    const int first = first_visible(s.kv_len, s.q_len, p.window_left, p.causal);
    const int pair_tiles = max(1, (s.kv_len - first + kDecodeTileTokens - 1) / kDecodeTileTokens);
    const int tiles = min(tiles_left_, pair_tiles - tile_);
    s.token_begin = first + tile_ * kDecodeTileTokens;
    s.token_end = min(s.kv_len, s.token_begin + tiles * kDecodeTileTokens);
    s.begins_pair = tile_ == 0;
    s.ends_pair = tile_ + tiles == pair_tiles;
    tiles_left_ -= tiles;
    tile_ = 0;
    return true;
  }

 private:
  WW_DEVICE void read_request(const AttentionParams& p, int request) {
    request_ = request;
    q_begin_ = p.q_indptr[request];
    q_len_ = p.q_indptr[request + 1] - q_begin_;
    kv_len_ = p.kv_lens[request];
  }

  int request_, head_, tile_, tiles_left_;
  int q_begin_, q_len_, kv_len_;
};

// Fills this warp's ring, 16 tokens of K and V a call, running ahead of the arithmetic. The page ids of
// four calls are read at once, and those of the next four one round ahead: a read of the page table
// takes as long as one of K.
template <class C>
class DecodeLoader {
 public:
  WW_DEVICE DecodeLoader(const AttentionParams& p, const DecodeWorker& run, u32 ring)
      : walker_(run), ring_(ring) {
    position_ = segment_.token_end = 0;
    seek(p);
  }

  // Commits exactly one group, empty when the run has ended.
  WW_DEVICE void load(const AttentionParams& p) {
    if (position_ < segment_.token_end) {
      issue(p);
      position_ += kDecodeTileTokens;
      ++step_;
      seek(p);
    }
    ptx::cp_async_commit();
    stage_ = stage_ + 1 == C::kStages ? 0 : stage_ + 1;
  }

 private:
  static constexpr int kStepsPerRead = 4;

  // Moves to the warp's next tokens.
  WW_DEVICE void seek(const AttentionParams& p) {
    bool fresh = false;
    while (position_ >= segment_.token_end) {
      if (!walker_.next(p, segment_)) {
        position_ = segment_.token_end = 0;
        return;
      }
      position_ = segment_.token_begin + threadIdx.x / 32 * C::kStepTokens;
      fresh = true;
    }
    if (fresh) {
      step_ = 0;
      read_pages(p, position_, pages_);
      read_pages(p, position_ + kStepsPerRead * kDecodeTileTokens, next_pages_);
    } else if (step_ == kStepsPerRead) {
      step_ = 0;
      pages_[0] = next_pages_[0];
      pages_[1] = next_pages_[1];
      read_pages(p, position_ + kStepsPerRead * kDecodeTileTokens, next_pages_);
    }
  }

  // Of the tokens of four steps from `position` on: steps 0 and 2 in lanes 0..15, 1 and 3 in the others.
  WW_DEVICE void read_pages(const AttentionParams& p, int position, int (&pages)[2]) const {
    const int32_t* table = p.page_table + static_cast<int64_t>(segment_.request) * p.page_table_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = position + (threadIdx.x % 32 / 16 + 2 * i) * kDecodeTileTokens + threadIdx.x % 16;
      pages[i] = token < segment_.token_end ? __ldg(table + page_index(p, token)) : 0;
    }
  }
  static WW_DEVICE int page_index(const AttentionParams& p, int token) {
    return p.page_shift >= 0 ? token >> p.page_shift : token / p.page_size;
  }

  WW_DEVICE void issue(const AttentionParams& p) {
    constexpr int kChunks = C::kRowBytes / 16;
    constexpr int kRowsPerCopy = 32 / kChunks;
    const int lane = threadIdx.x % 32;
    const int page = __shfl_sync(~0u, step_ & 2 ? pages_[1] : pages_[0], lane % 16 + (step_ & 1) * 16);
    const int token = position_ + lane % 16;
    const int in_page = token - page_index(p, token) * p.page_size;
    const int64_t offset = (page * p.page_stride + in_page * p.token_stride +
                            segment_.head * p.head_stride) * C::Fragment::kBytes;
    const int chunk = lane % kChunks;
    const u32 stage = ring_ + stage_ * C::kStageBytes;
#pragma unroll
    for (int i = 0; i < C::kStepTokens / kRowsPerCopy; ++i) {
      const int row = i * kRowsPerCopy + lane / kChunks;
      const int64_t row_offset = __shfl_sync(~0u, offset, row) + chunk * 16;
      const int bytes = position_ + row < segment_.token_end ? 16 : 0;
      const u32 target = stage + swizzled<C::kRowBytes>(row, chunk);
      ptx::cp_async_16(target, static_cast<const char*>(p.k) + row_offset, bytes, policy_);
      ptx::cp_async_16(target + C::kStepTokens * C::kRowBytes,
                       static_cast<const char*>(p.v) + row_offset, bytes, policy_);
    }
  }

  const ptx::u64 policy_ = ptx::evict_first_policy();
  SegmentWalker walker_;
  DecodeSegment segment_;
  u32 ring_;
  int stage_ = 0;
  int position_;
  int step_ = 0;  // within the four whose pages are read
  int pages_[2], next_pages_[2];
};

}  // namespace warpweave::cuda
