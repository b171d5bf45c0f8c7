// Copies of K and V for pages of a few tokens, made by the Hopper prefill kernel itself (ExtendCopies).
#pragma once

#include "attention/backends/fa3/kernels/sm90_tiles.cuh"

namespace warpweave::cuda {

// Warps take pieces of a few tokens of one kv head, K and V, the first head's first. At first all warps of all CTAs
// copy, about as many pieces as the heads of the CTAs' first tiles have; two warps of each CTA then copy the rest
// while those tiles are multiplied.
template <class C>
class Sm90Copies {
 public:
  WW_DEVICE Sm90Copies(const AttentionParams& p, const ExtendWorklist& work)
      : p_(p), work_(work), head_pieces_(work.header->num_blocks * kBlockPieces) {}

  WW_DEVICE void first_heads() const {
    const int warps = gridDim.x * C::kThreads / 32, head_units = work_.header->num_items * p_.group;
    const int heads = head_units > 0 ? (gridDim.x + head_units - 1) / head_units : 0;  // whose units begin at once
    for (int piece = 0; piece < min(heads, p_.num_kv_heads) * head_pieces_;) {
      piece = taken(ask());
      if (piece < all_pieces()) {
        const int64_t row = row_of(piece, block_of(piece));
        copy_rows<8>(p_.k, work_.copies.k, row, piece);
        copy_rows<8>(p_.v, work_.copies.v, row, piece);
        announce(piece);
      }
      piece += warps;  // what the next would be at least
    }
  }

  // What each load depends on is loaded while the piece before is copied.
  WW_DEVICE void other_heads() const {
    int piece = taken(ask()), next = ask();
    if (piece >= all_pieces()) return;
    int64_t row = row_of(piece, block_of(piece));
    for (;;) {
      next = taken(next);
      const bool more = next < all_pieces();
      const int after = more ? ask() : 0;
      const ExtendCopyBlock next_block = block_of(more ? next : 0);
      copy_rows<4>(p_.k, work_.copies.k, row, piece);
      const int64_t next_row = row_of(more ? next : 0, next_block);
      copy_rows<4>(p_.v, work_.copies.v, row, piece);
      announce(piece);
      if (!more) return;
      piece = next;
      row = next_row;
      next = after;
    }
  }

  // By one lane, before it has TMA read the head's copies.
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
  static WW_DEVICE int taken(int asked) { return __shfl_sync(~0u, asked, 0); }
  WW_DEVICE int all_pieces() const { return p_.num_kv_heads * head_pieces_; }
  WW_DEVICE ExtendCopyBlock block_of(int piece) const {
    return work_.copies.blocks[piece % head_pieces_ / kBlockPieces];
  }

  // The element of the pools where a row of the piece stands: a lane finds one; -1: past the request's tokens.
  WW_DEVICE int64_t row_of(int piece, const ExtendCopyBlock& block) const {
    const int token = block.block * kCopyBlockTokens + piece % kBlockPieces * kPieceTokens + lane();
    const int kv_len = p_.kv_lens[block.request];
    const int index = page_index(p_, token);
    const int64_t page = page_at(p_, block.request, min(index, p_.page_table_stride - 1));
    const int64_t element = page * p_.page_stride + (token - index * p_.page_size) * p_.token_stride +
                            piece / head_pieces_ * p_.head_stride;
    return token < kv_len ? element : -1;
  }

  // kLoads: 16-byte loads under way together, as registers allow.
  template <int kLoads>
  WW_DEVICE void copy_rows(const void* pool, void* copies, int64_t row, int piece) const {
    const int head = piece / head_pieces_, in_head = piece - head * head_pieces_;
    const int64_t target = static_cast<int64_t>(head) * work_.copies.max_blocks * kBlockPieces + in_head;
    const char* from = static_cast<const char*>(pool) + lane() % kChunks * 16;
    uint4* to = reinterpret_cast<uint4*>(static_cast<char*>(copies) + target * kPieceBytes) + lane();
#pragma unroll 1
    for (int begin = 0; begin < kPieceTokens / kRowsAtOnce; begin += kLoads) {
      uint4 words[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int64_t at = __shfl_sync(~0u, row, (begin + i) * kRowsAtOnce + lane() / kChunks);
        words[i] = make_uint4(0, 0, 0, 0);
        if (at >= 0) words[i] = ptx::load_once_16(from + at * 2);
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) to[(begin + i) * 32] = words[i];
    }
  }

  WW_DEVICE void announce(int piece) const {
    ptx::fence_proxy_async_all();
    __syncwarp();
    if (lane() == 0) ptx::reduce_add_release(work_.copies.ready + piece / head_pieces_, 1);
  }

  const AttentionParams& p_;
  const ExtendWorklist& work_;
  const int head_pieces_;
};

}  // namespace warpweave::cuda
