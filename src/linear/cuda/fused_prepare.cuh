// T and P of chunks, by one group of 128 threads of a block of fused.cuh, into its ring of slots.
#pragma once

#include <cstddef>

#include "linear/cuda/fused.cuh"
#include "linear/cuda/half_blocks.cuh"

namespace warpweave::linear {

// (I + A)^-1 as in chunk_inverse.cuh, by threads that are not all of their block.
template <class Element>
class FusedInverse : HalfBlocks {
 public:
  WW_DEVICE FusedInverse(FusedScratch& scratch, int thread, ptx::u32 beta) : HalfBlocks(thread / 32, thread % 32), s_(scratch), beta_(beta + 4 * column_) {}

  // Elements of A: two neighbours in a block of 8 on the diagonal (n: 0 or 1 of this warp); a block of 16 before it.
  WW_DEVICE void put_near(int n, float2 pair) {
    *reinterpret_cast<float2*>(&s_.diagonal[warp_][row_ + 8 * n][8 * n + column_]) = pair;
  }
  WW_DEVICE void put_far(int block, const ptx::u32 (&w)[4]) {
    ptx::stmatrix_x4(ptx::smem_address(&s_.a[16 * warp_ - 16 + lane_ % 16][16 * block + lane_ / 16 * 8]), w);
  }
  static WW_DEVICE ptx::u32 pack(float low, float high) { return Half::pack(low, high); }
  static WW_DEVICE void meet() { ptx::named_barrier_sync(12, 128); }

  // `lower`: of the diagonal's block, the elements of A in its lower rows and left columns. Blocks of 8 by substitution in f32, a lane a
  // column; then T = X - X L X, where X has their inverses and L is `lower`.
  WW_DEVICE void invert_diagonal(float2 lower, ptx::u32 tile) {
    __syncwarp();
    const int column = lane_ % 8, block = lane_ / 8 % 2 * 8;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float even = i == column ? 1.0f : 0.0f, odd = 0;
      const float4* const row = reinterpret_cast<const float4*>(&s_.diagonal[warp_][block + i][block]);
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
    if (lane_ < 16) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        s_.t[16 * warp_ + block + i][16 * warp_ + block + column] = static_cast<unsigned short>(Half::pack(x[i], 0));
        s_.t[16 * warp_ + block + i][16 * warp_ + 8 - block + column] = 0;
      }
    }
    __syncwarp();
    ptx::u32 a[4], b[4];
    left(a, s_.t, 16 * warp_, 16 * warp_);
    right(b, s_.t, 16 * warp_, 16 * warp_);
    float y[4] = {}, corner[4] = {};
    Half::mma(y, a, 0, ptx::movmatrix_trans(Half::pack(lower.x, lower.y)));
    const ptx::u32 of_lower[4] = {0, Half::pack(y[2], y[3]), 0, 0};
    Half::mma(corner, of_lower, b[0], b[1]);
    a[1] = Half::pack(-corner[2], -corner[3]);
    *reinterpret_cast<ptx::u32*>(&s_.t[16 * warp_ + 8 + row_][16 * warp_ + column_]) = a[1];
    put_tile(tile, 16 * warp_, warp_, a);
  }
  // From 16 to 32 to 64.
  WW_DEVICE void merge(ptx::u32 tile) {
    meet();
    if (warp_ % 2 == 1) merge_sixteens(tile);
    meet();
    merge_thirty_twos(tile);
  }

 private:
  // A block of 16 x 16 to where it is read: rows from `row`, columns 16 n ..
  WW_DEVICE void put_tile(ptx::u32 tile, int row, int n, const ptx::u32 (&half)[4]) const {
    ptx::u32 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 beta = ptx::load_shared_8(beta_ + 64 * n + i / 2 * 32);
      w[i] = Element::pack(Half::low(half[i]) * __uint_as_float(beta.x), Half::high(half[i]) * __uint_as_float(beta.y));
    }
    ptx::stmatrix_x4(tile + (row + lane_ % 16) * 128 + ((2 * n + lane_ / 16) ^ lane_ % 8) * 16, w);
  }
  // Rounded, as a left operand has it.
  static WW_DEVICE void round(ptx::u32 (&w)[4], const float (&d)[2][4], float sign) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = Half::pack(sign * d[i / 2][i % 2 * 2], sign * d[i / 2][i % 2 * 2 + 1]);
  }
  template <int N, int kStride>
  WW_DEVICE void put(unsigned short (&to)[N][kStride], int row, int column, const ptx::u32 (&w)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) *reinterpret_cast<ptx::u32*>(&to[row + row_ + i % 2 * 8][column + i / 2 * 8 + column_]) = w[i];
  }

  WW_DEVICE void merge_sixteens(ptx::u32 tile) {
    const int row = 16 * warp_, column = row - 16;
    ptx::u32 a[4], b[4];
    float y[2][4] = {}, result[2][4] = {};
    left(a, s_.a, row - 16, column);
    right(b, s_.t, column, column);
    multiply(y, a, b);
    right_of(b, y);
    left(a, s_.t, row, row);
    multiply(result, a, b);
    round(a, result, -1);
    put(s_.t, row, column, a);
    put_tile(tile, row, warp_ - 1, a);
  }
  WW_DEVICE void merge_thirty_twos(ptx::u32 tile) {
    const int i = warp_ / 2, j = warp_ % 2;  // the block of 16 that is this warp's
    ptx::u32 a[4], b[4];
    float z[2][4] = {}, result[2][4] = {};
    const auto add = [&](int block) {
      left(a, s_.a, 16 + 16 * i, 16 * block);
      right(b, s_.t, 16 * block, 16 * j);
      multiply(z, a, b);
    };
    if (j == 0) add(0);
    add(1);
    round(a, z, 1);
    put(s_.z, 16 * i, 16 * j, a);
    meet();
    const auto add_z = [&](int block) {
      left(a, s_.t, 32 + 16 * i, 32 + 16 * block);
      right(b, s_.z, 16 * block, 16 * j);
      multiply(result, a, b);
    };
    add_z(0);
    if (i == 1) add_z(1);
    round(a, result, -1);
    put_tile(tile, 32 + 16 * i, j, a);
  }

  FusedScratch& s_;
  const ptx::u32 beta_;
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
    thread_ = thread, warp_ = thread / 32, lane_ = thread % 32;
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

  // Starts K K^T of a chunk; of none the products, of whatever stands there, are not used.
  WW_DEVICE void start_chunk(const typename FusedBlock<C>::Stages& at, bool there) {
    if (there) ptx::mbarrier_wait(b_.full(at.entry), at.round & 1);
    start(products_, b_.stage(at.entry), b_.stage(at.entry));
  }
  // `more`: a chunk follows, whose product begins beside the end of this one.
  WW_DEVICE void make(typename FusedBlock<C>::Stages& at, const typename FusedBlock<C>::Slots& to, bool more) {
    const u32 k = b_.stage(at.entry), t = b_.factors(at.entry), slot = b_.slot(to.entry);
    Inverse inverse(b_.scratch(), thread_, t + offsetof(FusedTokens, beta));
    float2 lower;
    {
      OfA factors;
      take(factors, t);
      Mma::template wait<0>();
      Mma::settle(products_);
      Inverse::meet();  // all are done with the chunk before
      lower = put_a(inverse, factors);
    }
    ptx::mbarrier_wait(b_.known_q(at.entry), at.round & 1);
    start(products_, k, k + C::kQ);
    if (to.round > 0) ptx::mbarrier_wait(b_.slot_empty(to.entry), (to.round + 1) & 1);
    inverse.invert_diagonal(lower, slot);
    OfP factors;
    take(factors, t);
    Mma::template wait<0>();
    Mma::settle(products_);
    put_p(factors, slot + kBlockBytes);
    b_.arrive(b_.empty(at.entry));
    at.advance();
    start_chunk(at, more);
    inverse.merge(slot);
  }
  // What this warp's rows of A are multiplied by: in the diagonal's block of 16, of its first eight columns in both rows of this thread
  // and of its last eight in the second one; in earlier blocks, of rows and of columns.
  struct OfA {
    float2 first[2], last;
    float far[2];
    float2 columns[6];
  };
  WW_DEVICE void take(OfA& f, u32 t) const {
    const u32 columns = t + 4 * (16 * warp_ + column_), rows = t + 4 * row_;
    const auto of = [&](int row, int half) {
      const float g = load_float(rows + 32 * row + offsetof(FusedTokens, log2_decay)), by = load_float(rows + 32 * row + offsetof(FusedTokens, near_a));
      const float2 sum = load_pair(columns + 32 * half + offsetof(FusedTokens, log2_decay));
      const float2 norm = load_pair(columns + 32 * half + offsetof(FusedTokens, k_norm));
      return make_float2(by * norm.x * ptx::exp2_approx(fminf(g - sum.x, 0)), by * norm.y * ptx::exp2_approx(fminf(g - sum.y, 0)));
    };
    f.first[0] = of(0, 0), f.first[1] = of(1, 0), f.last = of(1, 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) f.far[i] = load_float(rows + 32 * i + offsetof(FusedTokens, far_a));
    const u32 fars = t + offsetof(FusedTokens, far) + 256 * (warp_ > 0 ? warp_ - 1 : 0) + 4 * column_;
#pragma unroll
    for (int n = 0; n < 6; ++n) f.columns[n] = load_pair(fars + 32 * n);
  }
  // What the diagonal's block has in its lower rows and left columns is returned.
  WW_DEVICE float2 put_a(Inverse& inverse, const OfA& f) const {
    float2 near[3] = {};
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const float* const d = &products_[8 * block];
      if (block == warp_) {
        near[0] = make_float2(d[0], d[1]), near[1] = make_float2(d[2], d[3]), near[2] = make_float2(d[6], d[7]);
      } else if (block < 3 && block < warp_) {
        u32 w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 column = f.columns[2 * block + i / 2];
          w[i] = Inverse::pack(d[2 * i] * (f.far[i % 2] * column.x), d[2 * i + 1] * (f.far[i % 2] * column.y));
        }
        inverse.put_far(block, w);
      }
    }
    const bool even = column_ < lane_ / 4, odd = column_ + 1 < lane_ / 4;
    inverse.put_near(0, make_float2(even ? near[0].x * f.first[0].x : 0.0f, odd ? near[0].y * f.first[0].y : 0.0f));
    inverse.put_near(1, make_float2(even ? near[2].x * f.last.x : 0.0f, odd ? near[2].y * f.last.y : 0.0f));
    return make_float2(near[1].x * f.first[1].x, near[1].y * f.first[1].y);
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
      return make_float2(by.x * norm * ptx::exp2_approx(fminf(later.x - sum, 0)), by.y * norm * ptx::exp2_approx(fminf(later.y - sum, 0)));
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
      const float* const d = &products_[8 * block];
      if (block == warp_) {
#pragma unroll
        for (int i = 0; i < 8; ++i) own[i] = d[i];
      } else if (block > 0 && block > warp_) {
        u32 w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 column = f.columns[2 * block - 2 + i / 2];
          const float row = f.far[block - 1][i % 2];
          w[i] = E::pack(d[2 * i] * (column.x * row), d[2 * i + 1] * (column.y * row));
        }
        ptx::stmatrix_x4_trans(to + 16 * 128 * block, w);
      }
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
