// The chunks of a request in their order, as in chunk_scan.cuh, by the two groups of a block of fused.cuh that multiply: a group has
// 64 columns of V, a warp 16 of them.
#pragma once

#include "linear/cuda/fused_prepare.cuh"

namespace warpweave::linear {

template <class C>
class FusedStates {
  using E = typename C::Element;
  using Mma = WarpgroupMma<E>;
  using u32 = ptx::u32;
  static constexpr int kSteps = C::kDim / 16;

 public:
  WW_DEVICE explicit FusedStates(const FusedBlock<C>& block)
      : b_(block), p_(block.p), group_(static_cast<int>(threadIdx.x) / 128), warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32), column_(lane_ % 4 * 2), v_(64 * group_ + 16 * warp_ + lane_ / 4) {}

  WW_DEVICE void run() {
    typename FusedBlock<C>::Stages at;
    typename FusedBlock<C>::Slots from;
    for (; b_.more(); b_.next()) {
      if (b_.padded()) clear_rows();
      else multiply_all(at, from);
    }
    turn(from.entry ^ 1);
  }

 private:
  WW_DEVICE void clear_rows() const {
    const int end = first_row(p_.batch, b_.request + 1);
    for (int i = threadIdx.x; i < (end - b_.first) * C::kDim; i += 128 * C::kGroups) {
      store_one(p_.out, (b_.first + i / C::kDim) * p_.out_token_stride + b_.head * C::kDim + i % C::kDim, 0, p_.out_dtype);
    }
  }
  WW_DEVICE void multiply_all(typename FusedBlock<C>::Stages& at, typename FusedBlock<C>::Slots& from) {
    load_state(initial_slot(p_.batch, b_.request));
    round_state();
    for (ChunkWalk walk(p_, b_.request); walk.more(); at.advance(), from.advance()) {
      compute(at, from);
      const int checkpoint = walk.advance(p_, walk.length(p_));
      if (checkpoint >= 0) store_state(checkpoint);
    }
    store_state(p_.batch.slots[b_.request]);
  }
  // ---- the state
  WW_DEVICE int64_t state_at(int slot, int row) const {
    return slot * p_.state.slot_stride + b_.head * p_.state.head_stride + int64_t{v_ + 8 * row} * C::kDim + column_;
  }
  WW_DEVICE void load_state(int slot) {
#pragma unroll
    for (int n = 0; n < C::kDim / 8; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float2 x = make_float2(0, 0);
        if (slot >= 0) {
          const int64_t at = state_at(slot, row) + 8 * n;
          if (p_.state.dtype == DType::f32) {
            x = *reinterpret_cast<const float2*>(static_cast<const float*>(p_.state.data) + at);
          } else {
            const u32 pair = *reinterpret_cast<const u32*>(static_cast<const unsigned short*>(p_.state.data) + at);
            x = make_float2(ptx::Bf16::low(pair), ptx::Bf16::high(pair));
          }
        }
        s_[4 * n + 2 * row] = x.x, s_[4 * n + 2 * row + 1] = x.y;
      }
    }
  }
  WW_DEVICE void store_state(int slot) const {
#pragma unroll
    for (int n = 0; n < C::kDim / 8; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int64_t at = state_at(slot, row) + 8 * n;
        const float low = s_[4 * n + 2 * row], high = s_[4 * n + 2 * row + 1];
        if (p_.state.dtype == DType::f32) {
          *reinterpret_cast<float2*>(static_cast<float*>(p_.state.data) + at) = make_float2(low, high);
        } else {
          *reinterpret_cast<u32*>(static_cast<unsigned short*>(p_.state.data) + at) = ptx::Bf16::pack(low, high);
        }
      }
    }
  }
  WW_DEVICE void round_state() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state_[step][i] = E::pack(s_[8 * step + 2 * i], s_[8 * step + 2 * i + 1]);
    }
  }
  WW_DEVICE void decay_state(u32 t) {
    const float by = __uint_as_float(ptx::load_shared_4(t + offsetof(FusedTokens, all)));
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) s_[i] *= by;
  }

  // ---- a chunk
  // Starts d = S^T tile^T.
  WW_DEVICE void start_state(float (&d)[32], u32 tile) {
    Mma::settle(state_);
    Mma::begin();
    Mma::template by_rows<false>(d, state_, tile);
    Mma::commit();
  }
  // Of eight columns, those of this thread. `row`: of floats, in shared memory, from this thread's first one on.
  static WW_DEVICE float2 load_pair(u32 row, int n) {
    const uint2 w = ptx::load_shared_8(row + 32 * n);
    return make_float2(__uint_as_float(w.x), __uint_as_float(w.y));
  }
  // X as a left operand, from K S and the tile of V.
  WW_DEVICE void subtract(u32 (&x)[4][4], const float (&ks)[32], u32 v, u32 factors) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      u32 pairs[4];
      load_transposed(pairs, v, 16 * n, warp_);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 by = load_pair(factors + offsetof(FusedTokens, state), 2 * n + half);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int at = 4 * (2 * n + half) + 2 * row;
          const u32 pair = pairs[2 * half + row];
          x[n][2 * half + row] = E::pack(E::low(pair) - by.x * ks[at], E::high(pair) - by.y * ks[at + 1]);
        }
      }
    }
  }
  // An accumulator as a left operand, its columns times factors of their tokens; as it is.
  WW_DEVICE void round_columns(u32 (&to)[4][4], const float (&d)[32], u32 factors) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 by = load_pair(factors, n);
#pragma unroll
      for (int row = 0; row < 2; ++row) to[n / 2][n % 2 * 2 + row] = E::pack(by.x * d[4 * n + 2 * row], by.y * d[4 * n + 2 * row + 1]);
    }
  }
  WW_DEVICE void round_columns(u32 (&to)[4][4], const float (&d)[32]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) to[n / 2][n % 2 * 2 + row] = E::pack(d[4 * n + 2 * row], d[4 * n + 2 * row + 1]);
    }
  }
  WW_DEVICE void scale_outputs(float (&o)[32], u32 factors) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 by = load_pair(factors + offsetof(FusedTokens, out), n);
      o[4 * n] *= by.x, o[4 * n + 1] *= by.y, o[4 * n + 2] *= by.x, o[4 * n + 3] *= by.y;
    }
  }
  // Q S runs beside the making of X, P V' beside that of the state's update, and T is waited for when all is done that does not need it.
  // That order has the fewest numbers at a time, so that no product waits for want of registers.
  WW_DEVICE void compute(const typename FusedBlock<C>::Stages& at, const typename FusedBlock<C>::Slots& from) {
    static_assert(C::kSlots == 2);
    const u32 k = b_.stage(at.entry), t = b_.slot(from.entry), all = b_.factors(at.entry), factors = all + 4 * column_;
    float o[32], change[32];
    u32 x[4][4], update[4][4];
    ptx::mbarrier_wait(b_.full(at.entry), at.round & 1);
    ptx::mbarrier_wait(b_.known(at.entry), at.round & 1);
    {
      float ks[32];
      start_state(ks, k);
      turn(from.entry ^ 1);
      decay_state(all);
      Mma::template wait<0>();
      Mma::settle(ks);
      ptx::mbarrier_wait(b_.v_full(from.entry), from.round & 1);
      start_state(o, k + C::kQ);
      subtract(x, ks, b_.v(from.entry) + group_ * kBlockBytes, factors);
    }
    Mma::template wait<0>();
    Mma::settle(o);
    ptx::mbarrier_wait(b_.slot_full(from.entry), from.round & 1);
    Mma::settle(x);
    Mma::begin();
    Mma::template by_rows<false>(change, x, t);
    Mma::commit();
    scale_outputs(o, factors);
    Mma::template wait<0>();
    Mma::settle(change);
    round_columns(x, change);
    Mma::settle(o);
    Mma::settle(x);
    Mma::begin();
    Mma::template by_rows<true>(o, x, t + kBlockBytes);
    Mma::commit();
    round_columns(update, change, factors + offsetof(FusedTokens, update));
    Mma::settle(s_);
    Mma::settle(update);
    Mma::begin();
    Mma::template by_columns<C::kDim>(s_, update, k);
    Mma::commit();
    Mma::template wait<1>();
    Mma::settle(o);
    b_.arrive(b_.slot_empty(from.entry));
#pragma unroll
    for (int i = 0; i < 16; ++i) out_[i] = E::pack(o[2 * i], o[2 * i + 1]);
    Mma::template wait<0>();
    Mma::settle(s_);
    b_.arrive(b_.empty(at.entry));
    round_state();
  }

  // Leaves outputs of the chunk before, turned round, where its v was, of which this warp alone has read what it writes.
  WW_DEVICE void turn(int entry) const {
    __syncwarp();
    const u32 lane = opaque(lane_);
    const u32 tile = b_.v(entry) + group_ * kBlockBytes + (lane / 16 * 8 + lane % 8) * 128 + ((2 * warp_ + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      const u32 w[4] = {out_[2 * n], out_[2 * n + 1], out_[2 * n + 2], out_[2 * n + 3]};
      ptx::stmatrix_x4_trans(tile + n * 8 * 128, w);
    }
    ptx::fence_proxy_async();
    b_.arrive(b_.out_full(entry));
  }

  FusedBlock<C> b_;
  const LinearParams& p_;
  const int group_, warp_, lane_, column_, v_;
  float s_[C::kDim / 2];
  u32 state_[kSteps][4];  // S^T, rounded
  u32 out_[16] = {};      // O of the last chunk, rounded
};

// `maps`: null: all is copied by cp.async.
template <class C>
WW_DEVICE void fused_chunks(const LinearParams& p, const FusedMaps* maps, char* shared) {
  const FusedBlock<C> block(p, shared);
  block.make_barriers();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (group < C::kGroups) {
    ptx::setmaxnreg_increase<C::kOfStates>();
    FusedStates<C>(block).run();
  } else if (group == C::kGroups) {
    ptx::setmaxnreg_decrease<C::kOfPrepare>();
    FusedPrepare<C>(block).run();
  } else {
    ptx::setmaxnreg_decrease<C::kOfOthers>();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
    if (warp == 0) FusedLoader<C>(block, maps).run();
    if (warp == 1) FusedFactors<C>(block).run_q(maps);
    if (warp >= 2) FusedFactors<C>(block).run();
  }
}

}  // namespace warpweave::linear
