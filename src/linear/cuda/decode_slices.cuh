// Decode of f32 states without a norm behind it, by blocks of a few rows of a head that come and go in the order of their states: so
// many stand on a multiprocessor at once that none has to hide what its own beginning waits for (decode.cuh, whose blocks stay).
//
// Sixteen lanes share a row; each row's lanes read k, q and the gates themselves, and a thread copies the state that it will read, so
// that no thread waits for another. Sums add up as in decode.cuh. k_dim is kDim.
// Grid: x = v head * slices of a head + slice, y = request.
#pragma once

#include "linear/cuda/recurrent.cuh"

namespace warpweave::linear {

// `kNarrow`: q, k and v are bf16, else what they say. kSteps: rows of a thread.
template <int kDim_, bool kKda_, bool kNarrow_, int kSteps_, int kBlocks_>
struct SliceConfig {
  static constexpr int kDim = kDim_, kSteps = kSteps_;
  static constexpr bool kKda = kKda_, kNarrow = kNarrow_;
  static constexpr int kThreads = 128, kBlocks = kBlocks_;  // at once on a multiprocessor, at least
  static constexpr int kLanes = 16, kStepRows = kThreads / kLanes, kRows = kSteps * kStepRows;
  static constexpr int kPieces = kDim / kLanes / 4, kValues = 4 * kPieces;  // of a row, of one lane, 16 bytes each
  static constexpr int kPieceBytes = kThreads * 16, kSmemBytes = kSteps * kPieces * kPieceBytes;
};

template <class C>
class DecodeSlice {
  using u32 = ptx::u32;

 public:
  WW_DEVICE DecodeSlice(const LinearParams& p, char* shared, int request, int head, int slice)
      : p_(p), request_(request), head_(head), lane_(static_cast<int>(threadIdx.x % C::kLanes)),
        row_(slice * C::kRows + static_cast<int>(threadIdx.x / C::kLanes)),
        at_(head * p.state.head_stride + row_ * C::kDim + lane_ * 4), copies_(ptx::smem_address(shared) + threadIdx.x * 16) {}

  WW_DEVICE void run() {
    const int slot = p_.batch.slots[request_];
    const int from = slot < 0 ? -1 : initial_slot(p_.batch, request_);
    if (from >= 0) fetch_to_l2(state_of(from));
    ptx::grid_dependency_wait();
    token_ = first_row(p_.batch, request_);
    float own = 0;  // all lanes of a row have what was found there: lane i stores the i-th row's
    if (slot >= 0) {
      ask_state(from);
      take_token();
      float* const to = state_of(slot);
#pragma unroll
      for (int i = 0; i < C::kSteps; ++i) {
        if (i == 0) ptx::cp_async_wait<C::kSteps - 1>();
        else ptx::cp_async_wait<0>();
        const float found = step(i, to);
        own = lane_ == i ? found : own;
      }
    }
    if (lane_ >= C::kSteps) return;
    store_one(p_.out, token_ * p_.out_token_stride + int64_t{head_} * p_.v_dim + row_ + lane_ * C::kStepRows, own, p_.out_dtype);
  }

 private:
  WW_DEVICE float* state_of(int slot) const {
    return static_cast<float*>(p_.state.data) + (slot * p_.state.slot_stride + at_);
  }
  WW_DEVICE int channel(int piece) const { return (piece * C::kLanes + lane_) * 4; }
  // A kernel that still runs may write the state: what it writes goes through the same L2, so that a copy there is never stale.
  WW_DEVICE void fetch_to_l2(const float* state) const {
    if (lane_ * 32 >= C::kDim) return;  // a lane a line of 128 bytes
#pragma unroll
    for (int i = 0; i < C::kSteps; ++i) ptx::prefetch_l2(state + lane_ * 28 + i * C::kStepRows * C::kDim);
  }
  WW_DEVICE void ask_state(int from) const {
    const float* const state = state_of(from < 0 ? 0 : from);
    const int bytes = from < 0 ? 0 : 16;  // of zeros none is read
#pragma unroll
    for (int i = 0; i < C::kSteps; ++i) {
#pragma unroll
      for (int j = 0; j < C::kPieces; ++j) {
        const int at = i * C::kStepRows * C::kDim + j * C::kLanes * 4;
        ptx::cp_async_16<128>(copies_ + (i * C::kPieces + j) * C::kPieceBytes, state + at, bytes, kEvictLast);
      }
      ptx::cp_async_commit();
    }
  }

  // ---- the token
  // Four neighbours of a row of q or k, `at` elements from its beginning.
  WW_DEVICE static void ask_four(u32 (&w)[4], const LinearAttnRows& rows, int64_t at) {
    if constexpr (C::kNarrow) {
      const uint2 pairs = *reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(rows.data) + at);
      w[0] = pairs.x, w[1] = pairs.y;
    } else {
      load_four_bits(w, rows.data, at, rows.dtype, true);
    }
  }
  WW_DEVICE static void take_four(float (&to)[4], const u32 (&w)[4], DType dtype) {
    if constexpr (C::kNarrow) to[0] = ptx::Bf16::low(w[0]), to[1] = ptx::Bf16::high(w[0]), to[2] = ptx::Bf16::low(w[1]), to[3] = ptx::Bf16::high(w[1]);
    else four_values(to, w, dtype);
  }
  WW_DEVICE void ask_values() {
    const int64_t at = int64_t{token_} * p_.v.token_stride + head_ * p_.v.head_stride + row_;
#pragma unroll
    for (int i = 0; i < C::kSteps; ++i) {
      const int64_t row = at + i * C::kStepRows;
      v_bits_[i] = C::kNarrow ? static_cast<const unsigned short*>(p_.v.data)[row] : load_bits(p_.v.data, row, p_.v.dtype);
    }
  }
  WW_DEVICE float value(int i) const { return C::kNarrow ? ptx::Bf16::low(v_bits_[i]) : value_of(v_bits_[i], p_.v.dtype); }
  // Channels of k and q, and what is the same for all rows.
  WW_DEVICE void take_token() {
    const int k_head = static_cast<int>(static_cast<u32>(head_) / static_cast<u32>(p_.heads_per_k));
    const int64_t of_k = int64_t{token_} * p_.k.token_stride + k_head * p_.k.head_stride + lane_ * 4;
    const int64_t of_q = int64_t{token_} * p_.q.token_stride + k_head * p_.q.head_stride + lane_ * 4;
    u32 k[C::kPieces][4], q[C::kPieces][4];
    DecayBits decays[C::kKda ? C::kPieces : 1];
#pragma unroll
    for (int j = 0; j < C::kPieces; ++j) {
      ask_four(k[j], p_.k, of_k + j * C::kLanes * 4);
      ask_four(q[j], p_.q, of_q + j * C::kLanes * 4);
      if constexpr (C::kKda) load_decays(decays[j], p_, token_, head_, channel(j));
    }
    const GateBits gates = load_gates(p_, token_, head_, C::kKda);
    ask_values();
    float kk = 0, qq = 0, kq = 0;
#pragma unroll
    for (int j = 0; j < C::kPieces; ++j) {
      float four_k[4], four_q[4];
      take_four(four_k, k[j], p_.k.dtype);
      take_four(four_q, q[j], p_.q.dtype);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        k_[4 * j + e] = four_k[e], q_[4 * j + e] = four_q[e];
        kk += four_k[e] * four_k[e], qq += four_q[e] * four_q[e], kq += four_k[e] * four_q[e];
      }
      if constexpr (C::kKda) {
        float log2[4];
        log2_decays_of(log2, p_, decays[j], gates.slope);
#pragma unroll
        for (int e = 0; e < 4; ++e) decays_[4 * j + e] = ptx::exp2_approx(log2[e]);
      }
    }
    k_scale_ = 1, q_scale_ = p_.scale;
    if (p_.l2norm) {
      k_scale_ = rsqrtf(row_sum(kk) + p_.l2norm_eps);
      q_scale_ *= rsqrtf(row_sum(qq) + p_.l2norm_eps);
    }
    kq_ = row_sum(kq) * k_scale_;
    beta_ = beta_of(p_, gates);
    decay_ = C::kKda ? 1.0f : ptx::exp2_approx(log2_decay_of(p_, gates));
  }

  // ---- rows
  WW_DEVICE static float row_sum(float x) { return eight_sum(x + __shfl_xor_sync(~0u, x, 8)); }
  // Updates the i-th of this thread's rows; what q finds there.
  WW_DEVICE float step(int i, float* to) const {
    float s[C::kValues], sk = 0, sq = 0;
#pragma unroll
    for (int j = 0; j < C::kPieces; ++j) {
      u32 w[4];
      ptx::load_shared_16(w, copies_ + (i * C::kPieces + j) * C::kPieceBytes);
      F32State::widen(s + 4 * j, w);
    }
#pragma unroll
    for (int e = 0; e < C::kValues; ++e) {
      if constexpr (C::kKda) s[e] *= decays_[e];
      sk += s[e] * k_[e], sq += s[e] * q_[e];
    }
    const float change = beta_ * (value(i) - decay_ * k_scale_ * row_sum(sk));
    const float found = q_scale_ * (decay_ * row_sum(sq) + change * kq_), times_k = change * k_scale_;
#pragma unroll
    for (int j = 0; j < C::kPieces; ++j) {
      float* const piece = s + 4 * j;
#pragma unroll
      for (int e = 0; e < 4; ++e) piece[e] = (C::kKda ? piece[e] : decay_ * piece[e]) + times_k * k_[4 * j + e];
      F32State::store(to, i * C::kStepRows * C::kDim + j * C::kLanes * 4, piece);
    }
    return found;
  }

  const LinearParams& p_;
  const int request_, head_, lane_, row_;
  const int64_t at_;  // where this thread's first row and channels are in a slot
  const u32 copies_;
  int token_ = 0;
  float k_[C::kValues], q_[C::kValues], decays_[C::kKda ? C::kValues : 1];
  float k_scale_ = 1, q_scale_ = 1, kq_ = 0, beta_ = 0, decay_ = 1;
  u32 v_bits_[C::kSteps];
};

template <class C>
WW_DEVICE void decode_slice(const LinearParams& p, char* shared) {
  ptx::launch_dependents();
  const ptx::u32 slices = static_cast<ptx::u32>(p.v_dim) / C::kRows, head = blockIdx.x / slices;
  DecodeSlice<C>(p, shared, static_cast<int>(blockIdx.y), static_cast<int>(head), static_cast<int>(blockIdx.x - head * slices)).run();
}

}  // namespace warpweave::linear
