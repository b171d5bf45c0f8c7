// The numbers of a model that its forward needs, beside its weights; the same for the host and a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/config.h"
#include "model/layer_plan.h"
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
  std::optional<DualChunkConfig> dual_chunk;  // where contexts are longer than one chunk

  int64_t q_dim() const { return int64_t{num_q_heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{num_kv_heads} * head_dim; }
  int64_t qkv_dim() const { return q_dim() + 2 * kv_dim(); }  // of a row [q | k | v]
};

struct DecoderSpec {
  int vocab_size = 0;
  int hidden_size = 0;
  float final_softcap = 0;          // on the logits; 0: off
  float embedding_scale = 1;
  NormSpec norm;
  AttentionSpec attention;          // of the layers whose mixer is attention
  RouterRule router;                // of those with experts; num_experts 0: there are none
  std::vector<LayerPlan> layers;
};

}  // namespace warpweave
