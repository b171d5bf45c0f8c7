// A multiplying warpgroup of the Hopper kernel for short requests (sm90_short.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_short_merge.cuh"
#include "attention/cuda/wgmma_softmax.cuh"
#include "device/cuda/wgmma.h"

namespace warpweave::cuda {

// Bits of 32 tokens from `first` on that stand in [begin, end).
WW_DEVICE uint32_t bits_of_range(int first, int begin, int end) {
  const int low = max(begin - first, 0), high = min(end - first, 32);
  return high > low ? ~0u >> (32 - (high - low)) << low : 0;
}

// What a row of a request sees: tokens from `begin` to `end`, and of the new tokens, where there is a tree mask, those
// it names.
struct ShortSight {
  int begin = 0, end = 0;
  int tree_begin = 0, tree_words = 0, kv_len = 0;
  const uint32_t* tree = nullptr;

  WW_DEVICE ShortSight(const AttentionParams& p, const SplitSegment& s, int query) {
    const int64_t token = static_cast<int64_t>(s.q_begin) + query;
    int position = s.kv_len - s.q_len + query;
    end = p.causal && p.tree_mask == nullptr ? position + 1 : s.kv_len;
    if (p.tree_mask != nullptr) {
      end = tree_begin = s.kv_len - s.q_len;
      kv_len = s.kv_len;
      tree = p.tree_mask + token * p.tree_mask_words;
      tree_words = p.tree_mask_words;
      if (p.window_left >= 0) position = p.positions[token];
    }
    begin = p.window_left < 0 ? 0 : max(0, position - p.window_left);
  }
  // Of 32 tokens from `first` on, a bit each.
  WW_DEVICE uint32_t seen(int first) const {
    uint32_t bits = bits_of_range(first, begin, end);
    const int node = first - tree_begin;
    if (tree != nullptr && node > -32) {
      const int word = node >> 5;
      const uint32_t nodes = __funnelshift_r(tree_word(word), tree_word(word + 1), node & 31);
      bits |= nodes & bits_of_range(first, tree_begin, kv_len);  // bits past the request's rows say nothing
    }
    return bits;
  }

 private:
  WW_DEVICE uint32_t tree_word(int word) const { return word >= 0 && word < tree_words ? __ldg(tree + word) : 0; }
};

// 64 rows. A thread holds rows lane / 4 and lane / 4 + 8 of its warp's 16.
template <class C>
class Sm90ShortConsumer {
 public:
  WW_DEVICE Sm90ShortConsumer(const ShortCall& call, const Sm90ShortShared<C>& shared, int group)
      : p_(call.p), work_(call.work), launch_(call.launch), shared_(shared), cursor_(shared.cursors[group]),
        group_(group), scale_log2_(p_.softcap > 0 ? kLog2e : p_.scale * kLog2e),
        threshold_(__fdividef(C::kRescaleThreshold, scale_log2_)) {
    if (thread() == 0) cursor_.run.begin(work_, blockIdx.x);
  }

  WW_DEVICE void run() {
    while (next_segment()) {
      const ShortUnit<C> unit(launch_, cursor_.segment.unit, cursor_.segment.q_len);
      ptx::grid_dependency_wait();
      const int rows = min(64, unit.rows - group_ * 64);
      if (rows > 0) {
        attend(unit);
      } else {
        advance();
        if (unit.has_copies) pass();
      }
    }
    ptx::grid_dependency_wait();  // also without a segment: the end of this kernel says that of the one before
    merge_pieces();
  }

 private:
  using E = typename C::Element;
  using Qk = ptx::Wgmma<E, C::kTokens>;
  using Pv = ptx::Wgmma<E, C::kDim>;
  static constexpr int kOut = C::kDim / 2;        // registers of O
  static constexpr int kScores = C::kTokens / 2;  // of S
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr float kLn2 = 0.6931471805599453f;
  using Ring = Sm90ShortRing<C>;

  static WW_DEVICE int thread() { return static_cast<int>(threadIdx.x) % 128; }
  WW_DEVICE void meet() const { ptx::named_barrier_sync(1 + group_, 128); }
  // Of the unit.
  WW_DEVICE int row_of(int i) const { return group_ * 64 + thread() / 32 * 16 + thread() % 32 / 4 + i * 8; }

  // The next segment, into the cursor; false: there is no more.
  WW_DEVICE bool next_segment() {
    meet();  // all are done with the last one
    if (thread() == 0 && !cursor_.run.current(p_, cursor_.segment)) cursor_.segment.tile_end = -1;
    meet();
    tile_ = cursor_.segment.tile_begin;
    tile_end_ = cursor_.segment.tile_end;
    first_token_ = split_first_token(p_, cursor_.segment.kv_len, cursor_.segment.q_len, C::kTokens);
    return tile_end_ >= 0;
  }
  // After next_segment, and before the next one.
  WW_DEVICE void advance() {
    if (thread() == 0) cursor_.run.advance(p_, work_);
  }

  // Of units that are cut, each worker that has a piece merges its share of the rows once all pieces are there. All
  // workers run at once, so that none waits for one that does not.
  WW_DEVICE void merge_pieces() const {
    const DecodeWorker& run = work_.workers[blockIdx.x];
    if (run.num_tiles == 0) return;
    const ShortMerge<C> merge({p_, work_, launch_}, group_);
    const SplitSegment& last = cursor_.segment;  // but for its tile_end
    const int own = static_cast<int>(blockIdx.x);
    const bool has_first = run.tile > 0, has_last = last.tile_begin == 0 && run.last_pair_end > own;
#pragma unroll 1
    for (int turn = has_first ? 0 : 1; turn < (has_last ? 2 : 1); ++turn) {
      typename ShortMerge<C>::Cut cut = {run.q_begin, run.q_len, run.head, run.first_pair_begin, run.first_pair_end};
      if (turn == 1) cut = {last.q_begin, last.q_len, last.unit, own, run.last_pair_end};
      merge.run(cut);
    }
  }

  WW_DEVICE void wait_full(const Ring& ring, int part) const {
    ptx::mbarrier_wait(shared_.full(ring.stage, part), ring.phase);
    if constexpr (!C::kBoxes) ptx::fence_proxy_async();  // else the tensor cores do not see what threads have copied
  }
  WW_DEVICE void release(const Ring& ring, int part) const {
    const ptx::u32 empty = shared_.empty(ring.stage, part);
    if constexpr (C::kPaired) {
      if (threadIdx.x % 32 < 2) ptx::mbarrier_arrive_at(empty, threadIdx.x % 32);
    } else {
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
    }
  }

  // A segment of which this warpgroup has no rows.
  WW_DEVICE void pass() {
    for (; tile_ < tile_end_; ++tile_) {
      ptx::mbarrier_wait(shared_.full(ring_.stage, kShortKeys), ring_.phase);
      release(ring_, kShortKeys);
      ptx::mbarrier_wait(shared_.full(ring_.stage, kShortValues), ring_.phase);
      release(ring_, kShortValues);
      ring_.advance();
    }
  }

  // S of the next tile is multiplied before O of this one, so that its softmax overlaps O's WGMMAs. The first turn,
  // which has no O, multiplies some for nothing: code of its own would be fetched, in a served step, to run once.
  WW_DEVICE void attend(const ShortUnit<C>& unit) {
    float s[kScores];
    ptx::u32 probability[C::kTokens / 16][4];
    load_queries(unit);
    softmax_.begin();
    Ring keys = ring_;
    int turn = 0;
    const int turns = tile_end_ - tile_;
#pragma unroll 1
    do {
      asm volatile("" : "+r"(turn));  // the first turn is no copy of the code
      multiply_qk(s, keys);
      if (turn > 0) wait_full(ring_, kShortValues);
      start_out(probability, turn);
      ptx::wgmma_wait<1>();
      fence_registers(s);
      release(keys, kShortKeys);
      keys.advance();
      find_probabilities(unit, tile_ + (turn > 0 ? 1 : 0), s);
      ptx::wgmma_wait<0>();
      fence_registers(out_);
      if (turn > 0) {
        leave_tile();
        if (softmax_.moved) rescale();
      }
      pack_probabilities<E>(s, probability);
    } while (++turn < turns);
    wait_full(ring_, kShortValues);
    clear_tail();
    start_out(probability, turns);
    ptx::wgmma_wait<0>();
    fence_registers(out_);
    leave_tile();
    finish_rows(unit);
  }

  // Eight threads take 128 bytes of a row; rows that the unit does not have are zeros.
  WW_DEVICE void load_queries(const ShortUnit<C>& unit) {
    const SplitSegment& segment = cursor_.segment;
    const int piece = thread() % 8;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const int local = i * 16 + thread() / 8, in_unit = group_ * 64 + local, row = unit.first_row + in_unit;
      const int query = launch_.group.divide(row);
      const bool has = in_unit < unit.rows;
      const char* from = static_cast<const char*>(p_.q);
      if (has) {
        from += ((static_cast<int64_t>(segment.q_begin) + query) * p_.q_token_stride +
                 static_cast<int64_t>(unit.kv_head * p_.group + row - query * p_.group) * C::kDim) * 2 + piece * 16;
      }
      const ptx::u32 target = shared_.query(group_) + local * 128 + (piece ^ local % 8) * 16;
#pragma unroll
      for (int c = 0; c < C::kColumnBlocks; ++c) {
        ptx::cp_async_16(target + c * C::kQueryColumnBytes, has ? from + c * 128 : from, has ? 16 : 0);
      }
    }
    ptx::cp_async_commit();
    advance();
    ptx::cp_async_wait<0>();
    ptx::fence_proxy_async();
    meet();
  }

  WW_DEVICE void multiply_qk(float (&s)[kScores], const Ring& ring) const {
    wait_full(ring, kShortKeys);
    const ptx::u32 q = uniform(ptx::wgmma_descriptor(shared_.query(group_), 16));
    const ptx::u32 k = uniform(ptx::wgmma_descriptor(shared_.tile(ring.stage, kShortKeys), 16));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::kDim / 16; ++step) {
      const int column = step / 4, within = step % 4 * 32;
      Qk::qk(s, ptx::wgmma_advance(q, column * C::kQueryColumnBytes + within),
             ptx::wgmma_advance(k, column * C::kColumnBytes + within), step > 0);
    }
    ptx::wgmma_commit();
  }

  // O of the tile: of the segment's first, in turn 1, without what the registers hold.
  WW_DEVICE void start_out(const ptx::u32 (&probability)[C::kTokens / 16][4], int turn) {
    const ptx::u32 v = uniform(ptx::wgmma_descriptor(shared_.tile(ring_.stage, kShortValues), C::kColumnBytes));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::kTokens / 16; ++step) {
      Pv::pv(out_, probability[step], ptx::wgmma_advance(v, step * 16 * 128), step > 0 || turn > 1);
    }
    ptx::wgmma_commit();
  }
  WW_DEVICE void leave_tile() {
    release(ring_, kShortValues);
    ring_.advance();
    ++tile_;
  }
  WW_DEVICE void rescale() {
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] *= softmax_.factor[i / 2 % 2];
  }

  // Zeroes V's rows past the last token, of the segment's last tile: NaN there would survive a zero probability. Both
  // warpgroups write the same zeros, each before its own WGMMA.
  WW_DEVICE void clear_tail() const {
    if constexpr (!C::kBoxes) return;  // zeros were copied
    const int first = cursor_.segment.kv_len - first_token_ - tile_ * C::kTokens;
    if (first >= C::kTokens) return;
    const ptx::u32 v = shared_.tile(ring_.stage, kShortValues);
    for (int i = max(first, 0) * 8 + thread(); i < C::kTokens * 8; i += 128) {
#pragma unroll
      for (int c = 0; c < C::kColumnBlocks; ++c) ptx::clear_shared_16(v + c * C::kColumnBytes + i * 16);
    }
    ptx::fence_proxy_async();
    meet();
  }

  // Most tiles are seen whole by all 64 rows.
  WW_DEVICE bool seen_whole(const ShortUnit<C>& unit, int begin) const {
    const SplitSegment& s = cursor_.segment;
    const int first_query = launch_.group.divide(unit.first_row + group_ * 64);
    const int first = s.kv_len - s.q_len + (p_.tree_mask != nullptr ? -1 : first_query);  // position of what sees least
    const int end = p_.causal || p_.tree_mask != nullptr ? first + 1 : s.kv_len;
    const int last = p_.tree_mask != nullptr
                         ? s.kv_len
                         : min(s.kv_len - s.q_len + launch_.group.divide(unit.first_row + group_ * 64 + 63),
                               s.kv_len - 1);
    return begin + C::kTokens <= end && (p_.window_left < 0 || begin >= last - p_.window_left);
  }

  WW_DEVICE void mask(const ShortUnit<C>& unit, int tile, float (&s)[kScores]) const {
    if (p_.softcap > 0) {
      const float inner = __fdividef(p_.scale, p_.softcap);
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = p_.softcap * ptx::tanh_approx(s[i] * inner);
    }
    const SplitSegment& segment = cursor_.segment;
    const int begin = first_token_ + tile * C::kTokens;
    if (seen_whole(unit, begin)) return;
    // Of the words of 32 tokens that four lanes need of their two rows each finds a fourth.
    constexpr int kWords = C::kTokens / 32;
    const int lane = static_cast<int>(threadIdx.x) % 4;
    uint32_t found[kWords / 2];
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) {
      const int own = i * 4 + lane;
      // Rows that the request does not have see what its last one does.
      const int query = launch_.group.divide(unit.first_row + row_of(own / kWords));
      const ShortSight sight(p_, segment, max(min(query, segment.q_len - 1), 0));
      found[i] = sight.seen(begin + own % kWords * 32);
    }
#pragma unroll
    for (int word = 0; word < 2 * kWords; ++word) {
      const uint32_t bits = __shfl_sync(~0u, found[word / 4], word % 4, 4) >> lane * 2;
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // two columns of every eight are this thread's
        float& x = s[word % kWords * 16 + i / 2 * 4 + word / kWords * 2 + i % 2];
        if ((bits >> (i / 2 * 8 + i % 2) & 1) == 0) x = -INFINITY;
      }
    }
  }

  WW_DEVICE void find_probabilities(const ShortUnit<C>& unit, int tile, float (&s)[kScores]) {
    mask(unit, tile, s);
    softmax_.turn_into_probabilities(s, scale_log2_, threshold_);
  }

  // Of a row (i of the thread's two), for all of its threads.
  WW_DEVICE float sum_of_row(int i) const {
    float sum = softmax_.sum[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
  }

  WW_DEVICE void finish_rows(const ShortUnit<C>& unit) {
    const SplitSegment segment = cursor_.segment;
    if (!segment.whole()) return finish_piece(segment, unit);
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sum_of_row(i);
      const bool empty = softmax_.maximum[i] == RowSoftmax::kNone;
      float top = empty ? -INFINITY : softmax_.maximum[i] * scale_log2_;
      const int row = unit.first_row + row_of(i), query = launch_.group.divide(row),
                head = unit.kv_head * p_.group + row - query * p_.group;
      const bool has = row_of(i) < unit.rows;
      scale[i] = empty ? 0.0f : 1.0f;
      if (p_.sinks != nullptr && !empty && has) {
        const float sink = p_.sinks[head] * kLog2e, higher = fmaxf(top, sink);
        scale[i] = ptx::exp2_approx(top - higher);
        sum = sum * scale[i] + ptx::exp2_approx(sink - higher);
        top = higher;
      }
      if (!empty) scale[i] = __fdividef(scale[i], sum);
      if (p_.lse != nullptr && threadIdx.x % 4 == 0 && has) {
        p_.lse[(static_cast<int64_t>(segment.q_begin) + query) * p_.num_q_heads + head] =
            empty ? -INFINITY : (top + ptx::log2_approx(sum)) * kLn2;
      }
    }
    write(segment, unit, scale);
  }

  // The rows of a cut unit.
  WW_DEVICE void finish_piece(const SplitSegment& segment, const ShortUnit<C>& unit) {
    const int64_t first_row = static_cast<int64_t>(segment.slot(blockIdx.x)) * C::kTileRows;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = sum_of_row(i);
      const bool empty = softmax_.maximum[i] == RowSoftmax::kNone;
      const int exponent = divide_row(i);
      const float top = empty ? -INFINITY : softmax_.maximum[i] * scale_log2_ + static_cast<float>(exponent);
      if (threadIdx.x % 4 == 0) {
        __stcg(reinterpret_cast<float2*>(work_.partial_max_sum) + first_row + row_of(i),
               make_float2(top, empty ? 0.0f : sum * power_of_two(-exponent)));
      }
    }
    write_piece(segment, unit);
    const int first = segment.tile_begin == 0 ? blockIdx.x : work_.workers[blockIdx.x].first_pair_begin;
    ShortMerge<C>({p_, work_, launch_}, group_).arrive(first);
  }

  static WW_DEVICE float power_of_two(int exponent) {
    return __uint_as_float(static_cast<ptx::u32>(127 + exponent) << 23);
  }
  // Divides O of a row by the power of two that its largest number is of; its exponent.
  WW_DEVICE int divide_row(int row) {
    // So that the sum stays a number, of a row of zeros, too.
    constexpr int kLeastExponent = -60, kMostExponent = 100;
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kOut / 4; ++i) {
      largest = fmaxf(largest, fmaxf(fabsf(out_[i * 4 + row * 2]), fabsf(out_[i * 4 + row * 2 + 1])));
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const int bits = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const int exponent = min(max(bits, kLeastExponent), kMostExponent);
    const float factor = power_of_two(-exponent);
#pragma unroll
    for (int i = 0; i < kOut / 4; ++i) {
      out_[i * 4 + row * 2] *= factor;
      out_[i * 4 + row * 2 + 1] *= factor;
    }
    return exponent;
  }

  WW_DEVICE void write(const SplitSegment& segment, const ShortUnit<C>& unit, const float (&scale)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = unit.first_row + row_of(i), query = launch_.group.divide(row),
                head = unit.kv_head * p_.group + row - query * p_.group;
      char* out = static_cast<char*>(p_.out) + ((static_cast<int64_t>(segment.q_begin) + query) * p_.out_token_stride +
                                                static_cast<int64_t>(head) * C::kDim) * 2;
      store_row<E>(out_, i, scale[i], out, row_of(i) < unit.rows);
    }
  }

  WW_DEVICE void write_piece(const SplitSegment& segment, const ShortUnit<C>& unit) const {
    const int row_block = group_ * 4 + thread() / 32;
    if (row_block * 16 >= unit.rows) return;
    uint2* piece = short_piece<C>(work_, segment.slot(blockIdx.x), row_block, 0) + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kOut / 4; ++i) {
      __stcg(piece + i * 32, make_uint2(ptx::F16::pack(out_[i * 4], out_[i * 4 + 1]),
                                        ptx::F16::pack(out_[i * 4 + 2], out_[i * 4 + 3])));
    }
  }

  const AttentionParams& p_;
  const SplitWork& work_;
  const ShortLaunch& launch_;
  const Sm90ShortShared<C>& shared_;
  SplitCursor<C::kTokens>& cursor_;
  const int group_;
  const float scale_log2_;
  const float threshold_;        // in units of S
  int tile_ = 0, tile_end_ = 0;  // of the segment
  int first_token_ = 0;          // of its tile 0
  Ring ring_;                    // where tile_ stands
  float out_[kOut];
  RowSoftmax softmax_;
};

}  // namespace warpweave::cuda
