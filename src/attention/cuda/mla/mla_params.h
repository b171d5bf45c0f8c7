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
#include "kv/latent_token.h"

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
  // Packed tokens (kv/latent_token.h), whose rope numbers are bf16; bf16 queries only.
  ds_mla,  // 656 bytes: 512 e4m3 codes, 4 fp32 scales that are powers of two (up to 128)
  fp4,     // 416 bytes: 512 e2m1 codes, 32 e4m3 scales
};
constexpr bool mla_is_packed(MlaFormat format) { return format == MlaFormat::ds_mla || format == MlaFormat::fp4; }
// In bytes from a token's first one.
constexpr int mla_rope_at(MlaFormat format) {
  switch (format) {
    case MlaFormat::same16: return 2 * kMlaLatentDim;
    case MlaFormat::e4m3: return kMlaLatentDim;
    case MlaFormat::ds_mla: return kDsMlaRopeAt;
    case MlaFormat::fp4: return kFp4MlaRopeAt;
  }
  return 0;
}
constexpr int mla_token_bytes(MlaFormat format) {
  return mla_rope_at(format) + (format == MlaFormat::e4m3 ? kMlaRopeDim : 2 * kMlaRopeDim);
}

// f16 models have their own 16-bit numbers in the pool.
constexpr MlaFormat mla_format_of(KvFormat pool) {
  return pool == KvFormat::fp8_e4m3     ? MlaFormat::e4m3
         : pool == KvFormat::fp8_ds_mla ? MlaFormat::ds_mla
         : pool == KvFormat::fp4_mla    ? MlaFormat::fp4
                                        : MlaFormat::same16;
}
static_assert(mla_token_bytes(MlaFormat::ds_mla) == kDsMlaTokenBytes &&
              mla_token_bytes(MlaFormat::fp4) == kFp4MlaTokenBytes && kMlaScaleDim == kDsMlaScaleDim);

// Who merges a unit's pieces: a kernel behind attention, the CTA that writes the last one, or all that have
// written one.
enum class MlaMerging { by_kernel,
                        last_cta,
                        shares };

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
  bool earlier_kv_settled = false;  // AttentionCall's: tokens before a request's last q_len may be read early
  float scale = 1;                 // of q.k
  const float* kv_scale = nullptr;  // of the tensor, for e4m3; null: 1, as for all other formats
};

// Rows of a request are (query token, head), head fastest; a CTA works on some number of them at a time: the units of
// split_work.h.

}  // namespace warpweave::cuda
