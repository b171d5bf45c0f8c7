// The recurrence, token by token, with the state in registers: prompts whose arithmetic must be f32, and the accepted path of a
// verified draft.
//
// Eight lanes share a row of the state (16 bytes each at a time), a warp 4 * kRows rows, four warps a block; every group of
// lanes reads q and k itself, so that no thread waits for another warp. The state is asked for first of all.
// Grid: x = v head * row tiles + row tile, y = request.
#pragma once

#include "linear/cuda/gates.cuh"

namespace warpweave::linear {

// States are read as evict_last (what createpolicy makes of that, from sm_80 on), so that their lines may still be in the L2 when they
// are written: in 2 % less time (H200, f32, 64 requests of 32 heads).
inline constexpr ptx::u64 kEvictLast = 0x14F0000000000000;

// State elements as f32, 16 bytes at a time.
struct F32State {
  static constexpr int kElements = 4;
  static WW_DEVICE void widen(float* to, const ptx::u32 (&w)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = __uint_as_float(w[i]);
  }
  static WW_DEVICE void load(float* to, const void* data, int64_t index) {
    const uint4 w = ptx::load_once_16(static_cast<const float*>(data) + index);
    widen(to, {w.x, w.y, w.z, w.w});
  }
  static WW_DEVICE void store(void* data, int64_t index, const float* from) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + index) = make_float4(from[0], from[1], from[2], from[3]);
  }
  static WW_DEVICE void round(float*) {}
};
struct Bf16State {
  static constexpr int kElements = 8;
  static WW_DEVICE void widen(float* to, const ptx::u32 (&w)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[2 * i] = ptx::Bf16::low(w[i]), to[2 * i + 1] = ptx::Bf16::high(w[i]);
  }
  static WW_DEVICE void load(float* to, const void* data, int64_t index) {
    const uint4 w = ptx::load_once_16(static_cast<const unsigned short*>(data) + index);
    widen(to, {w.x, w.y, w.z, w.w});
  }
  static WW_DEVICE void store(void* data, int64_t index, const float* from) {
    *reinterpret_cast<uint4*>(static_cast<unsigned short*>(data) + index) =
        make_uint4(ptx::Bf16::pack(from[0], from[1]), ptx::Bf16::pack(from[2], from[3]), ptx::Bf16::pack(from[4], from[5]),
                   ptx::Bf16::pack(from[6], from[7]));
  }
  static WW_DEVICE void round(float* eight) {
    widen(eight, {ptx::Bf16::pack(eight[0], eight[1]), ptx::Bf16::pack(eight[2], eight[3]), ptx::Bf16::pack(eight[4], eight[5]),
                  ptx::Bf16::pack(eight[6], eight[7])});
  }
};

template <class State_, int kMaxDim_, int kRows_, bool kKda_, RecurrentMode kMode_>
struct RecurrentConfig {
  using State = State_;
  static constexpr int kMaxDim = kMaxDim_;  // of k
  static constexpr int kRows = kRows_;
  static constexpr bool kKda = kKda_;
  static constexpr RecurrentMode kMode = kMode_;
  static constexpr bool kAttends = kMode_ != RecurrentMode::commit;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = kMaxDim_ > 128 ? 1 : kRows_ * kMaxDim_ > 256 ? (kKda_ ? 2 : 3) : 4;  // at once on a multiprocessor, at least
  static constexpr int kTileRows = kThreads / 8 * kRows;
  static constexpr int kPieces = kMaxDim / 8 / State::kElements;  // of a row, of one lane
  static constexpr int kValues = kPieces * State::kElements;
};

// The accepted path as bits, or every node before it in a chain.
WW_DEVICE ptx::u64 accepted_path(const LinearAttnBatch& batch, int request, int first) {
  ptx::u64 path = 0;
  for (int node = batch.accepted[request]; node >= 0; node = batch.parents == nullptr ? node - 1 : batch.parents[first + node]) {
    path |= ptx::u64{1} << node;
  }
  return path;
}

template <class C>
class Recurrence {
  using State = typename C::State;

 public:
  WW_DEVICE Recurrence(const LinearParams& p, int request, int head, int tile)
      : p_(p), head_(head), lane_(threadIdx.x % 8),
        first_v_(tile * C::kTileRows + static_cast<int>(threadIdx.x) / 32 * 4 * C::kRows + static_cast<int>(threadIdx.x) % 32 / 8) {}

  WW_DEVICE int v_of(int row) const { return first_v_ + 4 * row; }
  WW_DEVICE int channel(int piece) const { return (piece * 8 + lane_) * State::kElements; }
  WW_DEVICE bool has(int row, int piece) const { return v_of(row) < p_.v_dim && channel(piece) < p_.k_dim; }
  WW_DEVICE int64_t at(int slot, int row, int piece) const {
    return slot * p_.state.slot_stride + head_ * p_.state.head_stride + int64_t{v_of(row)} * p_.k_dim + channel(piece);
  }

  WW_DEVICE void load(int slot) {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
      for (int i = 0; i < C::kPieces; ++i) {
        float* const to = s_[r] + i * State::kElements;
        if (slot >= 0 && has(r, i)) {
          State::load(to, p_.state.data, at(slot, r, i));
        } else {
#pragma unroll
          for (int e = 0; e < State::kElements; ++e) to[e] = 0;
        }
      }
    }
  }
  WW_DEVICE void store(int slot) const {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
      for (int i = 0; i < C::kPieces; ++i) {
        if (has(r, i)) State::store(p_.state.data, at(slot, r, i), s_[r] + i * State::kElements);
      }
    }
  }

  // As if it had been stored and loaded: what decode does after each token.
  WW_DEVICE void round_to_stored() {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
      for (int i = 0; i < C::kPieces; ++i) State::round(s_[r] + i * State::kElements);
    }
  }

  // Asks for all that a token brings.
  WW_DEVICE void ask(int64_t token) {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      v_bits_[r] = 0;
      if (v_of(r) < p_.v_dim) v_bits_[r] = load_bits(p_.v.data, token * p_.v.token_stride + head_ * p_.v.head_stride + v_of(r), p_.v.dtype);
    }
    ask_row(k_bits_, p_.k, token);
    if (C::kAttends) ask_row(q_bits_, p_.q, token);
    gates_ = load_gates(p_, token, head_, C::kKda);
    if constexpr (C::kKda) {
#pragma unroll
      for (int i = 0; i < C::kValues / 4; ++i) {
        if (channel_of(i) < p_.k_dim) load_decays(decays_[i], p_, token, head_, channel_of(i));
      }
    }
  }

  // q and k of the token, normed; their product.
  WW_DEVICE void take_token() {
    take_row(k_, k_bits_, p_.k);
    if (C::kAttends) take_row(q_, q_bits_, p_.q);
    float kk = 0, qq = 0, kq = 0;
#pragma unroll
    for (int e = 0; e < C::kValues; ++e) {
      kk += k_[e] * k_[e];
      if (C::kAttends) qq += q_[e] * q_[e], kq += k_[e] * q_[e];
    }
    if (p_.l2norm) {
      const float norm = rsqrtf(eight_sum(kk) + p_.l2norm_eps);
      kq *= norm;
#pragma unroll
      for (int e = 0; e < C::kValues; ++e) k_[e] *= norm;
    }
    q_scale_ = p_.scale;
    if (C::kAttends) {
      if (p_.l2norm) q_scale_ *= rsqrtf(eight_sum(qq) + p_.l2norm_eps);
      kq_ = eight_sum(kq);
    }
  }

  // The token that was asked for, into the state; with kAttends, what the group's rows find is written. Which product of two is
  // rounded is said, so that bits are those of every instance of this class.
  WW_DEVICE void step(int64_t token) {
    float out[C::kRows];
    take_token();
    const float beta = beta_of(p_, gates_);
    float decay = 1;
    if constexpr (C::kKda) {
#pragma unroll
      for (int i = 0; i < C::kValues / 4; ++i) {
        float a[4] = {};
        if (channel_of(i) < p_.k_dim) log2_decays_of(a, p_, decays_[i], gates_.slope);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[e] = ptx::exp2_approx(a[e]);
#pragma unroll
          for (int r = 0; r < C::kRows; ++r) s_[r][4 * i + e] *= a[e];
        }
      }
    } else {
      decay = ptx::exp2_approx(log2_decay_of(p_, gates_));
    }
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      float sk = 0, sq = 0;
#pragma unroll
      for (int e = 0; e < C::kValues; ++e) {
        sk += s_[r][e] * k_[e];
        if (C::kAttends) sq += s_[r][e] * q_[e];
      }
      const float change = beta * (value_of(v_bits_[r], p_.v.dtype) - decay * eight_sum(sk));
#pragma unroll
      for (int e = 0; e < C::kValues; ++e) s_[r][e] = fmaf(change, k_[e], decay * s_[r][e]);
      if (C::kAttends) out[r] = q_scale_ * fmaf(change, kq_, decay * eight_sum(sq));
    }
    if (C::kAttends) write(token, out);
  }

  // Lane r of a group writes the group's row r.
  WW_DEVICE void write(int64_t token, const float (&out)[C::kRows]) const {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      if (lane_ == r && v_of(r) < p_.v_dim) {
        store_one(p_.out, token * p_.out_token_stride + int64_t{head_} * p_.v_dim + v_of(r), out[r], p_.out_dtype);
      }
    }
  }

 private:
  // The first channel of this lane's i-th four.
  WW_DEVICE int channel_of(int i) const { return channel(4 * i / State::kElements) + 4 * i % State::kElements; }
  using RowBits = ptx::u32[C::kValues / 4][4];
  WW_DEVICE void ask_row(RowBits& bits, const LinearAttnRows& rows, int64_t token) const {
    const int64_t first = token * rows.token_stride + head_ / p_.heads_per_k * rows.head_stride;
#pragma unroll
    for (int i = 0; i < C::kValues / 4; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) bits[i][e] = 0;
      if (channel_of(i) < p_.k_dim) load_four_bits(bits[i], rows.data, first + channel_of(i), rows.dtype, p_.vectors);
    }
  }
  WW_DEVICE void take_row(float (&to)[C::kValues], const RowBits& bits, const LinearAttnRows& rows) const {
#pragma unroll
    for (int i = 0; i < C::kValues / 4; ++i) {
      float four[4];
      four_values(four, bits[i], rows.dtype);
#pragma unroll
      for (int e = 0; e < 4; ++e) to[4 * i + e] = four[e];
    }
  }

  const LinearParams& p_;
  const int head_, lane_, first_v_;
  float s_[C::kRows][C::kValues], k_[C::kValues], q_[C::kValues];
  float q_scale_ = 1, kq_ = 0;
  RowBits k_bits_, q_bits_;
  ptx::u32 v_bits_[C::kRows];
  GateBits gates_;
  DecayBits decays_[C::kKda ? C::kValues / 4 : 1];
};

// All tokens of a request, with a copy of the state wherever one is wanted.
template <class C>
WW_DEVICE void recur_over(Recurrence<C>& state, const LinearAttnBatch& batch, int request) {
  const int first = first_row(batch, request), end = first_row(batch, request + 1), slot = batch.slots[request];
  if (slot < 0) {
    const float zeros[C::kRows] = {};
    for (int token = first; token < end; ++token) state.write(token, zeros);
    return;
  }
  const bool checkpoints = batch.checkpoint_indptr != nullptr;
  int next = checkpoints ? batch.checkpoint_indptr[request] : 0;
  const int last = checkpoints ? batch.checkpoint_indptr[request + 1] : 0;
  state.load(initial_slot(batch, request));
  for (int token = first; token < end; ++token) {
    state.ask(token);
    state.step(token);
    if (next < last && batch.checkpoint_tokens[next] == token - first + 1) state.store(batch.checkpoint_slots[next++]);
  }
  state.store(slot);
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks) recurrent(const __grid_constant__ LinearParams p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int tiles = (p.v_dim + C::kTileRows - 1) / C::kTileRows;
  const int head = blockIdx.x / tiles, request = blockIdx.y;
  Recurrence<C> state(p, request, head, blockIdx.x % tiles);
  if constexpr (C::kMode == RecurrentMode::commit) {
    const int first = first_row(p.batch, request), slot = p.batch.slots[request], from = initial_slot(p.batch, request);
    if (slot < 0) return;
    const ptx::u64 path = accepted_path(p.batch, request, first);
    if (path == 0 && from == slot) return;
    state.load(from);
    for (int node = 0; node < kLinearAttnMaxVerifyNodes && path >> node != 0; ++node) {
      if (!(path >> node & 1)) continue;
      state.ask(first + node);
      state.step(first + node);
      state.round_to_stored();
    }
    state.store(slot);
  } else {
    recur_over(state, p.batch, request);
  }
}

}  // namespace warpweave::linear
