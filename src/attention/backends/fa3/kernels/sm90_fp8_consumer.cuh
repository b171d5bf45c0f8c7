// A multiplying warpgroup of the fp8 prefill kernel (sm90_fp8_extend.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_fp8_shared.cuh"
#include "attention/cuda/kv_fragment.h"
#include "device/cuda/wgmma_fp8.h"

namespace warpweave::cuda {

// One warpgroup's 64 rows. A thread holds rows lane / 4 and lane / 4 + 8 of its warp's 16.
template <class C>
class Sm90Fp8Consumer {
 public:
  WW_DEVICE Sm90Fp8Consumer(const AttentionParams& p, const Sm90Fp8Shared<C>& shared)
      : p_(p), shared_(shared), group_(__shfl_sync(~0u, threadIdx.x / 128, 0) - 1) {}

  WW_DEVICE void run() {
    float s[kScores];
    while (next_tile()) {
      copy_query(tile());
      store_query();
      start_rows();
      ptx::mbarrier_wait(shared_.k_full(ring_.stage), ring_.parity);
      multiply_qk(ring_, s);
      int block = last_;
      clear_out();
      // S of the next block is multiplied while O is added, also over the border of two tiles.
      for (;;) {
        const bool ends = block == begin_;
        const bool ahead = !ends || copy_next_query();
        // Long before it is needed, as waiting costs nothing while S is multiplied; V, too.
        Ring next = ring_;
        next.advance();
        if (ahead) ptx::mbarrier_wait(shared_.k_full(next.stage), next.parity);
        finish_scores(block, s);
        // One branch for all that is rare, as each that is jumped over takes 25 cycles.
        if (moved_ | ends) {
          if (moved_) move_maxima(s);
          if (!ahead) break;
          if (ends) store_query();
        }
        multiply_pv<true>(s);
        --block;
        if (!ends) continue;
        const Sm90Fp8Tile& done = tile();
        const Rows rows = rows_;
        advance_tile();
        enter_tile();
        start_rows();
        write(done, rows);
        clear_out();
        block = last_;
      }
      multiply_pv<false>(s);
      write(tile(), rows_);
      advance_tile();
    }
  }

 protected:
  using E = typename C::Element;
  using Ring = RingPosition<C::kStages>;
  using Qk = ptx::WgmmaE4m3<C::kBlockTokens>;
  static constexpr int kScores = C::kBlockTokens / 2;  // registers of S
  static constexpr int kOut = C::kDim / 2;             // and of O
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr float kLn2 = 0.6931471805599453f;

  struct Rows {
    float shift[2];  // of P's exponents: kProbabilityLog2 - maximum, in log2 units
    float sum[2];    // of P; 0: sees nothing
  };

  WW_DEVICE const Sm90Fp8Tile& tile() const { return shared_.tiles[tile_]; }
  WW_DEVICE void advance_tile() { tile_ = (tile_ + 1) % C::kTiles; }

  // One lane arrives.
  static WW_DEVICE void release(ptx::u32 barrier) { ptx::mbarrier_arrive_if_zero(barrier, threadIdx.x % 32); }

  // Waits for the next tile that has KV blocks; those without are written on the way.
  WW_DEVICE bool next_tile() {
    for (;;) {
      const int stage = tile_ % C::kTileStages;
      ptx::mbarrier_wait(shared_.tile_full(stage), tile_ / C::kTileStages % 2);
      // Uniform, so that what loops count stays in uniform registers.
      if (uniform(tile().request + 1) == 0) return false;
      enter_tile();
      if (begin_ <= last_) return true;
      write_empty();
      advance_tile();
    }
  }

  WW_DEVICE void enter_tile() {
    begin_ = uniform(tile().block_begin);
    last_ = uniform(tile().block_end) - 1;
    plain_begin_ = uniform(tile().plain_begin);
    plain_end_ = uniform(tile().plain_end);
    release(shared_.tile_empty(tile_ % C::kTileStages));
  }

  WW_DEVICE int row_of(int row) const {
    return group_ * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + row * 8;
  }
  WW_DEVICE int token_of(const Sm90Fp8Tile& tile, int row) const { return tile.first_token + row_of(row); }

  // ---- Q
  static constexpr int kPieces = C::kDim / 32;  // of 8 elements, of a lane in a row

  // Of a warp: its 16 rows of Q as they are copied, later its rows of the output.
  WW_DEVICE ptx::u32 staging(int thread) const {
    return shared_.raw_q + (thread - 128) / 32 * (16 * C::kDim * 2);
  }
  // Four lanes take a row, eight rows a warp at a time. A lane's pieces lie at copied() until it rounds them.
  static WW_DEVICE int query_row(int thread, int eight) {
    return (thread - 128) / 32 * 16 + eight * 8 + thread % 32 / 4;
  }
  WW_DEVICE ptx::u32 copied(int thread, int i) const { return staging(thread) + i * 512 + thread % 32 * 16; }
  // Read where it is used, lest addresses made of it take registers all along.
  static WW_DEVICE int thread_here() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
  }

  WW_DEVICE void copy_query(const Sm90Fp8Tile& tile) const {
    const int thread = thread_here();
    __syncwarp();  // the last tile's output has been read
    // Read once: what is read between copies waits for the last one's address.
    const int first = tile.first_token + query_row(thread, 0), end = tile.end_token;
    const char* column = static_cast<const char*>(p_.q) +
                         (tile.q_begin * p_.q_token_stride + static_cast<int64_t>(tile.head) * C::kDim) * 2 +
                         thread % 4 * 16;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int token = first + eight * 8;
      const char* row = column + min(token, end - 1) * p_.q_token_stride * 2;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        ptx::cp_async_16(copied(thread, eight * kPieces + i), row + i * 64, token < end ? 16 : 0);
      }
    }
    ptx::cp_async_commit();
  }
  // Of the next tile, if there is one and it has KV blocks.
  WW_DEVICE bool copy_next_query() const {
    const int place = (tile_ + 1) % C::kTiles;
    ptx::mbarrier_wait(shared_.tile_full(place % C::kTileStages), place / C::kTileStages % 2);
    const Sm90Fp8Tile& next = shared_.tiles[place];
    if (uniform(next.request >= 0 && next.block_begin < next.block_end) == 0) return false;
    copy_query(next);
    return true;
  }

  // Rounds the copied rows to e4m3. A row's largest magnitude becomes one of 224 to 448.
  WW_DEVICE void store_query() const {
    const int thread = thread_here();
    ptx::cp_async_wait<0>();
    ptx::named_barrier_sync(1 + group_, 128);  // no warp's WGMMA reads the last tile's Q any more
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) store_rows(thread, eight);
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(1 + group_, 128);
  }
  WW_DEVICE void store_rows(int thread, int eight) const {
    const int row = query_row(thread, eight);
    ptx::u32 pairs[kPieces][4], top = 0;  // magnitudes order as integers
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      ptx::u32 (&x)[4] = pairs[i];
      ptx::load_shared_16(x, copied(thread, eight * kPieces + i));
      top = __vimax3_u16x2(top, x[0] & 0x7fff7fffu, x[1] & 0x7fff7fffu);
      top = __vimax3_u16x2(top, x[2] & 0x7fff7fffu, x[3] & 0x7fff7fffu);
    }
    top = max(top & 0xffffu, top >> 16);
    top = max(top, __shfl_xor_sync(~0u, top, 1));
    top = max(top, __shfl_xor_sync(~0u, top, 2));
    // A power of two, which leaves values that are e4m3 already as they are.
    const ptx::u32 exponent =
        min(max((__float_as_uint(E::low(top) * (1.0f / 448.0f)) + 0x7fffffu) >> 23, 27u), 227u);
    const float inverse = __uint_as_float((254 - exponent) << 23);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      ptx::u32 out[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const ptx::u32 (&x)[4] = pairs[i];
        out[j] = ptx::pack_e4m3(E::low(x[j * 2]) * inverse, E::high(x[j * 2]) * inverse,
                                E::low(x[j * 2 + 1]) * inverse, E::high(x[j * 2 + 1]) * inverse);
      }
      const int eighth = i * 4 + thread % 4;
      const ptx::u32 target = shared_.q + sm90_fp8_swizzled<C>(row, eighth / 2) + eighth % 2 * 8;
      ptx::store_shared_8(target, out[0], out[1]);
    }
    if (thread % 4 == 0) shared_.q_exponents[row] = static_cast<unsigned char>(exponent);
  }

  // The rows of a tile whose Q is stored; they have seen nothing.
  WW_DEVICE void start_rows() {
    const float k_scale = p_.k_head_scales != nullptr ? p_.k_head_scales[tile().kv_head] : 1.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows_.shift[i] = kNothingSeen;
      rows_.sum[i] = 0;
      scale_log2_[i] = __uint_as_float(static_cast<ptx::u32>(shared_.q_exponents[row_of(i)]) << 23) *
                       (p_.scale * kLog2e) * k_scale;
    }
  }

  // ---- blocks
  // S of a block whose K is there.
  WW_DEVICE void multiply_qk(const Ring& at, float (&s)[kScores]) const {
    const ptx::u32 k = ptx::wgmma_descriptor(shared_.k + at.stage * C::kBlockBytes, 16);
    const ptx::u32 q = ptx::wgmma_descriptor(shared_.q + group_ * 64 * C::kDim, 16);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::kDim / 32; ++step) {
      Qk::template ss<C::kDim>(s, ptx::wgmma_advance(q, step * 32), ptx::wgmma_advance(k, step * 32), step > 0);
    }
    ptx::wgmma_commit();
  }

  WW_DEVICE void finish_scores(int block, float (&s)[kScores]) {
    ptx::mbarrier_wait(shared_.v_full(ring_.stage), ring_.parity);
    ptx::wgmma_wait<0>();
    fence_registers(s);
    if (block < plain_begin_ || block >= plain_end_) mask(block, s);
    fence_registers(s);
    maxima(s);
  }

  // P from S and the WGMMA of P and V, which starts as soon as 32 tokens' P is there; then S of the next block, in
  // the same registers, while O is added. O of a block is summed apart from those before it: the tensor cores'
  // sums keep about 14 bits, in which long ones of small terms stop growing (Fp8Mma::sum_tokens).
  template <bool kNext>
  WW_DEVICE void multiply_pv(float (&s)[kScores]) {
    float part[kOut], sum[4] = {};
    ptx::u32 probability[kScores / 16][4];
    const ptx::u32 v = ptx::wgmma_descriptor(shared_.v + ring_.stage * C::kBlockBytes, 16);
#pragma unroll
    for (int step = 0; step < kScores / 16; ++step) {
      exponentials(&s[step * 16], probability[step], sum);
      ptx::wgmma_fence();
      ptx::WgmmaE4m3<C::kDim>::template rs<128>(part, probability[step], ptx::wgmma_advance(v, step * 32), step > 0);
      if (step == 0) release(shared_.k_empty(ring_.stage));
    }
    ptx::wgmma_commit();
    const int stage = ring_.stage;
    ring_.advance();
    if constexpr (kNext) multiply_qk(ring_, s);
#pragma unroll
    for (int row = 0; row < 2; ++row) rows_.sum[row] += sum[row * 2] + sum[row * 2 + 1];
    rescale();
    ptx::wgmma_wait<kNext ? 1 : 0>();
    fence_registers(part);
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] += part[i];
    release(shared_.v_empty(stage));
  }

  // P of 32 tokens. Of those a thread holds 2t and 2t + 1 of each 8; WGMMA takes them as 4t..4t+3
  // of each 16.
  WW_DEVICE void exponentials(float* s, ptx::u32 (&probability)[4], float (&sum)[4]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      s[i] = ptx::exp2_approx(__fmaf_rn(s[i], scale_log2_[i / 2 % 2], rows_.shift[i / 2 % 2]));
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) sum[i % 4] += s[i];
    fence_registers(sum);  // here, lest the compiler keeps the summands for later
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = j / 2 * 8 + j % 2 * 2;
      probability[j] = ptx::pack_e4m3(s[at], s[at + 1], s[at + 4], s[at + 5]);
    }
  }

  WW_DEVICE void mask(int block, float (&s)[kScores]) const {
    if (p_.softcap > 0) {
      // Unscaled again, so that the steps after this one are the same.
      const float cap = p_.softcap * kLog2e;
      const float inner[2] = {__fdividef(scale_log2_[0], cap), __fdividef(scale_log2_[1], cap)};
      const float outer[2] = {__fdividef(cap, scale_log2_[0]), __fdividef(cap, scale_log2_[1])};
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[i] = outer[i / 2 % 2] * ptx::tanh_approx(s[i] * inner[i / 2 % 2]);
    }
    // Most blocks are seen whole by all 64 rows.
    const int begin = block * C::kBlockTokens;
    const int first = tile().kv_len - tile().q_len + tile().first_token + group_ * 64;
    const int whole_end = p_.causal ? min(first + 1, tile().kv_len) : tile().kv_len;
    const int whole_begin = p_.window_left < 0 ? 0 : first + 63 - p_.window_left;
    if (begin >= whole_begin && begin + C::kBlockTokens <= whole_end) return;
    const int column = begin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int position = tile().kv_len - tile().q_len + token_of(tile(), row);
      ptx::u32 seen = first_elements((p_.causal ? min(position + 1, tile().kv_len) : tile().kv_len) - column);
      if (p_.window_left >= 0) seen &= ~first_elements(position - p_.window_left - column);
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        if ((seen & 1u << i) == 0) s[i / 2 * 4 + row * 2 + i % 2] = -INFINITY;
      }
    }
  }

  // One bit for each of a thread's elements of a row that stands in the row's first `columns` columns.
  static WW_DEVICE ptx::u32 first_elements(int columns) {
    static_assert(kScores <= 64);
    const int count = columns <= 0 ? 0 : columns / 8 * 2 + min(columns % 8, 2);
    return count >= 32 ? ~0u : (1u << count) - 1;
  }

  // Finds whether a row's maximum may have grown by more than the threshold, from what each lane holds of it.
  // Floats order as integers but for negative ones, which count as 0 first.
  WW_DEVICE void maxima(const float (&s)[kScores]) {
    float top[2];
    int t[4] = {};
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const int at = i / 4 * 8 + i % 4;
      t[i % 4] = __vimax3_s32(t[i % 4], __float_as_int(s[at]), __float_as_int(s[at + 4]));
    }
    top[0] = __int_as_float(max(t[0], t[1]));
    top[1] = __int_as_float(max(t[2], t[3]));
    moved_ = __any_sync(~0u, __fmaf_rn(top[0], scale_log2_[0], rows_.shift[0]) > kTopLog2 ||
                                 __fmaf_rn(top[1], scale_log2_[1], rows_.shift[1]) > kTopLog2);
    top_[0] = top[0];
    top_[1] = top[1];
  }
  // After maxima(), of the same S: moves the maxima, and with them the sums, of the rows that need it; O's pending
  // factor is in factor_. Only here lanes trade maxima.
  WW_DEVICE void move_maxima(const float (&s)[kScores]) {
    float (&top)[2] = top_;
    row_maxima(top);
    if (__any_sync(~0u, top[0] == 0 || top[1] == 0)) {  // may be negative
      find_maxima(s, top);
      row_maxima(top);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float m = top[row];
      factor_[row] = 1;
      if (__fmaf_rn(m, scale_log2_[row], rows_.shift[row]) > kTopLog2) {
        const float shift = C::kProbabilityLog2 - m * scale_log2_[row];
        factor_[row] = ptx::exp2_approx(shift - rows_.shift[row]);
        rows_.sum[row] *= factor_[row];
        rows_.shift[row] = shift;
      }
    }
  }
  static WW_DEVICE void row_maxima(float (&top)[2]) {
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
#pragma unroll
      for (int row = 0; row < 2; ++row) top[row] = fmaxf(top[row], __shfl_xor_sync(~0u, top[row], step));
    }
  }
  static constexpr float kTopLog2 = C::kProbabilityLog2 + C::kRescaleThreshold;
  static constexpr float kNothingSeen = 1e30f;  // a row's shift before its first maximum

  WW_DEVICE void clear_out() {
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] = 0;
  }
  WW_DEVICE void rescale() {
    if (!moved_) return;
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] *= factor_[i / 2 % 2];
  }

  // ---- output
  WW_DEVICE void write(const Sm90Fp8Tile& tile, const Rows& rows) const {
    const float scale[2] = {finish_row(tile, rows, 0), finish_row(tile, rows, 1)};
    write_out(tile, scale);
  }
  // Writes a row's LSE; returns what its O is to be multiplied with.
  WW_DEVICE float finish_row(const Sm90Fp8Tile& tile, const Rows& rows, int row) const {
    float sum = rows.sum[row];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum *= kUnscale;
    const bool empty = sum == 0;
    float top = C::kProbabilityLog2 - rows.shift[row];
    float factor = p_.v_head_scales != nullptr ? kUnscale * p_.v_head_scales[tile.kv_head] : kUnscale;
    if (p_.sinks != nullptr && !empty) {
      const float sink = p_.sinks[tile.head] * kLog2e;
      const float higher = fmaxf(top, sink);
      const float lower = ptx::exp2_approx(top - higher);
      factor *= lower;
      sum = sum * lower + ptx::exp2_approx(sink - higher);
      top = higher;
    }
    const int token = token_of(tile, row);
    if (p_.lse != nullptr && threadIdx.x % 4 == 0 && token < tile.end_token) {
      p_.lse[(static_cast<int64_t>(tile.q_begin) + token) * p_.num_q_heads + tile.head] =
          empty ? -INFINITY : (top + ptx::log2_approx(sum)) * kLn2;
    }
    return empty ? 0.0f : __fdividef(factor, sum);
  }
  static constexpr float kUnscale = 1.0f / (1 << C::kProbabilityLog2);

  WW_DEVICE char* out_of(const Sm90Fp8Tile& tile, int token) const {
    return static_cast<char*>(p_.out) + ((static_cast<int64_t>(tile.q_begin) + token) * p_.out_token_stride +
                                         static_cast<int64_t>(tile.head) * C::kDim) * 2;
  }

  // Through the warp's staging rows, 16-byte chunks of which are swizzled.
  WW_DEVICE void write_out(const Sm90Fp8Tile& tile, const float (&scale)[2]) const {
    constexpr int kChunks = C::kDim / 8;      // of a row
    constexpr int kRows = 32 / kChunks;       // that a warp stores at a time
    const int thread = thread_here(), lane = thread % 32;
    const ptx::u32 rows = staging(thread);
    const ptx::u32 target = rows + lane % 16 * (C::kDim * 2);
#pragma unroll
    for (int i = 0; i < kChunks; i += 2) {
      ptx::u32 own[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = (i + j / 2) * 4 + j % 2 * 2;
        own[j] = E::pack(out_[at] * scale[j % 2], out_[at + 1] * scale[j % 2]);
      }
      ptx::stmatrix_x4(target + ((i + lane / 16) ^ lane % 8) * 16, own);
    }
    __syncwarp();
    const int chunk = lane % kChunks;
    const int first = (thread - 128) / 32 * 16 + lane / kChunks;
    char* out = out_of(tile, tile.first_token + first) + chunk * 16;
#pragma unroll
    for (int i = 0; i < 16 / kRows; ++i) {
      const int row = i * kRows + lane / kChunks;
      ptx::u32 x[4];
      ptx::load_shared_16(x, rows + row * (C::kDim * 2) + (chunk ^ row % 8) * 16);
      if (tile.first_token + first + i * kRows < tile.end_token) {
        *reinterpret_cast<uint4*>(out + static_cast<int64_t>(i * kRows) * p_.out_token_stride * 2) =
            make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }

  // Rows that see nothing.
  WW_DEVICE void write_empty() const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int token = token_of(tile(), row);
      if (token >= tile().end_token) continue;
      char* out = out_of(tile(), token);
      for (int i = threadIdx.x % 4; i < C::kDim / 8; i += 4) reinterpret_cast<uint4*>(out)[i] = make_uint4(0, 0, 0, 0);
      if (p_.lse != nullptr && threadIdx.x % 4 == 0) {
        p_.lse[(static_cast<int64_t>(tile().q_begin) + token) * p_.num_q_heads + tile().head] = -INFINITY;
      }
    }
  }

  const AttentionParams& p_;
  const Sm90Fp8Shared<C>& shared_;
  const int group_;
  int tile_ = 0;  // its place in the ring of tiles
  int begin_, last_;  // its KV blocks
  Ring ring_;  // of K and V
  float out_[kOut];
  Rows rows_;
  float scale_log2_[2];          // from a row's unscaled scores to log2 units
  float factor_[2];              // what O is due to be multiplied with, if a row of the warp has moved
  float top_[2];                 // a thread's largest unscaled scores of the block
  bool moved_ = false;           // whether a row of the warp is to move
  int plain_begin_, plain_end_;  // blocks that all rows see whole
};

}  // namespace warpweave::cuda
