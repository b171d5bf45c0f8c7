// The decoder-only transformer that every family here is a setting of: its numbers (DecoderSpec), its packed weights
// (DecoderWeights), and one forward over a ForwardBatch: embedding, the layers of its plan (layers/layer.h), logits.
//
// A family file fills both; nothing in this file knows a family's name. Activations are f32 between
// operations; linears that multiply in bf16 get bf16 inputs straight from the norm before them.
// forward() runs on the device thread; it allocates only when a batch is larger than any before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "base/threads.h"
#include "batch/forward_batch.h"
#include "kv/kv_cache.h"
#include "model/config.h"
#include "model/decoder_spec.h"
#include "model/expert_load.h"
#include "model/input_rows.h"
#include "model/layers/attention_mixer.h"
#include "model/layers/encoder_input.h"
#include "model/layers/gdn_mixer.h"
#include "model/layers/latent_mixer.h"
#include "model/layers/on_host.h"
#include "model/layers/residual.h"
#include "model/layers/short_conv_mixer.h"

namespace warpweave {

// Norms of what a draft head reads; one without a weight takes values as they are.
struct DraftNorms {
  RowNorm embedding;                // of the next token's embedding
  RowNorm hidden;                   // of the hidden state
};

struct DecoderWeights {
  TensorView embedding;             // [vocab, hidden]; data == nullptr: rows of lm_head (tied)
  std::shared_ptr<const void> embedding_owner;  // keeps `embedding` alive
  PackedLinear lm_head;             // empty: the model has no vocabulary to choose from (ModelHead)
  PackedLinear fc;  // of a draft head (model/draft_head.h), which has no embedding: [hidden, fc_inputs * hidden]
  DraftNorms draft_norms;           // of a draft head
  EncoderInput encoder_input;       // of encoders: what joins the embeddings
  RowNorm final_norm;               // without a weight: the rows are normed already
  std::vector<RopeTable> ropes;
  std::vector<LayerWeights> layers;

  size_t size_bytes() const;        // held in memory for weights
};

// Where rows of logits go.
struct LogitsOut {
  float* values = nullptr;          // [rows, vocab]
  RowBest* best = nullptr;          // [rows] each row's largest logit and its id, or null
};

class DecoderModel {
 public:
  DecoderModel(ModelConfig config, DecoderSpec spec, DecoderWeights weights);

  const ModelConfig& config() const { return config_; }
  const DecoderSpec& spec() const { return spec_; }
  size_t weight_bytes() const { return weights_.size_bytes(); }
  const PackedLinear& fc() const { return weights_.fc; }
  bool has_head() const { return weights_.lm_head.out_features() > 0; }
  const DraftNorms& draft_norms() const { return weights_.draft_norms; }
  const ExpertLoad* expert_load() const { return expert_load_.get(); }  // null: no experts; read by any thread

  // Writes K/V of all rows to `cache` and keeps what the logits of batch.logits_rows are made of.
  // `attention` has had init_forward_metadata(batch). Recurrent layers keep their states in `recurrent`, at the
  // batch's state_slots; null where there are none.
  Status forward(const ForwardBatch& batch, KvCache& cache, AttentionBackend& attention, ThreadTeam& team,
                 HostRecurrent* recurrent = nullptr);
  // A forward of `batch` through the first layers alone, until each kind was among them, so that memory that grows with
  // the rows of a batch is there before the first request. Its results mean nothing and no expert counts it.
  Status rehearse(const ForwardBatch& batch, KvCache& cache, AttentionBackend& attention, ThreadTeam& team,
                  HostRecurrent* recurrent = nullptr);
  int rehearsed_layers() const;
  // A forward of ForwardMode::target_verify leaves the states of recurrent layers as they were; this moves them along
  // each request's accepted nodes, up to row accepted[request] of its own. After it, before the next forward, while its
  // batch is as it was. Does nothing where there are no such layers.
  Status commit_states(std::span<const int32_t> accepted, HostRecurrent& recurrent, ThreadTeam& team);
  // For the next forward: values that replace the embeddings of some rows. `rows` outlives it.
  void bring_inputs(std::span<const InputRows> rows) { inputs_ = rows; }
  // A forward that begins with rows [num_tokens, hidden] in place of the embeddings of input_ids.
  Status forward_from(const float* rows, const ForwardBatch& batch, KvCache& cache, AttentionBackend& attention,
                      ThreadTeam& team);
  // For the next forward of a draft head whose attention also reads embeddings: these, [num_tokens, hidden]. They
  // outlive that forward.
  void bring_embeddings(const float* rows) { embeddings_ = rows; }

  // The raw logits of the last forward's logits_rows [first_row, first_row + rows). A caller that wants
  // many may take them in parts: a prompt's are tokens * vocabulary * 4 bytes.
  void logits(int64_t first_row, int64_t rows, const LogitsOut& out, ThreadTeam& team);

  // States of the same rows, [rows, hidden]: what stands behind the final norm.
  void states(int64_t first_row, int64_t rows, float* out, ThreadTeam& team);
  // The rows behind the logits of the last forward: [logits_rows, hidden], before the final norm.
  const float* last_rows() { return x_.data(); }
  // With keep_hidden, of every row of the last forward what its logits would be made of: [num_tokens, hidden], after
  // the final norm. The last layer then works for all rows.
  void keep_hidden(bool on) { keeps_hidden_ = on; }
  // In place of that, the rows as they are behind each of these layers, which ascend and are not the last one:
  // [num_tokens, layers * hidden].
  void keep_layers(std::vector<int> layers) { kept_layers_ = std::move(layers); }
  const float* hidden() const { return hidden_.data(); }
  int64_t hidden_width() const {
    return spec_.hidden_size * std::max<int64_t>(1, static_cast<int64_t>(kept_layers_.size()));
  }

  // Embedding and head for a draft model that shares them: [ids, hidden], and [rows, vocab] from rows that no norm
  // is wanted of. A row's best is that of before a scale or a cap.
  void embed_ids(std::span<const int32_t> ids, float* out, ThreadTeam& team) const;
  // `head`: what head_of() gave, whose tokens are then the columns; null: the model's own.
  void head_logits(const float* rows, int64_t count, const LogitsOut& out, ThreadTeam& team,
                   const PackedLinear* head = nullptr) const;
  // A copy of the head's rows of these tokens, rounded to `blocks` (BuildOptions) if those are given. Errors:
  // `unsupported`, of a head with a bias.
  Result<PackedLinear> head_of(std::span<const int32_t> tokens, std::optional<DType> blocks, ThreadTeam& team) const;
  const PackedLinear& head() const { return weights_.lm_head; }

  // After every part of every layer, looks for values that are not finite; costs a pass over
  // the residual stream each.
  void detect_nan(bool on) { detects_nan_ = on; }
  // Where the last forward found the first one, as in "layer 3, after its attention"; empty: nowhere,
  // or not looked for.
  const std::string& first_nan() const { return first_nan_; }

 private:
  const RopeTable* rope_of(const LayerPlan& plan) const;  // null: q and k are not rotated
  void reach_positions(const ForwardBatch& batch, ThreadTeam& team);
  std::unique_ptr<Mixer> make(const AttentionWeights& weights, const LayerPlan& plan);
  std::unique_ptr<Mixer> make(const LatentWeights& weights, const LayerPlan& plan);
  std::unique_ptr<Mixer> make(const GdnWeights& weights, const LayerPlan& plan);
  std::unique_ptr<Mixer> make(const ShortConvWeights& weights, const LayerPlan& plan);
  template <typename RecurrentPart>
  std::unique_ptr<Mixer> recurrent(std::unique_ptr<RecurrentPart> mixer, int64_t row_width);
  std::unique_ptr<FeedForward> make(const DenseWeights& weights);
  std::unique_ptr<FeedForward> make(const ExpertsWeights& weights);
  Status run(const float* rows, const ForwardBatch& batch, const LayerCall& call, ThreadTeam& team);
  Status start(const ForwardBatch& batch, const LayerCall& call, ThreadTeam& team);
  // What follows the GEMM with a head, on its result [rows, columns].
  void scale_and_cap(float* logits, int64_t rows, int64_t columns, ThreadTeam& team) const;
  void place_inputs();
  void keep_layer(int layer);
  void look_for_nan(int layer, std::string_view part);

  ModelConfig config_;
  DecoderSpec spec_;
  DecoderWeights weights_;
  std::unique_ptr<ExpertLoad> expert_load_;
  std::vector<float> wide_rows_;  // of the part that runs: q, k and v, or activations
  // What layers of a kind share.
  AttentionWorkspace attention_workspace_;
  LatentWorkspace latent_workspace_;
  RecurrentRows recurrent_rows_;
  GdnWorkspace gdn_workspace_{recurrent_rows_};
  ShortConvWorkspace short_conv_workspace_{recurrent_rows_};
  const GdnLayerWeights* gdn_layer_ = nullptr;     // of the first gated delta net; all are alike
  std::vector<RecurrentMixer*> recurrent_mixers_;  // of layers_
  int64_t recurrent_row_width_ = 0;                // of their rows
  ResidualStream x_;
  std::vector<Layer> layers_;
  std::span<const Layer> running_layers_;  // of layers_: all but in a rehearsal

  std::span<const InputRows> inputs_;
  const float* embeddings_ = nullptr;
  bool keeps_hidden_ = false;
  std::vector<int> kept_layers_;
  std::vector<float> hidden_;
  std::vector<int32_t> all_rows_;   // 0, 1, 2, ...

  bool detects_nan_ = false;
  std::string first_nan_;
};

}  // namespace warpweave
