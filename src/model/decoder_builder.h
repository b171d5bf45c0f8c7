// Weights by name to a decoder, for every kind of memory (tensor_packer.h): embedding and head, rotary tables, and for
// each layer the parts that its plan names, each by the builder beside it in layers/.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/build_decoder.h"
#include "model/layers/attention_builder.h"
#include "model/layers/dense_builder.h"
#include "model/layers/experts_builder.h"
#include "model/layers/gdn_builder.h"
#include "model/layers/latent_builder.h"
#include "model/layers/short_conv_builder.h"
#include "model/rope_frequencies.h"
#include "model/tensor_packer.h"

namespace warpweave {

template <typename Target>
class DecoderBuilder {
 public:
  using Weights = typename Target::Weights;

  DecoderBuilder(const ModelConfig& config, const FamilyTraits& traits, std::shared_ptr<WeightSource> source,
                 const BuildOptions& options, Target& target)
      : config_(config), traits_(traits), options_(options), pack_(config, traits, std::move(source), target) {}

  Result<Weights> build();

 private:
  std::vector<std::future<RopeTable>> rope_tables() const;
  Status head(Weights& out);
  Status draft_head(Weights& out);
  std::string dense_prefix(const std::string& layer) const;
  template <typename LayerWeights>
  Status layer(int index, LayerWeights& out);

  const ModelConfig& config_;
  const FamilyTraits& traits_;
  const BuildOptions& options_;
  TensorPacker<Target> pack_;
};

// Tables of many positions take as long as many weights do, so they are made beside.
template <typename Target>
std::vector<std::future<RopeTable>> DecoderBuilder<Target>::rope_tables() const {
  std::vector<std::future<RopeTable>> tables;
  if (config_.rope.type == RopeConfig::Type::none) return tables;
  for (const RopeConfig* rope : {&config_.rope, config_.local_rope ? &*config_.local_rope : nullptr}) {
    if (rope == nullptr) continue;
    tables.push_back(std::async(std::launch::async | std::launch::deferred, [this, rope] {
      const RopeFrequencies f = rope_frequencies(*rope, config_.rope_head_dim(), config_.max_position_embeddings,
                                                 options_.max_positions);
      const bool interleaved = config_.latent ? config_.latent->rope_interleaved : traits_.rope_interleaved;
      const auto make = Target::kRopesGrow ? RopeTable::make_empty : RopeTable::make;
      return make(f.inv_freq, options_.max_positions, interleaved, f.attention_factor);
    }));
  }
  return tables;
}

template <typename Target>
Status DecoderBuilder<Target>::head(Weights& out) {
  const int64_t shape[] = {config_.vocab_size, config_.hidden_size};
  const std::string embedding = "model.embed_tokens.weight";
  const bool headless = config_.head != ModelHead::vocabulary;
  const bool tied = !headless && (config_.tie_word_embeddings || !pack_.source->has("lm_head.weight"));
  if (!tied) {
    WW_ASSIGN_OR_RETURN(const LinearPart table, pack_.matrix(embedding, shape, false));
    WW_RETURN_IF_ERROR(pack_.target.embedding(table, pack_.source, out));
  }
  if (traits_.final_norm) {
    WW_ASSIGN_OR_RETURN(out.final_norm, pack_.row_norm(traits_.final_norm_name));
  }
  if (headless) return {};
  WW_ASSIGN_OR_RETURN(out.lm_head, pack_.linear({{tied ? embedding : "lm_head.weight", config_.vocab_size,
                                                  config_.lm_head_bias ? "lm_head.bias" : ""}},
                                                config_.hidden_size));
  return {};
}

// Saved by transformers, dense layers of Kimi Linear are called as those with experts are.
template <typename Target>
std::string DecoderBuilder<Target>::dense_prefix(const std::string& layer) const {
  const std::string own = layer + traits_.mlp_names.block + ".", other = layer + traits_.expert_names.block + ".";
  const std::string down = std::string(traits_.mlp_names.down) + ".weight";
  return !pack_.source->has(own + down) && pack_.source->has(other + down) ? other : own;
}

template <typename Target>
template <typename LayerWeights>
Status DecoderBuilder<Target>::layer(int index, LayerWeights& out) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const auto named = [&](const char* norm) { return *norm == '\0' ? std::string() : prefix + norm; };
  const NormNames& norms = traits_.norms;
  const bool reads_rows = index == 0 && !traits_.first_mixer_norm;
  BranchNames mixer = {prefix + "self_attn.", reads_rows ? "" : named(norms.mixer_in), named(norms.mixer_out),
                       named(norms.mixer_after)};
  BranchNames feed_forward = {"", named(norms.feed_forward_in), named(norms.feed_forward_out),
                              named(norms.feed_forward_after)};
  switch (traits_.layers[index].mixer) {
    case MixerKind::attention: {
      WW_ASSIGN_OR_RETURN(out.mixer, build_attention(pack_, mixer));
      break;
    }
    case MixerKind::latent: {
      WW_ASSIGN_OR_RETURN(out.mixer, build_latent(pack_, mixer));
      break;
    }
    case MixerKind::gated_delta_net: {
      if (config_.linear->channel_decay) {
        WW_ASSIGN_OR_RETURN(out.mixer, build_kda(pack_, mixer));
        break;
      }
      if (config_.linear->generator_rank > 0) {
        WW_ASSIGN_OR_RETURN(out.mixer, build_jet(pack_, mixer));
        break;
      }
      mixer.prefix = prefix + "linear_attn.";
      WW_ASSIGN_OR_RETURN(out.mixer, build_gdn(pack_, mixer));
      break;
    }
    case MixerKind::short_conv: {
      mixer.prefix = prefix + "conv.";
      WW_ASSIGN_OR_RETURN(out.mixer, build_short_conv(pack_, mixer));
      break;
    }
  }
  switch (traits_.layers[index].feed_forward) {
    case FeedForwardKind::none: break;
    case FeedForwardKind::dense: {
      feed_forward.prefix = dense_prefix(prefix);
      WW_ASSIGN_OR_RETURN(out.feed_forward, build_dense(pack_, feed_forward));
      break;
    }
    case FeedForwardKind::experts: {
      feed_forward.prefix = prefix + traits_.expert_names.block + ".";
      WW_ASSIGN_OR_RETURN(out.feed_forward, build_experts(pack_, feed_forward));
      break;
    }
  }
  return {};
}

// What a draft head has in place of embedding and head.
template <typename Target>
Status DecoderBuilder<Target>::draft_head(Weights& out) {
  const DraftHeadTraits& draft = traits_.draft;
  WW_ASSIGN_OR_RETURN(out.fc, pack_.linear({{"fc.weight", config_.hidden_size, "fc.bias"}},
                                           int64_t{draft.fc_inputs} * config_.hidden_size));
  if (*draft.embedding_norm != '\0') {
    WW_ASSIGN_OR_RETURN(out.draft_norms.embedding, pack_.row_norm(draft.embedding_norm));
  }
  if (*draft.hidden_norm != '\0') {
    WW_ASSIGN_OR_RETURN(out.draft_norms.hidden, pack_.row_norm(draft.hidden_norm));
  }
  if (*draft.final_norm != '\0') {
    WW_ASSIGN_OR_RETURN(out.final_norm, pack_.row_norm(draft.final_norm));
  }
  if (!draft.own_head) return {};
  WW_ASSIGN_OR_RETURN(out.lm_head, pack_.linear({{"lm_head.weight", config_.vocab_size, ""}}, config_.hidden_size));
  return {};
}

template <typename Target>
auto DecoderBuilder<Target>::build() -> Result<Weights> {
  Weights out;
  std::vector<std::future<RopeTable>> tables = rope_tables();
  if (traits_.layers_only) {
    WW_RETURN_IF_ERROR(draft_head(out));
  } else {
    WW_RETURN_IF_ERROR(head(out));
  }
  const int num_layers = static_cast<int>(traits_.layers.size());
  for (int i = 0; i < num_layers; ++i) {
    WW_RETURN_IF_ERROR(layer(i, out.layers.emplace_back()));
    WW_RETURN_IF_ERROR(pack_.source->intact());  // early: nobody waits for layers that a cut file no longer has
    if (options_.progress) options_.progress(i + 1, num_layers);
  }
  for (std::future<RopeTable>& table : tables) {
    WW_ASSIGN_OR_RETURN(out.ropes.emplace_back(), pack_.target.rope(table.get()));
  }
  return out;
}

}  // namespace warpweave
