// Tokens on their way into shared memory, in the mma.sync MLA kernel (sm80_mla.cuh).
#pragma once

#include <cuda.h>

#include "attention/cuda/mla/sm80_mla_shared.cuh"

namespace warpweave::cuda {

// What a launch adds to its parameters: the pool of 16-bit numbers as TMA takes it, so many tokens at a time (0: not at
// all), and whether the CTA that writes a unit's last piece merges the unit (sm80_mla_merging.h).
struct Sm80MlaBoxes {
  CUtensorMap map;
  int tokens;
  bool merges;
};

// Steps of one segment are loaded in their order, each kStages - 1 steps before it is worked on: by all threads with
// cp.async, 16 bytes each, or, on sm_90, where pages are not too small and a step is whole, by copies that cost the
// threads no instructions: TMA boxes of 16-bit numbers, or bulk copies of tokens whose bytes stand in shared memory as
// in the pool (656 or 416 of them).
template <class C>
class Sm80MlaLoader {
 public:
  // All threads; a barrier has to follow. `boxes`: of 16-bit numbers.
  WW_DEVICE Sm80MlaLoader(const MlaParams& p, const Sm80MlaShared<C>& shared, const Sm80MlaBoxes& boxes)
      : p_(p), shared_(shared), boxes_(boxes) {
    if constexpr (!kBulk) return;
    // Smaller copies take longer than the threads would: 33 ns each.
    constexpr int kLeastTokens = 16;
    const bool adjacent = p.token_stride_bytes == C::kTokenBytes;
    if constexpr (C::kSwizzled) box_tokens_ = boxes.tokens;
    else if (adjacent && p.page_size % C::kTokens == 0) box_tokens_ = C::kTokens;
    else if (adjacent && p.page_size >= kLeastTokens && C::kTokens % p.page_size == 0) box_tokens_ = p.page_size;
    if (threadIdx.x != 0) return;
    for (int i = 0; i < C::kStages; ++i) ptx::mbarrier_init(shared.landed + i * 8, 1);
    ptx::mbarrier_init_fence();
  }

  // All threads; nothing of an earlier segment is being read.
  WW_DEVICE void begin(const SplitSegment& s, int first_step, int end_step) {
    page_row_ = s.page_row;
    kv_len_ = s.kv_len;
    next_ = first_step;
    end_ = end_step;
    find(next_);
    for (int i = 0; i < C::kStages - 1; ++i) {
      __syncthreads();
      load();
    }
  }

  // Waits until the oldest step has landed, and gives its stage to all threads; loads another one.
  WW_DEVICE ptx::u32 take() {
    ptx::cp_async_wait<C::kStages - 2>();
    if constexpr (kBulk) {
      const ptx::u32 bit = 1u << taken_;
      if ((bulk_ & bit) != 0) {
        ptx::mbarrier_wait(shared_.landed + taken_ * 8, (phases_ & bit) != 0);
        phases_ ^= bit;
        bulk_ ^= bit;
      }
    }
    __syncthreads();
    const ptx::u32 stage = shared_.stages + taken_ * C::kStageBytes;
    taken_ = taken_ + 1 == C::kStages ? 0 : taken_ + 1;
    load();
    return stage;
  }

  // Of a segment: nothing is in flight after.
  WW_DEVICE void end() {
    ptx::cp_async_wait<0>();
    if constexpr (kBulk) ptx::fence_proxy_async();  // bulk copies may come next where threads have written
    filled_ = taken_ = 0;
  }

 private:
  static constexpr int kPieces = C::kTokenBytes / 16;
#if __CUDA_ARCH__ >= 900
  static constexpr bool kBulk = C::kSwizzled || C::kTokenPitch == C::kTokenBytes;
#else
  static constexpr bool kBulk = false;
#endif

  // Where a step's tokens stand; read after the next barrier.
  WW_DEVICE void find(int step) {
    if (threadIdx.x >= C::kTokens || step >= end_) return;
    const int token = step * C::kTokens + static_cast<int>(threadIdx.x);
    const int page = token < kv_len_ ? mla_page(p_, page_row_, token) : -1;
    if constexpr (C::kSwizzled) page_ = page;
    shared_.offsets[step % 2 * C::kTokens + threadIdx.x] =
        page < 0 ? -1 : mla_token_of(p_, page, token) - static_cast<const char*>(p_.kv);
  }

  // A group for every step, an empty one past the last.
  WW_DEVICE void load() {
    if (next_ < end_) {
      const ptx::u32 stage = shared_.stages + filled_ * C::kStageBytes;
      const int64_t* offsets = shared_.offsets + next_ % 2 * C::kTokens;
      if (kBulk && box_tokens_ != 0 && (next_ + 1) * C::kTokens <= kv_len_) {
        copy_boxes(stage, offsets);
      } else if constexpr (C::kSwizzled) {
        copy_units(stage, offsets);
      } else {
#pragma unroll 2
        for (int i = threadIdx.x; i < C::kTokens * kPieces; i += C::kThreads) {
          const int token = i / kPieces, piece = i - token * kPieces;
          const int64_t offset = offsets[token];
          const char* from = static_cast<const char*>(p_.kv);
          ptx::cp_async_16(stage + token * C::kTokenPitch + piece * 16, offset < 0 ? from : from + offset + piece * 16,
                           offset < 0 ? 0 : 16);
        }
      }
      filled_ = filled_ + 1 == C::kStages ? 0 : filled_ + 1;
      find(++next_);
    } else {
      // Stages are taken in turn, loaded or not.
      filled_ = filled_ + 1 == C::kStages ? 0 : filled_ + 1;
    }
    ptx::cp_async_commit();
  }

  // A thread has 16 bytes of every block of a token.
  WW_DEVICE void copy_units(ptx::u32 stage, const int64_t* offsets) const {
    static_assert(C::kThreads == 8 * C::kTokens);
    const int token = static_cast<int>(threadIdx.x) / 8, unit = threadIdx.x % 8;
    const bool has = offsets[token] >= 0;
    const char* const from = static_cast<const char*>(p_.kv) + (has ? offsets[token] : 0) + unit * 16;
    const ptx::u32 to = stage + sm80_mla_at<C>(0, token, unit);
#pragma unroll
    for (int block = 0; block < kMlaDim / 64; ++block) {
      ptx::cp_async_16(to + block * C::kBlockBytes, from + block * 128, has ? 16 : 0);
    }
  }

  // A thread a box, of one page.
  WW_DEVICE void copy_boxes(ptx::u32 stage, const int64_t* offsets) {
    bulk_ |= 1u << filled_;
    const int token = threadIdx.x;
    const ptx::u32 landed = shared_.landed + filled_ * 8;
    if (token == 0) ptx::mbarrier_arrive_expect_tx(landed, C::kStageBytes);
    if (token >= C::kTokens || token % box_tokens_ != 0) return;
    if constexpr (C::kSwizzled) {
      const int of_request = next_ * C::kTokens + token;
      const int in_page = of_request - mla_page_index(p_, of_request) * p_.page_size;
      const ptx::u64 policy = ptx::evict_first_policy();
#pragma unroll
      for (int block = 0; block < kMlaDim / 64; ++block) {
        ptx::tma_load_4d(stage + block * C::kBlockBytes + token * 128, &boxes_.map, landed, block * 64, in_page, 0,
                         page_, policy);
      }
    } else {
      const char* from = static_cast<const char*>(p_.kv) + offsets[token];
      ptx::bulk_load(stage + token * C::kTokenPitch, from, box_tokens_ * C::kTokenBytes, landed);
    }
  }

  const MlaParams& p_;
  const Sm80MlaShared<C>& shared_;
  const Sm80MlaBoxes& boxes_;
  int page_ = 0;                      // of this thread's token of step next_; for boxes
  int page_row_ = 0, kv_len_ = 0, next_ = 0, end_ = 0;
  int filled_ = 0, taken_ = 0;
  int box_tokens_ = 0;                // 0: no bulk copies
  ptx::u32 bulk_ = 0, phases_ = 0;  // a bit a stage: bulk copies fill it; the parity they end
};

}  // namespace warpweave::cuda
