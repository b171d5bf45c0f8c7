// The copying warpgroups of the Hopper MLA kernel (sm90_mla.cuh), for pools of codes: they are widened to the 16-bit
// numbers that the tensor cores multiply on their way through registers.
//
// An e4m3 code placed lower in the 16-bit format is its value times a power of two (kv_fragment.h); a product with
// 2^120 (bf16) or 2^8 (f16) times the token's scale, a power of two, makes it the value, exactly. e2m1 codes:
// mla_fp4.cuh.
#pragma once

#include <type_traits>

#include "attention/cuda/kv_fragment.h"
#include "attention/cuda/mla/sm90_mla_fp4_piece.cuh"
#include "attention/cuda/mla/sm90_mla_shared.cuh"

namespace warpweave::cuda {

// Two warpgroups. Four neighbouring lanes have a token of the tile, 16 codes of each block of 64 columns a lane; eight
// lanes store to all banks, for neighbouring rows differ in the swizzle's lowest bit. Two CTAs of a cluster widen half
// of the tokens each and send them to each other (kExchanges): eight lanes have a token, four of them every other
// block of 64 columns, whose 16-byte units they store in the other order. A lane's work is cut into pieces, two blocks
// that share a scale, and a piece is asked for kAhead pieces before it is stored. More pieces ahead are slower, but for
// e2m1 codes of pairs: a warp that waits for one load waits for all that it has asked for. Of e2m1 codes, a lane has
// its share of a piece's 128 columns in one load (Sm90MlaFp4Piece).
template <class C>
class Sm90MlaCodeProducer {
 public:
  // `thread`: 0 to kProducers - 1.
  WW_DEVICE Sm90MlaCodeProducer(const MlaParams& p, const Sm90MlaShared<C>& shared, int thread)
      : p_(p), shared_(shared), thread_(thread) {
    static_assert(C::kProducers == kLanes * Shared::kOwnTokens);
  }

  WW_DEVICE void run(const SplitWork& work) {
    MlaCursor& cursor = shared_.cursors[2];
    if (thread_ == 0) cursor.run.begin(work, blockIdx.x);
    while (next_segment(cursor, work)) {
      find_page();
      begin_tile(true);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) load(i);
      for (; left_ > 0; --left_) {
        put_rope();
        put_part<kMlaRightPart>();
        put_part<kMlaLeftPart>();
        ++ring_.count;
      }
    }
  }

 private:
  using E = typename C::Element;
  using Shared = Sm90MlaShared<C>;
  using Widen = KvFragment<E, KvStorage::e4m3>;
  static constexpr bool kScaled = mla_is_packed(C::kFormat), kFp4 = C::kFormat == MlaFormat::fp4;
  static constexpr int kRopeAt = mla_rope_at(C::kFormat);
  static constexpr int kOwnBarrier = 5;
  static constexpr int kRopeBlock = mla_first_column(kMlaRopePart);
  static constexpr int kPieces = kMlaLatentDim / kMlaScaleDim, kPartPieces = kPieces / 2;
  static constexpr int kAhead = kFp4 && C::kExchanges ? 3 : 2;
  static constexpr int kLanes = C::kExchanges ? 8 : 4;     // that have a token
  static constexpr int kPieceBlocks = 2 * 4 / kLanes;      // a lane's, of a piece's two

  struct Fp8Piece {
    uint4 codes[kPieceBlocks];
    float scale;
  };
  using Piece = std::conditional_t<kFp4, Sm90MlaFp4Piece<kLanes>, Fp8Piece>;
  // In the order in which they are stored: the right part's, then the left one's.
  static constexpr int block_of(int piece) {
    return mla_first_column(piece < kPartPieces ? kMlaRightPart : kMlaLeftPart) + piece % kPartPieces * 2;
  }

  WW_DEVICE bool next_segment(MlaCursor& cursor, const SplitWork& work) {
    ptx::named_barrier_sync(kOwnBarrier, C::kProducers);
    if (thread_ == 0 && !cursor.run.next(p_, work, cursor.segment)) cursor.segment.tile_end = -1;
    ptx::named_barrier_sync(kOwnBarrier, C::kProducers);
    page_row_ = cursor.segment.page_row;
    kv_len_ = cursor.segment.kv_len;
    settled_ = mla_settled_tokens(p_, cursor.segment);
    next_ = cursor.segment.tile_begin * C::kTokens;
    left_ = cursor.segment.tile_end - cursor.segment.tile_begin;
    return cursor.segment.tile_end >= 0;
  }

  WW_DEVICE int row() const { return Shared::first_own() + thread_ / kLanes; }
  // 1 where a lane has the second block of every piece.
  WW_DEVICE int second() const { return thread_ % kLanes / 4; }

  // Asks for the page of the next tile's token.
  WW_DEVICE void find_page() {
    if (next_ + row() < kv_len_) page_ = mla_page(p_, page_row_, next_ + row());
  }
  // Turns to the next tile. `exists`: the segment has one.
  WW_DEVICE void begin_tile(bool exists) {
    if (exists && next_ + C::kTokens > settled_) ptx::grid_dependency_wait();
    const int token = next_ + row();
    from_ = exists && token < kv_len_ ? mla_token_of(p_, page_, token) : nullptr;
    next_ += C::kTokens;
    find_page();
    if constexpr (!kScaled || C::kExchanges) load_rope();
  }

  // Of this lane's token; zeros past the last one.
  WW_DEVICE void load(int piece) {
    Piece& x = pieces_[piece];
    x = {};
    if (from_ == nullptr) return;
    if constexpr (kFp4) {
      x.load(from_, block_of(piece), thread_ % kLanes);
    } else {
#pragma unroll
      for (int i = 0; i < kPieceBlocks; ++i) {
        x.codes[i] = ptx::load_once_16(from_ + (block_of(piece) + i + second()) * 64 + thread_ % 4 * 16);
      }
      if constexpr (kScaled) x.scale = *reinterpret_cast<const float*>(from_ + kMlaLatentDim + block_of(piece) / 2 * 4);
    }
  }
  WW_DEVICE void load_rope() {
    rope_ = make_uint4(0, 0, 0, 0);
    if (from_ == nullptr) return;
    rope_ = ptx::load_once_16(from_ + kRopeAt + thread_ % (kScaled ? 8 : 4) * 16);
  }

  WW_DEVICE void put_rope() const {
    wait_empty(kMlaRopePart);
    if constexpr (kScaled && !C::kExchanges) {
      copy_rope();
    } else {
      if constexpr (kScaled) mla_store_16(line(kRopeBlock) + (thread_ % 8 ^ row() % 8) * 16, rope_);
      else if (second() == 0) store_codes(rope_, factor_of(1.0f), kRopeBlock);
      publish<kMlaRopePart>();
    }
  }

  // Of 16-bit numbers, which need no registers. The reader fences.
  WW_DEVICE void copy_rope() const {
    const bool has = from_ != nullptr;
    const char* from = has ? from_ + kRopeAt + thread_ % 4 * 32 : static_cast<const char*>(p_.kv);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::cp_async_16(line(kRopeBlock) + unit(half), has ? from + half * 16 : from, has ? 16 : 0);
    }
    ptx::cp_async_mbarrier_arrive_noinc(shared_.full(ring_, kMlaRopePart));
  }

  // The token's row of a block of 64 columns, and one of this lane's two 16-byte units in that row.
  WW_DEVICE ptx::u32 line(int block) const {
    const int part = block == kRopeBlock                           ? kMlaRopePart
                     : block >= mla_first_column(kMlaRightPart) ? kMlaRightPart
                                                                 : kMlaLeftPart;
    return shared_.part(ring_, part) + (block - mla_first_column(part)) * C::kColumnBytes + row() * 128;
  }
  WW_DEVICE int unit(int half) const { return ((thread_ % 4 * 2 + half) ^ row() % 8) * 16; }

  // Pairs of `factor`, which a widened code is short of.
  static WW_DEVICE ptx::u32 factor_of(float scale) {
    const float factor = scale * __uint_as_float((Widen::kWidenedScaleLog2 + 127) << 23);
    return E::pack(factor, factor);
  }

  // Stores a part, and asks for as much of what comes later.
  template <int kPart>
  WW_DEVICE void put_part() {
    constexpr int kFirst = kPart == kMlaRightPart ? 0 : kPartPieces;
    wait_empty(kPart);
#pragma unroll
    for (int piece = kFirst; piece < kFirst + kPartPieces; ++piece) {
      if (piece + kAhead == kPieces) begin_tile(left_ > 1);
      load((piece + kAhead) % kPieces);
      store(pieces_[piece], block_of(piece));
    }
    publish<kPart>();
  }

  WW_DEVICE void store(const Piece& x, int block) const {
    if constexpr (kFp4) {
      x.store(line(block), C::kColumnBytes, row() % 8, thread_ % kLanes);
    } else {
      const ptx::u32 factor = factor_of(kScaled ? x.scale : 1.0f);
#pragma unroll
      for (int i = 0; i < kPieceBlocks; ++i) store_codes(x.codes[i], factor, block + i + second());
    }
  }
  static WW_DEVICE void widen(ptx::u32 codes, ptx::u32 factor, ptx::u32& low, ptx::u32& high) {
    const ptx::u32 x =
        __byte_perm(codes, 0, 0x3120);  // the pairs that `widen_low` and `widen_high` take are neighbours then
    low = E::multiply(Widen::widen_low(x), factor);
    high = E::multiply(Widen::widen_high(x), factor);
  }
  WW_DEVICE void store_codes(const uint4& codes, ptx::u32 factor, int block) const {
    const bool swapped = C::kExchanges && second() == 1;
    store_16(line(block) + unit(swapped), swapped ? codes.z : codes.x, swapped ? codes.w : codes.y, factor);
    store_16(line(block) + unit(!swapped), swapped ? codes.x : codes.z, swapped ? codes.y : codes.w, factor);
  }
  static WW_DEVICE void store_16(ptx::u32 smem, ptx::u32 a, ptx::u32 b, ptx::u32 factor) {
    uint4 w;
    widen(a, factor, w.x, w.y);
    widen(b, factor, w.z, w.w);
    mla_store_16(smem, w);
  }

  WW_DEVICE void wait_empty(int part) const {
    ptx::mbarrier_wait(shared_.empty(ring_, part), ring_.phase() ^ 1);
  }
  template <int kPart>
  WW_DEVICE void publish() const {
    const ptx::u32 full = shared_.full(ring_, kPart);
    ptx::fence_proxy_async();
    if constexpr (!C::kExchanges) {
      ptx::mbarrier_arrive(full);
    } else {
      constexpr int kBytes = Shared::kOwnTokens * 128;
      ptx::named_barrier_sync(kOwnBarrier, C::kProducers);
      const int warp = thread_ / 32;
      if (thread_ % 32 != 0 || warp >= mla_columns(kPart)) return;
      if (warp == 0) ptx::mbarrier_arrive_expect_tx(full, mla_columns(kPart) * kBytes);
      Shared::send(shared_.part(ring_, kPart) + warp * C::kColumnBytes + Shared::first_own() * 128, full, kBytes);
    }
  }

  const MlaParams& p_;
  const Sm90MlaShared<C>& shared_;
  const int thread_;
  MlaRing ring_;
  int page_row_ = 0, kv_len_ = 0;
  int settled_ = 0;             // tokens that need no wait
  int next_ = 0;                // the next tile's first token
  int left_ = 0;                // tiles of the segment
  int32_t page_ = 0;            // of the next tile's token, on its way
  const char* from_ = nullptr;  // this lane's token of the tile that is asked for; null: past the last one
  uint4 rope_;                  // its rope codes, of e4m3, on their way
  Piece pieces_[kPieces];       // likewise
};

}  // namespace warpweave::cuda
