// Merging partial attention: attention over a set of KV positions from attention over its disjoint
// parts, each with its log-sum-exp (natural log). What split-KV, cascade (a shared prefix computed
// once) and context parallelism rest on.
//
//   lse = log(sum_i exp(lse_i)),  out = sum_i exp(lse_i - lse) * out_i
//
// A part that saw nothing has lse = -inf and counts for nothing, whatever its `out` holds; where all
// parts saw nothing, out = 0 and lse = -inf. A sink belongs to one part only: the LSE includes it.
// Results do not depend on the order of two parts; of more, up to rounding.
// No allocation, no threads: callers split rows. Associative merging of softmax states: Milakov and
// Gimelshein, arXiv:1805.02867; use for shared prefixes: Ye et al., "Cascade Inference" (2024).
#pragma once

#include <cstdint>
#include <span>

namespace warpweave {

struct MergeShape {
  int64_t rows = 0;
  int heads = 0;
  int v_head_dim = 0;
};

// Attention over a part: out [rows, heads, v_head_dim] with dense heads, lse [rows, heads] dense.
struct PartialAttention {
  const float* out = nullptr;
  int64_t out_row_stride = 0;  // in elements
  const float* lse = nullptr;
};

struct MergedAttention {
  float* out = nullptr;
  int64_t out_row_stride = 0;
  float* lse = nullptr;        // or null
};

// Merges any number of parts, at least one. `into` may be one of the parts itself.
void merge_attention(const MergeShape& shape, std::span<const PartialAttention> parts,
                     const MergedAttention& into);

}  // namespace warpweave
