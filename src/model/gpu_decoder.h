// DecoderModel (decoder.h) on a GPU: the same spec, families and layers (layers/layer.h), with GPU weights.
//
// The residual stream is f32, other activations have the serving dtype. forward() only enqueues on
// batch.device.stream, allocates nothing and may be captured into a graph; it reads the batch's sizes from the host
// side and its arrays from the device side. One stream at a time.
#pragma once

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "attention/backend.h"
#include "batch/forward_batch.h"
#include "model/build_decoder.h"
#include "model/decoder_spec.h"
#include "model/gpu_kv_cache.h"
#include "model/gpu_weights.h"
#include "model/input_rows.h"
#include "model/layers/gpu_attention_mixer.h"
#include "model/layers/gpu_dense_feed_forward.h"
#include "model/layers/gpu_experts.h"
#include "model/layers/gpu_gdn_mixer.h"
#include "model/layers/gpu_latent_mixer.h"
#include "model/layers/gpu_residual.h"
#include "model/layers/gpu_short_conv_mixer.h"
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
  bool keep_hidden = false;      // hidden() is wanted
  std::vector<int> keep_layers = {};  // in place of that: hidden() of these layers, as DecoderModel::keep_layers()
  bool routing_dice = false;     // experts are drawn, for benchmarks (ops/cuda/experts.h)
  bool count_experts = false;    // experts()->load() is wanted
  int64_t fp8_depth = 0;         // columns of e4m3 matrices that gemm() multiplies beside the weights; 0: none
  const gpu::LoraModel* adapters = nullptr;  // outlives the model; null: none are served
  int max_adapters = 0;          // of the rows of one forward
  // Of recurrent layers.
  int max_requests = 1;          // of one forward
  int max_verify_rows = 0;       // of one forward that verifies proposals; 0: none does
  LinearAttnNames linear = {.prefill = "triton", .decode = "triton", .verify = {}, .verify_trees = false};
  DType state_dtype = DType::f32;
  // Measured times that choose the form of latent prompts; empty: the one with fewer multiplications.
  LatentFormTimes latent_forms = {};
  bool expands_latent_prefixes = true;  // false: latent prompts behind a cached prefix are absorbed
};

// What one forward reads and writes.
struct GpuForward {
  const ForwardBatch& batch;
  GpuKvCache& cache;             // gets K/V of all rows
  AttentionBackend& attention;   // has had init_forward_metadata(batch)
  GpuFutureTokens futures = {};
  float* logits = nullptr;  // [logits_rows, vocab] raw, of batch.logits_rows; null: last_rows() is all that is wanted
  bool keep_hidden = true;       // false: hidden() is not wanted of this one
  bool from_rows = false;        // first_rows() stand there in place of the embeddings of input_ids
  std::span<const InputRows> inputs = {};  // in place of the embeddings of some rows, times embedding_scale() already:
                                           // in pinned memory that stays as it is until the forward has run
  GpuStateCache* states = nullptr;  // of recurrent layers; null where there are none
  const int32_t* tree_parents = nullptr;  // with those: ForwardBatch::tree_parents on the GPU; null: there are no trees
  const int32_t* rope_positions = nullptr;  // ForwardBatch::rope_positions on the GPU; null: the batch has none
};

// A forward of ForwardMode::target_verify and what was accepted of it.
struct GpuCommit {
  const ForwardBatch& batch;
  const int32_t* tree_parents = nullptr;  // as GpuForward's
  const int32_t* accepted = nullptr;      // [requests] on the GPU: the last node of each as a row of its own; -1: none
};

// What stands in for a model's output head, and multiplies by it.
struct CopiedHead {
  const gpu::GpuLinear* linear = nullptr;
  gpu::GpuGemm* gemm = nullptr;
};

// What a head multiplies: of the serving dtype, or e4m3 with scales (GpuDecoder::head_codes).
struct HeadRows {
  const void* x = nullptr;  // [count, hidden]
  int64_t count = 0;
  const float* scales = nullptr;  // [count]; null: x are no codes
};

class GpuDecoder {
 public:
  // `traits`: the family's settings of `config`.
  static Result<std::unique_ptr<GpuDecoder>> create(const ModelConfig& config, const FamilyTraits& traits,
                                                    const BuildOptions& options, GpuDecoderWeights weights,
                                                    const GpuDecoderLimits& limits);
  static Result<std::unique_ptr<GpuDecoder>> create(const ModelConfig& config, const BuildOptions& options,
                                                    GpuDecoderWeights weights, const GpuDecoderLimits& limits);

  const ModelConfig& config() const { return config_; }
  size_t weight_bytes() const { return weights_.arena->used_bytes(); }
  gpu::GpuGemm& gemm() { return *gemm_; }
  // For measurements: fixes the form of latent prompts from now on; false: this model has one form only.
  bool take_latent_form(LatentForm form);

  Status forward(const GpuForward& forward);
  // As DecoderModel::commit_states(), before the next forward. Only enqueues; does nothing where there are no such
  // layers.
  Status commit_states(const GpuCommit& commit, GpuStateCache& states);

  // Of a draft head, which has no embedding: where its rows are written to before forward(), [num_tokens, hidden], and
  // those behind the logits afterwards, [logits_rows, hidden] in the order of batch.logits_rows.
  float* first_rows() { return x_.first_rows(); }
  float* last_rows() { return x_.data(); }
  // What is still to be added to last_rows().
  const gpu::PartialSums& last_sums() const { return x_.outstanding(); }
  // Has the next forward(), from_rows, begin with `rows` rows of fc's of `inputs`.
  Status begin_with_fc(const void* inputs, int64_t rows, gpu::Stream stream) {
    return x_.begin(weights_.fc, inputs, rows, stream);
  }
  // Those through the final norm, of dtype(); valid until the next forward.
  const void* normed_last_rows() {
    x_.normed(weights_.final_norm, {});
    return x_.h();
  }
  // For the forwards of a head whose attention reads embeddings beside its rows: GpuResidual::bring_beside().
  void bring_embeddings(void* rows) { x_.bring_beside(rows); }
  // With keep_hidden, of every row of the last forward what its logits would be made of: [num_tokens, hidden] of the
  // serving dtype, after the final norm. The last layer then works for all rows. With keep_layers [num_tokens, layers *
  // hidden], the rows as they are behind each of them.
  const void* hidden() const { return hidden_; }
  int64_t hidden_width() const {
    return spec_.hidden_size * std::max<int64_t>(1, static_cast<int64_t>(kept_layers_.size()));
  }
  // What a draft model shares.
  DType dtype() const { return dtype_; }
  const GpuDecoderWeights& weights() const { return weights_; }
  const DecoderSpec& spec() const { return spec_; }
  bool has_head() const { return !weights_.lm_head.empty(); }
  // Null: no layer has any.
  const GpuExperts* experts() const { return experts_.get(); }
  float embedding_scale() const { return spec_.embedding_scale; }
  // out [count, vocab] from rows that no norm is wanted of. With a `copy` of the head, or of some of its rows,
  // [count, its rows].
  Status head_logits(const HeadRows& rows, float* out, gpu::Stream stream, const CopiedHead& copy = {});
  // Where the kernel that makes so many rows may leave them in e4m3, a scale a row, or nowhere.
  gpu::RowCodes head_codes(int64_t count, const CopiedHead& copy = {}) const {
    const gpu::GemmCall call = head_call({.count = count}, copy);
    return call.linear->scaling == gpu::Fp8Scaling::row ? head_gemm(copy).input_codes(call) : gpu::RowCodes{};
  }
  // The same without the logits, where their order is that of the head's GEMM: what stands in each part of a row
  // (choice_gemm.h), [count, choice_parts()]; 0 parts: there are only logits.
  int choice_parts(int64_t count, const CopiedHead& copy = {}) const;
  Status head_choices(const HeadRows& rows, gpu::TopPart* parts, gpu::Stream stream,
                      const CopiedHead& copy = {});

 private:
  GpuDecoder(const ModelConfig& config, DecoderSpec spec, DType dtype, GpuDecoderWeights weights,
             std::unique_ptr<gpu::GpuGemm> gemm);
  Status reserve(const GpuDecoderLimits& limits);
  Status reserve_recurrent(const GpuDecoderLimits& limits);
  void make_layers();
  const GpuRope* rope_of(const LayerPlan& plan) const;  // null: q and k are not rotated
  std::unique_ptr<GpuMixer> make(const GpuAttentionWeights& weights, const LayerPlan& plan);
  std::unique_ptr<GpuMixer> make(const GpuGdnWeights& weights, const LayerPlan& plan);
  std::unique_ptr<GpuMixer> make(const GpuShortConvWeights& weights, const LayerPlan& plan);
  std::unique_ptr<GpuMixer> make(const GpuLatentWeights& weights, const LayerPlan& plan);
  std::unique_ptr<GpuFeedForward> make(const GpuDenseWeights& weights);
  std::unique_ptr<GpuFeedForward> make(const GpuExpertsWeights& weights);
  void embed(const ForwardBatch& batch, const GpuFutureTokens& futures);
  Status place_inputs(std::span<const InputRows> inputs);
  Status write_logits(float* logits);
  gpu::GemmCall head_call(const HeadRows& rows, const CopiedHead& copy) const;
  gpu::GpuGemm& head_gemm(const CopiedHead& copy) const { return copy.linear != nullptr ? *copy.gemm : *gemm_; }
  // What follows the GEMM with a head, on so many of its values.
  void scale_and_cap(float* logits, int64_t count, gpu::Stream stream);
  Status write_hidden();
  void keep_layer(int layer, std::string_view part);

  ModelConfig config_;
  DecoderSpec spec_;
  DType dtype_;
  GpuDecoderWeights weights_;
  std::unique_ptr<gpu::GpuGemm> gemm_;

  // What layers of a kind share.
  GpuWorkspace workspace_;
  GpuAttentionWorkspace attention_workspace_;
  GpuRecurrentRows recurrent_rows_;
  GpuGdnWorkspace gdn_workspace_{recurrent_rows_};
  GpuShortConvWorkspace short_conv_workspace_{recurrent_rows_};
  std::vector<GpuRecurrentMixer*> recurrent_mixers_;  // of layers_, which own them
  GpuLatentWorkspace latent_workspace_;
  GpuGluWorkspace glu_workspace_;
  std::unique_ptr<GpuExperts> experts_;  // of mixtures
  GpuResidual x_;
  std::vector<GpuLayer> layers_;

  void* hidden_ = nullptr;          // [max_tokens, hidden_width()], or null
  std::vector<int> kept_layers_;
  std::vector<int32_t> all_rows_;   // 0, 1, 2, ...; of the states behind the final norm only
};

}  // namespace warpweave
