// What the kernels of latent attention (MLA, DeepSeek-V2) read: one plain struct passed by value. All pointers are
// device pointers.
//
// Absorbed form: a query is carried into the latent space, q = [latent 512 | rope 64], every head attends to one shared
// key of 576 numbers a token, and the value is the key's first 512:
//   out[t, h] = sum over visible tokens of softmax(scale * q[t, h] . kv[token]) * kv[token][0..512)
// Natural-log LSE; a row that sees nothing gives out = 0, lse = -inf.
#pragma once

#include <cstdint>

#include "attention/cuda/attention_params.h"

namespace warpweave::cuda {

inline constexpr int kMlaLatentDim = 512;
inline constexpr int kMlaRopeDim = 64;
inline constexpr int kMlaDim = kMlaLatentDim + kMlaRopeDim;
// ds_mla: one scale for so many latent numbers.
inline constexpr int kMlaScaleDim = 128;

// How a token stands in the pool.
enum class MlaFormat {
  same16,  // 576 numbers of the element type
  e4m3,    // 576 bytes; the value is the tensor's scale (MlaParams::kv_scale) times the code's
  ds_mla,  // 656 bytes: 512 e4m3 codes, 4 fp32 scales that are powers of two (up to 128), 64 bf16 rope numbers; bf16 queries only
};
constexpr int mla_token_bytes(MlaFormat format) {
  return format == MlaFormat::same16 ? 2 * kMlaDim
         : format == MlaFormat::e4m3 ? kMlaDim
                                     : kMlaLatentDim + kMlaLatentDim / kMlaScaleDim * 4 + 2 * kMlaRopeDim;
}

struct MlaParams {
  const void* q = nullptr;         // [tokens, heads, 576], 16-byte aligned; strides in elements, multiples of 8
  int64_t q_token_stride = 0;
  int64_t q_head_stride = kMlaDim;
  void* out = nullptr;             // [tokens, heads, 512], likewise
  int64_t out_token_stride = 0;
  int64_t out_head_stride = kMlaLatentDim;
  float* lse = nullptr;            // [tokens, heads] or null
  const void* kv = nullptr;        // the pool [pages, page_size]; strides in bytes, multiples of 16
  int64_t page_stride_bytes = 0;
  int64_t token_stride_bytes = 0;
  const int32_t* page_table = nullptr;  // [requests, page_table_stride]; entries past the last token are not read
  const int32_t* page_rows = nullptr;   // [requests] a request's row of the page table, or null: its own number
  int page_table_stride = 0;
  const int32_t* kv_lens = nullptr;   // [requests], the new tokens counted in
  const int32_t* q_indptr = nullptr;  // [requests + 1]
  const uint32_t* tree_mask = nullptr;  // [tokens, words] or null: bit i: the row sees the request's new token i
  int tree_mask_words = 0;
  int num_requests = 0;
  int num_heads = 0;
  int max_q_len = 1;               // of any request
  int page_size = 1;
  int page_shift = 0;              // log2(page_size), or -1
  bool causal = true;
  float scale = 1;                 // of q.k
  const float* kv_scale = nullptr;  // of the tensor, for e4m3; null: 1, as for all other formats
};

// Rows of a request are (query token, head), head fastest; a CTA works on some number of them at a time.

// Split-KV as attention_params.h has it for decode, a tile of rows in the place of a kv head; a kernel behind the
// attention kernel merges the pieces (mla_combine.cuh). A piece is [16 rows][8 columns][lane] of what a lane holds of the
// mma accumulators of 16 x 8: four numbers, of rows lane / 4 (two) and lane / 4 + 8.
struct MlaCut {
  int32_t q_begin = 0, q_len = 0, row_tile = 0;
  int32_t pieces = 0;  // 0: no cut pair begins at the worker
};

struct MlaWork {
  const DecodeWorker* workers = nullptr;
  MlaCut* cuts = nullptr;            // [workers], written by the attention kernel
  float* partial_out = nullptr;      // [2 * workers, tile_rows * 512] unnormalised
  float* partial_max_sum = nullptr;  // [2 * workers, tile_rows, 2] maximum (log2 units), sum
  int num_workers = 0;
  int tile_rows = 64;                // of a request, at a time
  int row_tiles = 1;                 // of a request
  int abreast = 1;                   // neighbouring row tiles that as many neighbouring workers take side by side
  bool plan_is_older = false;        // than the kernel before this one, and so are the lengths and the page table
};

}  // namespace warpweave::cuda
