// AttentionMixer (attention_mixer.h) on a GPU.
#pragma once

#include "model/decoder_spec.h"
#include "model/layers/gpu_workspace.h"
#include "model/layers/on_gpu.h"
#include "ops/cuda/rope_places.h"

namespace warpweave {

// What a model's attention layers share. The rows of `out` exist twice, so that some can be picked.
struct GpuAttentionWorkspace {
  AttentionSpec spec;
  void* qkv = nullptr;            // [tokens, q | k | v], with an output gate q | k | v | gate
  void* out[2] = {};              // [tokens, q heads * head_dim], and of those rows that are kept
  void* q_succ = nullptr;         // as out; with dual chunk attention only
  void* q_inter = nullptr;
  DualChunkQueries dual_chunk;
  gpu::RopePlaces places;  // the axes of frequencies; the positions are those of the forward at work

  void reserve(const AttentionSpec& attention, DType dtype, int64_t tokens, int64_t kept_rows, GpuWorkspace& workspace);
};

class GpuAttentionMixer final : public GpuMixer {
 public:
  // `rope` null: positions are not rotated. All outlive the mixer.
  GpuAttentionMixer(const GpuAttentionWeights& weights, const LayerPlan& plan, const GpuRope* rope,
                    const GpuAttentionWorkspace& workspace)
      : weights_(weights), plan_(plan), rope_(rope), w_(workspace) {}
  std::string_view name() const override { return "attention"; }
  Status forward(const GpuLayerCall& call) override;

 private:
  gpu::QkvRowsCall qkv_rows(const GpuLayerCall& call) const;
  void norm_all_heads(const GpuLayerCall& call) const;
  void gate(const GpuLayerCall& call) const;

  const GpuAttentionWeights& weights_;
  LayerPlan plan_;
  const GpuRope* rope_;
  const GpuAttentionWorkspace& w_;
};

}  // namespace warpweave
