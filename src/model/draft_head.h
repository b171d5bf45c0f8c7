// Draft heads: a layer that guesses tokens from a target model's hidden states, for speculative decoding (src/spec).
//
// Each takes, at position i, the embedding e of the token at i + 1 and a hidden state h of position i, and guesses the
// token at i + 2; its own state of the position takes h's place in the next guess.
//   eagle    x = fc [e | h], one layer; embedding, head and no norm in between are the target's (Li et al. 2024,
//   2401.15077). nextn    x = fc [norm(e) | norm(h)], one layer such as the target's last, a norm; embedding and head
//   are the target's. h is
//            what the target's logits are made of, then what the head's are (DeepSeek-V3, 2412.19437, section 2.2).
//   eagle3   x = fc [h of three of the target's layers], afterwards the head's own h; the layer's attention reads
//            [norm(e) | norm(x)]; a norm and a head of its own, over some of the tokens (Li et al. 2025, 2503.01840).
#pragma once

#include <memory>
#include <vector>

#include "model/config.h"
#include "model/families/family.h"
#include "model/weight_source.h"

namespace warpweave {

enum class DraftHeadKind { eagle, eagle3, nextn };

// The configuration of the layer after a model's own that predicts a token more, the first where there are several.
// `unsupported` where the checkpoint has none.
Result<ModelConfig> nextn_config(const ModelConfig& target, const WeightSource& source);
// The same where the checkpoint is not at hand.
ModelConfig nextn_layer_config(const ModelConfig& target);

// Where an EAGLE3 head reads rows of a target with so many layers: as its configuration says, or else behind the second
// layer, half way, and the fourth from the end. `invalid_argument` where the target has no such layers.
Result<std::vector<int>> eagle3_target_layers(const Eagle3Config& config, int target_layers);

// The tokens of an EAGLE3 head's own vocabulary, by its token (d2t); empty: they are the target's own.
// `data_loss` where one is no token of the target's.
Result<std::vector<int32_t>> eagle3_tokens(const ModelConfig& config, const WeightSource& source,
                                           int target_vocab_size);

// `config` is the head's; of nextn nextn_config(). Errors: those of family_traits().
Result<FamilyTraits> draft_head_traits(DraftHeadKind kind, const ModelConfig& config, const WeightSource& source);

// `source` under the names that the traits say.
std::shared_ptr<WeightSource> draft_head_weights(DraftHeadKind kind, const ModelConfig& config,
                                                 std::shared_ptr<WeightSource> source);

}  // namespace warpweave
