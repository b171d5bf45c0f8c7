// Attention over pages of K and V on the host: q, k and v of the rows, their norms and rotation, K and V written to
// the cache, the backend's attention, and the output GEMM.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "model/decoder_spec.h"
#include "model/dual_chunk.h"
#include "model/layers/on_host.h"

namespace warpweave {

// What a model's attention layers share.
class AttentionWorkspace {
 public:
  // `wide` is free between mixers, grows with the batch and outlives this.
  AttentionWorkspace(const AttentionSpec& spec, std::vector<float>& wide) : spec_(spec), qkv_(wide) {
    if (spec.dual_chunk) dual_chunk_.emplace(*spec.dual_chunk);
  }
  // Once for each forward, before its first layer.
  void start(const ForwardBatch& batch);

 private:
  friend class AttentionMixer;
  // The angles of a batch with rope_positions, for its rows in turn; made once for all layers with this table.
  const RopeTable* angles_of_rows(const RopeTable& table, const ForwardBatch& batch);

  AttentionSpec spec_;
  std::optional<DualChunkRope> dual_chunk_;
  std::map<const RopeTable*, RopeTable> angles_;  // of this forward's rows
  std::vector<int32_t> row_numbers_;              // 0, 1, 2, ...
  std::vector<float>& qkv_;                       // [rows, q | k | v | gate]
  std::vector<float> out_;                        // [rows, q heads * head_dim]
};

class AttentionMixer final : public Mixer {
 public:
  // `rope` null: positions are not rotated. All outlive the mixer.
  AttentionMixer(const AttentionWeights& weights, const LayerPlan& plan, const RopeTable* rope,
                 AttentionWorkspace& workspace)
      : weights_(weights), plan_(plan), rope_(rope), w_(workspace) {}
  std::string_view name() const override { return "attention"; }
  Status forward(const LayerCall& call) override;

 private:
  void norm_all_heads(const LayerCall& call);
  const DualChunkQueries* write_kv(const LayerCall& call);

  const AttentionWeights& weights_;
  LayerPlan plan_;
  const RopeTable* rope_;
  AttentionWorkspace& w_;
};

}  // namespace warpweave
