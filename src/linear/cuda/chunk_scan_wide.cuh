// A chunk of chunk_scan.cuh by wgmma with more than 128 channels of k. The state alone takes up to half of a thread's registers, so S is
// rounded a block of 64 channels at a time, which K S and Q S both take, and each product is waited for before what it reads is
// made anew. The other way round from 128 channels, O is complete before the state is: it is stored while that product runs.
#pragma once

#include "linear/cuda/chunk_scan.cuh"

namespace warpweave::linear {

template <class C>
WW_DEVICE void ChunkScan<C>::multiply_state_in_blocks(float (&ks)[32], float (&qs)[32], u32 k, u32 q) {
#pragma unroll
  for (int block = 0; block < C::kDim / 64; ++block) {
    u32 state[4][4];
    round_state(state, 4 * block);
    Mma::settle(state);
    Mma::begin();
    if (block == 0) {
      Mma::template by_rows<false>(ks, state, k);
      Mma::template by_rows<false>(qs, state, q);
    } else {
      Mma::template by_rows<true>(ks, state, k + block * kBlockBytes);
      Mma::template by_rows<true>(qs, state, q + block * kBlockBytes);
    }
    Mma::commit();
    Mma::template wait<0>();
    Mma::settle(state);
  }
  Mma::settle(ks);
  Mma::settle(qs);
}

template <class C>
WW_DEVICE void ChunkScan<C>::compute_wide(float (&values)[32], float (&o)[32], int stage, Rows rows) {
  const u32 memory = memory_ + stage * C::kStageBytes;
  const bool by_pieces = p_.out_vectors && p_.out_dtype != DType::f32;
  u32 x[4][4], update[4][4];
  multiply_state_in_blocks(values, o, memory, memory + C::kTileBytes);
  subtract(x, values, stage);
  Mma::settle(x);
  Mma::begin();
  Mma::template by_rows<false>(values, x, memory + C::kT);
  Mma::commit();
  decay_state(stage);
  scale_outputs(o, stage);
  Mma::template wait<0>();
  Mma::settle(values);
  round_columns<C::kKda ? -1 : 2>(update, values, stage);
  round_columns<-1>(x, values, stage);
  Mma::settle(o);
  Mma::settle(x);
  Mma::settle(s_);
  Mma::settle(update);
  Mma::begin();
  Mma::template by_rows<true>(o, x, memory + C::kP);
  Mma::commit();
  Mma::template by_columns<C::kDim>(s_, update, memory + (C::kKda ? 2 * C::kTileBytes : 0));
  Mma::commit();
  Mma::template wait<1>();
  Mma::settle(o);
  round_outputs(o);
  turn();
  store_turned({rows.row, by_pieces ? rows.tokens : 0});
  Mma::template wait<0>();
  Mma::settle(s_);
  fetch_.let_go(stage);
  if (!by_pieces) store_singly(o, rows);
}

}  // namespace warpweave::linear
