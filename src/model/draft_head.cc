#include "model/draft_head.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "model/build_decoder.h"
#include "model/renamed_weights.h"

namespace warpweave {
namespace {

constexpr std::string_view kLayer = "model.layers.0.";
constexpr int kTargetLayers = 3;

// A head's parts by the names that DraftHeadTraits has for them, and what they are called in a checkpoint.
struct StoredNames {
  std::string layer;  // a prefix
  std::string fc, embedding_norm, hidden_norm, final_norm;
};

class HeadWeights final : public RenamedWeights {
 public:
  HeadWeights(std::shared_ptr<WeightSource> source, StoredNames names)
      : RenamedWeights(std::move(source)), names_(std::move(names)) {}

 protected:
  std::string renamed(std::string_view name) const override {
    if (name.starts_with(kLayer)) return names_.layer + std::string(name.substr(kLayer.size()));
    for (const auto& [ours, stored] : {std::pair<std::string_view, const std::string&>{"fc.", names_.fc},
                                       {"embedding_norm.", names_.embedding_norm},
                                       {"hidden_norm.", names_.hidden_norm},
                                       {"norm.", names_.final_norm}}) {
      if (!stored.empty() && name.starts_with(ours)) return stored + std::string(name.substr(ours.size()));
    }
    return std::string(name);
  }

 private:
  const StoredNames names_;
};

StoredNames nextn_names(const ModelConfig& config, const WeightSource& source) {
  const std::string layer = fmt::format("model.layers.{}.", config.nextn_layer), fc = layer + "eh_proj.";
  // GGUF files hold those of every family by their numbers.
  const bool numbered = !source.has("mtp.fc.weight") && source.has(fc + "weight");
  if (is_gated_hybrid(config.model_type) && !numbered) {
    return {"mtp.layers.0.", "mtp.fc.", "mtp.pre_fc_norm_embedding.", "mtp.pre_fc_norm_hidden.", "mtp.norm."};
  }
  return {layer, fc, layer + "enorm.", layer + "hnorm.", layer + "shared_head.norm."};
}

FamilyTraits llama_layers_only(const ModelConfig& config) {
  FamilyTraits traits = llama_traits(config);
  traits.layers = transformer_layers(config);
  traits.layers_only = true;
  return traits;
}

FamilyTraits eagle_traits(const ModelConfig& config, const WeightSource& source) {
  FamilyTraits traits = llama_layers_only(config);
  if (!source.has("layers.0.input_layernorm.weight")) traits.norms.mixer_in = "";
  return traits;
}

FamilyTraits eagle3_traits(const ModelConfig& config, const WeightSource& source) {
  FamilyTraits traits = llama_layers_only(config);
  traits.norms.mixer_in = "hidden_norm";
  traits.draft = {.fc_inputs = kTargetLayers, .embedding_norm = "model.layers.0.input_layernorm", .final_norm = "norm",
                  .own_head = source.has("lm_head.weight"), .reads_embedding = true};
  return traits;
}

}  // namespace

Result<ModelConfig> nextn_config(const ModelConfig& target, const WeightSource& source) {
  ModelConfig out = nextn_layer_config(target);
  const std::string fc = nextn_names(out, source).fc + "weight";
  if (source.has(fc)) return out;
  return Status::unsupported(fmt::format(
      "the checkpoint of {} has no layer that predicts further tokens ({} is missing)", target.architecture, fc));
}

ModelConfig nextn_layer_config(const ModelConfig& target) {
  ModelConfig out = target;
  out.nextn_layer = target.num_layers;
  out.num_layers = 1;
  out.linear.reset();
  out.short_conv.reset();
  out.recurrent_layers.clear();
  out.sliding_window = 0;
  out.sliding_layers.clear();
  out.nope_layers.clear();
  out.first_k_dense_replace = 0;  // experts, if the model has any
  out.moe_layer_freq = out.decoder_sparse_step = 1;
  out.mlp_only_layers.clear();
  return out;
}

Result<std::vector<int>> eagle3_target_layers(const Eagle3Config& config, int target_layers) {
  std::vector<int> layers = config.target_layers;
  if (layers.empty()) layers = {1, target_layers / 2 - 1, target_layers - 4};
  for (const int layer : layers) {
    if (layer >= 0 && layer < target_layers - 1) continue;
    return Status::invalid_argument(fmt::format(
        "the head reads rows behind layer {} of the model, which has {}; eagle_aux_hidden_state_layer_ids of its "
        "config.json must name three of 0 to {}",
        layer, target_layers, target_layers - 2));
  }
  return layers;
}

Result<std::vector<int32_t>> eagle3_tokens(const ModelConfig& config, const WeightSource& source,
                                           int target_vocab_size) {
  std::vector<int32_t> out;
  if (!source.has("d2t")) return out;
  const int64_t count = config.vocab_size, shape[] = {count};
  WW_ASSIGN_OR_RETURN(const TensorView view, source.find("d2t", shape));
  if (view.dtype != DType::i64 && view.dtype != DType::i32) return Status::data_loss("tensor d2t must be of integers");
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* const at = static_cast<const std::byte*>(view.data) + i * dtype_info(view.dtype).block_bytes;
    int64_t offset = 0;
    int32_t narrow = 0;
    if (view.dtype == DType::i64) {
      std::memcpy(&offset, at, sizeof(offset));
    } else {
      std::memcpy(&narrow, at, sizeof(narrow));
      offset = narrow;
    }
    if (offset < -i || offset >= target_vocab_size - i) {
      return Status::data_loss(
          fmt::format("tensor d2t: token {} of the head is {} further in the model, which has {} tokens", i, offset,
                      target_vocab_size));
    }
    out.push_back(static_cast<int32_t>(i + offset));
  }
  return out;
}

Result<FamilyTraits> draft_head_traits(DraftHeadKind kind, const ModelConfig& config, const WeightSource& source) {
  if (kind == DraftHeadKind::eagle) return eagle_traits(config, source);
  if (kind == DraftHeadKind::eagle3) return eagle3_traits(config, source);
  WW_ASSIGN_OR_RETURN(FamilyTraits traits, family_traits(config));
  traits.layers_only = true;
  traits.draft = {.embedding_norm = "embedding_norm", .hidden_norm = "hidden_norm", .final_norm = "norm"};
  return traits;
}

std::shared_ptr<WeightSource> draft_head_weights(DraftHeadKind kind, const ModelConfig& config,
                                                 std::shared_ptr<WeightSource> source) {
  if (kind == DraftHeadKind::eagle) return eagle_weight_names(std::move(source));
  StoredNames names = {.layer = source->has("midlayer.self_attn.q_proj.weight") ? "midlayer." : "layers.0.",
                       .fc = {}, .embedding_norm = {}, .hidden_norm = {}, .final_norm = {}};
  if (kind == DraftHeadKind::nextn) names = nextn_names(config, *source);
  return std::make_shared<HeadWeights>(std::move(source), std::move(names));
}

}  // namespace warpweave
