// A multiplying warpgroup of the fp8 prefill kernel (sm90_fp8_extend.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_fp8_shared.cuh"
#include "attention/cuda/kv_fragment.h"
#include "attention/cuda/wgmma_fp8.h"

#ifndef WW_MARK
#define WW_MARK(n)
#endif

namespace warpweave::cuda {

// One warpgroup's 64 rows. A thread holds rows lane / 4 and lane / 4 + 8 of its warp's 16.
template <class C>
class Sm90Fp8Consumer {
 public:
  WW_DEVICE Sm90Fp8Consumer(const AttentionParams& p, const Sm90Fp8Shared<C>& shared)
      : p_(p), shared_(shared), group_(__shfl_sync(~0u, threadIdx.x / 128, 0) - 1) {
    if (C::kTakesTurns && group_ == C::kConsumers - 1) hand_over();  // warpgroup 0 goes first
  }

  WW_DEVICE void run() {
    if constexpr (C::kTurns == Sm90Turns::woven) run_woven();
    else if constexpr (C::kApart) run_apart();
    else run_overlapped();
  }

 private:
  using E = typename C::Element;
  using Qk = ptx::WgmmaE4m3<C::kBlockTokens>;
  static constexpr int kScores = C::kBlockTokens / 2;  // registers of S
  static constexpr int kOut = C::kDim / 2;             // and of O
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr float kLn2 = 0.6931471805599453f;

  WW_DEVICE void run_apart() {
    while (next_tile()) {
      start_rows();
      WW_MARK(8);
      clear_out();
      const int begin = tile().block_begin, plain_begin = tile().plain_begin, plain_end = tile().plain_end;
      for (int block = tile().block_end - 1; block >= begin; --block) {
        if (block >= plain_begin && block < plain_end) step_apart<false>(block);
        else step_apart<true>(block);
      }
      if constexpr (!C::kQueryInRegisters) release_q();
      write(tile(), rows_);
      WW_MARK(7);
      advance_tile();
    }
  }

  template <bool kMasked>
  WW_DEVICE void step_apart(int block) {
    float s[kScores];
    ptx::u32 probability[kScores / 16][4];
    wait_k();
    WW_MARK(0);
    ptx::wgmma_fence();
    multiply_qk(s);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    fence_registers(s);
    release_k();
    WW_MARK(1);
    if constexpr (kMasked) mask(block, s);
    maxima(s);
    WW_MARK(2);
    if constexpr (C::kTurns == Sm90Turns::streamed) return stream_out(s);
    exponentials(s, probability);
    WW_MARK(3);
    wait_v();
    WW_MARK(4);
    float own[C::kPartDim / 2] = {};
    float (&part)[C::kPartDim / 2] = C::kPartInScores ? reinterpret_cast<float (&)[C::kPartDim / 2]>(s) : own;
#pragma unroll
    for (int dim = 0; dim < C::kDim; dim += C::kPartDim) {
      ptx::wgmma_fence();
      multiply_pv(part, probability, dim, 0);
      ptx::wgmma_commit();
      if (dim == 0) rescale();
      ptx::wgmma_wait<0>();
      WW_MARK(5);
      fence_registers(part);
#pragma unroll
      for (int i = 0; i < C::kPartDim / 2; ++i) out_[dim / 2 + i] += part[i];
    }
    WW_MARK(6);
    WW_MARK(15);
    release_v();
  }

  // Products with V start as soon as 32 tokens' P is there.
  WW_DEVICE void stream_out(float (&s)[kScores]) {
    float part[kOut], sum[4] = {};
    wait_v();
    WW_MARK(3);
    const ptx::u32 v = uniform(ptx::wgmma_descriptor(shared_.v + v_ring_.stage * C::kValueBytes, 16));
    ptx::u32 probability[kScores / 16][4];
#pragma unroll
    for (int step = 0; step < kScores / 16; ++step) {
#pragma unroll
      for (int i = step * 16; i < step * 16 + 16; ++i) {
        s[i] = ptx::exp2_approx(__fmaf_rn(s[i], scale_log2_[i / 2 % 2], rows_.shift[i / 2 % 2]));
      }
#pragma unroll
      for (int i = step * 16; i < step * 16 + 16; ++i) sum[i % 4] = i < 4 ? s[i] : sum[i % 4] + s[i];
      fence_registers(sum);  // here, lest the compiler keeps the summands for later
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = step * 16 + j / 2 * 8 + j % 2 * 2;
        probability[step][j] = ptx::pack_e4m3(s[at], s[at + 1], s[at + 4], s[at + 5]);
      }
      ptx::wgmma_fence();
      const int at = step / 4 * (C::kDim * 128) + step % 4 * 32;
      ptx::WgmmaE4m3<C::kDim>::template rs<128>(part, probability[step], ptx::wgmma_advance(v, at), step > 0);
    }
    ptx::wgmma_commit();
    WW_MARK(4);
#pragma unroll
    for (int row = 0; row < 2; ++row) rows_.sum[row] += sum[row * 2] + sum[row * 2 + 1];
    rescale();
    ptx::wgmma_wait<0>();
    WW_MARK(5);
    fence_registers(part);
    release_v();
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] += part[i];
    WW_MARK(6);
    WW_MARK(15);
  }

  // S of the next block and O of this one are multiplied, 32 dims or tokens at a time, while this one's
  // exponentials are found.
  WW_DEVICE void run_woven() {
    while (next_tile()) {
      start_rows();
      WW_MARK(8);
      done_ = 0;
      float a[kScores], b[kScores];
      int block = tile().block_end - 1;
      wait_k();
      ptx::wgmma_fence();
      multiply_qk(a);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      fence_registers(a);
      release_k();
      mask(block, a);
      fence_registers(a);
      maxima(a);
      const int begin = tile().block_begin;
      while (block > begin) {
        weave<true>(--block, a, b);
        if (block == begin) {
          weave<false>(0, b, a);
          break;
        }
        weave<true>(--block, b, a);
      }
      // The loop above ends with P of the last block due in a, or done by the break.
      if ((tile().block_end - begin) % 2 == 1) weave<false>(0, a, b);
      if (done_ > C::kSumBlocks) add_total();
      write(tile(), rows_);
      WW_MARK(7);
      advance_tile();
    }
  }

  // P of the present block from s, and its product with V; S of block `next_block`, if there is one.
  template <bool kNext>
  WW_DEVICE void weave(int next_block, float (&s)[kScores], float (&next)[kScores]) {
    constexpr int kQkSteps = C::kDim / 32, kPvSteps = kScores / 16;
    static_assert(kQkSteps <= kPvSteps);
    ptx::u32 k = 0, q = 0;
    const bool plain = kNext && next_block >= tile().plain_begin && next_block < tile().plain_end;
    if constexpr (kNext) {
      wait_k();
      k = uniform(ptx::wgmma_descriptor(shared_.k + k_ring_.stage * C::kBlockBytes, 16));
      q = uniform(ptx::wgmma_descriptor(shared_.q + q_stage() * C::kQueryBytes + group_ * 64 * C::kDim, 16));
    } else {
      release_q();
    }
    wait_v();
    const ptx::u32 v = uniform(ptx::wgmma_descriptor(shared_.v + v_ring_.stage * C::kValueBytes, 16));
    ptx::u32 probability[kPvSteps][4];
    float sum[4] = {};
#pragma unroll
    for (int step = 0; step < kPvSteps; ++step) {
      ptx::wgmma_fence();
      if constexpr (kNext) {
        if (step < kQkSteps) {
          Qk::template ss<C::kDim>(next, ptx::wgmma_advance(q, step * 32), ptx::wgmma_advance(k, step * 32), step > 0);
        }
        if (step == kQkSteps - 1) ptx::wgmma_commit();
      }
#pragma unroll
      for (int i = step * 16; i < step * 16 + 16; ++i) {
        s[i] = ptx::exp2_approx(__fmaf_rn(s[i], scale_log2_[i / 2 % 2], rows_.shift[i / 2 % 2]));
      }
#pragma unroll
      for (int i = step * 16; i < step * 16 + 16; ++i) sum[i % 4] = i < 4 ? s[i] : sum[i % 4] + s[i];
      fence_registers(sum);  // here, lest the compiler keeps the summands for later
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = step * 16 + j / 2 * 8 + j % 2 * 2;
        probability[step][j] = ptx::pack_e4m3(s[at], s[at + 1], s[at + 4], s[at + 5]);
      }
      ptx::wgmma_fence();
      const int at = step / 4 * (C::kDim * 128) + step % 4 * 32;
      ptx::WgmmaE4m3<C::kDim>::template rs<128>(out_, probability[step], ptx::wgmma_advance(v, at),
                                                step > 0 || done_ % C::kSumBlocks > 0);
    }
    ptx::wgmma_commit();
#pragma unroll
    for (int row = 0; row < 2; ++row) rows_.sum[row] += sum[row * 2] + sum[row * 2 + 1];
    if constexpr (kNext) {
      ptx::wgmma_wait<1>();
      fence_registers(next);
      release_k();
      if (!plain) mask(next_block, next);
      fence_registers(next);
      maxima(next);
    }
    ptx::wgmma_wait<0>();
    fence_registers(out_);
    release_v();
    ++done_;
    if constexpr (kNext) {
      rescale();
      if (done_ % C::kSumBlocks == 0) keep_total();
      WW_MARK(15);
    }
  }

  // Ends a sum of the tensor cores: O joins the total, which a thread keeps in words of its own.
  WW_DEVICE void keep_total() {
    if (done_ > C::kSumBlocks) add_total();
    const ptx::u32 total = total_address();
#pragma unroll
    for (int i = 0; i < kOut; i += 4) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(total + i * 512), "f"(out_[i]),
                   "f"(out_[i + 1]), "f"(out_[i + 2]), "f"(out_[i + 3]) : "memory");
    }
    total_shift_[0] = rows_.shift[0];
    total_shift_[1] = rows_.shift[1];
  }
  WW_DEVICE void add_total() {
    const float f[2] = {ptx::exp2_approx(rows_.shift[0] - total_shift_[0]),
                        ptx::exp2_approx(rows_.shift[1] - total_shift_[1])};
    const ptx::u32 total = total_address();
#pragma unroll
    for (int i = 0; i < kOut; i += 4) {
      float t[4];
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                   : "=f"(t[0]), "=f"(t[1]), "=f"(t[2]), "=f"(t[3]) : "r"(total + i * 512) : "memory");
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        out_[i + j] = __fmaf_rn(t[j], f[(i + j) / 2 % 2], out_[i + j]);
        asm volatile("" : "+f"(out_[i + j])::"memory");
      }
    }
  }
  WW_DEVICE ptx::u32 total_address() const {
    return shared_.total + group_ * (64 * C::kDim * 4) + threadIdx.x % 128 * 16;
  }

  WW_DEVICE void run_overlapped() {
    float s[kScores];
    ptx::u32 probability[kScores / 16][4];
    for (bool more = next_tile(); more;) {
      int block = tile().block_end - 1;
      begin_tile(block, s);
      exponentials(s, probability);
      while (true) {
        // P of `block` is ready, its product with V is due.
        const int begin = tile().block_begin, plain_begin = tile().plain_begin, plain_end = tile().plain_end;
        for (--block; block >= begin; --block) {
          if (block >= plain_begin && block < plain_end) step<false>(block, s, probability);
          else step<true>(block, s, probability);
        }
        const Sm90Fp8Tile& done = tile();
        if constexpr (!C::kQueryInRegisters) release_q();
        advance_tile();
        more = next_tile();
        if (!more) {
          finish(done, probability);
          break;
        }
        // The same step across two tiles: S of the next one's first block, O of this one's last.
        block = tile().block_end - 1;
        const Rows old = rows_;
        start_rows();
      WW_MARK(8);
        issue(s, probability);
        finish_scores<true>(block, s);
        finish_out();
        write(done, old);
        clear_out();
        exponentials(s, probability);
      }
    }
  }

  WW_DEVICE const Sm90Fp8Tile& tile() const { return shared_.tiles[tile_]; }
  WW_DEVICE int q_stage() const { return tile_ % C::kQueryStages; }
  WW_DEVICE void advance_tile() { tile_ = (tile_ + 1) % C::kTiles; }

  // ---- turns of the warpgroups at the tensor cores
  WW_DEVICE void take_turn() const {
    if (C::kTakesTurns) ptx::named_barrier_sync(2 + group_, 256);
  }
  WW_DEVICE void hand_over() const {
    const int next = group_ == C::kConsumers - 1 ? 0 : group_ + 1;
    if (C::kTakesTurns) ptx::named_barrier_arrive(2 + next, 256);
  }
  static WW_DEVICE void release(ptx::u32 barrier) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
  }

  // P of a tile's first block, with nothing to overlap.
  WW_DEVICE void begin_tile(int block, float (&s)[kScores]) {
    start_rows();
    clear_out();
    wait_k();
    ptx::wgmma_fence();
    multiply_qk(s);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    fence_registers(s);
    release_k();
    mask(block, s);
    maxima(s);
  }

  template <bool kMasked>
  WW_DEVICE void step(int block, float (&s)[kScores], ptx::u32 (&probability)[kScores / 16][4]) {
    issue(s, probability);
    finish_scores<kMasked>(block, s);
    finish_out();
    exponentials(s, probability);
  }

  // Starts S of the next block and O of the last one.
  WW_DEVICE void issue(float (&s)[kScores], const ptx::u32 (&probability)[kScores / 16][4]) {
    wait_k();
    take_turn();
    ptx::wgmma_fence();
    multiply_qk(s);
    ptx::wgmma_commit();
    if (C::kTurns == Sm90Turns::scores) hand_over();
    wait_v();
    rescale();
    ptx::wgmma_fence();
    multiply_pv(out_, probability, 0, 1);
    ptx::wgmma_commit();
    if (C::kTurns == Sm90Turns::both) hand_over();
  }

  // Finds the maxima of S, while the rest of O is being multiplied: issuing products waits for the tensor
  // cores, so that little of O is left by then.
  template <bool kMasked>
  WW_DEVICE void finish_scores(int block, float (&s)[kScores]) {
    ptx::wgmma_wait<1>();
    fence_registers(s);
    release_k();
    if constexpr (kMasked) mask(block, s);
    maxima(s);
  }

  WW_DEVICE void finish_out() {
    ptx::wgmma_wait<0>();
    fence_registers(out_);
    release_v();
  }

  struct Rows {
    float shift[2];  // of P's exponents: kProbabilityLog2 - maximum, in log2 units
    float sum[2];    // of P; 0: sees nothing
  };

  // O of a tile's last block, with nothing to overlap.
  WW_DEVICE void finish(const Sm90Fp8Tile& done, const ptx::u32 (&probability)[kScores / 16][4]) {
    take_turn();
    if (C::kTurns == Sm90Turns::scores) hand_over();
    wait_v();
    rescale();
    ptx::wgmma_fence();
    multiply_pv(out_, probability, 0, 1);
    ptx::wgmma_commit();
    if (C::kTurns == Sm90Turns::both) hand_over();
    finish_out();
    write(done, rows_);
  }

  WW_DEVICE void clear_out() {
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] = 0;
  }

  // Waits for the next tile that has KV blocks; those without are written on the way.
  WW_DEVICE bool next_tile() {
    for (;;) {
      ptx::mbarrier_wait(shared_.q_full(q_stage()), tile_ / C::kQueryStages % 2);
      if (tile().request < 0) return false;
      if (tile().block_begin < tile().block_end) return true;
      release_q();
      write_empty();
      advance_tile();
    }
  }

  WW_DEVICE int row_of(int row) const {
    return group_ * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + row * 8;
  }
  WW_DEVICE int token_of(const Sm90Fp8Tile& tile, int row) const { return tile.first_token + row_of(row); }

  // Reads what the tile's stage has of this thread's rows: their scales, and Q itself if registers hold it.
  WW_DEVICE void start_rows() {
    const float* scales = shared_.q_scales + q_stage() * C::kTileRows;
    const float k_scale = p_.k_head_scales != nullptr ? p_.k_head_scales[tile().kv_head] : 1.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows_.shift[i] = kNothingSeen;
      rows_.sum[i] = 0;
      scale_log2_[i] = scales[row_of(i)] * (p_.scale * kLog2e) * k_scale;
    }
    if constexpr (C::kQueryInRegisters) {
      const int lane = threadIdx.x % 32, row = group_ * 64 + threadIdx.x % 128 / 32 * 16 + lane % 16;
      const ptx::u32 q = shared_.q + q_stage() * C::kQueryBytes;
#pragma unroll
      for (int step = 0; step < C::kDim / 32; ++step) {
        ptx::ldmatrix_x4(query_[step], q + sm90_fp8_swizzled<C>(row, step * 2 + lane / 16));
      }
      release_q();
    }
  }

  WW_DEVICE void wait_v() {
    ptx::mbarrier_wait(shared_.v_full(v_ring_.stage), v_ring_.parity);
  }
  WW_DEVICE void wait_k() {
    ptx::mbarrier_wait(shared_.k_full(k_ring_.stage), k_ring_.parity);
  }
  WW_DEVICE void release_q() {
    __syncwarp();
    release(shared_.q_empty(q_stage()));
  }
  WW_DEVICE void release_k() {
    release(shared_.k_empty(k_ring_.stage));
    k_ring_.advance();
  }
  WW_DEVICE void release_v() {
    release(shared_.v_empty(v_ring_.stage));
    v_ring_.advance();
  }

  // The same value in all lanes, in a uniform register: descriptors are read from those.
  static WW_DEVICE ptx::u32 uniform(ptx::u32 value) { return __reduce_max_sync(~0u, value); }

  // Keeps the compiler from moving reads of accumulators over the wait.
  template <int kCount>
  static WW_DEVICE void fence_registers(float (&r)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
  }

  WW_DEVICE void multiply_qk(float (&s)[kScores]) const {
    const ptx::u32 k = uniform(ptx::wgmma_descriptor(shared_.k + k_ring_.stage * C::kBlockBytes, 16));
    if constexpr (C::kQueryInRegisters) {
#pragma unroll
      for (int step = 0; step < C::kDim / 32; ++step) {
        Qk::template rs<C::kDim>(s, query_[step], ptx::wgmma_advance(k, step * 32), step > 0);
      }
    } else {
      const ptx::u32 q = uniform(
          ptx::wgmma_descriptor(shared_.q + q_stage() * C::kQueryBytes + group_ * 64 * C::kDim, 16));
#pragma unroll
      for (int step = 0; step < C::kDim / 32; ++step) {
        Qk::template ss<C::kDim>(s, ptx::wgmma_advance(q, step * 32), ptx::wgmma_advance(k, step * 32), step > 0);
      }
    }
  }

  // The dims of O from first_dim on.
  template <int kCount>
  WW_DEVICE void multiply_pv(float (&o)[kCount], const ptx::u32 (&probability)[kScores / 16][4], int first_dim,
                             int accumulate) const {
    const ptx::u32 v = uniform(ptx::wgmma_descriptor(shared_.v + v_ring_.stage * C::kValueBytes, 16));
#pragma unroll
    for (int step = 0; step < C::kBlockTokens / 32; ++step) {
      const int at = step / 4 * (C::kDim * 128) + first_dim * 128 + step % 4 * 32;
      ptx::WgmmaE4m3<kCount * 2>::template rs<128>(o, probability[step], ptx::wgmma_advance(v, at),
                                                    step > 0 || accumulate);
    }
  }

  WW_DEVICE void mask(int block, float (&s)[kScores]) const {
    if (p_.softcap > 0) {
      // In raw products again, so that the steps after this one are the same.
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
      const int end = elements_before((p_.causal ? min(position + 1, tile().kv_len) : tile().kv_len) - column);
      const int hidden = p_.window_left < 0 ? 0 : elements_before(position - p_.window_left - column);
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        if (i >= end || i < hidden) s[i / 2 * 4 + row * 2 + i % 2] = -INFINITY;
      }
    }
  }

  // Of a thread's elements of a row, those in the row's first `columns` columns.
  static WW_DEVICE int elements_before(int columns) {
    return columns <= 0 ? 0 : columns / 8 * 2 + min(columns % 8, 2);
  }

  // Moves the maxima, and with them the sums, where a row's has grown by more than the threshold; O's
  // pending factor is in factor_. Lanes trade maxima only when one of them may move. Floats order as
  // integers but for negative ones, which count as 0 first.
  WW_DEVICE void maxima(const float (&s)[kScores]) {
    float top[2];
    if constexpr (C::kMax3) {
      int t[4] = {};
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const int at = i / 4 * 8 + i % 4;
        t[i % 4] = __vimax3_s32(t[i % 4], __float_as_int(s[at]), __float_as_int(s[at + 4]));
      }
      top[0] = __int_as_float(max(t[0], t[1]));
      top[1] = __int_as_float(max(t[2], t[3]));
    } else {
      float_maxima(s, top);
    }
    moved_ = __any_sync(~0u, __fmaf_rn(top[0], scale_log2_[0], rows_.shift[0]) > kTopLog2 ||
                                 __fmaf_rn(top[1], scale_log2_[1], rows_.shift[1]) > kTopLog2);
    if (!moved_) return;
    if constexpr (C::kMax3) float_maxima(s, top);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float m = top[row];
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      factor_[row] = 1;
      if (__fmaf_rn(m, scale_log2_[row], rows_.shift[row]) > kTopLog2) {
        const float shift = C::kProbabilityLog2 - m * scale_log2_[row];
        factor_[row] = ptx::exp2_approx(shift - rows_.shift[row]);
        rows_.sum[row] *= factor_[row];
        rows_.shift[row] = shift;
      }
    }
  }
  static WW_DEVICE void float_maxima(const float (&s)[kScores], float (&top)[2]) {
    float t[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) t[i] = fmaxf(s[i], s[i + 4]);
#pragma unroll
    for (int i = 8; i < kScores; ++i) t[i % 4] = fmaxf(t[i % 4], s[i]);
    top[0] = fmaxf(t[0], t[1]);
    top[1] = fmaxf(t[2], t[3]);
  }
  static constexpr float kTopLog2 = C::kProbabilityLog2 + C::kRescaleThreshold;
  static constexpr float kNothingSeen = 1e30f;  // a row's shift before its first maximum

  // Turns S into P. O is complete here, so P may replace the last one. Of 32 tokens a thread holds 2t and
  // 2t + 1 of each 8; the products take them as 4t..4t+3 of each 16.
  WW_DEVICE void exponentials(float (&s)[kScores], ptx::u32 (&probability)[kScores / 16][4]) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = ptx::exp2_approx(__fmaf_rn(s[i], scale_log2_[i / 2 % 2], rows_.shift[i / 2 % 2]));
    }
    float sum[4];
#pragma unroll
    for (int i = 0; i < kScores; ++i) sum[i % 4] = i < 4 ? s[i] : sum[i % 4] + s[i];
#pragma unroll
    for (int i = 0; i < kScores / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = i * 16 + j / 2 * 8 + j % 2 * 2;
        probability[i][j] = ptx::pack_e4m3(s[at], s[at + 1], s[at + 4], s[at + 5]);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) rows_.sum[row] += sum[row * 2] + sum[row * 2 + 1];
  }

  WW_DEVICE void rescale() {
    if (!moved_) return;
#pragma unroll
    for (int i = 0; i < kOut; ++i) out_[i] *= factor_[i / 2 % 2];
  }

  WW_DEVICE void write(const Sm90Fp8Tile& tile, const Rows& rows) const {
    const float v_scale = p_.v_head_scales != nullptr ? p_.v_head_scales[tile.kv_head] : 1.0f;
    float scale[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = rows.sum[row];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      sum *= kUnscale;
      const bool empty = sum == 0;
      float top = C::kProbabilityLog2 - rows.shift[row];
      float factor = kUnscale * v_scale;
      if (p_.sinks != nullptr && !empty) {
        const float sink = p_.sinks[tile.head] * kLog2e;
        const float higher = fmaxf(top, sink);
        const float lower = ptx::exp2_approx(top - higher);
        factor *= lower;
        sum = sum * lower + ptx::exp2_approx(sink - higher);
        top = higher;
      }
      scale[row] = empty ? 0.0f : __fdividef(factor, sum);
      const int token = token_of(tile, row);
      if (p_.lse != nullptr && threadIdx.x % 4 == 0 && token < tile.q_len) {
        p_.lse[(static_cast<int64_t>(tile.q_begin) + token) * p_.num_q_heads + tile.head] =
            empty ? -INFINITY : (top + ptx::log2_approx(sum)) * kLn2;
      }
    }
    write_out(tile, scale);
  }
  static constexpr float kUnscale = 1.0f / (1 << C::kProbabilityLog2);

  WW_DEVICE char* out_of(const Sm90Fp8Tile& tile, int token) const {
    return static_cast<char*>(p_.out) + ((static_cast<int64_t>(tile.q_begin) + token) * p_.out_token_stride +
                                         static_cast<int64_t>(tile.head) * C::kDim) * 2;
  }

  // Lanes of a quad trade 4-byte pairs so that each stores 16 contiguous bytes.
  WW_DEVICE void write_out(const Sm90Fp8Tile& tile, const float (&scale)[2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int token = token_of(tile, row);
      char* out = out_of(tile, token);
#pragma unroll
      for (int i = 0; i < C::kDim / 32; ++i) {
        ptx::u32 own[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = (i * 4 + j) * 4 + row * 2;
          own[j] = E::pack(out_[at] * scale[row], out_[at + 1] * scale[row]);
        }
        transpose_quad(own);
        if (token < tile.q_len) {
          reinterpret_cast<uint4*>(out)[i * 4 + threadIdx.x % 4] = make_uint4(own[0], own[1], own[2], own[3]);
        }
      }
    }
  }

  // Rows that see nothing.
  WW_DEVICE void write_empty() const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int token = token_of(tile(), row);
      if (token >= tile().q_len) continue;
      char* out = out_of(tile(), token);
      for (int i = threadIdx.x % 4; i < C::kDim / 8; i += 4) reinterpret_cast<uint4*>(out)[i] = make_uint4(0, 0, 0, 0);
      if (p_.lse != nullptr && threadIdx.x % 4 == 0) {
        p_.lse[(static_cast<int64_t>(tile().q_begin) + token) * p_.num_q_heads + tile().head] = -INFINITY;
      }
    }
  }

  // 4x4 over the lanes of a quad: word j of lane i becomes word i of lane j.
  static WW_DEVICE void transpose_quad(ptx::u32 (&w)[4]) {
    const int i = threadIdx.x % 4;
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
      const bool upper = i & step;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j & step) continue;
        const ptx::u32 send = upper ? w[j] : w[j | step];
        const ptx::u32 received = __shfl_xor_sync(~0u, send, step);
        if (upper) w[j] = received; else w[j | step] = received;
      }
    }
  }

  const AttentionParams& p_;
  const Sm90Fp8Shared<C>& shared_;
  const int group_;
  int tile_ = 0;  // its place in the ring of tiles
  RingPosition<C::kKeyStages> k_ring_;
  RingPosition<C::kValueStages> v_ring_;
  ptx::u32 query_[C::kQueryInRegisters ? C::kDim / 32 : 1][4];
  float out_[kOut];
  Rows rows_;
  float scale_log2_[2];          // from a row's raw products to log2 units
  float factor_[2];              // what O is due to be multiplied with, if a row of the warp has moved
  int done_ = 0;                 // blocks of the tile whose O has been multiplied
  float total_shift_[2];
  bool moved_ = false;
};

}  // namespace warpweave::cuda
