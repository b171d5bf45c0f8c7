// The numbers of a model that its forward needs, beside its weights; the same for the host and a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/config.h"
#include "model/layer_plan.h"
#include "ops/compute_types.h"
#include "ops/router_rule.h"

namespace warpweave {

// Of all norms but those of q and k, which are RMS norms over a head, or over all heads.
struct NormSpec {
  float eps = 1e-6f;
  float weight_offset = 0;          // 1 for Gemma: norms multiply by (1 + weight)
  bool layer_norm = false;          // layer norms in place of RMS norms
};

struct AttentionSpec {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 0;                  // on q.k
  float softcap = 0;                // 0: off
  bool wide_qk_norm = false;        // q and k are normed over all heads together
  bool qk_norm_after_rope = false;
  bool output_gate = false;         // what a head found, times sigmoid(its gate)
  std::optional<DualChunkConfig> dual_chunk;  // where contexts are longer than one chunk
  std::vector<uint8_t> rope_axes;   // of rows with ForwardBatch::rope_positions (ops/rope.h); empty: none may have them

  int64_t q_dim() const { return int64_t{num_q_heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{num_kv_heads} * head_dim; }
  int64_t gate_dim() const { return output_gate ? q_dim() : 0; }
  int64_t qkv_dim() const { return q_dim() + 2 * kv_dim() + gate_dim(); }  // of a row [q | k | v | gate]
};

// Latent attention; each head's scores are those of its own query and the one cached row of a token.
struct LatentSpec {
  // Of the norms inside: their models leave it at this value whatever rms_norm_eps says.
  static constexpr float kInnerNormEps = 1e-6f;

  LatentConfig dims;
  int num_heads = 0;
  float scale = 0;                  // on q.k

  int64_t q_dim() const { return int64_t{num_heads} * dims.qk_dim(); }
  int64_t latent_q_dim() const { return int64_t{num_heads} * dims.token_dim(); }
  int64_t latent_out_dim() const { return int64_t{num_heads} * dims.kv_rank; }
  int64_t value_dim() const { return int64_t{num_heads} * dims.v_dim; }
  // Of a row of the first GEMM: [queries, or their compressed form | latent | rope].
  int64_t in_dim() const { return (dims.q_rank > 0 ? dims.q_rank : q_dim()) + dims.token_dim(); }
};

struct DecoderSpec {
  int vocab_size = 0;
  int hidden_size = 0;
  float final_softcap = 0;          // on the logits; 0: off
  float logit_scale = 1;            // before that
  float embedding_scale = 1;
  GluActivation activation = GluActivation::silu;  // of dense layers without a gate, on the first GEMM's result
  NormSpec norm;
  AttentionSpec attention;          // of the layers whose mixer is attention
  LatentSpec latent;                // of those whose mixer is latent
  RouterRule router;                // of those with experts; num_experts 0: there are none
  std::vector<LayerPlan> layers;
};

}  // namespace warpweave
