// ModelConfig: the facts of a model's config.json (or GGUF metadata), checked and in one shape.
//
// Parsing knows every key that some supported family uses; a family file then reads what concerns
// it. Errors name the file's key, the value, the rule: `invalid_argument` for a wrong value,
// `unsupported` for an architecture or rope type that is known to be missing here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

struct RopeConfig {
  enum class Type { none, plain, linear, llama3, yarn, longrope, dynamic };
  Type type = Type::plain;
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
  double factor = 1.0;                    // linear, llama3, yarn, dynamic
  double alpha = 0;  // dynamic: the base's own factor, for every length (HunYuan); 0: by the length
  double low_freq_factor = 1.0;           // llama3
  double high_freq_factor = 4.0;
  int original_max_positions = 0;         // llama3, yarn, longrope, dynamic
  double beta_fast = 32.0;                // yarn
  double beta_slow = 1.0;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  std::vector<float> short_factors;       // longrope: divisors of the frequencies for contexts up to the original
  std::vector<float> long_factors;        // length, and for longer ones
  std::optional<double> short_mscale;     // Phi-MoE: the attention factor of each
  std::optional<double> long_mscale;
  bool truncate = true;
  std::vector<int> sections;              // M-RoPE: frequencies of time, height and width (ops/rope.h); or empty
  bool interleaved_sections = false;
  std::vector<float> frequency_divisors;  // GGUF: one per frequency, on top of `type`; or empty
};

// Dual chunk attention (model/dual_chunk.h), in tokens.
struct DualChunkConfig {
  int chunk_size = 0;
  int local_size = 0;                     // < chunk_size
  int original_max_positions = 0;         // 0: queries are never scaled
};

// Latent attention, MLA (DeepSeek-V2, 2405.04434): a token is cached as one row of kv_rank + rope_dim values, from
// which the keys and values of all heads are projected. A query head is [nope_dim | rope_dim], a value head v_dim.
struct LatentConfig {
  int q_rank = 0;                         // queries are projected through so many values; 0: directly
  int kv_rank = 0;
  int nope_dim = 0;
  int rope_dim = 0;
  int v_dim = 0;
  bool rope_interleaved = true;           // the rotation pairs 2i with 2i + 1

  int qk_dim() const { return nope_dim + rope_dim; }
  int token_dim() const { return kv_rank + rope_dim; }
};

// 8-bit weights (model/fp8_weights.h).
struct Fp8Config {
  int block_rows = 0;                     // of a weight_scale_inv; 0: no scales of blocks
  int block_cols = 0;
};

// Qwen3-Next and Qwen3.5 by their model_type, whose layers are gated delta nets and gated attention.
inline bool is_gated_hybrid(std::string_view model_type) {
  return model_type == "qwen3_next" || model_type == "qwen3_5_text" || model_type == "qwen3_5_moe_text";
}

// LFM2, dense or with experts, by its model_type: gated short convolutions beside attention.
inline bool is_lfm2(std::string_view model_type) { return model_type == "lfm2" || model_type == "lfm2_moe"; }

inline bool is_jet_nemotron(std::string_view model_type) { return model_type == "jet_nemotron"; }
inline bool is_kimi_linear(std::string_view model_type) { return model_type == "kimi_linear"; }

// Layers of a gated short convolution (src/linear/short_conv.h), which keep its last inputs in place of K/V.
struct ShortConvConfig {
  int width = 0;                          // in tokens
  bool bias = false;                      // on the convolution and on both GEMMs
};

// Layers of linear attention by the gated delta rule (src/linear/linear_attn.h), which keep a state in place of K/V.
struct LinearAttnConfig {
  int k_heads = 0;                        // of q, too
  int v_heads = 0;                        // a multiple of k_heads
  int k_dim = 0;
  int v_dim = 0;
  int conv_width = 0;                     // of the short convolution before it, in tokens
  bool channel_decay = false;             // KDA: each channel of k has a decay of its own
  int generator_rank = 0;  // Jet-Nemotron: through which the convolution's weights are made; 0: they are fixed
  double norm_eps = 1e-5;                 // Jet-Nemotron: of the norm behind it
  bool split_input = false;               // Qwen3-Next in GGUF files: z has a tensor of its own, apart from q, k and v
};

// BERT and its like: every token attends to all, or in layers with a window to the sliding_window - 1 tokens on both
// sides.
struct EncoderConfig {
  int learned_positions = 0;              // 0: none
  int first_position = 0;                 // of the first token among them
  int token_types = 0;                    // learned, of a pair's texts; 0: none
  bool labels_of_mean = false;            // labels are of the mean of all tokens' states, not of the first one's
  std::string label_activation;           // between the two GEMMs that make labels
};

// What stands on the last layer: logits over the vocabulary, nothing (a model of states, for embeddings), or a score
// for each of some labels.
enum class ModelHead { vocabulary, none, labels };

// A class name of transformers taken apart: "Qwen3ForSequenceClassification" is the decoder of "Qwen3ForCausalLM" with
// labels, "MistralModel" that of "MistralForCausalLM" without a head. Encoders, which generate nothing,
// are their class without a head: "RobertaModel" of "RobertaForMaskedLM".
struct DeclaredModel {
  std::string decoder;
  ModelHead head = ModelHead::vocabulary;
};
DeclaredModel declared_model(std::string_view architecture);

// An EAGLE3 head for a target model (model/draft_head.h).
struct Eagle3Config {
  int draft_vocab_size = 0;               // tokens of its own output head; 0: it has the target's
  std::vector<int> target_layers;  // it reads the target's rows behind each of these; empty: behind the usual ones
};

struct ModelConfig {
  std::string architecture;               // of the decoder: "LlamaForCausalLM"; of encoders "RobertaModel"
  std::string declared_architecture;      // as in the file
  ModelHead head = ModelHead::vocabulary;
  std::vector<std::string> labels;        // of ModelHead::labels, by class
  std::string model_type;                 // "llama"
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;                   // of the cache: latent attention has 1, of head_dim LatentConfig::token_dim
  int head_dim = 0;
  std::optional<LatentConfig> latent;     // of every layer
  std::optional<EncoderConfig> encoder;   // unset: tokens attend to those before them
  int max_position_embeddings = 0;        // the context length
  double norm_eps = 1e-6;
  std::string hidden_act = "silu";
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool lm_head_bias = false;
  bool attention_out_bias = false;        // Seed-OSS: on o, which attention_bias leaves out
  bool use_qk_norm = false;               // GLM-4 MoE
  bool parallel_residual = false;         // Cohere 2, some StableLM: attention and MLP read the same rows
  DType dtype = DType::bf16;              // of the checkpoint, as declared

  RopeConfig rope;                        // of full-attention layers
  // Whether rows may stand at three positions: some frequencies are of height and width.
  bool takes_rope_positions() const { return !rope.sections.empty() && !local_rope && !latent && !dual_chunk; }
  std::optional<RopeConfig> local_rope;   // of sliding-window layers, where it differs (Gemma-3)

  int sliding_window = 0;                 // tokens, the row's own among them; 0: none
  std::vector<bool> sliding_layers;  // [num_layers], also those whose window hides nothing, for local_rope; empty: none

  std::vector<bool> nope_layers;          // [num_layers] whose q and k are not rotated; empty: none

  std::optional<LinearAttnConfig> linear;     // of the recurrent layers: this, or a short convolution
  std::optional<ShortConvConfig> short_conv;
  std::vector<bool> recurrent_layers;     // [num_layers] that keep a state in place of K/V; empty: none

  double attention_softcap = 0;           // 0: off
  double final_softcap = 0;
  double query_pre_attn_scalar = 0;       // 0: head_dim
  double attention_multiplier = 0;        // Granite: on q.k; 0: 1/sqrt(head_dim)
  double embedding_multiplier = 1;
  double residual_multiplier = 1;         // on what every branch adds
  double logit_scale = 1;

  int num_experts = 0;                    // 0: dense
  int experts_per_token = 0;
  int moe_intermediate_size = 0;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;       // on the weights of the chosen
  bool sigmoid_scores = false;            // of a router, in place of the softmax; where the family lets them differ
  int n_group = 1;                        // of experts, of which topk_group are left to choose from
  int topk_group = 1;
  double router_jitter_noise = 0.01;      // Phi-MoE
  int shared_expert_intermediate_size = 0;  // of the experts that every token passes, together; 0: none
  int first_k_dense_replace = 0;          // layers below are dense
  int moe_layer_freq = 1;                 // layer i has experts if i % freq == 0
  int decoder_sparse_step = 1;            // layer i has experts if (i + 1) % step == 0
  std::vector<int> mlp_only_layers;       // dense although the step says experts
  std::optional<DualChunkConfig> dual_chunk;
  int num_nextn_layers = 0;               // after the model's own, for predicting several tokens (model/draft_head.h)
  int nextn_layer = 0;                    // of such a layer's own configuration: which of the checkpoint's it is
  std::optional<Eagle3Config> eagle3;
  std::string quant_method;               // of the checkpoint's weights, as declared; empty: none
  Fp8Config fp8;                          // quant_method "fp8"

  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;

  int rope_head_dim() const { return latent ? latent->rope_dim : head_dim; }
  int cached_v_dim() const { return latent ? 0 : head_dim; }  // latent attention reads V out of K
  bool has_recurrent_layers() const { return linear.has_value() || short_conv.has_value(); }
  int num_recurrent_layers() const {
    return static_cast<int>(std::count(recurrent_layers.begin(), recurrent_layers.end(), true));
  }
  bool has_windows() const {
    return sliding_window > 0 && std::count(sliding_layers.begin(), sliding_layers.end(), true) > 0;
  }
  int num_kv_layers() const { return num_layers - num_recurrent_layers(); }
};

// What both kinds of files are held to. A value that is left out is another thing than 0, which would
// divide by nothing or scale everything away.
struct NumberRange {
  double min;
  double max;
};
inline constexpr NumberRange kNormEpsRange{1e-12, 1};
inline constexpr NumberRange kSoftcapRange{1e-3, 1e9};
inline constexpr NumberRange kMultiplierRange{1e-6, 1e6};
inline constexpr NumberRange kRopeThetaRange{1.001, 1e12};
inline constexpr NumberRange kRopeFactorRange{1e-6, 1e6};  // and every other factor of a rope

// Takes away a window that holds the whole context, which hides nothing; its layers keep a rope of their own.
void drop_idle_window(ModelConfig& config);

Result<ModelConfig> parse_config_json(std::string_view json);

// generation_config.json: what a request gets when it says nothing.
struct GenerationDefaults {
  std::vector<int32_t> eos_token_ids;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
};
Result<GenerationDefaults> parse_generation_config_json(std::string_view json);

}  // namespace warpweave
