#include "attention/merge.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace warpweave {
namespace {

// The merged log-sum-exp of one row and head: relative to the largest, so that nothing overflows.
float merged_lse(std::span<const PartialAttention> parts, int64_t at) {
  float top = parts[0].lse[at];
  for (const PartialAttention& part : parts) top = std::max(top, part.lse[at]);
  if (std::isinf(top)) return top;
  float sum = 0;
  for (const PartialAttention& part : parts) sum += std::exp(part.lse[at] - top);
  return top + std::log(sum);
}

void add_scaled(const float* from, float scale, int count, float* to) {
  for (int i = 0; i < count; ++i) to[i] += scale * from[i];
}

}  // namespace

void merge_attention(const MergeShape& shape, std::span<const PartialAttention> parts,
                     const MergedAttention& into) {
  assert(!parts.empty());
  const int dim = shape.v_head_dim;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int head = 0; head < shape.heads; ++head) {
      const int64_t at = row * shape.heads + head;
      const float lse = merged_lse(parts, at);
      const auto weight_of = [&](const PartialAttention& part) {
        return part.lse[at] == -std::numeric_limits<float>::infinity() ? 0.0f
                                                                       : std::exp(part.lse[at] - lse);
      };
      const auto out_of = [&](const auto& part) { return part.out + row * part.out_row_stride + int64_t{head} * dim; };
      float* const out = out_of(into);
      // First what stands in the output already, so that it is not overwritten before it is read.
      float own = 0;
      for (const PartialAttention& part : parts) {
        if (out_of(part) == out) own = weight_of(part);
      }
      for (int i = 0; i < dim; ++i) out[i] = own == 0 ? 0 : own * out[i];
      for (const PartialAttention& part : parts) {
        const float weight = weight_of(part);
        if (out_of(part) != out && weight != 0) add_scaled(out_of(part), weight, dim, out);
      }
      if (into.lse != nullptr) into.lse[at] = lse;
    }
  }
}

}  // namespace warpweave
