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
WW_DEVICE void walk_segments(const ShortCall& call, Producer& producer) {
  const auto& [p, work, launch] = call;
  bool waited = !work.plan_is_older || !p.earlier_kv_settled;
  if (waited) ptx::grid_dependency_wait();
  SplitRunState<C::kTokens> run;
  run.begin(work, blockIdx.x);
  SplitSegment s;
  while (run.next(p, work, s)) {
    const ShortUnit<C> unit(launch, s.unit, s.q_len);
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

// Whether `value` holds for all `threads` that come to the barrier.
WW_DEVICE bool barrier_and(int barrier, int threads, bool value) {
  ptx::u32 all;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; barrier.cta.red.and.pred p, %2, %3, p; selp.u32 %0, 1, 0, p;}\n"
               : "=r"(all)
               : "r"(static_cast<ptx::u32>(value)), "r"(barrier), "r"(threads)
               : "memory");
  return all != 0;
}

// All 128 threads: pages of a few tokens, which a request often has side by side. A tile of such tokens is one box of
// the pool; of others, and of a request's last ones, eight threads take 128 bytes of a token, 16 at a time.
template <class C>
class Sm90ShortPlaceProducer {
 public:
  // `dense`: the pages of the pool follow each other without a gap.
  WW_DEVICE Sm90ShortPlaceProducer(const AttentionParams& p, const Sm90ShortMaps& maps,
                                   const Sm90ShortShared<C>& shared, bool dense)
      : p_(p), maps_(maps), shared_(shared), dense_(dense) {}

  WW_DEVICE void begin(const SplitSegment& s, int kv_head) {
    kv_head_ = kv_head;
    first_token_ = split_first_token(p_, s.kv_len, s.q_len, C::kTokens);
    find(s, s.tile_begin);
  }

  WW_DEVICE void copy(const SplitSegment& s, int tile) {
    if (static_cast<int>(threadIdx.x) < C::kTokens) pages()[threadIdx.x] = page_;
    const bool box = barrier_and(kBarrier, 128, in_box_);
    const int place = first_place_;
    if (tile + 1 < s.tile_end) find(s, tile + 1);
    if (box) {
      copy_box<kShortKeys>(maps_.k, place);
      copy_box<kShortValues>(maps_.v, place);
    } else {
      gather<kShortKeys>(p_.k, s, tile);
      gather<kShortValues>(p_.v, s, tile);
    }
    odd_ ^= 1;
    ring_.advance();
  }

 private:
  static constexpr int kBarrier = 1 + C::kConsumers;
  static constexpr int kOwnTokens = C::kPaired ? C::kTokens / 2 : C::kTokens;
  WW_DEVICE int* pages() const { return shared_.pages + odd_ * C::kTokens; }
  WW_DEVICE int token_of(int tile, int row) const { return first_token_ + tile * C::kTokens + row; }

  // A token of the tile, and whether it stands as far behind the first one as it comes after it. Apart from the copies,
  // so that the loads are under way while the tile before is copied.
  WW_DEVICE void find(const SplitSegment& s, int tile) {
    const int first = token_of(tile, 0), row = static_cast<int>(threadIdx.x) % C::kTokens;
    page_ = -1;
    in_box_ = false;
    if (first + row >= s.kv_len) return;
    int in_page, in_first_page;
    page_ = page_of_token(p_, s.page_row, first + row, in_page);
    first_place_ = page_of_token(p_, s.page_row, first, in_first_page) * p_.page_size + in_first_page;
    in_box_ = dense_ && page_ * p_.page_size + in_page == first_place_ + row;
  }

  template <int kPart>
  WW_DEVICE void copy_box(const CUtensorMap& map, int place) const {
    const ptx::u32 full = shared_.full(ring_.stage, kPart);
    ptx::mbarrier_wait(shared_.empty(ring_.stage, kPart), ring_.phase ^ 1);
    if (threadIdx.x > 0) return ptx::mbarrier_arrive(full);
    ptx::mbarrier_arrive_expect_tx(full, C::kTileBytes);
    const int row = C::kPaired ? static_cast<int>(blockIdx.x % 2) * kOwnTokens : 0;
#pragma unroll
    for (int column = 0; column < C::kColumnBlocks; ++column) {
      const ptx::u32 to = shared_.tile(ring_.stage, kPart) + row * 128 + column * C::kColumnBytes;
      if constexpr (C::kPaired) {
        ptx::tma_multicast_4d(to, &map, full, column * 64, place + row, kv_head_, 0, 3);
      } else {
        ptx::tma_load_4d(to, &map, full, column * 64, place + row, kv_head_, 0);
      }
    }
  }

  template <int kPart>
  WW_DEVICE void gather(const void* pool, const SplitSegment& s, int tile) const {
    const int piece = threadIdx.x % 8;
    ptx::mbarrier_wait(shared_.empty(ring_.stage, kPart), ring_.phase ^ 1);
#pragma unroll 2
    for (int row = static_cast<int>(threadIdx.x) / 8; row < C::kTokens; row += 16) {
      const int page = pages()[row], token = token_of(tile, row);
      const int in_page = token - page_index(p_, token) * p_.page_size;
      const int64_t at = page * p_.page_stride + in_page * p_.token_stride + kv_head_ * p_.head_stride;
      const char* const source = static_cast<const char*>(pool) + (page >= 0 ? at : 0) * 2 + piece * 16;
      const ptx::u32 target = shared_.tile(ring_.stage, kPart) + row * 128 + (piece ^ row % 8) * 16;
#pragma unroll
      for (int column = 0; column < C::kColumnBlocks; ++column) {
        ptx::cp_async_16(target + column * C::kColumnBytes, source + column * 128, page >= 0 ? 16 : 0);
      }
    }
    ptx::cp_async_mbarrier_arrive_noinc(shared_.full(ring_.stage, kPart));
  }

  const AttentionParams& p_;
  const Sm90ShortMaps& maps_;
  const Sm90ShortShared<C>& shared_;
  const bool dense_;
  Sm90ShortRing<C> ring_;
  int kv_head_ = 0;
  int first_token_ = 0;  // of the segment's tile 0
  int odd_ = 0;
  // Of the tile to copy next.
  int page_ = -1;        // of this thread's token; -1: past the last
  int first_place_ = 0;  // of the first token, in a pool whose pages are one
  bool in_box_ = false;
};

}  // namespace warpweave::cuda
