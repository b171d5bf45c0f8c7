// Chunks of chunk_scan.cuh where an MMA is done when its call returns: by mma.sync, for any dims, types and strides.
#pragma once

#include "linear/cuda/chunk_scan.cuh"

namespace warpweave::linear {

// A chunk where MMAs are done at once. `rows`: those whose outputs are still to be stored, of the chunk before and then of
// this one.
template <class C>
WW_DEVICE void ChunkScan<C>::compute_in_turn(float (&values)[32], float (&o)[32], Rows& rows, int stage, const Rows& now) {
  const u32 memory = memory_ + stage * C::kStageBytes;
  u32 x[4][4], update[4][4];
  multiply_state(values, o, memory, memory + C::kTileBytes);
  subtract(x, values, stage);
  Mma::template by_rows<false>(values, x, memory + C::kT);
  decay_state(stage);
  store_turned_or_singly(rows);
  rows = now;
  round_columns<C::kKda ? -1 : 2>(update, values, stage);
  round_columns<-1>(x, values, stage);
  scale_outputs(o, stage);
  Mma::template by_columns<C::kDim>(s_, update, memory + (C::kKda ? 2 * C::kTileBytes : 0));
  Mma::template by_rows<true>(o, x, memory + C::kP);
  if constexpr (C::kDim <= 128) round_state(state_, 0);
  if (p_.out_dtype == DType::f32) return store_wide(o, rows);
  round_outputs(o);
  turn();
}

// In turn: of f32, and of 16 bits with whatever stride.
template <class C>
WW_DEVICE void ChunkScan<C>::store_wide(const float (&o)[32], Rows& rows) const {
  auto* const out = static_cast<float*>(p_.out) + out_at(rows);
#pragma unroll
  for (int at = 0; at < 32; ++at) {
    const int token = at / 4 * 8 + column_ + at % 2, v = v_ + at / 2 % 2 * 8;
    if (token < rows.tokens && v < p_.v_dim) out[token * p_.out_token_stride + v] = o[at];
  }
  rows.tokens = 0;
}

template <class C>
WW_DEVICE void ChunkScan<C>::store_turned_or_singly(const Rows& rows) const {
  auto* const out = static_cast<unsigned short*>(p_.out) + out_at(rows);
  const int v = split_ + 64 * group_ + 16 * warp_;
  if (v >= p_.v_dim || rows.tokens == 0) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = (lane_ + 32 * i) / 2, half = lane_ % 2;
    u32 w[4];
    ptx::load_shared_16(w, out_tile() + piece_offset(token, 2 * warp_ + half));
    if (token >= rows.tokens) continue;
    auto* const to = out + token * p_.out_token_stride + v + 8 * half;
    if (p_.out_vectors) {
      *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) to[e] = static_cast<unsigned short>(w[e / 2] >> 16 * (e % 2));
    }
  }
}

}  // namespace warpweave::linear
