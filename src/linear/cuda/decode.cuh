// Decode, where decode_slices.cuh does not take it, a stream: the state comes into shared memory by cp.async steps ahead of its use, goes
// through registers once and back to memory, so that its bytes are under way all the time.
//
// A step is kRows rows of one head's state; kLanes lanes share a row, a thread copies what it will read itself, so that no step
// has a barrier. A unit is a head's steps, or some of them. Blocks take the batch's units by turns, so that what all of them read
// and write at a time stands close together; or each takes neighbouring ones, where a unit's beginning weighs more than that. At a
// unit's beginning q, k, v and its gates, asked for a unit ahead, come to shared memory, and the outputs of the unit before go
// out: one barrier. k_dim is kDim or, where not kWhole, less.
// Grid: x = p.decode_blocks; launch_grids.h says how many, and how much shared memory.
#pragma once

#include "linear/cuda/recurrent.cuh"

namespace warpweave::linear {

// How lanes share rows (of more than 192 channels twice as many) and blocks a multiprocessor. Sums add up in one order, whatever the
// form is: a request gets the same bits in any batch.
struct DecodeFew {  // and any number of requests of states of 16 bits beyond 128 x 128, or whose k_dim is not kDim
  static constexpr int kLanes = 8, kThreads = 256, kBlocks = 2;
};
struct DecodeMany {
  static constexpr int kLanes = 16, kThreads = 256, kBlocks = 3;
};
struct DecodeNarrow {  // states of 16 bits: they come so fast that instructions count, and fewer warps share those of a unit's beginning
  static constexpr int kLanes = 8, kThreads = 128, kBlocks = 4;
};
template <int kBlocks_>
struct DecodeSmall {  // many heads of few bytes: more of them at once, since a block waits at the beginning of each
  static constexpr int kLanes = 16, kThreads = 128, kBlocks = kBlocks_;
};

template <class State_, int kDim_, bool kWhole_, bool kKda_, class Form_>
struct DecodeConfig {
  using State = State_;
  static constexpr int kDim = kDim_;
  static constexpr bool kWhole = kWhole_, kKda = kKda_;
  static constexpr int kThreads = Form_::kThreads, kBlocks = Form_::kBlocks;  // of a multiprocessor
  static_assert(!kKda || kDim <= kThreads, "a decay is a thread's");
  static constexpr int kTimes = kDim > 192 ? 2 : 1;
  static constexpr int kFewLanes = DecodeFew::kLanes * kTimes, kLanes = Form_::kLanes * kTimes;  // of a row
  static constexpr int kRows = kThreads / kLanes;                  // of a step
  static constexpr int kPieces = kDim / kLanes / State::kElements;  // of a row, of one lane, 16 bytes each
  static constexpr int kValues = kDim / kLanes;
  static constexpr int kStageBytes = kThreads * kPieces * 16;
  static constexpr int kStages = kStageBytes > 16 * 1024 ? 3 : 192 * kThreads / kStageBytes;  // steps whose state is there or on its way
  static constexpr int kLoads = (2 * kDim + kThreads - 1) / kThreads;  // of k and q, of a thread
  static constexpr bool kKeeps = kDim <= 128;  // q and decays in registers, else each step reads them from shared memory
};

// What a unit's threads share. There are two: a unit fills one while the outputs of the unit before are in the other.
template <int kDim>
struct DecodeToken {
  float k[kDim], q[kDim], decays[kDim];
  float v[kLinearAttnMaxHeadDim], out[kLinearAttnMaxHeadDim];
  float beta, decay, unused[2];
};

template <class C>
inline constexpr int kDecodeTokensBytes = 2 * static_cast<int>(sizeof(DecodeToken<C::kDim>));

template <class C>
constexpr int decode_steps_of_head(const LinearParams& p) { return (p.v_dim + C::kRows - 1) / C::kRows; }

// A step of the batch, by its unit.
struct DecodePlace {
  int request, head, step, end;  // steps of the unit that are left: step .. end - 1

  WW_DEVICE DecodePlace(const LinearParams& p, int unit, int steps) {
    const int of_head = unit % p.decode_units, index = unit / p.decode_units;
    request = index / p.v_heads, head = index % p.v_heads;
    step = steps * of_head / p.decode_units, end = steps * (of_head + 1) / p.decode_units;
  }
};

template <class C>
class DecodeBlock {
  using State = typename C::State;
  using Token = DecodeToken<C::kDim>;
  using u32 = ptx::u32;

 public:
  // Units `first`, first + stride and so on, below `units`; there is at least one.
  WW_DEVICE DecodeBlock(const LinearParams& p, char* shared, int first, int stride, int units)
      : p_(p), tokens_(reinterpret_cast<Token*>(shared)), thread_(static_cast<int>(threadIdx.x)), lane_(thread_ % C::kLanes),
        row_(thread_ / C::kLanes), steps_(decode_steps_of_head<C>(p)), stride_(stride), units_(units),
        ring_(ptx::smem_address(shared) + kDecodeTokensBytes<C> + thread_ * 16), unit_(first), ask_unit_(first),
        now_(p, first, steps_), asked_(now_) {}

  WW_DEVICE void run() {
    ask_slots(asked_);
    take_slots();
    if (p_.state_settled) {
      for (int i = 0; i < C::kStages - 1; ++i) ask_state();
      ptx::grid_dependency_wait();
    } else {
      fetch_to_l2();
      ptx::grid_dependency_wait();
      for (int i = 0; i < C::kStages - 1; ++i) ask_state();
    }
    ask_token(now_);
    while (true) {
      begin_unit();
      for (; now_.step < now_.end; ++now_.step) step();
      if (unit_ + stride_ >= units_) break;
      unit_ += stride_;
      now_ = DecodePlace(p_, unit_, steps_);
    }
    __syncthreads();
    end_unit();
  }

 private:
  // ---- the state's way
  // Where a unit's state is read from (-1: there is none yet), asked for a unit ahead.
  WW_DEVICE void ask_slots(const DecodePlace& place) {
    next_slot_ = p_.batch.slots[place.request];
    next_from_ = initial_slot(p_.batch, place.request);
  }
  WW_DEVICE void take_slots() {
    from_ = next_slot_ < 0 ? -1 : next_from_;
    if (ask_unit_ + stride_ < units_) ask_slots(DecodePlace(p_, ask_unit_ + stride_, steps_));
  }
  WW_DEVICE int64_t state_at(int slot, const DecodePlace& place) const {
    return slot * p_.state.slot_stride + place.head * p_.state.head_stride + int64_t{row_of(place)} * dim() + lane_ * State::kElements;
  }
  WW_DEVICE int dim() const { return C::kWhole ? C::kDim : p_.k_dim; }
  WW_DEVICE bool has_piece(int i) const { return C::kWhole || (i * C::kLanes + lane_) * State::kElements < p_.k_dim; }
  WW_DEVICE int row_of(const DecodePlace& place) const { return place.step * C::kRows + row_; }
  WW_DEVICE const char* address(int64_t element) const {
    return static_cast<const char*>(p_.state.data) + element * (16 / State::kElements);
  }
  // The first unit's state. A kernel that still runs may write it: what it writes goes through the same L2, so that a copy there is
  // never stale.
  WW_DEVICE void fetch_to_l2() const {
    DecodePlace place = asked_;
    for (; place.step < place.end; ++place.step) {
      if (from_ < 0 || row_of(place) >= p_.v_dim || lane_ * 8 * State::kElements >= dim()) continue;
      ptx::prefetch_l2(address(state_at(from_, place) + lane_ * 7 * State::kElements));  // this lane's line of 128 bytes
    }
  }
  WW_DEVICE void ask_state() {
    if (ask_unit_ < units_) {
      const bool there = from_ >= 0 && row_of(asked_) < p_.v_dim;
      const char* const from = there ? address(state_at(from_, asked_)) : static_cast<const char*>(p_.state.data);
#pragma unroll
      for (int i = 0; i < C::kPieces; ++i) {
        const bool has = there && has_piece(i);
        const u32 to = ring_ + ask_stage_ * C::kStageBytes + i * (C::kThreads * 16);
        ptx::cp_async_16<128>(to, has ? from + i * (C::kLanes * 16) : from, has ? 16 : 0, kEvictLast);
      }
      ask_stage_ = ask_stage_ + 1 == C::kStages ? 0 : ask_stage_ + 1;
      if (++asked_.step == asked_.end && (ask_unit_ += stride_) < units_) {
        asked_ = DecodePlace(p_, ask_unit_, steps_);
        take_slots();
      }
    }
    ptx::cp_async_commit();
  }

  // ---- a unit's token: asked for, then put where all threads find it
  WW_DEVICE void ask_token(const DecodePlace& place) {
    const int token = first_row(p_.batch, place.request);
    asked_token_ = token, asked_slot_ = p_.batch.slots[place.request];
    const int k_head = place.head / p_.heads_per_k;
#pragma unroll
    for (int i = 0; i < C::kLoads; ++i) {
      const int at = thread_ + i * C::kThreads, channel = at % C::kDim;
      const LinearAttnRows& rows = at < C::kDim ? p_.k : p_.q;
      kq_bits_[i] = 0;
      if (at >= 2 * C::kDim || channel >= dim()) continue;
      kq_bits_[i] = load_bits(rows.data, int64_t{token} * rows.token_stride + k_head * rows.head_stride + channel, rows.dtype);
    }
    if (thread_ < p_.v_dim) v_bits_ = load_bits(p_.v.data, int64_t{token} * p_.v.token_stride + place.head * p_.v.head_stride + thread_, p_.v.dtype);
    if (thread_ < (C::kKda ? C::kDim : 32)) gates_ = load_gates(p_, token, place.head, C::kKda);
    if (C::kKda && thread_ < dim()) {
      const LinearAttnRows& rows = p_.has_gates ? p_.gates.a : p_.g;
      gates_.a = load_bits(rows.data, int64_t{token} * rows.token_stride + place.head * rows.head_stride + thread_, rows.dtype);
      if (p_.has_gates && p_.gates.dt_bias != nullptr) gates_.bias = p_.gates.dt_bias[place.head * dim() + thread_];
    }
  }
  WW_DEVICE void put_token(Token& to) const {
#pragma unroll
    for (int i = 0; i < C::kLoads; ++i) {
      const int at = thread_ + i * C::kThreads;
      const bool of_k = at < C::kDim;
      if (at < 2 * C::kDim) (of_k ? to.k : to.q)[at % C::kDim] = value_of(kq_bits_[i], of_k ? p_.k.dtype : p_.q.dtype);
    }
    if (thread_ < p_.v_dim) to.v[thread_] = value_of(v_bits_, p_.v.dtype);
    if (thread_ < (C::kKda ? C::kDim : 32)) {
      const float decay = ptx::exp2_approx(log2_decay_of(p_, gates_));
      if constexpr (C::kKda) to.decays[thread_] = decay;
      else to.decay = decay;
    }
    if (thread_ < 32) to.beta = beta_of(p_, gates_);
  }
  // Of a row's products. Of twice the lanes each has a sum of every second piece of DecodeFew's lanes, which therefore keep two.
  struct RowSum {
    static constexpr bool kTwo = C::kLanes == C::kFewLanes;
    float part[2] = {};
    WW_DEVICE void add(int e, float a, float b) { part[kTwo ? e / State::kElements % 2 : 0] += a * b; }
    WW_DEVICE float all() const {
      float sum = part[0] + (kTwo ? part[1] : __shfl_xor_sync(~0u, part[0], C::kFewLanes));
      if constexpr (C::kFewLanes == 16) sum += __shfl_xor_sync(~0u, sum, 8);
      return eight_sum(sum);
    }
  };
  // Every thread's channels of k and q, and what is the same for all rows.
  WW_DEVICE void take_token() {
    const Token& token = tokens_[turn_];
    RowSum kk, qq, kq;
#pragma unroll
    for (int i = 0; i < C::kValues / 4; ++i) {
      float q[4], decays[4];
      four(&k_[4 * i], token.k, i);
      four(q, token.q, i);
      if constexpr (C::kKda && C::kKeeps) four(decays, token.decays, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int e = 4 * i + j;
        kk.add(e, k_[e], k_[e]), qq.add(e, q[j], q[j]), kq.add(e, k_[e], q[j]);
        if constexpr (C::kKeeps) q_[e] = q[j];
        if constexpr (C::kKda && C::kKeeps) decays_[e] = decays[j];
      }
    }
    k_scale_ = 1, q_scale_ = p_.scale;
    if (p_.l2norm) {
      k_scale_ = rsqrtf(kk.all() + p_.l2norm_eps);
      q_scale_ *= rsqrtf(qq.all() + p_.l2norm_eps);
    }
    kq_ = kq.all() * k_scale_;
    beta_ = token.beta, decay_ = C::kKda ? 1.0f : token.decay;
  }
  // The i-th four of this thread's channels.
  WW_DEVICE void four(float* to, const float* row, int i) const {
    constexpr int kFours = State::kElements / 4;
    const float4 x = *reinterpret_cast<const float4*>(row + (i / kFours * C::kLanes + lane_) * State::kElements + i % kFours * 4);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
  WW_DEVICE void kept_four(float* to, const float* kept, const float* row, int i) const {
    if constexpr (C::kKeeps) {
#pragma unroll
      for (int j = 0; j < 4; ++j) to[j] = kept[4 * i + j];
    } else {
      four(to, row, i);
    }
  }
  WW_DEVICE void begin_unit() {
    turn_ ^= 1;
    put_token(tokens_[turn_]);
    __syncthreads();
    if (begun_) {
      turn_ ^= 1;
      end_unit();
      turn_ ^= 1;
    }
    begun_ = true;
    token_ = asked_token_, head_ = now_.head, slot_ = asked_slot_;
    first_row_ = now_.step * C::kRows, end_row_ = min(now_.end * C::kRows, p_.v_dim);
    ask_norm();
    take_token();
    if (unit_ + stride_ < units_) ask_token(DecodePlace(p_, unit_ + stride_, steps_));
  }

  // ---- a step
  WW_DEVICE void step() {
    ptx::cp_async_wait<C::kStages - 2>();
    const int row = row_of(now_);
    Token& token = tokens_[turn_];
    float s[C::kValues];
    RowSum sk, sq;
#pragma unroll
    for (int i = 0; i < C::kPieces; ++i) {
      u32 w[4];
      ptx::load_shared_16(w, ring_ + stage_ * C::kStageBytes + i * (C::kThreads * 16));
      State::widen(s + i * State::kElements, w);
    }
    stage_ = stage_ + 1 == C::kStages ? 0 : stage_ + 1;
    ask_state();  // into the place of the step before
#pragma unroll
    for (int i = 0; i < C::kValues / 4; ++i) {
      float q[4], decays[4];
      kept_four(q, q_, token.q, i);
      if constexpr (C::kKda) kept_four(decays, decays_, token.decays, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int e = 4 * i + j;
        if constexpr (C::kKda) s[e] *= decays[j];
        sk.add(e, s[e], k_[e]), sq.add(e, s[e], q[j]);
      }
    }
    const float value = row < p_.v_dim ? token.v[row] : 0.0f;
    const float change = beta_ * (value - decay_ * k_scale_ * sk.all());
    const float found = q_scale_ * (decay_ * sq.all() + change * kq_), times_k = change * k_scale_;
    if (row >= p_.v_dim) return;
    if (lane_ == 0) token.out[row] = found;
    if (slot_ < 0) return;
    const int64_t at = state_at(slot_, now_);
#pragma unroll
    for (int i = 0; i < C::kPieces; ++i) {
      if (!has_piece(i)) continue;
      float* const piece = s + i * State::kElements;
#pragma unroll
      for (int e = 0; e < State::kElements; ++e) {
        piece[e] = (C::kKda ? piece[e] : decay_ * piece[e]) + times_k * k_[i * State::kElements + e];
      }
      State::store(p_.state.data, at + C::kLanes * i * State::kElements, piece);
    }
  }

  // ---- outputs of the unit of this turn, a thread each
  WW_DEVICE void end_unit() const {
    if (thread_ / 32 * 32 >= p_.v_dim) return;
    const Token& token = tokens_[turn_];
    const bool own = thread_ >= first_row_ && thread_ < end_row_;
    float out = own ? token.out[thread_] : 0.0f;
    if (p_.has_norm) {
      float squares = 0;
      for (int v = thread_ % 32; v < p_.v_dim; v += 32) squares += token.out[v] * token.out[v];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
      out *= rsqrtf(squares / static_cast<float>(p_.v_dim) + p_.norm.eps) * norm_weight_ * gate();
    }
    if (slot_ < 0) out = 0;
    if (own) store_one(p_.out, token_ * p_.out_token_stride + int64_t{head_} * p_.v_dim + thread_, out, p_.out_dtype);
  }
  WW_DEVICE void ask_norm() {
    if (!p_.has_norm || thread_ >= p_.v_dim) return;
    norm_weight_ = p_.norm.weight[thread_];
    const LinearAttnRows& z = p_.norm.z;
    const int64_t at = token_ * z.token_stride + head_ * z.head_stride + thread_;
    if (z.data != nullptr) z_bits_ = load_bits(z.data, at, z.dtype);
  }
  WW_DEVICE float gate() const {
    if (p_.norm.z.data == nullptr) return 1;
    const float z = value_of(z_bits_, p_.norm.z.dtype);
    return (p_.norm.gate == LinearAttnNormGate::silu ? z : 1.0f) / (1.0f + expf(-z));
  }

  const LinearParams& p_;
  Token* const tokens_;
  const int thread_, lane_, row_, steps_, stride_, units_;
  const u32 ring_;
  int unit_, ask_unit_;
  DecodePlace now_, asked_;
  int stage_ = 0, ask_stage_ = 0, from_ = -1, next_slot_ = -1, next_from_ = -1, turn_ = 0;
  // Of the unit that was begun last.
  bool begun_ = false;
  int head_ = 0, slot_ = -1, first_row_ = 0, end_row_ = 0;
  int64_t token_ = 0;
  float k_[C::kValues], q_[C::kKeeps ? C::kValues : 1], decays_[C::kKeeps && C::kKda ? C::kValues : 1];
  float k_scale_ = 1, q_scale_ = 1, kq_ = 0, beta_ = 0, decay_ = 1;
  // Asked for.
  int asked_token_ = 0, asked_slot_ = -1;
  u32 kq_bits_[C::kLoads] = {}, v_bits_ = 0, z_bits_ = 0;
  float norm_weight_ = 0;
  GateBits gates_;
};

// With state_settled only q, k and v come from the kernel before this one: the state is asked for ahead of them. The arrays of slots
// are read before the wait, too: no kernel that lets this one start early may write them.
template <class C>
WW_DEVICE void decode_units(const LinearParams& p, char* shared) {
  ptx::launch_dependents();
  const int64_t units = int64_t{p.batch.num_requests} * p.v_heads * p.decode_units, block = blockIdx.x;
  const int first = static_cast<int>(p.decode_by_turns ? block : units * block / p.decode_blocks);
  const int end = static_cast<int>(p.decode_by_turns ? units : units * (block + 1) / p.decode_blocks);
  DecodeBlock<C>(p, shared, first, p.decode_by_turns ? p.decode_blocks : 1, end).run();
}

}  // namespace warpweave::linear
