// The copying warpgroup of the Hopper MLA kernel (sm90_mla.cuh), for pools of e4m3 codes: they are widened to the 16-bit
// numbers that the tensor cores multiply on their way through registers.
//
// A code placed lower in the 16-bit format is its value times a power of two (kv_fragment.h); a product with 2^120 (bf16)
// or 2^8 (f16) times the token's scale, a power of two, makes it the value, exactly.
#pragma once

#include "attention/cuda/kv_fragment.h"
#include "attention/cuda/mla/sm90_mla_shared.cuh"

namespace warpweave::cuda {

template <class C>
class Sm90MlaFp8Producer {
 public:
  WW_DEVICE Sm90MlaFp8Producer(const MlaParams& p, const Sm90MlaShared<C>& shared) : p_(p), shared_(shared) {}

  // Loads run two quarters of the latent columns ahead of the stores, page numbers a tile ahead of the loads.
  WW_DEVICE void run(const SplitWork& work) {
    MlaCursor& cursor = shared_.cursors[2];
    if (threadIdx.x == 0) cursor.run.begin(work, blockIdx.x);
    Quarter a, b;
    while (next_segment(cursor, work)) {
      find_pages(first_);
      put_pages();
      ptx::grid_dependency_wait();  // the newest tokens
      load(a, kMlaRightPart, 0);
      for (; left_ > 0; --left_) {
        load(b, kMlaRightPart, 1);
        if (left_ > 1) find_pages(first_ + C::kTokens);
        wait_empty(kMlaRopePart);
        if constexpr (kScaled) {
          copy_rope();
        } else {
          widen_rope();
          publish(kMlaRopePart);
        }
        wait_empty(kMlaRightPart);
        store(a, kMlaRightPart, 0);
        load(a, kMlaLeftPart, 0);
        store(b, kMlaRightPart, 1);
        publish(kMlaRightPart);
        load(b, kMlaLeftPart, 1);
        wait_empty(kMlaLeftPart);
        store(a, kMlaLeftPart, 0);
        if (left_ > 1) {
          first_ += C::kTokens;
          put_pages();
              load(a, kMlaRightPart, 0);
        }
        store(b, kMlaLeftPart, 1);
        publish(kMlaLeftPart);
        ++ring_.count;
      }
    }
  }

 private:
  using E = typename C::Element;
  using Widen = KvFragment<E, KvStorage::e4m3>;
  static constexpr bool kScaled = C::kFormat == MlaFormat::ds_mla;
  static constexpr int kScaleBytes = kMlaLatentDim / kMlaScaleDim * 4;

  static constexpr int kOwnBarrier = 5;

  // 16-byte pieces of 4 tokens, of 32 tokens' right or left half; their scales.
  struct Quarter {
    uint4 codes[4];
    float scales[4];
  };
  // A warp's lanes take a half of two neighbouring tokens; a quarter is tokens 32 * quarter + 8 * i + 2 * warp + lane / 16.
  static WW_DEVICE int row(int quarter, int i) { return quarter * 32 + i * 8 + static_cast<int>(threadIdx.x) / 16; }
  static WW_DEVICE int rope_row(int i) { return i * 32 + static_cast<int>(threadIdx.x) / 4; }

  WW_DEVICE bool next_segment(MlaCursor& cursor, const SplitWork& work) {
    ptx::named_barrier_sync(kOwnBarrier, 128);
    if (threadIdx.x == 0 && !cursor.run.next(p_, work, cursor.segment)) cursor.segment.tile_end = -1;
    ptx::named_barrier_sync(kOwnBarrier, 128);
    page_row_ = cursor.segment.page_row;
    kv_len_ = cursor.segment.kv_len;
    first_ = cursor.segment.tile_begin * C::kTokens;
    left_ = cursor.segment.tile_end - cursor.segment.tile_begin;
    return cursor.segment.tile_end >= 0;
  }

  // The pages of a tile's tokens: one thread asks for one, and all read them from shared memory when they are there.
  WW_DEVICE void find_pages(int first) {
    const int token = first + static_cast<int>(threadIdx.x);
    if (threadIdx.x < C::kTokens && token < kv_len_) page_ = mla_page(p_, page_row_, token);
  }
  WW_DEVICE void put_pages() {
    pages_ = shared_.pages(pages_ == shared_.pages(0) ? 1 : 0);
    if (threadIdx.x < C::kTokens) ptx::store_shared_4(pages_ + threadIdx.x * 4, static_cast<ptx::u32>(page_));
    ptx::named_barrier_sync(kOwnBarrier, 128);
  }
  // Of the tile that begins at first_.
  WW_DEVICE const char* token_at(int row) const {
    return mla_token_of(p_, static_cast<int>(ptx::load_shared_4(pages_ + row * 4)), first_ + row);
  }

  WW_DEVICE void load(Quarter& x, int part, int quarter) const {
    const int piece = (part == kMlaRightPart ? 16 : 0) + threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first_ + row(quarter, i);
      x.codes[i] = make_uint4(0, 0, 0, 0);
      x.scales[i] = 0;
      if (token >= kv_len_) continue;
      const char* from = token_at(row(quarter, i));
      x.codes[i] = ptx::load_once_16(from + piece * 16);
      if constexpr (kScaled) x.scales[i] = *reinterpret_cast<const float*>(from + kMlaLatentDim + piece / 8 * 4);
    }
  }

  // Of 16-bit numbers, which need no registers; eight threads take a token's. The reader fences.
  WW_DEVICE void copy_rope() const {
    const int piece = threadIdx.x % 8;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const int row = i * 16 + static_cast<int>(threadIdx.x) / 8, token = first_ + row;
      const bool has = token < kv_len_;
      const char* from = has ? token_at(row) + kMlaLatentDim + kScaleBytes + piece * 16
                             : static_cast<const char*>(p_.kv);
      ptx::cp_async_16(shared_.tile(ring_.stage()) + 8 * C::kColumnBytes + row * 128 + (piece ^ row % 8) * 16, from,
                       has ? 16 : 0);
    }
    ptx::cp_async_mbarrier_arrive_noinc(shared_.full(ring_.stage(), kMlaRopePart));
  }

  // Pairs of `factor`, which a widened code is short of.
  static WW_DEVICE ptx::u32 factor_of(float scale) {
    const float factor = scale * __uint_as_float((Widen::kWidenedScaleLog2 + 127) << 23);
    return E::pack(factor, factor);
  }

  static WW_DEVICE void widen(ptx::u32 codes, ptx::u32 factor, ptx::u32& low, ptx::u32& high) {
    const ptx::u32 x = __byte_perm(codes, 0, 0x3120);  // the pairs that `widen` takes are neighbours then
    low = E::multiply(Widen::widen_low(x), factor);
    high = E::multiply(Widen::widen_high(x), factor);
  }

  // 16 codes to two 16-byte pieces of a token's row of 64 columns. Threads of odd column blocks store the second one
  // first, so that eight threads meet all banks.
  WW_DEVICE void store_codes(const uint4& codes, ptx::u32 factor, int row, int piece) const {
    ptx::u32 w[8];
    widen(codes.x, factor, w[0], w[1]);
    widen(codes.y, factor, w[2], w[3]);
    widen(codes.z, factor, w[4], w[5]);
    widen(codes.w, factor, w[6], w[7]);
    const ptx::u32 line = shared_.tile(ring_.stage()) + piece / 4 * C::kColumnBytes + row * 128;
    const bool swap = piece / 4 & 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = piece % 4 * 2 + (half ^ (swap ? 1 : 0));
      ptx::u32 x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = swap ? w[(1 - half) * 4 + i] : w[half * 4 + i];
      store_16(line + (unit ^ row % 8) * 16, x);
    }
  }
  static WW_DEVICE void store_16(ptx::u32 smem, const ptx::u32 (&w)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
  }

  WW_DEVICE void store(const Quarter& x, int part, int quarter) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_codes(x.codes[i], factor_of(kScaled ? x.scales[i] : 1.0f), row(quarter, i),
                  (part == kMlaRightPart ? 16 : 0) + static_cast<int>(threadIdx.x) % 16);
    }
  }

  WW_DEVICE void widen_rope() const {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      uint4 codes = make_uint4(0, 0, 0, 0);
      if (first_ + rope_row(i) < kv_len_) {
        codes = ptx::load_once_16(token_at(rope_row(i)) + kMlaLatentDim + threadIdx.x % 4 * 16);
      }
      store_codes(codes, factor_of(1.0f), rope_row(i), 32 + static_cast<int>(threadIdx.x) % 4);
    }
  }

  WW_DEVICE void wait_empty(int part) const {
    ptx::mbarrier_wait(shared_.empty(ring_.stage(), part), ring_.phase() ^ 1);
  }
  WW_DEVICE void publish(int part) const {
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(shared_.full(ring_.stage(), part));
  }

  const MlaParams& p_;
  const Sm90MlaShared<C>& shared_;
  MlaRing ring_;
  int page_row_ = 0, kv_len_ = 0, first_ = 0;  // `first_`: the tile's first token
  int left_ = 0;                              // tiles of the segment
  int32_t page_ = 0;                          // on its way
  ptx::u32 pages_ = 0;                        // of the tile's tokens, in shared memory
};

}  // namespace warpweave::cuda
