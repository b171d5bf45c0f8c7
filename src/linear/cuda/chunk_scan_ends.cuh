// States at the ends of pieces (Pieces in linear_params.h), without outputs: of the first piece from the request's own state, of others
// from zeros by V, and, as columns of their own, what becomes of each channel of k without V.
#pragma once

#include "linear/cuda/chunk_pieces.cuh"
#include "linear/cuda/chunk_scan.cuh"

namespace warpweave::linear {

// Whether there is an end to find. A transfer matrix's columns have zeros for V, which stay in all stages. The request's slot may be
// written before its first piece is scanned: so its state is copied.
template <class C>
WW_DEVICE bool ChunkScan<C>::begin_ends() {
  if (piece_ == 0 && !transfer_ && threadIdx.x < 128) {
    load_state(slot_place(initial_slot(p_.batch, request_)));
    store_state(begin_place(0));
  }
  for (int i = threadIdx.x; transfer_ && i < C::kStages * kBlockBytes / 16; i += C::kThreads) {
    const u32 none[4] = {};
    store_shared_16(memory_ + i * 16 / kBlockBytes * C::kStageBytes + C::kV + i * 16 % kBlockBytes, none);
  }
  const bool last = segment_of<C>(p_, piece_).end >= first_row(p_.batch, request_ + 1) - first_;
  return !last && (piece_ > 0 || !transfer_);
}

template <class C>
WW_DEVICE void ChunkScan<C>::multiply_ends() {
  load_state(piece_ == 0 ? slot_place(initial_slot(p_.batch, request_)) : Place{nullptr, DType::f32, 0});
  if (transfer_) {
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) {
      if (i / 4 * 8 + column_ + i % 2 == v_ + 8 * (i / 2 % 2)) s_[i] = 1;
    }
  }
  round_state(state_, 0);
  ChunkWalk now(p_, request_);
  now.skip_to(p_, segment_of<C>(p_, piece_));
  for (RingPlace<C::kStages> stage; now.more(); stage.advance()) {
    ptx::mbarrier_wait(fetch_.full(stage.entry), stage.round & 1);
    next_end(stage.entry);
    now.advance(p_, now.length(p_));
  }
  if (transfer_) store_transfer();
  else store_state(begin_place(piece_ + 1));
}

// As chunk_pieces.cuh reads it.
template <class C>
WW_DEVICE void ChunkScan<C>::store_transfer() const {
  using ptx::Bf16;
  const int from = split_ / 16 + warp_;
  const int64_t head_piece = (int64_t{request_} * p_.work.pieces.most + piece_) * p_.v_heads + head_;
  auto* const to = static_cast<char*>(p_.work.pieces.transfers) + head_piece * transfer_bytes(p_.k_dim) + 16 * lane_;
#pragma unroll
  for (int n = 0; n < C::kDim / 16; ++n) {
    if (16 * n >= p_.k_dim || 16 * from >= p_.k_dim) break;
    u32 large[4], rest[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = s_[8 * n + i % 2 * 4 + i / 2 * 2], high = s_[8 * n + i % 2 * 4 + i / 2 * 2 + 1];
      const u32 pair = Bf16::pack(low, high);
      large[i] = ptx::movmatrix_trans(pair);
      rest[i] = ptx::movmatrix_trans(Bf16::pack(low - Bf16::low(pair), high - Bf16::high(pair)));
    }
    auto* const fragment = to + fragment_at(p_.k_dim, n, from);
    *reinterpret_cast<uint4*>(fragment) = make_uint4(large[0], large[1], large[2], large[3]);
    *reinterpret_cast<uint4*>(fragment + 512) = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }
}

template <class C>
WW_DEVICE void ChunkScan<C>::next_end(int stage) {
  const u32 memory = memory_ + stage * C::kStageBytes;
  float values[32];
  u32 x[4][4], update[4][4];
#pragma unroll
  for (int i = 0; i < 32; ++i) values[i] = 0;
  start_state<0, C::kDim / 16>(values, memory);
  Mma::template wait<0>();
  Mma::settle(values);
  subtract(x, values, stage);  // V and factors are not asked for ahead: registers would spill
  Mma::settle(x);
  Mma::begin();
  Mma::template by_rows<false>(values, x, memory + C::kT);
  Mma::commit();
  decay_state(stage);
  finish_update<0>(values, update, stage);
  Mma::settle(s_);
  Mma::settle(update);
  Mma::begin();
  Mma::template by_columns<C::kDim>(s_, update, memory + (C::kKda ? C::kKd : 0));
  Mma::commit();
  Mma::template wait<0>();
  Mma::settle(s_);
  fetch_.let_go(stage);
  round_state(state_, 0);
}

}  // namespace warpweave::linear
