// Prompts of latent attention on Hopper in the form of Q and K of 192, V of 128 dims (MHA), with K and V made anew from
// the cached tokens: those of the new tokens first, then of the prefix, chunk by chunk, in memory for so many rows,
// each chunk's result merged by its log-sum-exps. latent_prefill_plan.h decides which steps' prompts take it. Calls
// enqueue only; not for graphs, which hold steps of decode alone. One forward at a time.
#pragma once

#include <utility>

#include "device/cuda/memory.h"
#include "model/decoder_spec.h"
#include "model/layers/gpu_workspace.h"
#include "model/layers/latent_prefill_plan.h"
#include "model/layers/on_gpu.h"

namespace warpweave {

// Queries as their GEMM leaves them: [nope | rope] of head after head.
struct GpuLatentQueries {
  void* data = nullptr;
  int64_t stride = 0;  // from row to row, in elements
};

class GpuLatentPrefill {
 public:
  // Memory for forwards of up to `tokens` rows; none where no kernels are there for the dims, the type or the GPU: then
  // nothing expands.
  Status reserve(const LatentSpec& spec, DType dtype, int64_t tokens, GpuWorkspace& workspace);

  // By what prompts' forms are chosen, from now on, and whether those behind a cached prefix may expand.
  void decide_by(LatentFormTimes measured, bool expands_prefixes) {
    measured_ = std::move(measured);
    expands_prefixes_ = expands_prefixes;
  }
  // From now on, whatever it costs: for measurements, and where rows' bits must not depend on the step.
  void take(LatentForm form) { form_ = form; }
  bool can_expand() const { return capacity_rows_ > 0; }

  // Once for each forward, before its first layer.
  Status start(const ForwardBatch& batch, const AttentionBackend& attention);
  const LatentPrefillPlan& plan() const { return plan_; }

  // What the rows of requests of more than one new token find, to their rows of `values` [tokens, heads, v_dim]; where
  // plan().expands. The tokens' rows are in the cache, the queries are rotated.
  Status forward(const GpuLayerCall& call, const GpuLatentWeights& weights, const GpuLatentQueries& q, void* values);

 private:
  // Of a forward: arrays for the new tokens and each chunk of the prefix, and the tiles for both kinds.
  struct Layout {
    int64_t chunk_ints = 0, items_ints = 0;
  };
  struct Target {
    void* out;
    float* lse;
  };
  LatentPrefillShape shape() const;
  Status reserve_arrays(const ForwardBatch& batch);
  Status make_chunks(const ForwardBatch& batch);
  Status expand(const GpuLayerCall& call, const GpuLatentWeights& weights, int chunk);
  Status attend(const GpuLayerCall& call, const GpuLatentQueries& q, int chunk, const Target& target) const;
  int64_t row_stride() const { return int64_t{spec_.num_heads} * (spec_.dims.qk_dim() + spec_.dims.v_dim); }
  int32_t* items(bool fresh) const;

  LatentSpec spec_;
  DType dtype_ = DType::bf16;
  int num_sms_ = 0;
  int64_t capacity_rows_ = 0;   // 0: nothing expands
  void* latent_ = nullptr;      // [capacity, kv_rank]
  void* rope_ = nullptr;        // [capacity, rope]
  void* expanded_ = nullptr;    // [capacity, heads, nope + rope + v]
  void* other_ = nullptr;       // [tokens, heads, v] of a chunk of the prefix
  float* lse_[2] = {};          // [tokens, heads] of the sum so far, and of the chunk
  LatentFormTimes measured_;
  LatentForm form_ = LatentForm::by_cost;
  bool expands_prefixes_ = true;
  // Of this forward.
  LatentPrefillPlan plan_;
  Layout layout_;
  int page_stride_ = 0;
  DeviceBuffer arrays_;
};

}  // namespace warpweave
