// Decode of f32 states by blocks that come and go in the order of their states: so many stand on a multiprocessor at once that none has
// to hide what its own beginning waits for (decode.cuh, whose blocks stay). Without a norm behind it a block has a few rows of a head,
// which know nothing of the others; with one all of them.
//
// Sixteen lanes share a row; each row's lanes read k and q themselves, and a thread copies the state that it will read, so that no
// thread waits for another but for KDA's decays, of which each thread finds a channel's, and for the norm. Sums add up as in decode.cuh.
// k_dim is kDim.
// Grid: x = v head * slices of a head + slice, y = request.
#pragma once

#include <utility>

#include "linear/cuda/recurrent.cuh"

namespace warpweave::linear {

// kSteps: rows of a thread. kBlocks: at once on a multiprocessor, at least.
struct SliceFew {
  static constexpr int kThreads = 128, kSteps = 2, kBlocks = 8;
  static constexpr bool kNorm = false;
};
struct SliceMany {
  static constexpr int kThreads = 128, kSteps = 4, kBlocks = 7;
  static constexpr bool kNorm = false;
};
template <int kRows>
struct SliceHead {  // all rows of a head, with a norm
  static constexpr int kThreads = 4 * kRows, kSteps = 4, kBlocks = kRows > 64 ? 2 : 3;
  static constexpr bool kNorm = true;
};

// `kNarrow`: q, k and v are bf16, else what they say.
template <int kDim_, bool kKda_, bool kNarrow_, class Form_>
struct SliceConfig {
  static constexpr int kDim = kDim_, kThreads = Form_::kThreads, kSteps = Form_::kSteps, kBlocks = Form_::kBlocks;
  static constexpr bool kKda = kKda_, kNarrow = kNarrow_, kNorm = Form_::kNorm;
  static constexpr int kLanes = 16, kStepRows = kThreads / kLanes, kRows = kSteps * kStepRows;
  static constexpr int kPieces = kDim / kLanes / 4, kValues = 4 * kPieces;  // of a row, of one lane, 16 bytes each
  static constexpr int kPieceBytes = kThreads * 16, kCopiesBytes = kSteps * kPieces * kPieceBytes;
  // Behind the copies; with a norm outputs, weights and z, of four bytes at most.
  static constexpr int kDecays = kCopiesBytes, kOut = kDecays + (kKda ? kDim * 4 : 0), kWeights = kOut + (kNorm ? kRows * 4 : 0);
  static constexpr int kZ = kWeights + (kNorm ? kRows * 4 : 0), kSmemBytes = kZ + (kNorm ? kRows * 4 : 0);
  static_assert(!kKda || kDim <= kThreads, "a decay is a thread's");
};

template <class C>
class DecodeSlice {
  using u32 = ptx::u32;

 public:
  WW_DEVICE DecodeSlice(const LinearParams& p, char* shared, int request, int head, int slice)
      : p_(p), shared_(shared), request_(request), head_(head), lane_(static_cast<int>(threadIdx.x % C::kLanes)),
        row_(slice * C::kRows + static_cast<int>(threadIdx.x / C::kLanes)),
        at_(head * p.state.head_stride + row_ * C::kDim + lane_ * 4), copies_(in_one_register(ptx::smem_address(shared) + threadIdx.x * 16)) {}

  WW_DEVICE void run() {
    const int slot = p_.batch.slots[request_];
    const int from = slot < 0 ? -1 : initial_slot(p_.batch, request_);
    if (from >= 0) fetch_to_l2(state_of(from));
    ptx::grid_dependency_wait();
    token_ = first_row(p_.batch, request_);
    float own = 0;  // all lanes of a row have what was found there: lane i keeps that of the row of step i % kSteps
    if (slot >= 0) {
      if constexpr (C::kNorm) ask_norm();
      ask_state(from);
      take_token();
      steps(state_of(slot), own, std::make_integer_sequence<int, C::kSteps>());
    }
    if constexpr (C::kNorm) return store_normed(own, slot >= 0);
    if (lane_ >= C::kSteps) return;
    store_one(p_.out, token_ * p_.out_token_stride + int64_t{head_} * p_.v_dim + row_ + lane_ * C::kStepRows, own, p_.out_dtype);
  }

 private:
  // ptxas (13.0) may keep such an address as a sum of two registers, and cp.async with a cache hint then is an illegal instruction to an
  // H200. It does not see through a shuffle.
  WW_DEVICE static u32 in_one_register(u32 address) { return __shfl_sync(~0u, address, threadIdx.x % 32); }
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
  // Of the row of step lane % kSteps.
  WW_DEVICE u32 ask_value() const {
    const int64_t at = int64_t{token_} * p_.v.token_stride + head_ * p_.v.head_stride + row_ + lane_ % C::kSteps * C::kStepRows;
    return C::kNarrow ? static_cast<const unsigned short*>(p_.v.data)[at] : load_bits(p_.v.data, at, p_.v.dtype);
  }
  WW_DEVICE float value(int i) const { return __shfl_sync(~0u, v_, threadIdx.x % 32 / C::kLanes * C::kLanes + i); }
  // Channels of k and q, and what is the same for all rows.
  WW_DEVICE void take_token() {
    const int k_head = static_cast<int>(static_cast<u32>(head_) / static_cast<u32>(p_.heads_per_k));
    const int64_t of_k = int64_t{token_} * p_.k.token_stride + k_head * p_.k.head_stride + lane_ * 4;
    const int64_t of_q = int64_t{token_} * p_.q.token_stride + k_head * p_.q.head_stride + lane_ * 4;
    u32 k[C::kPieces][4], q[C::kPieces][4];
#pragma unroll
    for (int j = 0; j < C::kPieces; ++j) {
      ask_four(k[j], p_.k, of_k + j * C::kLanes * 4);
      ask_four(q[j], p_.q, of_q + j * C::kLanes * 4);
    }
    const GateBits gates = load_gates(p_, token_, head_, C::kKda);
    const u32 v_bits = ask_value();
    if constexpr (C::kKda) share_decays();
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
    }
    k_scale_ = 1, q_scale_ = p_.scale;
    if (p_.l2norm) {
      k_scale_ = rsqrtf(row_sum(kk) + p_.l2norm_eps);
      q_scale_ *= rsqrtf(row_sum(qq) + p_.l2norm_eps);
    }
    kq_ = row_sum(kq) * k_scale_;
    v_ = C::kNarrow ? ptx::Bf16::low(v_bits) : value_of(v_bits, p_.v.dtype);
    beta_ = beta_of(p_, gates);
    decay_ = C::kKda ? 1.0f : ptx::exp2_approx(log2_decay_of(p_, gates));
  }

  // KDA: a thread finds a channel's decay for all.
  WW_DEVICE void share_decays() {
    float* const decays = reinterpret_cast<float*>(shared_ + C::kDecays);
    const int own = static_cast<int>(threadIdx.x);
    if (own < C::kDim) {
      const LinearAttnRows& rows = p_.has_gates ? p_.gates.a : p_.g;
      GateBits bits;
      bits.a = load_bits(rows.data, int64_t{token_} * rows.token_stride + head_ * rows.head_stride + own, rows.dtype);
      if (p_.has_gates) bits.slope = p_.gates.a_log[head_];
      if (p_.has_gates && p_.gates.dt_bias != nullptr) bits.bias = p_.gates.dt_bias[head_ * C::kDim + own];
      decays[own] = ptx::exp2_approx(log2_decay_of(p_, bits));
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < C::kPieces; ++j) {
      const float4 four = *reinterpret_cast<const float4*>(decays + channel(j));
      decays_[4 * j] = four.x, decays_[4 * j + 1] = four.y, decays_[4 * j + 2] = four.z, decays_[4 * j + 3] = four.w;
    }
  }

  // ---- the norm of a head's outputs, of which each of the first kRows threads stores one
  // Weights and z: their registers would be those that the rows' steps need. With the first step's copies.
  WW_DEVICE void ask_norm() const {
    const LinearAttnRows& z = p_.norm.z;
    const int copy = static_cast<int>(threadIdx.x), copies_of_z = z.data == nullptr ? 0 : C::kRows / (z.dtype == DType::f32 ? 4 : 8);
    if (copy < copies_of_z) {
      const int64_t at = int64_t{token_} * z.token_stride + head_ * z.head_stride;
      const char* const from = static_cast<const char*>(z.data) + at * (z.dtype == DType::f32 ? 4 : 2);
      ptx::cp_async_16(ptx::smem_address(shared_) + C::kZ + copy * 16, from + copy * 16, 16);
    }
    if (copy < C::kRows / 4) ptx::cp_async_16(ptx::smem_address(shared_) + C::kWeights + copy * 16, p_.norm.weight + copy * 4, 16);
  }
  WW_DEVICE float gate(int row) const {
    if (p_.norm.z.data == nullptr) return 1;
    const char* const all = shared_ + C::kZ;
    const bool wide = p_.norm.z.dtype == DType::f32;
    const float z = value_of(wide ? reinterpret_cast<const u32*>(all)[row] : reinterpret_cast<const unsigned short*>(all)[row], p_.norm.z.dtype);
    return (p_.norm.gate == LinearAttnNormGate::silu ? z : 1.0f) / (1.0f + expf(-z));
  }
  WW_DEVICE void store_normed(float own, bool there) const {
    float* const all = reinterpret_cast<float*>(shared_ + C::kOut);
    const int row = static_cast<int>(threadIdx.x);
    if (lane_ < C::kSteps) all[row_ + lane_ * C::kStepRows] = own;
    __syncthreads();
    if (row >= C::kRows) return;
    float squares = 0;
#pragma unroll
    for (int v = 0; v < C::kRows; v += 32) squares += all[v + row % 32] * all[v + row % 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
    const float weight = reinterpret_cast<const float*>(shared_ + C::kWeights)[row];
    const float out = all[row] * (rsqrtf(squares / static_cast<float>(C::kRows) + p_.norm.eps) * weight * gate(row));
    store_one(p_.out, token_ * p_.out_token_stride + int64_t{head_} * C::kRows + row, there ? out : 0, p_.out_dtype);
  }

  // ---- rows
  template <int... kStep>
  WW_DEVICE void steps(float* to, float& own, std::integer_sequence<int, kStep...>) const {
    ((ptx::cp_async_wait<C::kSteps - 1 - kStep>(), own = keep(kStep, step(kStep, to), own)), ...);
  }
  WW_DEVICE float keep(int i, float found, float own) const { return lane_ % C::kSteps == i ? found : own; }
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
  char* const shared_;
  const int request_, head_, lane_, row_;
  const int64_t at_;  // where this thread's first row and channels are in a slot
  const u32 copies_;
  int token_ = 0;
  float k_[C::kValues], q_[C::kValues], decays_[C::kKda ? C::kValues : 1];
  float k_scale_ = 1, q_scale_ = 1, kq_ = 0, beta_ = 0, decay_ = 1;
  float v_ = 0;
};

template <class C>
WW_DEVICE void decode_slice(const LinearParams& p, char* shared) {
  ptx::launch_dependents();
  const int request = static_cast<int>(blockIdx.y);
  if constexpr (C::kNorm) return DecodeSlice<C>(p, shared, request, static_cast<int>(blockIdx.x), 0).run();
  const ptx::u32 slices = static_cast<ptx::u32>(p.v_dim) / C::kRows, head = blockIdx.x / slices;
  DecodeSlice<C>(p, shared, request, static_cast<int>(head), static_cast<int>(blockIdx.x - head * slices)).run();
}

}  // namespace warpweave::linear
