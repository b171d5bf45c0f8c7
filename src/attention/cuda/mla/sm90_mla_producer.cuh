// The copying warpgroup of the Hopper MLA kernel (sm90_mla.cuh), for pools of 16-bit numbers.
#pragma once

#include "attention/cuda/mla/sm90_mla_shared.cuh"

namespace warpweave::cuda {

// What TMA takes. `leave_first`: what it brings into pairs leaves the L2 before all else, as what a CTA alone has does.
struct Sm90MlaBoxes {
  int tokens = 0;
  bool leave_first = true;
};

// One warp; a lane finds the page of a box of up to 64 tokens and has TMA take it, 64 columns at a time.
template <class C>
class Sm90MlaBoxProducer {
 public:
  WW_DEVICE Sm90MlaBoxProducer(const MlaParams& p, const CUtensorMap& map, const Sm90MlaShared<C>& shared,
                               const Sm90MlaBoxes& boxes)
      : p_(p), map_(map), shared_(shared), box_tokens_(boxes.tokens),
        leave_first_(boxes.leave_first), policy_(ptx::evict_first_policy()) {}

  WW_DEVICE void run(const SplitWork& work) {
    if (threadIdx.x >= 32) return;
    MlaRunState run;
    run.begin(work, blockIdx.x);
    SplitSegment s;
    while (run.next(p_, work, s)) {
      Box next = find(s, s.tile_begin);
      const int settled = mla_settled_tokens(p_, s) / C::kTokens;
      for (int tile = s.tile_begin; tile < s.tile_end; ++tile) {
        if (tile >= settled) ptx::grid_dependency_wait();
        const Box box = next;
        next = find(s, tile + 1);
        copy<kMlaRopePart>(box);
        copy<kMlaRightPart>(box);
        copy<kMlaLeftPart>(box);
        ++ring_.count;
      }
    }
  }

 private:
  static constexpr int kOwnTokens = Sm90MlaShared<C>::kOwnTokens;
  struct Box {
    int page, in_page;
  };

  WW_DEVICE int row() const {
    return Sm90MlaShared<C>::first_own() + static_cast<int>(threadIdx.x) * box_tokens_;
  }
  WW_DEVICE bool has_box() const { return static_cast<int>(threadIdx.x) * box_tokens_ < kOwnTokens; }

  // Past the last token: page -1, which TMA fills with zeros.
  WW_DEVICE Box find(const SplitSegment& s, int tile) const {
    const int token = tile * C::kTokens + row();
    if (!has_box() || token >= s.kv_len || tile >= s.tile_end) return {-1, 0};
    const int index = p_.page_shift >= 0 ? token >> p_.page_shift : token / p_.page_size;
    return {__ldg(p_.page_table + static_cast<int64_t>(s.page_row) * p_.page_table_stride + index),
            token - index * p_.page_size};
  }

  template <int kPart>
  WW_DEVICE void copy(const Box& box) {
    const ptx::u32 full = shared_.full(ring_, kPart);
    ptx::mbarrier_wait(shared_.empty(ring_, kPart), ring_.phase() ^ 1);
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(full, mla_columns(kPart) * C::kColumnBytes);
    __syncwarp();
    if (!has_box()) return;
    const ptx::u32 target = shared_.part(ring_, kPart) + row() * 128;
#pragma unroll
    for (int i = 0; i < mla_columns(kPart); ++i) {
      const int column = mla_first_column(kPart) + i;
      if (C::kPaired && leave_first_) {
        ptx::tma_multicast_4d(target + i * C::kColumnBytes, &map_, full, {column * 64, box.in_page, 0, box.page}, 3,
                              policy_);
      } else if constexpr (C::kPaired) {
        ptx::tma_multicast_4d(target + i * C::kColumnBytes, &map_, full, column * 64, box.in_page, 0, box.page, 3);
      } else {
        ptx::tma_load_4d(target + i * C::kColumnBytes, &map_, full, column * 64, box.in_page, 0, box.page,
                         policy_);
      }
    }
  }

  const MlaParams& p_;
  const CUtensorMap& map_;
  const Sm90MlaShared<C>& shared_;
  const int box_tokens_;
  const bool leave_first_;
  const ptx::u64 policy_;
  MlaRing ring_;
};

// A warp that brings what this CTA copies of the next tile into the L2 cache while this one is copied: there is no room
// for it in shared memory yet, and memory answers later than the consumers are done with a tile. A lane has a token.
template <class C>
class Sm90MlaPrefetcher {
 public:
  WW_DEVICE Sm90MlaPrefetcher(const MlaParams& p, const Sm90MlaShared<C>& shared) : p_(p), shared_(shared) {}

  WW_DEVICE void run(const SplitWork& work) {
    MlaRunState run;
    run.begin(work, blockIdx.x);
    SplitSegment s;
    while (run.next(p_, work, s)) {
      int page = find_page(s, s.tile_begin + 1);
      for (int tile = s.tile_begin; tile < s.tile_end; ++tile) {
        const int token = token_of(s, tile + 1);
        const char* const at = token < 0 ? nullptr : mla_token_of(p_, page, token);
        page = find_page(s, tile + 2);
        ptx::mbarrier_wait(shared_.empty(ring_, kMlaRopePart), ring_.phase() ^ 1);
        if (at != nullptr) {
#pragma unroll
          for (int i = 0; i < C::kColumnBlocks; ++i) ptx::prefetch_l2(at + i * 128);
        }
        ++ring_.count;
      }
    }
  }

 private:
  static_assert(Sm90MlaShared<C>::kOwnTokens == 32);
  // This lane's; -1: the segment has none.
  static WW_DEVICE int token_of(const SplitSegment& s, int tile) {
    const int token = tile * C::kTokens + Sm90MlaShared<C>::first_own() + static_cast<int>(threadIdx.x) % 32;
    return tile < s.tile_end && token < s.kv_len ? token : -1;
  }
  WW_DEVICE int find_page(const SplitSegment& s, int tile) const {
    const int token = token_of(s, tile);
    return token < 0 ? 0 : mla_page(p_, s.page_row, token);
  }

  const MlaParams& p_;
  const Sm90MlaShared<C>& shared_;
  MlaRing ring_;
};

// Threads, 16 bytes at a time: pages of a few tokens. Eight threads take 128 bytes of a token.
//
// Two CTAs of a cluster gather half of the tokens each and send them to each other through distributed shared memory
// (kExchanges): two warps gather, a third one sends what has arrived, 64 columns at a time. It tells its own consumers
// of both halves, so that they need no fence. The fourth one prefetches.
//
// A CTA alone has its tokens leave the L2 first, since they are read once (docs/gpu-tuning.md; 1 % slower with two).
template <class C>
class Sm90MlaGatherProducer {
 public:
  WW_DEVICE Sm90MlaGatherProducer(const MlaParams& p, const Sm90MlaShared<C>& shared) : p_(p), shared_(shared) {}

  WW_DEVICE void run(const SplitWork& work) {
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp < C::kGatherers / 32) gather(work);
    else if (warp == C::kGatherers / 32) send(work);
    else if constexpr (C::kExchanges) Sm90MlaPrefetcher<C>(p_, shared_).run(work);
  }

 private:
  using Shared = Sm90MlaShared<C>;
  static constexpr int kOwnTokens = Shared::kOwnTokens;
  static constexpr int kPassTokens = C::kGatherers / 8;
  static constexpr int kPasses = kOwnTokens / kPassTokens;
  // Of each pass, where 16 bytes of the first 128 are, and 16; of a token that is not there: anywhere, and 0.
  struct Pieces {
    const char* at[kPasses];
    int bytes[kPasses];
  };
  static WW_DEVICE int row(int pass) {
    return Shared::first_own() + pass * kPassTokens + static_cast<int>(threadIdx.x) / 8;
  }

  WW_DEVICE void gather(const SplitWork& work) {
    MlaRunState run;
    run.begin(work, blockIdx.x);
    SplitSegment s;
    while (run.next(p_, work, s)) {
      find_pages(s, s.tile_begin);
      if constexpr (!C::kExchanges) ask_for_table(s);
      const int settled = mla_settled_tokens(p_, s) / C::kTokens;
      for (int tile = s.tile_begin; tile < s.tile_end; ++tile) {
        if (tile >= settled) ptx::grid_dependency_wait();
        Pieces from;
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
          const int token = tile * C::kTokens + row(i);
          const bool has = token < s.kv_len;
          const char* const at = has ? mla_token_of(p_, pages_[i], token) : static_cast<const char*>(p_.kv);
          from.at[i] = at + threadIdx.x % 8 * 16;
          from.bytes[i] = has ? 16 : 0;
        }
        if (tile + 1 < s.tile_end) find_pages(s, tile + 1);
        copy<kMlaRopePart>(from);
        copy<kMlaRightPart>(from);
        copy<kMlaLeftPart>(from);
        ++ring_.count;
      }
    }
    ptx::cp_async_wait<0>();
  }

  // Apart from what is computed of them, so that the loads are under way while the tile before is copied.
  WW_DEVICE void find_pages(const SplitSegment& s, int tile) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int token = tile * C::kTokens + row(i);
      if (token < s.kv_len) pages_[i] = mla_page(p_, s.page_row, token);
    }
  }

  // What the segment has of the page table, into the L2, as memory answers later than the copies of a tile take.
  WW_DEVICE void ask_for_table(const SplitSegment& s) const {
    constexpr int kLine = 128 / sizeof(int32_t);
    const int32_t* const pages = p_.page_table + static_cast<int64_t>(s.page_row) * p_.page_table_stride;
    const int end = mla_page_index(p_, min(s.tile_end * C::kTokens, s.kv_len) - 1);
    for (int i = mla_page_index(p_, s.tile_begin * C::kTokens) + static_cast<int>(threadIdx.x) * kLine; i <= end;
         i += C::kGatherers * kLine) {
      ptx::prefetch_l2(pages + i);
    }
  }

  // Every copy is one instruction: what differs from one to the next is a constant.
  template <int kPart>
  WW_DEVICE void copy(const Pieces& from) {
    static_assert(kPassTokens % 8 == 0 && kOwnTokens % 8 == 0);  // a thread's rows have one swizzle
    const int piece = threadIdx.x % 8;
    ptx::mbarrier_wait(shared_.empty(ring_, kPart), ring_.phase() ^ 1);
    // Through a shuffle: the compiler (CUDA 13.0) makes illegal instructions of copies with a policy to the sum of a
    // uniform register and another one.
    const ptx::u32 to = __shfl_sync(~0u, shared_.part(ring_, kPart) + row(0) * 128 + (piece ^ row(0) % 8) * 16,
                                    threadIdx.x % 32);
    const auto copy_piece = [&](int j, int i) {
      const ptx::u32 target = to + j * C::kColumnBytes + i * kPassTokens * 128;
      const char* const at = from.at[i] + (mla_first_column(kPart) + j) * 128;
      if constexpr (C::kExchanges) ptx::cp_async_16(target, at, from.bytes[i]);
      else ptx::cp_async_16<128>(target, at, from.bytes[i], policy_);
    };
    if constexpr (C::kExchanges) {
#pragma unroll
      for (int j = 0; j < mla_columns(kPart); ++j) {
#pragma unroll
        for (int i = 0; i < kPasses; ++i) copy_piece(j, i);
        ptx::cp_async_mbarrier_arrive_noinc(shared_.gathered(ring_, mla_first_column(kPart) + j));
      }
    } else {  // neighbours in memory after each other
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
#pragma unroll
        for (int j = 0; j < mla_columns(kPart); ++j) copy_piece(j, i);
      }
      ptx::cp_async_mbarrier_arrive_noinc(shared_.full(ring_, kPart));
    }
  }

  WW_DEVICE void send(const SplitWork& work) {
    MlaRunState run;
    run.begin(work, blockIdx.x);
    SplitSegment s;
    while (run.next(p_, work, s)) {
      for (int tile = s.tile_begin; tile < s.tile_end; ++tile) {
        send<kMlaRopePart>();
        send<kMlaRightPart>();
        send<kMlaLeftPart>();
        ++ring_.count;
      }
    }
  }

  // The other CTA has room: its consumers have released the part here, too. And what is sent from is written again only
  // when they have released what arrives there.
  template <int kPart>
  WW_DEVICE void send() const {
    constexpr int kBytes = kOwnTokens * 128, kColumns = mla_columns(kPart);
    const ptx::u32 full = shared_.full(ring_, kPart);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      ptx::mbarrier_wait(shared_.gathered(ring_, mla_first_column(kPart) + j), ring_.phase());
      ptx::fence_proxy_async();
      __syncwarp();
      if (threadIdx.x % 32 != 0) continue;
      if (j == kColumns - 1) ptx::mbarrier_arrive_expect_tx(full, kColumns * kBytes);
      Shared::send(shared_.part(ring_, kPart) + j * C::kColumnBytes + Shared::first_own() * 128, full, kBytes);
    }
  }

  const MlaParams& p_;
  const Sm90MlaShared<C>& shared_;
  MlaRing ring_;
  int32_t pages_[kPasses] = {};
  const ptx::u64 policy_ = ptx::evict_first_policy();
};

}  // namespace warpweave::cuda
