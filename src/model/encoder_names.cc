// The names of encoders' weights; see renamed_weights.h.
#include <span>
#include <string>
#include <utility>

#include "model/renamed_weights.h"

namespace warpweave {
namespace {

struct NamePair {
  std::string_view asked;
  std::string_view stored;
};

constexpr NamePair kBertLayer[] = {
    {"self_attn.q_proj", "attention.self.query"},      {"self_attn.k_proj", "attention.self.key"},
    {"self_attn.v_proj", "attention.self.value"},      {"self_attn.o_proj", "attention.output.dense"},
    {"post_attention_layernorm", "attention.output.LayerNorm"}, {"mlp.up_proj", "intermediate.dense"},
    {"mlp.down_proj", "output.dense"},                 {"post_feedforward_layernorm", "output.LayerNorm"}};
constexpr NamePair kBertInput[] = {{"model.embed_tokens", "embeddings.word_embeddings"},
                                   {"model.embed_positions", "embeddings.position_embeddings"},
                                   {"model.embed_token_types", "embeddings.token_type_embeddings"},
                                   {"model.embed_norm", "embeddings.LayerNorm"},
                                   {"head.dense", "pooler.dense"}};
constexpr NamePair kBertLabels[] = {{"score", "classifier"}};
constexpr NamePair kRobertaLabels[] = {{"head.dense", "classifier.dense"}, {"score", "classifier.out_proj"}};
constexpr NamePair kModernLayer[] = {{"self_attn.qkv_proj", "attn.Wqkv"},    {"self_attn.o_proj", "attn.Wo"},
                                     {"input_layernorm", "attn_norm"},       {"post_attention_layernorm", "mlp_norm"},
                                     {"mlp.gate_up_proj", "mlp.Wi"},         {"mlp.down_proj", "mlp.Wo"}};
constexpr NamePair kModernInput[] = {{"model.embed_tokens", "embeddings.tok_embeddings"},
                                     {"model.embed_norm", "embeddings.norm"},
                                     {"model.norm", "final_norm"}};
constexpr NamePair kModernLabels[] = {{"score", "classifier"}};

struct EncoderNames {
  std::string_view architecture;
  std::string_view prefix;               // of a model saved beneath labels or a head
  std::string_view layers;
  std::span<const NamePair> layer;
  std::span<const NamePair> input;       // with the prefix
  std::span<const NamePair> labels;      // without it; they go before `input`
};
constexpr EncoderNames kEncoders[] = {
    {"BertModel", "bert.", "encoder.layer.", kBertLayer, kBertInput, kBertLabels},
    {"RobertaModel", "roberta.", "encoder.layer.", kBertLayer, kBertInput, kRobertaLabels},
    {"ModernBertModel", "model.", "layers.", kModernLayer, kModernInput, kModernLabels}};

// The stored form of a name "<asked>.weight", "<asked>.bias"; empty: it is none of `pairs`.
std::string stored_name(std::span<const NamePair> pairs, std::string_view name) {
  const size_t dot = name.rfind('.');
  for (const NamePair& pair : pairs) {
    if (name.substr(0, dot) == pair.asked) return std::string(pair.stored) + std::string(name.substr(dot));
  }
  return {};
}

class EncoderWeights final : public RenamedWeights {
 public:
  EncoderWeights(std::shared_ptr<WeightSource> source, const EncoderNames& names)
      : RenamedWeights(std::move(source)), names_(names) {
    const std::string embedding = stored_name(names.input, "model.embed_tokens.weight");
    if (this->source().has(std::string(names.prefix) + embedding)) prefix_ = names.prefix;
  }

 protected:
  std::string renamed(std::string_view name) const override {
    std::string stored = whole_name(name);
    // The first BERT checkpoints call a norm's weight gamma and its bias beta.
    if (stored.ends_with("LayerNorm.weight") && !source().has(stored)) stored.replace(stored.size() - 6, 6, "gamma");
    if (stored.ends_with("LayerNorm.bias") && !source().has(stored)) stored.replace(stored.size() - 4, 4, "beta");
    return stored;
  }

 private:
  std::string whole_name(std::string_view name) const {
    constexpr std::string_view kLayers = "model.layers.";
    if (name.starts_with(kLayers)) {
      const std::string_view rest = name.substr(kLayers.size());
      const size_t dot = rest.find('.');
      const std::string part = dot == rest.npos ? std::string() : stored_name(names_.layer, rest.substr(dot + 1));
      if (part.empty()) return std::string(name);
      return prefix_ + std::string(names_.layers) + std::string(rest.substr(0, dot + 1)) + part;
    }
    if (const std::string label = stored_name(names_.labels, name); !label.empty()) return label;
    const std::string input = stored_name(names_.input, name);
    return input.empty() ? std::string(name) : prefix_ + input;
  }

  const EncoderNames& names_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<WeightSource> encoder_weight_names(std::shared_ptr<WeightSource> source,
                                                   std::string_view architecture) {
  for (const EncoderNames& names : kEncoders) {
    if (names.architecture == architecture) return std::make_shared<EncoderWeights>(std::move(source), names);
  }
  return source;
}

}  // namespace warpweave
