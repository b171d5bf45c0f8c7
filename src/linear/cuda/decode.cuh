// Decode of the usual head dims: the state goes from memory to registers and back once, and little else happens to it.
//
// Eight lanes share a row of the state, a thread has four rows, a warp 16. q, k, v and KDA's decays stand in shared memory as
// f32, made while the state is on its way. With a norm a block has all rows of a v head, so that it norms its output, too.
// Grid: x = v head * row tiles + row tile, y = request; 2 threads a row. k_dim is kDim.
#pragma once

#include "linear/cuda/recurrent.cuh"

namespace warpweave::linear {

template <class State_, int kDim_, bool kKda_>
struct DecodeConfig {
  using State = State_;
  static constexpr int kDim = kDim_;
  static constexpr bool kKda = kKda_;
  static constexpr int kRows = 4;
  static constexpr int kPieces = kDim / 8 / State::kElements;  // of a row, of one lane, 16 bytes each
  static constexpr int kValues = kDim / 8;
  static constexpr int kMostThreads = 2 * kLinearAttnMaxHeadDim;
};

struct DecodeShared {
  float k[kDecodeMostDim], q[kDecodeMostDim], decays[kDecodeMostDim], v[kLinearAttnMaxHeadDim];
  float of_warp[2 * kLinearAttnMaxHeadDim / 32];
};

template <class C>
class DecodeStep {
  using State = C::State;

 public:
  WW_DEVICE DecodeStep(const LinearParams& p, DecodeShared& shared, int head, int tile, int request)
      : p_(p), shared_(shared), head_(head), slot_(p.batch.slots[request]), token_(first_row(p.batch, request)),
        thread_(static_cast<int>(threadIdx.x)), lane_(thread_ % 8), first_v_(tile * p.decode_rows),
        own_v_(first_v_ + thread_ / 32 * 16 + thread_ % 32 / 8) {}

  WW_DEVICE bool padded() const { return slot_ < 0; }
  WW_DEVICE void load(int from) {
    const int64_t first = at(from);
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
      for (int i = 0; i < C::kPieces; ++i) {
        float* const to = s_[r] + i * State::kElements;
        if (from >= 0) {
          State::load(to, p_.state.data, first + 4 * r * C::kDim + 8 * i * State::kElements);
        } else {
#pragma unroll
          for (int e = 0; e < State::kElements; ++e) to[e] = 0;
        }
      }
    }
  }
  WW_DEVICE void store() const {
    const int64_t first = at(slot_);
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
      for (int i = 0; i < C::kPieces; ++i) {
        State::store(p_.state.data, first + 4 * r * C::kDim + 8 * i * State::kElements, s_[r] + i * State::kElements);
      }
    }
  }

  // q, k, v and decays of the token, for all threads; its gates.
  WW_DEVICE void share_token() {
    gates_ = load_gates(p_, token_, head_, C::kKda);
    const int k_head = head_ / p_.heads_per_k, threads = 2 * p_.decode_rows;
    for (int c = thread_; c < C::kDim; c += threads) {
      shared_.k[c] = load_one(p_.k.data, token_ * p_.k.token_stride + k_head * p_.k.head_stride + c, p_.k.dtype);
      shared_.q[c] = load_one(p_.q.data, token_ * p_.q.token_stride + k_head * p_.q.head_stride + c, p_.q.dtype);
      if constexpr (C::kKda) shared_.decays[c] = ptx::exp2_approx(log2_decay(c));
    }
    for (int v = thread_; v < p_.decode_rows; v += threads) {
      shared_.v[v] = load_one(p_.v.data, token_ * p_.v.token_stride + head_ * p_.v.head_stride + first_v_ + v, p_.v.dtype);
    }
    ask_norm();
    __syncthreads();
  }

  WW_DEVICE void advance() {
    float k[C::kValues], q[C::kValues], kk = 0, qq = 0, kq = 0;
    take(k, shared_.k);
    take(q, shared_.q);
#pragma unroll
    for (int e = 0; e < C::kValues; ++e) kk += k[e] * k[e], qq += q[e] * q[e], kq += k[e] * q[e];
    float k_scale = 1, q_scale = p_.scale;
    if (p_.l2norm) {
      k_scale = rsqrtf(eight_sum(kk) + p_.l2norm_eps);
      q_scale *= rsqrtf(eight_sum(qq) + p_.l2norm_eps);
    }
    kq = eight_sum(kq) * k_scale;
    const float beta = beta_of(p_, gates_), decay = C::kKda ? 1.0f : ptx::exp2_approx(log2_decay_of(p_, gates_));
    if constexpr (C::kKda) decay_channels();
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      float sk = 0, sq = 0;
#pragma unroll
      for (int e = 0; e < C::kValues; ++e) sk += s_[r][e] * k[e], sq += s_[r][e] * q[e];
      const float value = shared_.v[own_v_ - first_v_ + 4 * r];
      const float change = beta * (value - decay * k_scale * eight_sum(sk));
      const float found = q_scale * (decay * eight_sum(sq) + change * kq), times_k = change * k_scale;
      out_ = lane_ == r ? found : out_;
#pragma unroll
      for (int e = 0; e < C::kValues; ++e) s_[r][e] = (C::kKda ? s_[r][e] : decay * s_[r][e]) + times_k * k[e];
    }
  }

  // Lane r of eight writes their row r, normed and gated where that is asked for.
  WW_DEVICE void write() {
    if (p_.has_norm) {
      float squares = lane_ < C::kRows ? out_ * out_ : 0.0f;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
      if (thread_ % 32 == 0) shared_.of_warp[thread_ / 32] = squares;
      __syncthreads();
      squares = 0;
      for (int warp = 0; warp < p_.v_dim / 16; ++warp) squares += shared_.of_warp[warp];
      out_ *= rsqrtf(squares / static_cast<float>(p_.v_dim) + p_.norm.eps) * norm_weight_ * gate();
    }
    put(out_);
  }
  WW_DEVICE void put(float value) const {
    if (lane_ >= C::kRows) return;
    store_one(p_.out, token_ * p_.out_token_stride + int64_t{head_} * p_.v_dim + written_v(), value, p_.out_dtype);
  }

 private:
  WW_DEVICE int64_t at(int slot) const {
    return slot * p_.state.slot_stride + head_ * p_.state.head_stride + int64_t{own_v_} * C::kDim + lane_ * State::kElements;
  }
  WW_DEVICE int written_v() const { return own_v_ + 4 * (lane_ % C::kRows); }
  WW_DEVICE void take(float (&to)[C::kValues], const float* row) const {
#pragma unroll
    for (int i = 0; i < C::kValues / 4; ++i) {
      constexpr int kFours = State::kElements / 4;
      const float4 four = *reinterpret_cast<const float4*>(row + (i / kFours * 8 + lane_) * State::kElements + i % kFours * 4);
      to[4 * i] = four.x, to[4 * i + 1] = four.y, to[4 * i + 2] = four.z, to[4 * i + 3] = four.w;
    }
  }
  WW_DEVICE float log2_decay(int channel) const {
    const LinearAttnRows& rows = p_.has_gates ? p_.gates.a : p_.g;
    const float raw = load_one(rows.data, token_ * rows.token_stride + head_ * rows.head_stride + channel, rows.dtype);
    if (!p_.has_gates) return bounded_log2(raw * kLog2e);
    const float bias = p_.gates.dt_bias == nullptr ? 0.0f : p_.gates.dt_bias[head_ * p_.k_dim + channel];
    return bounded_log2(-expf(gates_.slope) * softplus_log2(raw + bias));
  }
  WW_DEVICE void decay_channels() {
    float decays[C::kValues];
    take(decays, shared_.decays);
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
      for (int e = 0; e < C::kValues; ++e) s_[r][e] *= decays[e];
    }
  }
  WW_DEVICE void ask_norm() {
    if (!p_.has_norm) return;
    norm_weight_ = p_.norm.weight[written_v()];
    const LinearAttnRows& z = p_.norm.z;
    if (z.data != nullptr) z_bits_ = load_bits(z.data, token_ * z.token_stride + head_ * z.head_stride + written_v(), z.dtype);
  }
  WW_DEVICE float gate() const {
    if (p_.norm.z.data == nullptr) return 1;
    const float z = value_of(z_bits_, p_.norm.z.dtype);
    return (p_.norm.gate == LinearAttnNormGate::silu ? z : 1.0f) / (1.0f + expf(-z));
  }

  const LinearParams& p_;
  DecodeShared& shared_;
  const int head_, slot_;
  const int64_t token_;
  const int thread_, lane_, first_v_, own_v_;
  float s_[C::kRows][C::kValues], out_ = 0, norm_weight_ = 0;
  ptx::u32 z_bits_ = 0;
  GateBits gates_;
};

// With state_settled only q, k and v come from the kernel before this one: the state is asked for ahead of them.
template <class C>
__global__ void __launch_bounds__(C::kMostThreads, 1) decode_step(const __grid_constant__ LinearParams p) {
  __shared__ __align__(16) DecodeShared shared;
  ptx::launch_dependents();
  if (!p.state_settled) ptx::grid_dependency_wait();
  const int tiles = p.v_dim / p.decode_rows, request = blockIdx.y;
  DecodeStep<C> step(p, shared, blockIdx.x / tiles, blockIdx.x % tiles, request);
  if (!step.padded()) step.load(initial_slot(p.batch, request));
  if (p.state_settled) ptx::grid_dependency_wait();
  if (step.padded()) return step.put(0);
  step.share_token();
  step.advance();
  step.store();
  step.write();
}

}  // namespace warpweave::linear
