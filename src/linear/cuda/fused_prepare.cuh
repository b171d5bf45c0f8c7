// T and P of chunks, by one group of 128 threads of a block of fused.cuh, into its ring of slots.
#pragma once

#include <cstddef>

#include "linear/cuda/fused.cuh"
#include "linear/cuda/half_blocks.cuh"

namespace warpweave::linear {

// T = (I + A)^-1 diag(beta) as in chunk_inverse.cuh, by threads that are not all of their block. With A = diag(beta) M it is the inverse of
// diag(1 / beta) + M: so blocks of 8 on the diagonal have rows of A and begin with beta in place of 1, and all other blocks are those
// of -M, as merging them wants. T is rounded to half with beta in it: numbers below 6e-5 are multiples of 6e-8 there, so that an update
// by so small a beta is off by up to 3e-8 of what a beta of 1 would add.
template <class Element>
class FusedInverse : HalfBlocks {
  using u32 = ptx::u32;

 public:
  WW_DEVICE FusedInverse(FusedScratch& scratch, int thread)
      : HalfBlocks(static_cast<u32>(thread) / 32, static_cast<u32>(thread) % 32), s_(scratch), a_(ptx::smem_address(scratch.a) + lane_place()),
        t_(ptx::smem_address(scratch.t) + lane_place()) {}

  // Elements of A: two neighbours in a block of 8 on the diagonal (n: 0 or 1 of this warp); a block of 16 before it.
  WW_DEVICE void put_near(int n, float2 pair) { *reinterpret_cast<float2*>(&s_.diagonal[2 * warp_ + n][row_][column_]) = pair; }
  WW_DEVICE void put_far(int block, const u32 (&w)[4]) { ptx::stmatrix_x4(of_a(warp_, block), w); }
  static WW_DEVICE u32 pack(float low, float high) { return Half::pack(low, high); }
  static WW_DEVICE void meet() { ptx::named_barrier_sync(12, 128); }

  // `lower`: of the diagonal's block, the elements of -M in its lower rows and left columns. Blocks of 8 by substitution in f32, a lane a
  // column; then T = X + X L X, where X has their inverses and L is `lower`. `beta`: of tokens, in shared memory.
  WW_DEVICE void invert_diagonal(float2 lower, u32 tile, u32 beta) {
    __syncwarp();
    invert_eights(beta);
    __syncwarp();
    u32 a[4];
    ptx::ldmatrix_x4_trans(a, of_t(warp_, warp_));  // where each block of 8 stands transposed
    a[1] = a[2] = 0;
    float y[4] = {}, corner[4] = {};
    Half::mma(y, a, 0, ptx::movmatrix_trans(Half::pack(lower.x, lower.y)));
    const u32 of_lower[4] = {0, Half::pack(y[2], y[3]), 0, 0};
    Half::mma(corner, of_lower, ptx::movmatrix_trans(a[0]), 0);
    a[1] = Half::pack(corner[2], corner[3]);
    ptx::stmatrix_x4(of_t(warp_, warp_), a);
    u32 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = Element::pack(Half::low(a[i]), Half::high(a[i]));
    put_tile(tile, 16 * warp_, warp_, w);
  }
  // From 16 to 32, which every second warp does. Behind it, blocks of the diagonal are there.
  WW_DEVICE void merge_sixteens(u32 tile) {
    meet();
    if (warp_ % 2 == 0) return;
    u32 a[4], b[4];
    float y[2][4] = {}, result[2][4] = {};
    add(y, of_a(warp_, warp_ - 1), of_t(warp_ - 1, warp_ - 1));
    right_of(b, y);
    ptx::ldmatrix_x4(a, of_t(warp_, warp_));
    multiply(result, a, b);
    round<Half>(a, result);
    ptx::stmatrix_x4(of_t(warp_, warp_ - 1), a);
    round<Element>(a, result);
    put_tile(tile, 16 * warp_, warp_ - 1, a);
  }
  // From 32 to 64.
  WW_DEVICE void merge_thirty_twos(u32 tile) {
    meet();
    const int i = warp_ / 2, j = warp_ % 2;  // the block of 16 that is this warp's
    u32 w[4];
    float z[2][4] = {}, result[2][4] = {};
    if (j == 0) add(z, of_a(2 + i, 0), of_t(0, 0));
    add(z, of_a(2 + i, 1), of_t(1, j));
    round<Half>(w, z);
    ptx::stmatrix_x4(of_z(i, j), w);
    meet();
    add(result, of_t(2 + i, 2), of_z(0, j));
    if (i == 1) add(result, of_t(3, 3), of_z(1, j));
    round<Element>(w, result);
    put_tile(tile, 32 + 16 * i, j, w);
  }

 private:
  // Where this lane's row of an ldmatrix is in a block.
  WW_DEVICE u32 lane_place() const { return static_cast<u32>(lane_ % 16 * 32 + (lane_ / 16 ^ lane_ / 4 % 2) * 16); }
  WW_DEVICE u32 of_a(int i, int j) const { return a_ + (i * (i - 1) / 2 + j) * FusedScratch::kBlock; }
  WW_DEVICE u32 of_t(int i, int j) const { return t_ + (i * (i + 1) / 2 + j) * FusedScratch::kBlock; }
  WW_DEVICE u32 of_z(int i, int j) const { return t_ + static_cast<u32>(offsetof(FusedScratch, z) - offsetof(FusedScratch, t)) + (2 * i + j) * FusedScratch::kBlock; }

  WW_DEVICE void invert_eights(u32 beta) {
    const int column = lane_ % 8, block = lane_ / 8 % 2;
    const float own = __uint_as_float(ptx::load_shared_4(beta + 4 * (16 * warp_ + 8 * block + column)));
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float even = i == column ? own : 0.0f, odd = 0;
      const float4* const row = reinterpret_cast<const float4*>(&s_.diagonal[2 * warp_ + block][i][0]);
      const float4 first = i > 0 ? row[0] : make_float4(0, 0, 0, 0), last = i > 4 ? row[1] : make_float4(0, 0, 0, 0);
      if (i > 0) even -= first.x * x[0];
      if (i > 1) odd -= first.y * x[1];
      if (i > 2) even -= first.z * x[2];
      if (i > 3) odd -= first.w * x[3];
      if (i > 4) even -= last.x * x[4];
      if (i > 5) odd -= last.y * x[5];
      if (i > 6) even -= last.z * x[6];
      x[i] = even + odd;
    }
    if (lane_ >= 16) return;
    u32 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = Half::pack(x[2 * i], x[2 * i + 1]);
    store_shared_16(ptx::smem_address(s_.t) + warp_ * (warp_ + 3) / 2 * FusedScratch::kBlock + 32 * lane_ + 16 * (block ^ lane_ / 4 % 2), w);
  }
  // A block of 16 x 16 to where it is read: rows from `row`, columns 16 n ..
  WW_DEVICE void put_tile(u32 tile, int row, int n, const u32 (&w)[4]) const {
    ptx::stmatrix_x4(tile + (row + lane_ % 16) * 128 + ((2 * n + lane_ / 16) ^ lane_ % 8) * 16, w);
  }
  // Rounded to a type, as a left operand has it.
  template <class To>
  static WW_DEVICE void round(u32 (&w)[4], const float (&d)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = To::pack(d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]);
  }
  // d += the left block times the right one.
  static WW_DEVICE void add(float (&d)[2][4], u32 left, u32 right) {
    u32 a[4], b[4];
    ptx::ldmatrix_x4(a, left);
    ptx::ldmatrix_x4_trans(b, right);
    multiply(d, a, b);
  }

  FusedScratch& s_;
  const u32 a_, t_;
};

template <class C>
class FusedPrepare {
  using E = typename C::Element;
  using Mma = WarpgroupMma<E>;
  using Inverse = FusedInverse<E>;
  using u32 = ptx::u32;

 public:
  WW_DEVICE explicit FusedPrepare(const FusedBlock<C>& block)
      : b_(block), p_(block.p) {
    place(threadIdx.x % 128);
  }

  WW_DEVICE void run() {
    typename FusedBlock<C>::Stages at;
    typename FusedBlock<C>::Slots to;
    clear_above();
    for (; b_.more(); b_.next()) {
      if (!b_.padded()) prepare_all(at, to);
    }
  }

 private:
  WW_DEVICE void prepare_all(typename FusedBlock<C>::Stages& at, typename FusedBlock<C>::Slots& to) {
    ChunkWalk walk(p_, b_.request);
    start_chunk(at, walk.more());
    for (; walk.more(); to.advance()) {
      place(opaque(thread_));
      ptx::mbarrier_wait(b_.known(at.entry), at.round & 1);
      walk.advance(p_, walk.length(p_));
      make(at, to, walk.more());
      ptx::fence_proxy_async();
      b_.arrive(b_.slot_full(to.entry));
    }
    Mma::template wait<0>();
    Mma::settle(products_);
  }
  WW_DEVICE void place(int thread) {
    thread_ = thread, warp_ = static_cast<u32>(thread) / 32, lane_ = static_cast<u32>(thread) % 32;
    row_ = 16 * warp_ + lane_ / 4, column_ = lane_ % 4 * 2;
  }
  // Blocks above the diagonal of T and P are zeros for good.
  WW_DEVICE void clear_above() const {
    for (int i = threadIdx.x % 128; i < C::kSlots * 2 * 512; i += 128) {
      const int row = i / 8 % 64, piece = i % 8;
      if (piece / 2 > row / 16) store_shared_16(b_.slot(0) + i / 512 * kBlockBytes + piece_offset(row, piece), {0, 0, 0, 0});
    }
  }
  // d = a b^T, of tiles of 64 tokens.
  static WW_DEVICE void start(float (&d)[32], u32 a, u32 b) {
    const u32 left = ptx::wgmma_descriptor(a, 0), right = ptx::wgmma_descriptor(b, 0);
    Mma::settle(d);
    Mma::begin();
#pragma unroll
    for (int step = 0; step < C::kDim / 16; ++step) {
      const int bytes = step / 4 * kBlockBytes + step % 4 * 32;
      ptx::Wgmma<E, 64>::qk(d, ptx::wgmma_advance(left, bytes), ptx::wgmma_advance(right, bytes), step > 0);
    }
    Mma::commit();
  }

  static WW_DEVICE float2 load_pair(u32 at) {
    const uint2 w = ptx::load_shared_8(at);
    return make_float2(__uint_as_float(w.x), __uint_as_float(w.y));
  }
  static WW_DEVICE float load_float(u32 at) { return __uint_as_float(ptx::load_shared_4(at)); }

  // By a predicate, which the compiler makes no index of.
  static WW_DEVICE float choose(bool first, float a, float b) {
#if defined(__CUDA_ARCH__)
    float chosen;
    asm("{.reg .pred p; setp.ne.u32 p, %3, 0; selp.f32 %0, %1, %2, p;}" : "=f"(chosen) : "f"(a), "f"(b), "r"(static_cast<u32>(first)));
    return chosen;
#else
    return first ? a : b;
#endif
  }

  // Starts K K^T of a chunk; of none the products, of whatever stands there, are not used.
  WW_DEVICE void start_chunk(const typename FusedBlock<C>::Stages& at, bool there) {
    if (there) ptx::mbarrier_wait(b_.full(at.entry), at.round & 1);
    start(products_, b_.stage(at.entry), b_.stage(at.entry));
  }
  // `more`: a chunk follows, whose product begins beside the end of this one.
  WW_DEVICE void make(typename FusedBlock<C>::Stages& at, const typename FusedBlock<C>::Slots& to, bool more) {
    const u32 k = b_.stage(at.entry), t = b_.factors(at.entry), slot = b_.slot(to.entry);
    Inverse inverse(b_.scratch(), thread_);
    float2 lower;
    {
      OfA factors;
      take(factors, t);
      Mma::template wait<0>();
      Mma::settle(products_);
      Inverse::meet();  // all are done with the chunk before
      lower = put_a(inverse, factors);
    }
    start(products_, k, k + C::kQ);
    if (to.round > 0) ptx::mbarrier_wait(b_.slot_empty(to.entry), (to.round + 1) & 1);
    inverse.invert_diagonal(lower, slot, t + offsetof(FusedTokens, beta));
    inverse.merge_sixteens(slot);
    ptx::mbarrier_wait(b_.known_q(at.entry), at.round & 1);
    OfP factors;
    take(factors, t);
    Mma::template wait<0>();
    Mma::settle(products_);
    put_p(factors, slot + kBlockBytes);
    b_.arrive(b_.empty(at.entry));
    at.advance();
    start_chunk(at, more);
    inverse.merge_thirty_twos(slot);
  }
  // What this warp's rows of A are multiplied by: in the diagonal's block of 16, of its first eight columns in both rows of this thread
  // and of its last eight in the second one; in earlier blocks, of rows and of columns. Above the diagonal exponents are positive; what
  // comes of them is not used.
  struct OfA {
    float2 first[2], last;
    float far[2];
    float2 columns[6];
  };
  WW_DEVICE void take(OfA& f, u32 t) const {
    const u32 columns = t + 4 * (16 * warp_ + column_), rows = t + 4 * row_;
    const auto of = [&](int row, int half, u32 norms) {
      const float g = load_float(rows + 32 * row + offsetof(FusedTokens, log2_decay)), by = load_float(rows + 32 * row + norms);
      const float2 sum = load_pair(columns + 32 * half + offsetof(FusedTokens, log2_decay));
      const float2 norm = load_pair(columns + 32 * half + offsetof(FusedTokens, k_norm));
      return make_float2(by * norm.x * ptx::exp2_approx(g - sum.x), by * norm.y * ptx::exp2_approx(g - sum.y));
    };
    f.first[0] = of(0, 0, offsetof(FusedTokens, near_a)), f.last = of(1, 1, offsetof(FusedTokens, near_a));
    f.first[1] = of(1, 0, offsetof(FusedTokens, k_norm));
#pragma unroll
    for (int i = 0; i < 2; ++i) f.far[i] = load_float(rows + 32 * i + offsetof(FusedTokens, far_a));
    const u32 fars = t + offsetof(FusedTokens, far) + 256 * (warp_ > 0 ? warp_ - 1 : 0) + 4 * column_;
#pragma unroll
    for (int n = 0; n < 6; ++n) f.columns[n] = load_pair(fars + 32 * n);
  }
  // What -M has in its lower rows and left columns of the diagonal's block is returned.
  WW_DEVICE float2 put_a(Inverse& inverse, const OfA& f) const {
    float2 near[3] = {};
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const float* const d = &products_[8 * block];
      const bool own = block == warp_;
      near[0] = make_float2(choose(own, d[0], near[0].x), choose(own, d[1], near[0].y));
      near[1] = make_float2(choose(own, d[2], near[1].x), choose(own, d[3], near[1].y));
      near[2] = make_float2(choose(own, d[6], near[2].x), choose(own, d[7], near[2].y));
    }
#pragma unroll
    for (int block = 0; block < 3; ++block) {
      if (block >= warp_) continue;
      const float* const d = &products_[8 * block];
      u32 w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 column = f.columns[2 * block + i / 2];
        w[i] = Inverse::pack(d[2 * i] * (f.far[i % 2] * column.x), d[2 * i + 1] * (f.far[i % 2] * column.y));
      }
      inverse.put_far(block, w);
    }
    const bool even = column_ < lane_ / 4, odd = column_ + 1 < lane_ / 4;
    inverse.put_near(0, make_float2(even ? near[0].x * f.first[0].x : 0.0f, odd ? near[0].y * f.first[0].y : 0.0f));
    inverse.put_near(1, make_float2(even ? near[2].x * f.last.x : 0.0f, odd ? near[2].y * f.last.y : 0.0f));
    return make_float2(-near[1].x * f.first[1].x, -near[1].y * f.first[1].y);
  }
  // The same of P, from K Q^T: so the warp that has most blocks of A has the fewest of P. This warp's rows are tokens j, columns i.
  struct OfP {
    float2 first, last[2];  // of the first eight columns in the first row; of the last eight in both
    float far[3][2];
    float2 columns[6];
  };
  WW_DEVICE void take(OfP& f, u32 t) const {
    const u32 columns = t + 4 * (16 * warp_ + column_), rows = t + 4 * row_;
    const auto of = [&](int row, int half) {
      const float sum = load_float(rows + 32 * row + offsetof(FusedTokens, log2_decay)), norm = load_float(rows + 32 * row + offsetof(FusedTokens, k_norm));
      const float2 later = load_pair(columns + 32 * half + offsetof(FusedTokens, log2_decay));
      const float2 by = load_pair(columns + 32 * half + offsetof(FusedTokens, near_p));
      return make_float2(by.x * norm * ptx::exp2_approx(later.x - sum), by.y * norm * ptx::exp2_approx(later.y - sum));
    };
    f.first = of(0, 0), f.last[0] = of(0, 1), f.last[1] = of(1, 1);
#pragma unroll
    for (int n = 0; n < 6; ++n) {
      f.far[n / 2][n % 2] = load_float(rows + 256 * (n / 2) + 32 * (n % 2) + offsetof(FusedTokens, far));
      f.columns[n] = load_pair(t + 4 * (8 * (n + 2) + column_) + offsetof(FusedTokens, far_p));
    }
  }
  WW_DEVICE void put_p(const OfP& f, u32 tile) const {
    const bool even = lane_ / 4 <= column_, odd = lane_ / 4 <= column_ + 1;
    // Matrices of 8 x 8 in w: tokens i by halves, of both eights of tokens j.
    const u32 to = tile + (lane_ / 16 * 8 + lane_ % 8) * 128 + ((2 * warp_ + lane_ / 8 % 2) ^ lane_ % 8) * 16;
    float own[8] = {};
#pragma unroll
    for (int block = 0; block < 4; ++block) {
#pragma unroll
      for (int i = 0; i < 8; ++i) own[i] = choose(block == warp_, products_[8 * block + i], own[i]);
    }
#pragma unroll
    for (int block = 1; block < 4; ++block) {
      if (block <= warp_) continue;
      const float* const d = &products_[8 * block];
      u32 w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 column = f.columns[2 * block - 2 + i / 2];
        const float row = f.far[block - 1][i % 2];
        w[i] = E::pack(d[2 * i] * (column.x * row), d[2 * i + 1] * (column.y * row));
      }
      ptx::stmatrix_x4_trans(to + 16 * 128 * block, w);
    }
    const u32 w[4] = {E::pack(even ? own[0] * f.first.x : 0.0f, odd ? own[1] * f.first.y : 0.0f), 0,
                      E::pack(own[4] * f.last[0].x, own[5] * f.last[0].y),
                      E::pack(even ? own[6] * f.last[1].x : 0.0f, odd ? own[7] * f.last[1].y : 0.0f)};
    ptx::stmatrix_x4_trans(to + 16 * 128 * warp_, w);
  }

  FusedBlock<C> b_;
  const LinearParams& p_;
  int thread_, warp_, lane_, row_, column_;
  float products_[32] = {};  // K K^T, then Q K^T
};

}  // namespace warpweave::linear
