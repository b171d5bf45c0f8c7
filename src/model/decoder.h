// The decoder-only transformer that every family here is a setting of: its numbers (DecoderSpec),
// its packed weights (DecoderWeights), and one forward over a ForwardBatch.
//
// A family file fills both; nothing in this file knows a family's name. Activations are f32 between
// operations; linears that multiply in bf16 get bf16 inputs straight from the norm before them.
// forward() runs on the device thread; it allocates only when a batch is larger than any before.
// Architecture: Vaswani et al. 2017 with RMSNorm, rotary embedding and gated MLP (Llama, 2023).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "base/threads.h"
#include "batch/forward_batch.h"
#include "kv/kv_cache.h"
#include "model/config.h"
#include "model/dual_chunk.h"
#include "model/expert_load.h"
#include "ops/aligned_buffer.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/rope.h"

namespace warpweave {

struct DecoderSpec {
  int vocab_size = 0;
  int hidden_size = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float attention_scale = 0;        // on q.k
  float attention_softcap = 0;      // 0: off
  float final_softcap = 0;          // on the logits
  float embedding_scale = 1;
  float norm_eps = 1e-6f;
  float norm_weight_offset = 0;     // 1 for Gemma: norms multiply by (1 + weight)
  bool layer_norm = false;          // layer norms in place of RMS norms, but for q and k
  bool wide_qk_norm = false;        // q and k are normed over all heads together
  RouterRule router;                // num_experts 0: dense
  std::optional<DualChunkConfig> dual_chunk;  // where contexts are longer than one chunk
};

// The weights of a layer where `Linear` is a packed matrix and `Vector` a list of floats, in host
// memory (below) or in a GPU's (gpu_decoder.h).
template <typename Linear, typename Vector, typename Expert>
struct DecoderLayerOf {
  int window_left = -1;             // -1: full attention
  int rope_index = 0;               // into the weights' ropes
  Vector input_norm;                // [hidden]
  Vector input_norm_bias;           // [hidden] of a layer norm, or empty
  std::vector<Linear> qkv;          // q|k|v side by side: one product, more where formats differ
  Vector q_norm;                    // [head_dim], or of all heads (DecoderSpec::wide_qk_norm); or empty
  Vector k_norm;
  Vector sinks;                     // [num_q_heads], or empty
  Linear o;
  Vector attention_out_norm;        // Gemma: on the branch, before it joins; or empty
  Vector mlp_norm;
  Vector mlp_norm_bias;             // as input_norm_bias
  Linear gate_up;                   // GLU; empty in expert layers
  Linear down;
  Vector mlp_out_norm;              // Gemma, as above
  Linear router;                    // empty in dense layers
  Vector router_correction;         // [experts] RouterRule's correction bias, or empty
  std::vector<Expert> experts;
  Linear shared_gate_up;            // GLU of the experts that every row passes; or empty
  Linear shared_down;
  Vector shared_gate;               // [hidden]: their result times sigmoid(x . shared_gate); or empty
};

using DecoderLayer = DecoderLayerOf<PackedLinear, std::vector<float>, MoeExpert>;

struct DecoderWeights {
  TensorView embedding;             // [vocab, hidden]; data == nullptr: rows of lm_head (tied)
  std::shared_ptr<const void> embedding_owner;  // keeps `embedding` alive
  PackedLinear lm_head;
  std::vector<float> final_norm;
  std::vector<float> final_norm_bias;
  std::vector<RopeTable> ropes;
  std::vector<DecoderLayer> layers;

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
  const ExpertLoad* expert_load() const { return expert_load_.get(); }  // null: no experts; read by any thread

  // Writes K/V of all rows to `cache` and keeps what the logits of batch.logits_rows are made of.
  // `attention` has had init_forward_metadata(batch).
  Status forward(const ForwardBatch& batch, KvCache& cache, AttentionBackend& attention,
                 ThreadTeam& team);

  // The raw logits of the last forward's logits_rows [first_row, first_row + rows). A caller that wants
  // many may take them in parts: a prompt's are tokens * vocabulary * 4 bytes.
  void logits(int64_t first_row, int64_t rows, const LogitsOut& out, ThreadTeam& team);

  // Looks after every part of every layer for values that are no finite numbers; costs a pass over
  // the residual stream each.
  void detect_nan(bool on) { detects_nan_ = on; }
  // Where the last forward had the first one, as in "layer 3, after its attention"; empty: nowhere,
  // or not looked for.
  const std::string& first_nan() const { return first_nan_; }

 private:
  void look_for_nan(int layer, const char* part, int64_t rows);
  void reserve(int64_t rows);
  struct Norm {                     // of rows of the residual stream
    const std::vector<float>& weight;
    const std::vector<float>& bias;
    int64_t first_row = 0;
  };
  LinearInput normed(const Norm& norm, const PackedLinear& next, int64_t rows, ThreadTeam& team);
  void norm_all_heads(const DecoderLayer& layer, int64_t rows, ThreadTeam& team);
  void attend(int layer, const ForwardBatch& batch, KvCache& cache, AttentionBackend& attention);
  void write_kv(int layer, const ForwardBatch& batch, KvCache& cache, ThreadTeam& team);
  void add_branch(const PackedLinear& linear, const LinearInput& input,
                  const std::vector<float>& out_norm, ThreadTeam& team);
  void mlp(int layer, int64_t rows, ThreadTeam& team);
  void experts(int layer, int64_t rows, ThreadTeam& team);
  void keep_rows(std::span<const int32_t> rows);

  ModelConfig config_;
  DecoderSpec spec_;
  DecoderWeights weights_;
  std::unique_ptr<ExpertLoad> expert_load_;
  std::vector<int32_t> rows_by_expert_;
  std::optional<DualChunkRope> dual_chunk_;
  const DualChunkQueries* dual_chunk_queries_ = nullptr;  // of the layer at hand

  // Workspace, [reserved_rows_, ...] each.
  bool detects_nan_ = false;
  std::string first_nan_;
  int64_t reserved_rows_ = 0;
  std::vector<float> x_;            // residual stream [hidden]
  std::vector<float> h_;            // normed input, f32 or bf16 [hidden]
  std::vector<float> qkv_;          // [q | k | v]
  std::vector<float> attention_out_;  // [q heads * head_dim]
  std::vector<float> branch_;       // [hidden]
  std::vector<float> act_;          // MLP intermediate, f32 or bf16
};

}  // namespace warpweave
