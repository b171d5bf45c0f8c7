// Row-wise operations for rows that no vector load divides: element by element, for models whose hidden size is no
// multiple of 8. The same meaning, and the same promises, as their namesakes in gpu_ops.h and experts.h.
#pragma once

#include "ops/cuda/experts.h"
#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

// What vector loads of every kernel divide: 16 bytes of the narrowest activations.
inline constexpr int64_t kWholeWidth = 8;
inline constexpr int64_t whole_width(int64_t width) { return (width + kWholeWidth - 1) / kWholeWidth * kWholeWidth; }

void embedding_any_width(const EmbeddingCall& call, Stream stream);

// Without partial sums; prefetches nothing.
void rms_norm_any_width(const RmsNormCall& call, Stream stream);

// Rows of `cols` elements into rows of whole_width(cols), which zeros fill up.
struct FillUpRowsCall {
  const void* in = nullptr;      // [rows, cols] of `dtype`
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int64_t cols = 0;
  void* out = nullptr;           // [rows, whole_width(cols)]
};
void fill_up_rows(const FillUpRowsCall& call, Stream stream);

// Rows of results are whole_width(hidden) wide.
void combine_experts_any_width(const CombineExpertsCall& call, Stream stream);

}  // namespace warpweave::gpu
