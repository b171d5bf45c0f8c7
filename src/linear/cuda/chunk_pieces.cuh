// From the ends of pieces that began with zeros to the states that they do begin with (Pieces in linear_params.h): S <- S A + the end,
// from piece to piece. S and A are sums of two bf16 each, of which three products are taken: of one alone the error of outputs is up to
// 3.3 times as large where nothing is forgotten.
// Grid: x = v head * splits + split of the rows of V, y = request.
#pragma once

#include "linear/cuda/chunk_fetch.cuh"
#include "linear/cuda/chunk_list.cuh"
#include "linear/cuda/tile.cuh"

namespace warpweave::linear {

// Where a fragment of a transfer matrix stands, of channels 16 `to` .. of what comes out and 16 `from` .. of what goes in: a left operand
// of A^T, 16 bytes a lane; 512 bytes of elements rounded to bf16, then 512 of what rounding left.
WW_DEVICE int64_t fragment_at(int k_dim, int to, int from) { return (int64_t{to} * (k_dim / 16) + from) * 1024; }
WW_DEVICE int64_t transfer_bytes(int k_dim) { return int64_t{k_dim} * k_dim * 4; }

// A block has kRows rows of S and a warp 16 channels of what comes out. Matrices come three pieces ahead.
struct JoinConfig {
  static constexpr int kRows = 16, kThreads = 256, kMostDim = 128, kStages = 3;
  static constexpr int kStageBytes = kMostDim * kMostDim * 4, kState = kStages * kStageBytes, kStateBytes = kMostDim * kRows * 4;
  static constexpr int kFull = kState + 2 * kStateBytes, kSmemBytes = kFull + 8 * kStages;
};

class JoinPieces {
  using C = JoinConfig;
  using u32 = ptx::u32;
  static constexpr int kTiles = C::kRows / 8, kSteps = C::kMostDim / 16;

 public:
  WW_DEVICE JoinPieces(const LinearParams& p, char* shared, int request, int head, int row)
      : p_(p), memory_(ptx::smem_address(shared)), request_(request), head_(head), warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32), channel_(16 * warp_ + lane_ / 4), row_(row + lane_ % 4 * 2) {}

  WW_DEVICE void run() {
    const int span = p_.work.pieces.chunks * kChunk;
    const int pieces = (first_row(p_.batch, request_ + 1) - first_row(p_.batch, request_) + span - 1) / span;
    if (pieces < 3 || p_.batch.slots[request_] < 0) return;
    if (threadIdx.x == 0) {
      for (int piece = 1; piece <= C::kStages; ++piece) ptx::mbarrier_init(full(piece), 1);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
    for (int piece = 1; piece <= C::kStages; ++piece) fetch(piece, pieces);
    take_ends(1);
    put_state(1);
    for (int piece = 1; piece + 1 < pieces; ++piece) {
      take_ends(piece + 1);
      take_matrix(piece);
      __syncthreads();  // S is there, and that of the piece before has been read, as has the matrix
      fetch(piece + C::kStages, pieces);
      multiply(piece);
      store(begin_of(piece + 1));
      put_state(piece + 1);
    }
  }

 private:
  WW_DEVICE bool takes_part() const { return 16 * warp_ < p_.k_dim; }
  WW_DEVICE int64_t head_piece(int piece) const { return (int64_t{request_} * p_.work.pieces.most + piece) * p_.v_heads + head_; }
  WW_DEVICE float* begin_of(int piece) const { return p_.work.pieces.begins + head_piece(piece) * p_.v_dim * p_.k_dim; }
  WW_DEVICE u32 stage(int piece) const { return memory_ + piece % C::kStages * C::kStageBytes; }
  WW_DEVICE u32 full(int piece) const { return memory_ + C::kFull + piece % C::kStages * 8; }
  // A right operand, S^T: 16 bytes a lane, of both parts.
  WW_DEVICE u32 state(int piece, int step, int tile) const {
    return memory_ + C::kState + piece % 2 * C::kStateBytes + (step * kTiles + tile) * 512 + 16 * lane_;
  }
  // Element i of a tile's accumulator, in S.
  WW_DEVICE bool has(int tile, int i) const { return row_ + 8 * tile + i % 2 < p_.v_dim && takes_part(); }
  WW_DEVICE int64_t at(int tile, int i) const { return int64_t{row_ + 8 * tile + i % 2} * p_.k_dim + channel_ + i / 2 * 8; }
  WW_DEVICE void take_ends(int piece) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) ends_[tile][i] = has(tile, i) ? begin_of(piece)[at(tile, i)] : 0;
    }
  }
  WW_DEVICE void store(float* begin) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (has(tile, i)) begin[at(tile, i)] = ends_[tile][i];
      }
    }
  }
  // By one thread, past the other loads of this block.
  WW_DEVICE void fetch(int piece, int pieces) const {
    if (threadIdx.x != 0 || piece + 1 >= pieces) return;
    const int bytes = static_cast<int>(transfer_bytes(p_.k_dim));
    const auto* const from = static_cast<const char*>(p_.work.pieces.transfers) + head_piece(piece) * bytes;
#if defined(__CUDA_ARCH__)
    ptx::mbarrier_arrive_expect_tx(full(piece), bytes);
    bulk_load(stage(piece), from, bytes, full(piece));
#else
    for (int i = 0; i < bytes; i += 16) ptx::cp_async_16(stage(piece) + i, from + i, 16);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    ptx::mbarrier_arrive(full(piece));
#endif
  }
  // To registers, so that its place is free when all have been here.
  WW_DEVICE void take_matrix(int piece) {
    ptx::mbarrier_wait(full(piece), (piece - 1) / C::kStages & 1);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!takes_part() || 16 * step >= p_.k_dim) continue;
      const u32 from = stage(piece) + static_cast<u32>(fragment_at(p_.k_dim, warp_, step)) + 16 * lane_;
      ptx::load_shared_16(large_[step], from);
      ptx::load_shared_16(rest_[step], from + 512);
    }
  }
  // S, which is ends_, as right operands.
  WW_DEVICE void put_state(int piece) const {
    if (!takes_part()) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      u32 parts[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = ends_[tile][2 * half], high = ends_[tile][2 * half + 1];
        const u32 pair = ptx::Bf16::pack(low, high);
        parts[half] = ptx::movmatrix_trans(pair);
        parts[2 + half] = ptx::movmatrix_trans(ptx::Bf16::pack(low - ptx::Bf16::low(pair), high - ptx::Bf16::high(pair)));
      }
      store_shared_16(state(piece, warp_, tile), parts);
    }
  }
  // To ends_, which are the next piece's, S A is added.
  WW_DEVICE void multiply(int piece) {
    if (!takes_part()) return;
    float sums[3][kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (16 * step >= p_.k_dim) continue;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        u32 s[4];
        ptx::load_shared_16(s, state(piece, step, tile));
        ptx::Bf16::mma(sums[0][tile], large_[step], s[0], s[1]);
        ptx::Bf16::mma(sums[1][tile], large_[step], s[2], s[3]);
        ptx::Bf16::mma(sums[2][tile], rest_[step], s[0], s[1]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) ends_[tile][i] += sums[0][tile][i] + (sums[1][tile][i] + sums[2][tile][i]);
    }
  }

  const LinearParams& p_;
  const u32 memory_;
  const int request_, head_, warp_, lane_, channel_, row_;
  u32 large_[kSteps][4] = {}, rest_[kSteps][4] = {};  // this warp's part of a transfer matrix
  float ends_[kTiles][4];
};

WW_DEVICE void join_pieces(const LinearParams& p, char* shared) {
  const int splits = (p.v_dim + JoinConfig::kRows - 1) / JoinConfig::kRows, block = blockIdx.x;
  JoinPieces(p, shared, blockIdx.y, block / splits, block % splits * JoinConfig::kRows).run();
}

}  // namespace warpweave::linear
