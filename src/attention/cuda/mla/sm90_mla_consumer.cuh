// The multiplying warpgroups of the Hopper MLA kernel (sm90_mla.cuh). A thread holds rows lane / 4 and lane / 4 + 8 of
// its warp's 16; warp w of either warpgroup has rows 16 w to 16 w + 15.
#pragma once

#include "attention/cuda/mla/mla_combine.cuh"
#include "attention/cuda/mla/sm90_mla_shared.cuh"
#include "attention/cuda/split_in_place.cuh"
#include "attention/cuda/wgmma_softmax.cuh"
#include "device/cuda/wgmma.h"

namespace warpweave::cuda {

// What both have: half of the columns of O, and its end.
template <class C>
class Sm90MlaHalf {
 protected:
  using E = typename C::Element;
  // With four warpgroups, a WGMMA over all 256 columns would take more registers than the launch gives a thread.
  static constexpr int kPvColumns = C::kProducers == 128 ? 256 : 128;
  using Pv = ptx::Wgmma<E, kPvColumns>;
  static constexpr int kOut = kMlaLatentDim / 4;    // registers of O
  static constexpr int kScores = C::kTokens / 2;    // of S
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr float kLn2 = 0.6931471805599453f;
  static constexpr int kMergedTiles = kOut / 4;     // of 8 columns
  // Named barriers.
  static constexpr int kProbabilityReady = 1, kProbabilityRead = 2, kOwn = kSm90MlaOwnBarrier;

  // `half`: 0 left, 1 right.
  WW_DEVICE Sm90MlaHalf(const MlaParams& p, const SplitWork& work, const Sm90MlaShared<C>& shared, int half)
      : p_(p), work_(work), shared_(shared), cursor_(shared.cursors[half]), half_(half) {
    if (thread() != 0) return;
    cursor_.run.begin(work, blockIdx.x);
    if constexpr (C::kMerges) cuts().begin(work, blockIdx.x);
  }

  // The next segment, into the cursor; its tiles, none: there is no more.
  WW_DEVICE bool next_segment() {
    ptx::named_barrier_sync(kOwn + half_, 128);  // all are done with the last one
    if (thread() == 0 && !cursor_.run.current_rows(p_, cursor_.segment)) cursor_.segment.tile_end = -1;
    ptx::named_barrier_sync(kOwn + half_, 128);
    tile_ = cursor_.segment.tile_begin;
    tile_end_ = cursor_.segment.tile_end;
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] = 0;
    out_begun_ = false;
    return tile_end_ >= 0;
  }
  // After next_segment, and before the next one.
  WW_DEVICE void advance() {
    if (thread() != 0) return;
    if constexpr (C::kMerges) {
      const SplitSegment& segment = cursor_.segment;
      if (!segment.whole()) cuts().add(segment, blockIdx.x, work_.lockstep, rows());
    }
    cursor_.run.advance(p_, work_);
  }
  // Of the segment: how many it has, at most kRows.
  WW_DEVICE int rows() const { return rows(cursor_.segment); }
  WW_DEVICE int rows(const SplitSegment& s) const {
    return min(C::kRows, s.q_len * p_.num_heads - s.unit * C::kRows);
  }

  static WW_DEVICE int thread() { return static_cast<int>(threadIdx.x) % 128; }
  static WW_DEVICE int warp_row() { return thread() / 32 * 16; }
  static WW_DEVICE int row_of(int i) { return warp_row() + static_cast<int>(threadIdx.x) % 32 / 4 + i * 8; }

  WW_DEVICE void wait_full(MlaRing ring, int part) const {
    ptx::mbarrier_wait(shared_.full(ring, part), ring.phase());
    // What threads have copied is not seen by the tensor cores without a fence.
    constexpr bool kCopied = C::kFormat == MlaFormat::same16 ? !C::kBoxes : mla_is_packed(C::kFormat);
    constexpr bool kWhole = C::kFormat == MlaFormat::same16;
    if (kCopied && !C::kExchanges && (kWhole || part == kMlaRopePart)) ptx::fence_proxy_async();
  }
  WW_DEVICE void release(MlaRing ring, int part) const {
    if (threadIdx.x % 32 != 0) return;
    const ptx::u32 barrier = shared_.empty(ring, part);
    if constexpr (C::kPaired) {
      ptx::mbarrier_arrive_at(barrier, 0);
      ptx::mbarrier_arrive_at(barrier, 1);
    } else {
      ptx::mbarrier_arrive(barrier);
    }
  }

  // This half of the tile.
  WW_DEVICE ptx::u32 values() const { return shared_.part(ring_, half_ == 0 ? kMlaLeftPart : kMlaRightPart); }

  // Zeroes this half of the rows past the last token: NaN there would survive a zero probability. S of the tile is
  // done.
  WW_DEVICE void clear_tail() const {
    if constexpr (!C::kBoxes) return;  // zeros were copied
    if (tile_ < tile_end_ - 1) return;
    const int first = cursor_.segment.kv_len - tile_ * C::kTokens;
    if (first >= C::kTokens) return;
    const ptx::u32 v = values();
    for (int i = max(first, 0) * 8 + thread(); i < C::kTokens * 8; i += 128) {
#pragma unroll
      for (int c = 0; c < 4; ++c) ptx::clear_shared_16(v + c * C::kColumnBytes + i * 16);
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kOwn + half_, 128);
  }

  // O of the tiles before this one, if there are any.
  WW_DEVICE void rescale(const float (&factor)[2]) {
    if (!out_begun_) return;
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] *= factor[i / 2 % 2];
  }

  WW_DEVICE void multiply_pv(const ptx::u32 (&probability)[4][4]) {
    const ptx::u32 v = uniform(ptx::wgmma_descriptor(values(), C::kColumnBytes));
#pragma unroll
    for (int step = 0; step < C::kTokens / 16; ++step) {
#pragma unroll
      for (int column = 0; column < kMlaLatentDim / 2; column += kPvColumns) {
        auto& out = reinterpret_cast<float (&)[kPvColumns / 2]>(out_[column / 2]);
        Pv::pv(out, probability[step], ptx::wgmma_advance(v, step * 16 * 128 + column / 64 * C::kColumnBytes), 1);
      }
    }
    out_begun_ = true;
  }

  // `scale`: of this thread's rows; of pieces, none.
  WW_DEVICE void write(const float (&scale)[2]) const {
    const SplitSegment segment = cursor_.segment;
    const int count = rows();
    if (warp_row() >= count) return;
    if (segment.whole()) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = segment.unit * C::kRows + row_of(i), query = row / p_.num_heads;
        char* out = static_cast<char*>(p_.out) +
                    ((static_cast<int64_t>(segment.q_begin) + query) * p_.out_token_stride +
                     (row - query * p_.num_heads) * p_.out_head_stride + half_ * (kMlaLatentDim / 2)) * 2;
        store_row<E>(out_, i, scale[i], out, row_of(i) < count);
      }
      return;
    }
    float4* piece = split_piece<kMlaLatentDim>(work_, segment.slot(blockIdx.x), warp_row() / 16, half_ * (kOut / 4)) +
                    threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kOut / 4; ++i) {
      __stcg(piece + i * 32, make_float4(out_[i * 4], out_[i * 4 + 1], out_[i * 4 + 2], out_[i * 4 + 3]));
    }
  }

  // Behind write(): tells that this half of a cut unit's piece is there, and merges it if the CTA that is last does.
  WW_DEVICE void arrive() {
    if (cursor_.segment.whole()) return;
    ptx::named_barrier_sync(kOwn + half_, 128);  // all have written
    const SplitCutUnit& unit = cuts().units[cuts().count - 1];
    if constexpr (C::kShares) {
      if (thread() == 0) ptx::reduce_add_release(unit.arrivals(work_, half_), 1);
      return;
    }
    if (thread() == 0) {
      const bool last = arrives_last(unit.arrivals(work_, half_), unit.cut.pieces);
      ptx::store_shared_8(shared_.flag(half_), last ? 1u : 0u, 0u);
    }
    ptx::named_barrier_sync(kOwn + half_, 128);
    if (ptx::load_shared_8(shared_.flag(half_)).x == 0) return;
    constexpr int kTilesAtOnce = 8;  // of 8 columns, a warp's
    const int blocks = (rows() + 15) / 16;
    const MlaRows<E> out(p_, work_);
    for (int i = thread() / 32; i < blocks * (kMergedTiles / kTilesAtOnce); i += 4) {
      merge_in_place<kTilesAtOnce>(work_, out, {unit.cut, unit.pieces(work_.lockstep), i % blocks,
                                                half_ * kMergedTiles + i / blocks * kTilesAtOnce});
    }
  }
  WW_DEVICE SplitCuts& cuts() const { return shared_.cuts[half_]; }

  const MlaParams& p_;
  const SplitWork& work_;
  const Sm90MlaShared<C>& shared_;
  MlaCursor& cursor_;
  const int half_;
  int tile_ = 0, tile_end_ = 0;  // of the segment
  MlaRing ring_;                 // where tile_ stands
  bool out_begun_ = false;       // out_ has sums of the segment
  float out_[kOut];
};

// Multiplies S, finds P, multiplies it with the left columns and hands it to the other warpgroup.
template <class C>
class Sm90MlaLeader : Sm90MlaHalf<C> {
 public:
  WW_DEVICE Sm90MlaLeader(const MlaParams& p, const SplitWork& work, const Sm90MlaShared<C>& shared)
      : Base(p, work, shared, 0), scale_log2_(p.scale * mla_kv_scale<C::kFormat>(p) * Base::kLog2e),
        threshold_(C::kRescaleThreshold / scale_log2_) {}

  WW_DEVICE void run() {
    float s[kScores];
    ptx::u32 probability[4][4];
    if (!C::kMerges && thread() == 0 && cursor_.run.left <= 0) {
      ptx::grid_dependency_wait();
      work_.cuts[blockIdx.x] = {};
    }
    while (this->next_segment()) {
      await_queries();
      softmax_.begin();
      if constexpr (C::kScoresAhead) run_ahead(s, probability); else run_in_turn(s, probability);
      finish_rows();
    }
    if constexpr (C::kShares) await_reader();  // the other one is done with the last tile
  }

 private:
  using Base = Sm90MlaHalf<C>;
  using typename Base::E;
  using Qk = ptx::Wgmma<E, C::kTokens>;
  using Base::cursor_, Base::kScores, Base::out_, Base::p_, Base::ring_, Base::row_of, Base::rows, Base::shared_,
      Base::thread, Base::tile_, Base::tile_end_, Base::work_;

  // A tile that is done with before the next one's S begins makes room early for the one after the next.
  WW_DEVICE void run_in_turn(float (&s)[kScores], ptx::u32 (&probability)[4][4]) {
    bool first = true;
    while (tile_ < tile_end_) {
      multiply_qk(s, ring_);
      if (C::kQueriesAhead && first) this->advance();
      first = false;
      ptx::wgmma_wait<0>();
      fence_registers(s);
      this->release(ring_, kMlaRopePart);
      find_probabilities(tile_, s);
      pack_probabilities<E>(s, probability);
      hand_over(probability);
      start_out(probability);
      if (C::kQueriesAhead && tile_ == tile_end_ - 1) ask_for_next_queries();
      finish_out();
    }
  }

  // S of the next tile before O of this one, whose WGMMAs run while the softmax is computed.
  WW_DEVICE void run_ahead(float (&s)[kScores], ptx::u32 (&probability)[4][4]) {
    multiply_qk(s, ring_);
    ptx::wgmma_wait<0>();
    fence_registers(s);
    this->release(ring_, kMlaRopePart);
    find_probabilities(tile_, s);
    pack_probabilities<E>(s, probability);
    while (tile_ < tile_end_ - 1) {
      hand_over(probability);
      multiply_qk(s, {ring_.count + 1});
      start_out(probability);
      ptx::wgmma_wait<1>();
      fence_registers(s);
      this->release({ring_.count + 1}, kMlaRopePart);
      find_probabilities(tile_ + 1, s);
      finish_out();
      pack_probabilities<E>(s, probability);
    }
    hand_over(probability);
    start_out(probability);
    finish_out();
  }

  // Of the next segment, while the last tile of this one is multiplied: its S is there, so the queries' memory is free.
  WW_DEVICE void ask_for_next_queries() {
    ptx::named_barrier_sync(Base::kOwn, 128);  // all have S, and advance() has been
    SplitSegment next;
    if (cursor_.run.current_rows(p_, next)) ask_for_queries(next);
  }
  // Eight threads take 128 bytes of a row; rows that the request does not have are zeros.
  WW_DEVICE void ask_for_queries(const SplitSegment& segment) const {
    const int piece = thread() % 8, count = this->rows(segment);
#pragma unroll 1
    for (int i = 0; i < C::kRows / 16; ++i) {
      const int local = i * 16 + thread() / 8, row = segment.unit * C::kRows + local, query = row / p_.num_heads;
      const bool has = local < count;
      const char* from = static_cast<const char*>(p_.q);
      if (has) {
        from += ((static_cast<int64_t>(segment.q_begin) + query) * p_.q_token_stride +
                 (row - query * p_.num_heads) * p_.q_head_stride) * 2 + piece * 16;
      }
      const ptx::u32 target = shared_.q + local * 128 + (piece ^ local % 8) * 16;
#pragma unroll
      for (int c = 0; c < C::kColumnBlocks; ++c) {
        ptx::cp_async_16(target + c * C::kColumnBytes, has ? from + c * 128 : from, has ? 16 : 0);
      }
    }
    ptx::cp_async_commit();
  }
  WW_DEVICE void await_queries() {
    if (!C::kQueriesAhead || !asked_) {
      ptx::grid_dependency_wait();
      ask_for_queries(cursor_.segment);
      asked_ = true;
      if constexpr (!C::kQueriesAhead) this->advance();
    }
    ptx::cp_async_wait<0>();
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(Base::kOwn, 128);
  }

  // S of the tile at `ring`; in the order in which its parts arrive.
  WW_DEVICE void multiply_qk(float (&s)[kScores], MlaRing ring) const {
    const ptx::u32 q = uniform(ptx::wgmma_descriptor(shared_.q, 16));
#pragma unroll
    for (int part = 0; part < kMlaParts; ++part) {
      const ptx::u32 k = uniform(ptx::wgmma_descriptor(shared_.part(ring, part), 16));
      this->wait_full(ring, part);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < mla_columns(part) * 4; ++step) {
        const int block = mla_first_column(part) + step / 4, in_block = step % 4 * 32;
        Qk::qk(s, ptx::wgmma_advance(q, block * C::kColumnBytes + in_block),
               ptx::wgmma_advance(k, step / 4 * C::kColumnBytes + in_block), part + step > 0);
      }
    }
    ptx::wgmma_commit();
  }

  // O of the tile.
  WW_DEVICE void start_out(const ptx::u32 (&probability)[4][4]) {
    if (softmax_.moved) this->rescale(softmax_.factor);
    this->clear_tail();
    ptx::wgmma_fence();
    this->multiply_pv(probability);
    ptx::wgmma_commit();
  }
  WW_DEVICE void finish_out() {
    ptx::wgmma_wait<0>();
    fence_registers(out_);
    this->release(ring_, kMlaLeftPart);
    ++ring_.count;
    ++tile_;
  }

  // By bits, 32 tokens at a time: this code runs at a request's end, when its instructions have to be fetched.
  WW_DEVICE void mask(int tile, float (&s)[kScores]) const {
    const SplitSegment& segment = cursor_.segment;
    const int begin = tile * C::kTokens;
    if (begin + C::kTokens <= segment.kv_len - segment.q_len) return;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      // Rows that the request does not have see what its last one does.
      const int query = segment.q_len > 1 ? (segment.unit * C::kRows + row_of(row)) / p_.num_heads : 0;
      const MlaSight sight(p_, segment, max(min(query, segment.q_len - 1), 0));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t seen = sight.bits(begin + half * 32) >> threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < kScores / 4; ++i) {
          if ((seen >> (i / 2 * 8 + i % 2) & 1) == 0) s[half * (kScores / 2) + i / 2 * 4 + row * 2 + i % 2] = -INFINITY;
        }
      }
    }
  }

  WW_DEVICE void find_probabilities(int tile, float (&s)[kScores]) {
    mask(tile, s);
    softmax_.turn_into_probabilities(s, scale_log2_, threshold_);
  }

  // A thread of the other warpgroup reads what this one writes: they have the same rows.
  WW_DEVICE void hand_over(const ptx::u32 (&probability)[4][4]) {
    await_reader();
    const ptx::u32 to = shared_.probability + thread() * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(to + i * 2048), "r"(probability[i][0]),
                   "r"(probability[i][1]), "r"(probability[i][2]), "r"(probability[i][3]) : "memory");
    }
    ptx::store_shared_8(shared_.factors + thread() * 8, softmax_.moved ? softmax_.factor[0] : 1.0f,
                        softmax_.moved ? softmax_.factor[1] : 1.0f);
    ptx::named_barrier_arrive(Base::kProbabilityReady, 256);
  }
  WW_DEVICE void await_reader() {
    if (handed_over_) ptx::named_barrier_sync(Base::kProbabilityRead, 256);
    handed_over_ = true;
  }

  // The sums, to the other warpgroup and where they belong; writes.
  WW_DEVICE void finish_rows() {
    const SplitSegment segment = cursor_.segment;
    const int count = rows();
    if (!C::kMerges && thread() == 0) note_cut(work_, blockIdx.x, segment);
    float scale[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = softmax_.sum[row];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const bool empty = softmax_.maximum[row] == RowSoftmax::kNone;
      const float top = empty ? -INFINITY : softmax_.maximum[row] * scale_log2_;
      scale[row] = empty ? 0.0f : __fdividef(mla_kv_scale<C::kFormat>(p_), sum);
      if (threadIdx.x % 4 != 0 || row_of(row) >= count) continue;
      if (!segment.whole()) {
        const int64_t at = static_cast<int64_t>(segment.slot(blockIdx.x)) * C::kRows + row_of(row);
        __stcg(reinterpret_cast<float2*>(work_.partial_max_sum) + at, make_float2(top, empty ? 0.0f : sum));
      } else if (p_.lse != nullptr) {
        const int global = segment.unit * C::kRows + row_of(row), query = global / p_.num_heads;
        p_.lse[(static_cast<int64_t>(segment.q_begin) + query) * p_.num_heads + global - query * p_.num_heads] =
            empty ? -INFINITY : (top + ptx::log2_approx(sum)) * Base::kLn2;
      }
    }
    await_reader();
    ptx::store_shared_8(shared_.factors + thread() * 8, scale[0], scale[1]);
    ptx::named_barrier_arrive(Base::kProbabilityReady, 256);
    this->write(scale);
    if constexpr (C::kMerges) this->arrive();
  }

  const float scale_log2_;
  const float threshold_;  // in units of S
  RowSoftmax softmax_;
  bool asked_ = false;  // for a segment's queries
  bool handed_over_ = false;
};

// Multiplies P, which the other warpgroup finds, with the right columns.
template <class C>
class Sm90MlaFollower : Sm90MlaHalf<C> {
 public:
  WW_DEVICE Sm90MlaFollower(const MlaParams& p, const SplitWork& work, const Sm90MlaShared<C>& shared)
      : Base(p, work, shared, 1) {}

  WW_DEVICE void run() {
    ptx::grid_dependency_wait();
    while (this->next_segment()) {
      this->advance();
      for (; tile_ < tile_end_; ++tile_) {
        ptx::u32 probability[4][4];
        float factor[2];
        receive(probability, factor);
        if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) this->rescale(factor);
        this->wait_full(ring_, kMlaRightPart);
        this->clear_tail();
        ptx::wgmma_fence();
        this->multiply_pv(probability);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        fence_registers(out_);
        this->release(ring_, kMlaRightPart);
        ++ring_.count;
      }
      float scale[2];
      ptx::named_barrier_sync(Base::kProbabilityReady, 256);
      read_factors(scale);
      ptx::named_barrier_arrive(Base::kProbabilityRead, 256);
      this->write(scale);
      if constexpr (C::kMerges) this->arrive();
    }
  }

 private:
  using Base = Sm90MlaHalf<C>;
  using Base::out_, Base::ring_, Base::shared_, Base::thread, Base::tile_, Base::tile_end_;

  WW_DEVICE void read_factors(float (&factor)[2]) const {
    const uint2 x = ptx::load_shared_8(shared_.factors + thread() * 8);
    factor[0] = __uint_as_float(x.x);
    factor[1] = __uint_as_float(x.y);
  }
  WW_DEVICE void receive(ptx::u32 (&probability)[4][4], float (&factor)[2]) const {
    ptx::named_barrier_sync(Base::kProbabilityReady, 256);
    const ptx::u32 from = shared_.probability + thread() * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::load_shared_16(probability[i], from + i * 2048);
    read_factors(factor);
    ptx::named_barrier_arrive(Base::kProbabilityRead, 256);
  }
};

// Behind its last segment, a multiplying warpgroup merges the CTA's shares of its half of the units that the CTA cuts.
// One copy of the code for both. In the memory of Q and of the tiles, which nobody uses any more.
template <class C>
WW_DEVICE void sm90_mla_merge(const MlaParams& p, const SplitWork& work, const Sm90MlaShared<C>& shared, int half) {
  constexpr int kTiles = kMlaLatentDim / 8 / 2;
  static_assert(MergeMemory::kTileBytes <= C::kTileBytes && 2 * MergeMemory::kTotalsBytes <= C::kTileBytes);
  const MergeMemory memory = {shared.kv + half * C::kTileBytes, shared.q + half * MergeMemory::kTotalsBytes,
                              shared.factors + half * MergeMemory::kRows * 8};
  const MlaRows<typename C::Element> rows(p, work);
  const SplitMerge<kTiles, MlaRows<typename C::Element>> merge(work, rows, memory, kSm90MlaOwnBarrier + half);
  const SplitCuts& cuts = shared.cuts[half];
#pragma unroll 1
  for (int i = 0; i < cuts.count; ++i) {
    const SplitCutUnit unit = cuts.units[i];
    merge.await(unit.arrivals(work, half), unit.cut.pieces);
    merge.run(unit, half * kTiles);
  }
}

}  // namespace warpweave::cuda
