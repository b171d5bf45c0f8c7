// Latent attention (MLA, DeepSeek-V2, 2405.04434) on the host, absorbed: a query's part without rotation is carried
// into the latent space, where it meets the cached rows themselves as the one KV head of kv_rank + rope_dim values,
// whose first kv_rank are the values too; the result is carried back to the head's v_dim.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/decoder_spec.h"
#include "model/layers/on_host.h"

namespace warpweave {

// What a model's latent layers share.
class LatentWorkspace {
 public:
  explicit LatentWorkspace(const LatentSpec& spec) : spec_(spec) {}
  // Once for each forward, before its first layer.
  void start(int64_t rows);

 private:
  friend class LatentMixer;
  LatentSpec spec_;
  std::vector<float> in_;           // [rows, LatentSpec::in_dim]
  std::vector<float> q_;            // [rows, heads * (nope + rope)]; with compressed queries only
  std::vector<float> latent_q_;     // [rows, heads * (kv_rank + rope)]
  std::vector<float> latent_out_;   // [rows, heads * kv_rank]
  std::vector<float> values_;       // [rows, heads * v_dim]
  std::vector<uint16_t> staged_;    // rows of one GEMM in bf16, head by head
  std::vector<LinearTask> tasks_;
};

class LatentMixer final : public Mixer {
 public:
  // All outlive the mixer.
  LatentMixer(const LatentWeights& weights, const RopeTable* rope, LatentWorkspace& workspace)
      : weights_(weights), rope_(rope), w_(workspace) {}
  std::string_view name() const override { return "latent attention"; }
  Status forward(const LayerCall& call) override;

 private:
  // Rows of heads that stand `head_stride` apart.
  struct HeadRows {
    float* data;
    int64_t row_stride;
    int64_t head_stride;
  };
  float* queries(const LayerCall& call);
  void write_token(const LayerCall& call, float* queries);
  AttentionCall attention_call(const LayerCall& call) const;
  void multiply_heads(std::span<const PackedLinear> heads, const HeadRows& in, const HeadRows& out,
                      const LayerCall& call);

  const LatentWeights& weights_;
  const RopeTable* rope_;
  LatentWorkspace& w_;
};

}  // namespace warpweave
