// Copies of K and V for pages of a few tokens, made by the Hopper prefill kernel itself (ExtendCopies).
#pragma once

#include "attention/backends/fa3/kernels/sm90_tiles.cuh"

namespace warpweave::cuda {

// Warps take pieces of a few tokens of one kv head, K and V, the first head's first. All warps of all CTAs copy
// before they begin, about as many pieces as the first head has; two of each CTA then copy the rest while the first
// heads are multiplied.
template <class C>
class Sm90Copies {
 public:
  WW_DEVICE Sm90Copies(const AttentionParams& p, const ExtendWorklist& work)
      : p_(p), work_(work), head_pieces_(work.header->num_blocks * kBlockPieces) {}

  WW_DEVICE void first_head() const {
    const int warps = gridDim.x * C::kThreads / 32;
    for (int piece = 0; piece < head_pieces_;) {
      piece = take();
      if (piece < p_.num_kv_heads * head_pieces_) copy<8>(piece);
      piece += warps;  // what the next would be at least
    }
  }

  WW_DEVICE void other_heads() const {
    for (int piece = take(); piece < p_.num_kv_heads * head_pieces_;) {
      const int next = ask();
      copy<4>(piece);
      piece = __shfl_sync(~0u, next, 0);
    }
  }

  // By one lane, before it has the copy engine read the head's copies.
  WW_DEVICE void wait(int head) const {
    while (ptx::load_acquire(work_.copies.ready + head) < head_pieces_) {}
    ptx::fence_proxy_async_all();
  }

 private:
  static constexpr int kPieceBytes = 4096;  // of K, and of V
  static constexpr int kPieceTokens = kPieceBytes / (C::kDim * 2);
  static constexpr int kBlockPieces = kCopyBlockTokens / kPieceTokens;
  static constexpr int kChunks = C::kDim / 8, kRowsAtOnce = 32 / kChunks;  // of 16 bytes

  static WW_DEVICE int lane() { return threadIdx.x % 32; }
  WW_DEVICE int ask() const { return lane() == 0 ? atomicAdd(&work_.header->pieces_taken, 1) : 0; }
  WW_DEVICE int take() const { return __shfl_sync(~0u, ask(), 0); }

  // kLoads: 16-byte loads under way together, as registers allow.
  template <int kLoads>
  WW_DEVICE void copy(int piece) const {
    const int head = piece / head_pieces_, in_head = piece - head * head_pieces_, at_block = in_head / kBlockPieces;
    const ExtendCopyBlock block = work_.copies.blocks[at_block];
    const int first = in_head % kBlockPieces * kPieceTokens;  // in the block
    const int token = block.block * kCopyBlockTokens + first + lane();
    int64_t offset = -1;  // in elements; a lane finds one row
    if (lane() < kPieceTokens && token < p_.kv_lens[block.request]) {
      int in_page;
      const int64_t page = page_of_token(p_, block.request, token, in_page);
      offset = page * p_.page_stride + in_page * p_.token_stride + head * p_.head_stride;
    }
    const int64_t target =
        ((static_cast<int64_t>(head) * work_.copies.max_blocks + at_block) * kCopyBlockTokens + first) * C::kDim;
    copy_rows<kLoads>(p_.k, work_.copies.k, offset, target);
    copy_rows<kLoads>(p_.v, work_.copies.v, offset, target);
    ptx::fence_proxy_async_all();
    __threadfence();
    __syncwarp();
    if (lane() == 0) ptx::reduce_add_release(work_.copies.ready + head, 1);
  }

  template <int kLoads>
  WW_DEVICE void copy_rows(const void* pool, void* copies, int64_t offset, int64_t target) const {
    const char* from = static_cast<const char*>(pool) + lane() % kChunks * 16;
    uint4* to = reinterpret_cast<uint4*>(static_cast<char*>(copies) + target * 2) + lane();
#pragma unroll 1
    for (int begin = 0; begin < kPieceTokens / kRowsAtOnce; begin += kLoads) {
      uint4 words[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t row = __shfl_sync(~0u, offset, (begin + i) * kRowsAtOnce + lane() / kChunks);
        words[i] = make_uint4(0, 0, 0, 0);
        if (row >= 0) words[i] = ptx::load_once_16(from + row * 2);
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) to[(begin + i) * 32] = words[i];
    }
  }

  const AttentionParams& p_;
  const ExtendWorklist& work_;
  const int head_pieces_;
};

}  // namespace warpweave::cuda
