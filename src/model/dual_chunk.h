// The model's side of dual chunk attention: which positions queries and keys are rotated for.
//
// Positions are cut into chunks of c = chunk_size - local_size tokens. A key at p is rotated for
// p % c, so that no rotation goes beyond what the model was trained on. A query at p has three forms:
//   own chunk             p % c                    true distances
//   chunk before  (succ)  min(p % c + c, farthest) true distances up to local_size tokens back
//   older chunks  (inter) farthest = min(chunk_size, 2c - 1)
// Sequences beyond original_max_positions m also scale the query by 0.1 ln((p + 1) / m) + 1: YaRN's
// temperature, by the row's own position, so that a token's keys, which prefixes share, do not depend
// on how long the sequence becomes.
// Sources: An et al. 2024 (2402.17463); Qwen2.5-1M Technical Report (2501.15383); YaRN (2309.00071).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/backend.h"
#include "model/config.h"
#include "ops/rope.h"

namespace warpweave {

// What a model that is served to `max_positions` needs of its config: nothing where all tokens are in
// the first chunk and no query is scaled.
std::optional<DualChunkConfig> dual_chunk_in_use(const ModelConfig& config, int max_positions);

class DualChunkRope {
 public:
  explicit DualChunkRope(const DualChunkConfig& config);

  int chunk_len() const { return chunk_len_; }
  int farthest() const { return farthest_; }
  // Rope tables reach this far.
  int rope_positions() const { return farthest_ + 1; }

  // The rows of a forward; pointers stay valid until the next call.
  void start(const ForwardBatch& batch);
  const int32_t* positions() const { return own_.data(); }

  // norm_rope_write_kv for one layer, whose positions are positions(). Returns the other forms, or null
  // when every row is in the first chunk and so has no use for them.
  const DualChunkQueries* norm_rope_write_kv(const QkvRowsCall& call, ThreadTeam& team);

 private:
  void scale_rows(float* q, int64_t stride, int64_t width) const;

  int chunk_len_;
  int farthest_;
  int original_max_positions_;
  int64_t rows_ = 0;
  bool beyond_first_chunk_ = false;
  std::vector<int32_t> own_, succ_, inter_;  // [rows]
  std::vector<float> scale_;                 // [rows], or empty: all 1
  std::vector<float> q_succ_, q_inter_;      // [rows, q heads * head dim]
  DualChunkQueries queries_;
};

}  // namespace warpweave
