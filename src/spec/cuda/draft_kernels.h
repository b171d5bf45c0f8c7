// What a draft model's passes do on a GPU besides the model: the likeliest tokens of rows of logits, the rows that a
// draft head begins with, and the hidden states that it keeps. Everything enqueues on `stream` (a cudaStream_t),
// allocates nothing, and leaves launch errors with the runtime. A row's bits do not depend on the other rows.
#pragma once

#include <cstdint>

#include "spec/draft_tree.h"
#include "warpweave/tensor.h"

namespace warpweave::gpu {

// top_choices() (spec/draft_tree.h) of every row; entries past a smaller vocabulary are token 0, impossible.
struct TopChoicesCall {
  const float* logits = nullptr;          // [rows, vocab_size]
  int rows = 0;
  int vocab_size = 0;
  const int32_t* tokens = nullptr;        // [vocab_size] what the columns are, or null: themselves
  int topk = 1;
  DraftChoice* out = nullptr;             // [rows, topk]
};
void top_choices(const TopChoicesCall& call, void* stream);

// out[i] = [scale * table[id(i)] | features[feature_rows[i]]], each half through its RMS norm where that has a weight;
// id(i) is ids[i], or the token of choices[-1 - ids[i]] where that is negative.
struct DraftInputsCall {
  const void* table = nullptr;            // [vocab, cols] of `dtype`
  float scale = 1;
  DType dtype = DType::bf16;
  const int32_t* ids = nullptr;           // [rows]
  const DraftChoice* choices = nullptr;
  const void* features = nullptr;         // [.., cols] of `dtype`; null: the right halves are left alone
  const int32_t* feature_rows = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t cols = 0;                       // a multiple of 8
  const float* embedding_norm = nullptr;  // [cols], or null: no norm
  const float* feature_norm = nullptr;    // [cols], or null
  float norm_weight_offset = 0;
  float norm_eps = 1e-6f;
  void* out = nullptr;                    // [rows, 2 * cols] of `dtype`
};
void draft_inputs(const DraftInputsCall& call, void* stream);

// out[i] = kept[keep[i]] = x[i].
struct KeepRowsCall {
  const void* x = nullptr;                // [rows, cols]
  DType x_dtype = DType::f32;             // f32, or `dtype`
  int64_t rows = 0;
  int64_t cols = 0;                       // a multiple of 8
  DType dtype = DType::bf16;
  void* out = nullptr;                    // [rows, cols] of `dtype`, or null: not wanted
  void* kept = nullptr;                   // [.., cols] of `dtype`
  const int32_t* keep = nullptr;          // [rows]
};
void keep_rows(const KeepRowsCall& call, void* stream);

}  // namespace warpweave::gpu
