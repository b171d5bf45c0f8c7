// The copying warpgroup of the Hopper kernel for short requests (sm90_short.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_short_shared.cuh"
#include "attention/cuda/page_lookup.cuh"

namespace warpweave::cuda {

struct Sm90ShortMaps {
  CUtensorMap k, v;
};

// Walks the segments that have rows; Producer::begin(segment, kv head) and Producer::copy(segment, tile) do the rest.
// The kernel before this one writes the newest tokens' K and V: earlier ones are copied while it runs, where that is
// known.
template <class C, class Producer>
WW_DEVICE void walk_segments(const AttentionParams& p, const SplitWork& work, Producer& producer) {
  bool waited = !work.plan_is_older || !p.earlier_kv_settled;
  if (waited) ptx::grid_dependency_wait();
  SplitRunState<C::kTokens> run;
  run.begin(work, blockIdx.x);
  SplitSegment s;
  while (run.next(p, work, s)) {
    const ShortUnit<C> unit(p, work, s.unit, s.q_len);
    if (!unit.has_copies) continue;
    producer.begin(s, unit.kv_head);
    const int settled = s.kv_len - s.q_len - split_first_token(p, s.kv_len, s.q_len, C::kTokens);
    for (int tile = s.tile_begin; tile < s.tile_end; ++tile) {
      if (!waited && (tile + 1) * C::kTokens > settled) {
        ptx::grid_dependency_wait();
        waited = true;
      }
      producer.copy(s, tile);
    }
  }
}

// One warp; a lane finds the page of a box and has TMA take it, 64 columns at a time.
template <class C>
class Sm90ShortBoxProducer {
 public:
  WW_DEVICE Sm90ShortBoxProducer(const AttentionParams& p, const Sm90ShortMaps& maps, const Sm90ShortShared<C>& shared,
                                 int box_tokens)
      : p_(p), maps_(maps), shared_(shared), box_tokens_(box_tokens) {}

  WW_DEVICE void begin(const SplitSegment& s, int kv_head) {
    kv_head_ = kv_head;
    first_token_ = split_first_token(p_, s.kv_len, s.q_len, C::kTokens);
    next_ = find(s, s.tile_begin);
  }

  WW_DEVICE void copy(const SplitSegment& s, int tile) {
    const Box box = next_;
    next_ = find(s, tile + 1);
    copy_part<kShortKeys>(maps_.k, box);
    copy_part<kShortValues>(maps_.v, box);
    ring_.advance();
  }

 private:
  struct Box {
    int page, in_page;
  };

  static constexpr int kOwnTokens = C::kPaired ? C::kTokens / 2 : C::kTokens;

  WW_DEVICE bool has_box() const { return static_cast<int>(threadIdx.x) * box_tokens_ < kOwnTokens; }
  WW_DEVICE int row() const {
    return (C::kPaired ? static_cast<int>(blockIdx.x % 2) * kOwnTokens : 0) +
           static_cast<int>(threadIdx.x) * box_tokens_;
  }

  // Past the last token: page -1, which TMA fills with zeros.
  WW_DEVICE Box find(const SplitSegment& s, int tile) const {
    const int token = first_token_ + tile * C::kTokens + row();
    if (!has_box() || token >= s.kv_len || tile >= s.tile_end) return {-1, 0};
    Box box;
    box.page = page_of_token(p_, s.page_row, token, box.in_page);
    return box;
  }

  template <int kPart>
  WW_DEVICE void copy_part(const CUtensorMap& map, const Box& box) const {
    const ptx::u32 full = shared_.full(ring_.stage, kPart);
    ptx::mbarrier_wait(shared_.empty(ring_.stage, kPart), ring_.phase ^ 1);
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(full, C::kTileBytes);
    __syncwarp();
    if (!has_box()) return;
    const ptx::u32 target = shared_.tile(ring_.stage, kPart) + row() * 128;
#pragma unroll
    for (int column = 0; column < C::kColumnBlocks; ++column) {
      const ptx::u32 to = target + column * C::kColumnBytes;
      if constexpr (C::kPaired) {
        ptx::tma_multicast_4d(to, &map, full, column * 64, box.in_page, kv_head_, box.page, 3);
      } else {
        ptx::tma_load_4d(to, &map, full, column * 64, box.in_page, kv_head_, box.page);
      }
    }
  }

  const AttentionParams& p_;
  const Sm90ShortMaps& maps_;
  const Sm90ShortShared<C>& shared_;
  const int box_tokens_;
  Sm90ShortRing<C> ring_;
  int kv_head_ = 0;
  int first_token_ = 0;  // of the segment's tile 0
  Box next_ = {-1, 0};
};

// All 128 threads, 16 bytes at a time: pages of a few tokens. Eight threads take 128 bytes of a token.
template <class C>
class Sm90ShortGatherProducer {
 public:
  WW_DEVICE Sm90ShortGatherProducer(const AttentionParams& p, const Sm90ShortShared<C>& shared)
      : p_(p), shared_(shared) {}

  WW_DEVICE void begin(const SplitSegment& s, int kv_head) {
    kv_head_ = kv_head;
    first_token_ = split_first_token(p_, s.kv_len, s.q_len, C::kTokens);
    find_pages(s, s.tile_begin);
  }

  WW_DEVICE void copy(const SplitSegment& s, int tile) {
    int64_t from[kPasses];  // elements of the pools where the tokens stand; -1: past the last
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int token = token_of(tile, i), in_page = token - page_index(p_, token) * p_.page_size;
      const int64_t at = pages_[i] * p_.page_stride + in_page * p_.token_stride + kv_head_ * p_.head_stride;
      from[i] = token < s.kv_len ? at : -1;
    }
    if (tile + 1 < s.tile_end) find_pages(s, tile + 1);
    copy_part<kShortKeys>(p_.k, from);
    copy_part<kShortValues>(p_.v, from);
    ring_.advance();
  }

 private:
  static constexpr int kPasses = C::kTokens / 16;
  static WW_DEVICE int row(int pass) { return pass * 16 + static_cast<int>(threadIdx.x) / 8; }
  WW_DEVICE int token_of(int tile, int pass) const { return first_token_ + tile * C::kTokens + row(pass); }

  // Apart from what is computed of them, so that the loads are under way while the tile before is copied.
  WW_DEVICE void find_pages(const SplitSegment& s, int tile) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int token = token_of(tile, i);
      if (token < s.kv_len) pages_[i] = page_at(p_, s.page_row, page_index(p_, token));
    }
  }

  template <int kPart>
  WW_DEVICE void copy_part(const void* pool, const int64_t (&from)[kPasses]) const {
    const int piece = threadIdx.x % 8;
    ptx::mbarrier_wait(shared_.empty(ring_.stage, kPart), ring_.phase ^ 1);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const ptx::u32 target = shared_.tile(ring_.stage, kPart) + row(i) * 128 + (piece ^ row(i) % 8) * 16;
      const char* source = static_cast<const char*>(pool) + max(from[i], int64_t{0}) * 2 + piece * 16;
#pragma unroll
      for (int column = 0; column < C::kColumnBlocks; ++column) {
        ptx::cp_async_16(target + column * C::kColumnBytes, source + column * 128, from[i] >= 0 ? 16 : 0);
      }
    }
    ptx::cp_async_mbarrier_arrive_noinc(shared_.full(ring_.stage, kPart));
  }

  const AttentionParams& p_;
  const Sm90ShortShared<C>& shared_;
  Sm90ShortRing<C> ring_;
  int kv_head_ = 0;
  int first_token_ = 0;  // of the segment's tile 0
  int32_t pages_[kPasses] = {};
};

}  // namespace warpweave::cuda
