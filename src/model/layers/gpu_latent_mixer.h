// LatentMixer (latent_mixer.h) on a GPU: latent attention (MLA, DeepSeek-V2, 2405.04434), absorbed, but for prompts
// that gpu_latent_prefill.h takes.
#pragma once

#include <memory>

#include "model/decoder_spec.h"
#include "model/layers/gpu_latent_prefill.h"
#include "model/layers/gpu_workspace.h"
#include "model/layers/on_gpu.h"
#include "ops/cuda/latent.h"

namespace warpweave {

// What a model's latent layers share. The rows of `latent_out` exist twice, so that some can be picked.
struct GpuLatentWorkspace {
  LatentSpec spec;
  void* in = nullptr;             // [tokens, LatentSpec::in_dim]
  void* q_normed = nullptr;       // [tokens, q_rank]; with compressed queries only, as the next
  void* q = nullptr;              // [tokens, heads * (nope + rope)]
  void* latent_q = nullptr;       // [tokens, heads * (kv_rank + rope)]
  void* latent_out[2] = {};       // [tokens, heads * kv_rank], and of those rows that are kept
  void* values = nullptr;         // [tokens, heads * v_dim]
  void* kept_values = nullptr;    // of those rows that are kept
  std::unique_ptr<GpuLatentPrefill> prefill;
  bool batch_invariant = false;

  Status reserve(const LatentSpec& latent, DType dtype, int64_t tokens, int64_t kept_rows, GpuWorkspace& workspace);
  // After that: a row's bits depend on no other rows from now on.
  void keep_bits();
};

class GpuLatentMixer final : public GpuMixer {
 public:
  // All outlive the mixer.
  GpuLatentMixer(const GpuLatentWeights& weights, const GpuRope* rope, const GpuLatentWorkspace& workspace)
      : weights_(weights), rope_(rope), w_(workspace) {}
  std::string_view name() const override { return "latent attention"; }
  Status forward(const GpuLayerCall& call) override;

 private:
  struct Rows {
    int64_t begin = 0, count = 0;
  };
  Result<GpuLatentQueries> queries(const GpuLayerCall& call) const;
  gpu::LatentRowsCall token_rows(const GpuLayerCall& call, const GpuLatentQueries& queries) const;
  gpu::HeadGemmCall absorption(const GpuLatentQueries& queries, const Rows& rows, DType dtype) const;
  Status attend_latent(const GpuLayerCall& call, const ForwardBatch& batch) const;
  void values_of(const GpuLayerCall& call, const void* latent_out, const Rows& rows) const;
  Status forward_absorbed(const GpuLayerCall& call, const GpuLatentQueries& queries);
  Status forward_expanded(const GpuLayerCall& call, const GpuLatentQueries& queries);

  const GpuLatentWeights& weights_;
  const GpuRope* rope_;
  const GpuLatentWorkspace& w_;
};

}  // namespace warpweave
