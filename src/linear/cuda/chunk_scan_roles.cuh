// Chunks of GDN in chunk_scan.cuh where 64 columns of V have a multiprocessor to themselves: one group of threads goes from state to
// state, another makes outputs of what the first hands over, S rounded and V'. An operand in registers goes thread by thread from
// one group to the other by shared memory: each warp reads what the same warp of the other group wrote.
//
// S is handed over once K S is done, so that Q S does not hold it up on the tensor cores (H200, 1x65536: 1,287 us in place of 1,237).
#pragma once

#include "linear/cuda/chunk_scan.cuh"

namespace warpweave::linear {

// Operands in registers, to and from 512 bytes of shared memory for each.
template <int kSteps>
WW_DEVICE void put_operands(ptx::u32 to, const ptx::u32 (&a)[kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) store_shared_16(to + 512 * step + threadIdx.x % 32 * 16, a[step]);
}
template <int kSteps>
WW_DEVICE void take_operands(ptx::u32 (&a)[kSteps][4], ptx::u32 from) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) ptx::load_shared_16(a[step], from + 512 * step + threadIdx.x % 32 * 16);
}
// Of a whole warp.
WW_DEVICE void arrive_of_warp(ptx::u32 barrier) {
  __syncwarp();
  ptx::mbarrier_arrive_if_zero(barrier, threadIdx.x % 32);
}

template <class C>
WW_DEVICE void ChunkScan<C>::multiply_states(int slot) {
  RingPlace<C::kStages> stage;
  RingPlace<2> place;
  ChunkWalk now(p_, request_);
  now.skip_to(p_, segment_of<C>(p_, piece_));
  load_first_state();
  round_state(state_, 0);
  for (; now.more(); stage.advance(), place.advance()) {
    const int tokens = now.length(p_);
    ptx::mbarrier_wait(fetch_.full(stage.entry), stage.round & 1);
    if (place.round > 0) ptx::mbarrier_wait(handed(kRead, place.entry), (place.round + 1) & 1);
    next_state(stage.entry, place.entry);
    const int checkpoint = now.advance(p_, tokens);
    if (checkpoint >= 0) store_state(slot_place(checkpoint));
  }
  store_last_state(slot, now);
}

template <class C>
WW_DEVICE void ChunkScan<C>::next_state(int stage, int place) {
  const u32 memory = memory_ + stage * C::kStageBytes;
  float values[32];
  u32 x[4][4], update[4][4];
  start_state<0, C::kDim / 16>(values, memory);
  put_operands(warp_place(place, 0, C::kDim * 32), state_);
  Minuend minuend;
  take_minuend(minuend, stage);
  Mma::template wait<0>();
  Mma::settle(values);
  arrive_of_warp(handed(kState, place));
  subtract(x, values, minuend);
  Mma::settle(x);
  Mma::begin();
  Mma::template by_rows<false>(values, x, memory + C::kT);
  Mma::commit();
  decay_state(stage);
  finish_update<0>(values, update, stage);
  Mma::settle(s_);
  Mma::settle(update);
  Mma::begin();
  Mma::template by_columns<C::kDim>(s_, update, memory);
  Mma::commit();
  round_columns(x, values);
  put_operands(warp_place(place, C::kValues, 2048), x);
  arrive_of_warp(handed(kNewValues, place));
  Mma::template wait<0>();
  Mma::settle(s_);
  fetch_.let_go(stage);
  round_state(state_, 0);
}

template <class C>
WW_DEVICE void ChunkScan<C>::multiply_outputs() {
  RingPlace<C::kStages> stage;
  RingPlace<2> place;
  ChunkWalk now(p_, request_);
  now.skip_to(p_, segment_of<C>(p_, piece_));
  Rows before;
  for (u32 none = 1; now.more(); none = 0, stage.advance(), place.advance()) {
    const Rows rows = {first_ + now.position, now.length(p_)};
    now.advance(p_, rows.tokens);
    ptx::mbarrier_wait(fetch_.full(stage.entry), stage.round & 1);
    ptx::mbarrier_wait(handed(kState, place.entry), place.round & 1);
    take_operands(state_, warp_place(place.entry, 0, C::kDim * 32));
    float o[32];
    start_state<0, C::kDim / 16>(o, memory_ + stage.entry * C::kStageBytes + C::kTileBytes);
    store_from_place(place.entry ^ 1, before);
    __syncwarp();
    ptx::mbarrier_arrive_if_zero(handed(kRead, place.entry ^ 1), none | threadIdx.x % 32);
    next_outputs(o, stage.entry, place);
    before = rows;
    if (!p_.out_vectors || p_.out_dtype == DType::f32) store_singly(o, before);
    turn_in_place(place.entry);
  }
  store_from_place(place.entry ^ 1, before);
  if (p_.work.segment.index >= 0) ptx::named_barrier_sync(kDone, 128 * C::kMultipliers);
}

// Of o = Q S, which is under way, the whole.
template <class C>
WW_DEVICE void ChunkScan<C>::next_outputs(float (&o)[32], int stage, const RingPlace<2>& place) {
  float by[16];
  u32 x[4][4];
  take_factors(by, stage, 1);
  Mma::template wait<0>();
  Mma::settle(o);
  scale_outputs(o, by);
  ptx::mbarrier_wait(handed(kNewValues, place.entry), place.round & 1);
  take_operands(x, warp_place(place.entry, C::kValues, 2048));
  Mma::settle(o);
  Mma::settle(x);
  Mma::begin();
  Mma::template by_rows<true>(o, x, memory_ + stage * C::kStageBytes + C::kP);
  Mma::commit();
  Mma::template wait<0>();
  Mma::settle(o);
  fetch_.let_go(stage);
  round_outputs(o);
}

// ---- outputs, turned round where V' were, as a tile of 64 columns: rows of 128 bytes keep the way to memory free for the other group
template <class C>
WW_DEVICE void ChunkScan<C>::turn_in_place(int place) const {
  const u32 tile = memory_ + C::kOut + place * C::kPlaceBytes + C::kValues;
  ptx::named_barrier_sync(kOutputs, 128);  // all have read V'
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    const u32 w[4] = {out_[i], out_[i + 1], out_[i + 2], out_[i + 3]};
    ptx::stmatrix_x4_trans(tile + piece_offset(4 * i + lane_ / 16 * 8 + lane_ % 8, 2 * warp_ + lane_ / 8 % 2), w);
  }
  ptx::named_barrier_sync(kOutputs, 128);
}
// Without a branch, since MMAs are under way.
template <class C>
WW_DEVICE void ChunkScan<C>::store_from_place(int place, const Rows& rows) const {
  const int piece = lane_ % 8, first = 4 * warp_ + lane_ / 8, v = split_ + 8 * piece, tokens = v < p_.v_dim ? rows.tokens : 0;
  const u32 tile = memory_ + C::kOut + place * C::kPlaceBytes + C::kValues;
  const auto* to = static_cast<const unsigned short*>(p_.out) + out_at(rows) + first * p_.out_token_stride + v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 w[4];
    ptx::load_shared_16(w, tile + piece_offset(first + 16 * i, piece));
    store_global_16_if(to, w, first + 16 * i < tokens);
    to += 16 * p_.out_token_stride;
  }
}

}  // namespace warpweave::linear
