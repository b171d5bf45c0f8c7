// The chunks of a request in their order: outputs, and the state from one to the next, by what chunk_prepare left.
//
//     X  = V - diag(2^G) K S         O = diag(2^G) Q S + P V'
//     V' = T X                       S <- diag(2^G_last) S + (diag(2^(G_last - G)) K)^T V'
//
// All of it is computed transposed, with S^T [v, k] in registers: each left operand is then an accumulator of the product
// before it, rounded, and no warp needs another's. A warp has 16 rows (columns of V), a group of four warps 64. Shared memory
// holds what all of them read (chunk_fetch.cuh).
//
// Grid: x = v head * splits + split of the columns of V, y = request.
#pragma once

#include "linear/cuda/chunk_fetch.cuh"

namespace warpweave::linear {

template <class C>
class ChunkScan {
  using E = typename C::Element;
  using Mma = typename C::Mma;
  using u32 = ptx::u32;

 public:
  WW_DEVICE ChunkScan(const LinearParams& p, const ScanMaps* maps, char* shared, const ScanBlock& block)
      : p_(p), shared_(shared), memory_(ptx::smem_address(shared)), request_(block.request), head_(block.head),
        split_(block.column), piece_(block.piece), transfer_(block.transfer), fetch_(p, maps, memory_, block),
        group_(C::kRoles ? 0 : static_cast<int>(threadIdx.x) / 128), warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32), first_(first_row(p.batch, block.request)),
        v_(split_ + 64 * group_ + 16 * warp_ + lane_ / 4), column_(lane_ % 4 * 2) {}

  WW_DEVICE void run() {
    if (first_row(p_.batch, request_ + 1) - first_ < p_.least_nodes) return;
    const int slot = p_.batch.slots[request_];
    if (slot < 0) {
      if (!C::kEnds && piece() == 0) clear_rows();
      return;
    }
    if (piece() > 0 && segment_of<C>(p_, piece_).begin >= first_row(p_.batch, request_ + 1) - first_) return;
    if constexpr (C::kEnds) {
      if (!begin_ends()) return;
    }
    if constexpr (C::kRing) fetch_.make_barriers();
    const int role = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (role == C::kMultipliers) {
      if constexpr (C::kMovesRegisters) ptx::setmaxnreg_decrease<C::kRoles ? 56 : 40>();
      if constexpr (C::kRing) fetch_.fill_ring();
      else fetch_.copy_all();
    } else if constexpr (C::kEnds) {
      multiply_ends();
    } else if constexpr (C::kRoles) {
      if (role == 0) {
        ptx::setmaxnreg_increase<232>();
        multiply_states(slot);
      } else {
        ptx::setmaxnreg_increase<208>();
        multiply_outputs();
      }
    } else {
      if constexpr (C::kMovesRegisters) ptx::setmaxnreg_increase<232>();
      multiply_all(slot);
    }
  }

 private:
  WW_DEVICE int piece() const { return C::kPieces ? piece_ : 0; }

  // ---- the state; a row that V has not, and channels that k has not, are zeros
  struct Place {
    void* data;     // null: zeros
    DType dtype;
    int64_t first;  // element of this head
  };
  WW_DEVICE Place slot_place(int slot) const {
    return {slot < 0 ? nullptr : p_.state.data, p_.state.dtype, slot * p_.state.slot_stride + head_ * p_.state.head_stride};
  }
  WW_DEVICE Place handover_place() const { return {p_.work.handover, DType::f32, int64_t{head_} * p_.v_dim * p_.k_dim}; }
  WW_DEVICE int64_t state_at(const Place& place, int row) const {
    return place.first + int64_t{v_ + 8 * row} * p_.k_dim + column_;
  }
  WW_DEVICE bool has(int row, int n) const { return v_ + 8 * row < p_.v_dim && 8 * n < p_.k_dim; }
  WW_DEVICE Place begin_place(int piece) const {
    const int head_piece = (request_ * p_.work.pieces.most + piece) * p_.v_heads + head_;
    return {p_.work.pieces.begins, DType::f32, head_piece * p_.v_dim * p_.k_dim};
  }
  WW_DEVICE void load_state(const Place& place) {
#pragma unroll
    for (int n = 0; n < C::kDim / 8; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float2 x = make_float2(0, 0);
        if (place.data != nullptr && has(row, n)) {
          const int64_t at = state_at(place, row) + 8 * n;
          if (place.dtype == DType::f32) {
            x = *reinterpret_cast<const float2*>(static_cast<const float*>(place.data) + at);
          } else {
            const u32 pair = *reinterpret_cast<const u32*>(static_cast<const unsigned short*>(place.data) + at);
            x = make_float2(ptx::Bf16::low(pair), ptx::Bf16::high(pair));
          }
        }
        s_[4 * n + 2 * row] = x.x, s_[4 * n + 2 * row + 1] = x.y;
      }
    }
  }
  WW_DEVICE void store_state(const Place& place) const {
#pragma unroll
    for (int n = 0; n < C::kDim / 8; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (!has(row, n)) continue;
        const int64_t at = state_at(place, row) + 8 * n;
        const float low = s_[4 * n + 2 * row], high = s_[4 * n + 2 * row + 1];
        if (place.dtype == DType::f32) {
          *reinterpret_cast<float2*>(static_cast<float*>(place.data) + at) = make_float2(low, high);
        } else {
          *reinterpret_cast<u32*>(static_cast<unsigned short*>(place.data) + at) = ptx::Bf16::pack(low, high);
        }
      }
    }
  }
  // Between segments. All blocks of the scan before this one have begun, or this launch could not have: so the wait ends.
  WW_DEVICE void load_first_state() {
    const Segment& segment = p_.work.segment;
    if constexpr (C::kPieces) return load_state(begin_place(piece()));
    if (segment.index <= 0) return load_state(slot_place(initial_slot(p_.batch, request_)));
    while (ptx::load_acquire(&p_.work.handed_over[blockIdx.x]) < segment.index) {
    }
    load_state(handover_place());
  }
  static constexpr int kDone = 15, kOutputs = 13;  // barriers of those that multiply, and of those that make outputs
  // Of a piece `walk` says whether it is the last one, and memory the slot, so that no registers have to.
  WW_DEVICE void store_last_state(int slot, const ChunkWalk& walk) const {
    if constexpr (C::kPieces) {
      if (walk.end == first_row(p_.batch, request_ + 1) - first_) store_state(slot_place(p_.batch.slots[request_]));
      return;
    }
    const Segment& segment = p_.work.segment;
    if (segment.index >= 0 && !segment.last) store_state(handover_place());
    else if (p_.writes_state) store_state(slot_place(slot));
    if (segment.index < 0) return;
    ptx::named_barrier_sync(kDone, 128 * C::kMultipliers);
    if (threadIdx.x == 0) ptx::store_release(&p_.work.handed_over[blockIdx.x], segment.index + 1);
  }

  // ---- a chunk
  WW_DEVICE float factor(int stage, int token, int which) const {
    return reinterpret_cast<const float*>(shared_ + stage * C::kStageBytes + C::kFactors)[4 * token + which];
  }
  WW_DEVICE float2 channel_decay(int stage, int channel) const {
    return reinterpret_cast<const float2*>(shared_ + stage * C::kStageBytes + C::kFactors)[channel / 2];
  }
  template <int kSteps>
  WW_DEVICE void round_state(u32 (&a)[kSteps][4], int first_step) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 8 * (first_step + step) + 2 * i;
        a[step][i] = E::pack(s_[at], s_[at + 1]);
      }
    }
  }
  // Starts d = S^T tile^T, of the steps of 16 channels from kFirst to kEnd; added to d where kFirst is not 0.
  template <int kFirst, int kEnd>
  WW_DEVICE void start_state(float (&d)[32], u32 tile) {
    Mma::settle(state_);
    Mma::begin();
    Mma::template by_some_rows<(kFirst > 0), kFirst, kEnd>(d, state_, tile);
    Mma::commit();
  }
  // What subtract() needs beside K S, asked for ahead of it.
  struct Minuend {
    u32 v[4][4];
    float by[16];
  };
  WW_DEVICE void take_minuend(Minuend& m, int stage) const {
    const u32 v = memory_ + stage * C::kStageBytes + C::kV + group_ * kBlockBytes;
#pragma unroll
    for (int n = 0; n < 4; ++n) load_transposed(m.v[n], v, 16 * n, warp_);
#pragma unroll
    for (int i = 0; i < 16; ++i) m.by[i] = C::kKda ? 1.0f : factor(stage, i / 2 * 8 + column_ + i % 2, 0);
  }
  // X, as a left operand.
  WW_DEVICE void subtract(u32 (&x)[4][4], const float (&ks)[32], const Minuend& m) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float by0 = m.by[4 * n + 2 * half], by1 = m.by[4 * n + 2 * half + 1];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int at = 4 * (2 * n + half) + 2 * row;
          const u32 pair = m.v[n][2 * half + row];
          x[n][2 * half + row] = E::pack(E::low(pair) - by0 * ks[at], E::high(pair) - by1 * ks[at + 1]);
        }
      }
    }
  }
  // An accumulator as a left operand, its columns times factors of their tokens.
  WW_DEVICE void round_columns(u32 (&to)[4][4], const float (&d)[32], const float (&by)[16]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        to[n / 2][n % 2 * 2 + row] = E::pack(by[2 * n] * d[4 * n + 2 * row], by[2 * n + 1] * d[4 * n + 2 * row + 1]);
      }
    }
  }
  WW_DEVICE void round_columns(u32 (&to)[4][4], const float (&d)[32]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) to[n / 2][n % 2 * 2 + row] = E::pack(d[4 * n + 2 * row], d[4 * n + 2 * row + 1]);
    }
  }
  // Of this thread's columns.
  WW_DEVICE void take_factors(float (&by)[16], int stage, int which) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) by[i] = factor(stage, i / 2 * 8 + column_ + i % 2, which);
  }
  WW_DEVICE void scale_outputs(float (&o)[32], const float (&by)[16]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      o[4 * n] *= by[2 * n], o[4 * n + 1] *= by[2 * n + 1], o[4 * n + 2] *= by[2 * n], o[4 * n + 3] *= by[2 * n + 1];
    }
  }
  WW_DEVICE void decay_state(int stage) {
    const float all = C::kKda ? 1.0f : factor(stage, 0, 3);
#pragma unroll
    for (int n = 0; n < C::kDim / 8; ++n) {
      float2 by = make_float2(all, all);
      if constexpr (C::kKda) by = channel_decay(stage, 8 * n + column_);
      s_[4 * n] *= by.x, s_[4 * n + 1] *= by.y, s_[4 * n + 2] *= by.x, s_[4 * n + 3] *= by.y;
    }
  }

  struct Rows {
    int64_t row = 0;
    int tokens = 0;  // 0: none
  };
  // A chunk. MMAs that others wait for come first, and halves of Q S stand between them, so that tensor cores work while
  // accumulators are turned into operands. `o` and `rows` are those of the chunk before, and then of this one. Of one group O is
  // stored while the next chunk's first product runs; of two at once, while the other group's products do.
  WW_DEVICE void compute(float (&values)[32], float (&o)[32], Rows& rows, int stage, const Rows& now) {
    const u32 memory = memory_ + stage * C::kStageBytes, k = memory, q = memory + C::kTileBytes;
    constexpr int kSteps = C::kDim / 16;
    u32 x[4][4], update[4][4];
    start_state<0, kSteps>(values, k);
    if constexpr (C::kStoresLater) {
      turn();
      store_turned(rows);
    }
    start_state<0, kSteps / 2>(o, q);
    rows = now;
    {
      Minuend minuend;
      take_minuend(minuend, stage);
      Mma::template wait<1>();
      Mma::settle(values);
      subtract(x, values, minuend);
    }
    Mma::settle(x);
    Mma::begin();
    Mma::template by_rows<false>(values, x, memory + C::kT);
    Mma::commit();
    start_state<kSteps / 2, kSteps>(o, q);
    decay_state(stage);
    finish_values(values, x, update, stage);
    Mma::settle(s_);
    Mma::settle(update);
    Mma::begin();
    Mma::template by_columns<C::kDim>(s_, update, memory + (C::kKda ? 2 * C::kTileBytes : 0));
    Mma::commit();
    Mma::template wait<1>();
    Mma::settle(o);
    if constexpr (!C::kKda) {
      float by[16];
      take_factors(by, stage, 1);
      scale_outputs(o, by);
    }
    Mma::settle(o);
    Mma::settle(x);
    Mma::begin();
    Mma::template by_rows<true>(o, x, memory + C::kP);
    Mma::commit();
    Mma::template wait<1>();
    Mma::settle(s_);
    round_state(state_, 0);
    Mma::template wait<0>();
    Mma::settle(o);
    fetch_.let_go(stage);
    round_outputs(o);
    if (!p_.out_vectors || p_.out_dtype == DType::f32) store_singly(o, rows);
    if constexpr (!C::kStoresLater) {
      turn();
      store_turned(rows);
    }
  }
  // V', which is there when no more than kPending groups of MMAs are under way, as left operands of the state.
  template <int kPending>
  WW_DEVICE void finish_update(float (&values)[32], u32 (&update)[4][4], int stage) const {
    if constexpr (C::kKda) {
      Mma::template wait<kPending>();
      Mma::settle(values);
      round_columns(update, values);
    } else {
      float by[16];
      take_factors(by, stage, 2);
      Mma::template wait<kPending>();
      Mma::settle(values);
      round_columns(update, values, by);
    }
  }
  // The same, and as those of O.
  WW_DEVICE void finish_values(float (&values)[32], u32 (&x)[4][4], u32 (&update)[4][4], int stage) const {
    finish_update<1>(values, update, stage);
    round_columns(x, values);
  }
  // ---- the same without outputs; chunk_scan_ends.cuh has these
  WW_DEVICE bool begin_ends();
  WW_DEVICE void multiply_ends();
  WW_DEVICE void next_end(int stage);
  WW_DEVICE void store_transfer() const;
  // ---- the same by two groups, one for the state, one for outputs, each through all chunks; chunk_scan_roles.cuh has these
  WW_DEVICE void multiply_states(int slot);
  WW_DEVICE void multiply_outputs();
  WW_DEVICE void next_state(int stage, int place);
  WW_DEVICE void next_outputs(float (&o)[32], int stage, const RingPlace<2>& place);
  WW_DEVICE void turn_in_place(int place) const;
  WW_DEVICE void store_from_place(int place, const Rows& rows) const;
  WW_DEVICE u32 warp_place(int place, int part, int bytes) const { return memory_ + C::kOut + place * C::kPlaceBytes + part + warp_ * bytes; }
  enum Handed { kState, kNewValues, kRead };
  WW_DEVICE u32 handed(Handed what, int place) const { return memory_ + C::kHanded + 16 * what + 8 * place; }
  // ---- the same where MMAs are done when the call returns, and registers may not hold S rounded
  WW_DEVICE void multiply_state_in_blocks(float (&ks)[32], float (&qs)[32], u32 k, u32 q);
  WW_DEVICE void compute_wide(float (&values)[32], float (&o)[32], int stage, Rows rows);  // both in chunk_scan_wide.cuh
  WW_DEVICE void compute_in_turn(float (&values)[32], float (&o)[32], Rows& rows, int stage, const Rows& now);
  WW_DEVICE void store_wide(const float (&o)[32], Rows& rows) const;
  WW_DEVICE void store_turned_or_singly(const Rows& rows) const;  // these three in chunk_scan_in_turn.cuh
  // ks = S^T K^T and qs = S^T Q^T.
  WW_DEVICE void multiply_state(float (&ks)[32], float (&qs)[32], u32 k, u32 q) {
    if constexpr (C::kDim <= 128) {
      Mma::template by_rows<false>(ks, state_, k);
      Mma::template by_rows<false>(qs, state_, q);
    } else {
      multiply_state_in_blocks(ks, qs, k, q);
    }
  }
  // The same in turn.
  WW_DEVICE void subtract(u32 (&x)[4][4], const float (&ks)[32], int stage) const {
    const u32 v = memory_ + stage * C::kStageBytes + C::kV + group_ * kBlockBytes;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      u32 pair[4];
      load_transposed(pair, v, 16 * n, warp_);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = 16 * n + 8 * half + column_;
        const float by0 = C::kKda ? 1.0f : factor(stage, token, 0), by1 = C::kKda ? 1.0f : factor(stage, token + 1, 0);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int at = 4 * (2 * n + half) + 2 * row;
          x[n][2 * half + row] = E::pack(E::low(pair[2 * half + row]) - by0 * ks[at], E::high(pair[2 * half + row]) - by1 * ks[at + 1]);
        }
      }
    }
  }
  template <int kWhich>
  WW_DEVICE void round_columns(u32 (&to)[4][4], const float (&d)[32], int stage) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int token = 8 * n + column_;
      const float by0 = kWhich < 0 ? 1.0f : factor(stage, token, kWhich), by1 = kWhich < 0 ? 1.0f : factor(stage, token + 1, kWhich);
#pragma unroll
      for (int row = 0; row < 2; ++row) to[n / 2][n % 2 * 2 + row] = E::pack(by0 * d[4 * n + 2 * row], by1 * d[4 * n + 2 * row + 1]);
    }
  }
  WW_DEVICE void scale_outputs(float (&o)[32], int stage) const {
    if constexpr (!C::kKda) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float by0 = factor(stage, 8 * n + column_, 1), by1 = factor(stage, 8 * n + column_ + 1, 1);
        o[4 * n] *= by0, o[4 * n + 1] *= by1, o[4 * n + 2] *= by0, o[4 * n + 3] *= by1;
      }
    }
  }
  WW_DEVICE void multiply_all(int slot) {
    ChunkWalk now(p_, request_);
    int stage = 0;
    u32 round = 0;
    Rows rows;
    float values[32], o[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) values[i] = 0, o[i] = 0;
    if constexpr (!C::kPieces) now.skip_to(p_, p_.work.segment);
    load_first_state();
    if constexpr (C::kPieces) {  // in this order, and with one end, or registers spill
      now.skip_to(p_, segment_of<C>(p_, piece_));
      now.tokens = now.end;
    }
    if constexpr (C::kDim <= 128) round_state(state_, 0);
    while (now.more()) {
      if constexpr (C::kRing) ptx::mbarrier_wait(fetch_.full(stage), round & 1);
      else __syncthreads();
      const int tokens = now.length(p_);
      if constexpr (C::kRing && C::kWide) compute_wide(values, o, stage, {first_ + now.position, tokens});
      else if constexpr (C::kRing) compute(values, o, rows, stage, {first_ + now.position, tokens});
      else compute_in_turn(values, o, rows, stage, {first_ + now.position, tokens});
      if constexpr (!C::kRing && C::kStages == 1) __syncthreads();
      if (++stage == C::kStages) stage = 0, ++round;
      const int checkpoint = now.advance(p_, tokens);
      if (checkpoint >= 0) store_state(slot_place(checkpoint));
    }
    if constexpr (C::kRing && C::kStoresLater && !C::kWide) {
      turn();
      store_turned(rows);
    } else if constexpr (!C::kRing) {
      store_turned_or_singly(rows);
    }
    store_last_state(slot, now);
  }

  // ---- outputs
  WW_DEVICE int64_t out_at(const Rows& rows) const { return rows.row * p_.out_token_stride + int64_t{head_} * p_.v_dim; }
  WW_DEVICE u32 out_tile() const { return memory_ + C::kOut + group_ * kBlockBytes; }
  // Outputs that do not go by 16 bytes; none is left for store_turned().
  WW_DEVICE void store_singly(const float (&o)[32], Rows& rows) const {
    const int64_t to = out_at(rows);
#pragma unroll
    for (int at = 0; at < 32; ++at) {
      const int token = at / 4 * 8 + column_ + at % 2, v = v_ + at / 2 % 2 * 8;
      if (token < rows.tokens && v < p_.v_dim) store_one(p_.out, to + token * p_.out_token_stride + v, o[at], p_.out_dtype);
    }
    rows.tokens = 0;
  }
  WW_DEVICE void round_outputs(const float (&o)[32]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) out_[i] = E::pack(o[2 * i], o[2 * i + 1]);
  }
  // Outputs of 16 bits, turned round in shared memory, this warp's columns of it.
  WW_DEVICE void turn() const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += C::kStoresLater ? 1 : 4) {
      if constexpr (C::kStoresLater) {
        const u32 to = out_tile() + piece_offset(8 * (i / 2) + lane_ / 4, 2 * warp_ + i % 2);
        ptx::store_shared_4(to + lane_ % 4 * 4, ptx::movmatrix_trans(out_[i]));
      } else {
        const u32 w[4] = {out_[i], out_[i + 1], out_[i + 2], out_[i + 3]};
        ptx::stmatrix_x4_trans(out_tile() + piece_offset(4 * i + lane_ / 16 * 8 + lane_ % 8, 2 * warp_ + lane_ / 8 % 2), w);
      }
    }
    __syncwarp();
  }
  // Without a branch, since MMAs are under way.
  WW_DEVICE void store_turned(const Rows& rows) const {
    const int half = lane_ % 2, v = split_ + 64 * group_ + 16 * warp_ + 8 * half, tokens = v < p_.v_dim ? rows.tokens : 0;
    const auto* const out = static_cast<const unsigned short*>(p_.out) + out_at(rows) + v;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = lane_ / 2 + 16 * i;
      u32 w[4];
      ptx::load_shared_16(w, out_tile() + piece_offset(token, 2 * warp_ + half));
      store_global_16_if(out + token * p_.out_token_stride, w, token < tokens);
    }
  }
  WW_DEVICE void clear_rows() const {
    const int end = first_row(p_.batch, request_ + 1), columns = min(64 * C::kGroups, p_.v_dim - split_);
    for (int i = threadIdx.x; i < (end - first_) * columns; i += C::kThreads) {
      const int64_t at = (first_ + i / columns) * p_.out_token_stride + int64_t{head_} * p_.v_dim + split_ + i % columns;
      store_one(p_.out, at, 0, p_.out_dtype);
    }
  }

  const LinearParams& p_;
  char* const shared_;
  const u32 memory_;
  const int request_, head_, split_, piece_;
  const bool transfer_;
  const ChunkFetch<C> fetch_;
  const int group_, warp_, lane_, first_, v_, column_;
  float s_[C::kDim / 2];
  u32 state_[C::kDim <= 128 ? C::kDim / 16 : 1][4];  // S^T, rounded
  u32 out_[16] = {};                                 // O of the last chunk, rounded
};

// `maps`: null: all is copied by cp.async.
template <class C>
WW_DEVICE void chunk_scan(const LinearParams& p, const ScanMaps* maps, char* shared) {
  ChunkScan<C>(p, maps, shared, scan_block<C>(p)).run();
}

}  // namespace warpweave::linear
