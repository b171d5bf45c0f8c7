// DecoderModel (decoder.h) on a GPU: the same spec and families, with GPU weights.
//
// The residual stream is f32, other activations have the serving dtype; the products that end a
// branch add into the residual stream themselves. forward() only enqueues on batch.device.stream,
// allocates nothing and may be captured into a graph; it reads the batch's sizes from the host side
// and its arrays from the device side. One stream at a time.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "batch/forward_batch.h"
#include "model/decoder.h"
#include "model/gpu_experts.h"
#include "model/gpu_kv_cache.h"
#include "model/gpu_weights.h"
#include "ops/cuda/gemm.h"

namespace warpweave {

// Tokens that the step before sampled and that are still only on the GPU.
struct GpuFutureTokens {
  const int32_t* slots = nullptr;    // [num_tokens] slot in `sampled`, or -1: input_ids holds the token
  const int32_t* sampled = nullptr;
};

struct GpuDecoderLimits {
  int max_tokens = 0;       // rows of one forward
  int max_logits_rows = 0;
  bool batch_invariant = false;  // a row's bits do not depend on the other rows
  bool routing_dice = false;     // experts are drawn, for benchmarks (ops/cuda/experts.h)
};

class GpuDecoder {
 public:
  static Result<std::unique_ptr<GpuDecoder>> create(const ModelConfig& config, const BuildOptions& options,
                                                    GpuDecoderWeights weights, const GpuDecoderLimits& limits);

  const ModelConfig& config() const { return config_; }
  size_t weight_bytes() const { return weights_.arena->used_bytes(); }
  gpu::GpuGemm& gemm() { return *gemm_; }

  // Writes K/V of all rows to `cache` and the raw logits of batch.logits_rows to `logits`
  // [logits_rows, vocab], f32 in GPU memory. `attention` has had init_forward_metadata(batch).
  Status forward(const ForwardBatch& batch, GpuKvCache& cache, AttentionBackend& attention,
                 const GpuFutureTokens& futures, float* logits);

 private:
  GpuDecoder(const ModelConfig& config, DecoderSpec spec, DType dtype, GpuDecoderWeights weights);
  Status reserve(const GpuDecoderLimits& limits);
  int64_t product_rows(int64_t rows) const;
  gpu::WeightPrefetch ahead(const gpu::GpuLinear& next, int64_t rows) const;
  struct Norm {                   // of rows of the residual stream
    const GpuVector& weight;
    const GpuVector& bias;
  };
  void normed(const Norm& norm, const gpu::WeightPrefetch& prefetch, int64_t rows, void* stream, bool exact_copy = false);
  void norm_all_heads(const GpuDecoderLayer& layer, int64_t rows, void* stream);
  Status run_normed(const Norm& norm, gpu::GemmCall call, int64_t rows, void* stream);
  gpu::PartialSums leave_partials(gpu::GemmCall& call);
  gpu::QkvRowsCall qkv_rows(int layer, const ForwardBatch& batch, GpuKvCache& cache) const;
  void attend(int layer, const ForwardBatch& batch, GpuKvCache& cache, AttentionBackend& attention);
  Status add_branch(const gpu::GpuLinear& linear, const void* input, const GpuVector& out_norm, int64_t rows,
                    void* stream);
  Status mlp(const GpuDecoderLayer& layer, int64_t rows, void* stream);
  Status glu_product(const GpuDecoderLayer& layer, gpu::GemmCall call, int64_t rows, void* stream);
  Status experts(int layer, const ForwardBatch& batch, int64_t rows);
  void keep_logits_rows(const ForwardBatch& batch);

  ModelConfig config_;
  DecoderSpec spec_;
  DType dtype_;
  GpuDecoderWeights weights_;
  std::unique_ptr<gpu::GpuGemm> gemm_;

  // Workspace; x_ and attention_out_ exist twice, so that rows can be picked from one into the other.
  struct Workspace {
    float* x[2] = {};             // residual stream [tokens, hidden]
    void* attention_out[2] = {};  // [tokens, q heads * head_dim]
    void* h = nullptr;            // normed input [tokens, hidden]
    float* h_f32 = nullptr;       // the same for the router
    void* qkv = nullptr;          // [tokens, q | k | v]
    void* q_succ = nullptr;       // [tokens, q heads * head_dim]; with dual chunk attention only
    void* q_inter = nullptr;
    float* partials = nullptr;    // sums that the next kernel adds up, of one product at a time
    float* branch = nullptr;      // [tokens, hidden]; with branch norms only
    void* gate_up = nullptr;      // [tokens, 2 * ffn]
    void* act = nullptr;          // [tokens, ffn]
  };
  DeviceArena workspace_memory_{size_t{8} << 20};
  Workspace w_;
  std::unique_ptr<GpuExperts> experts_;  // of mixtures
  DualChunkQueries dual_chunk_;   // in the workspace
  bool fp8_blocks_ = false;       // weights in 8 bits with scales of blocks
  gpu::PartialSums pending_;      // of the residual stream, which the next norm adds
  bool decoding_ = false;         // this forward is a decode step
  int current_ = 0;               // which of the two x / attention_out holds the rows
};

}  // namespace warpweave
