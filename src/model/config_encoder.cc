#include "model/config_encoder.h"

#include <string>

namespace warpweave {
namespace {

constexpr int kMaxPositions = 1 << 28;
constexpr std::string_view kModernBert = "ModernBertModel";

// Learned positions and token types, as BERT has them; RoBERTa counts from behind the padding token's id.
void read_bert(ConfigReader& config, ModelConfig& out) {
  EncoderConfig& encoder = *out.encoder;
  if (config.text("position_embedding_type", "absolute") != "absolute") {
    config.fail("position_embedding_type", "must be absolute: relative positions are not supported");
  }
  if (config.boolean("is_decoder", false)) config.fail("is_decoder", "must be false: an encoder attends both ways");
  out.rope = {};
  out.rope.type = RopeConfig::Type::none;
  out.norm_eps = config.number("layer_norm_eps", 1e-12, kNormEpsRange);
  encoder.token_types = config.integer("type_vocab_size", 2, 1, 1 << 16);
  encoder.label_activation = "tanh";
  encoder.learned_positions = out.max_position_embeddings;
  if (out.architecture == "RobertaModel") {
    encoder.first_position = config.integer("pad_token_id", 1, 0, 1 << 24) + 1;
  }
  out.max_position_embeddings -= encoder.first_position;
  if (out.max_position_embeddings < 1) config.fail("max_position_embeddings", "must be above pad_token_id + 1");
}

RopeConfig plain_rope(double theta) {
  RopeConfig rope;
  rope.theta = theta;
  return rope;
}

// Older files have a theta for each kind of layer, newer ones rope_parameters, which read_ropes() has read.
void read_thetas(ConfigReader& config, ModelConfig& out) {
  if (config.has("rope_parameters")) return;
  for (const char* key : {"global_rope_theta", "local_rope_theta"}) {
    if (config.is_null(key)) config.fail(key, "must be a number");
  }
  out.rope = plain_rope(config.number("global_rope_theta", 160000, kRopeThetaRange));
  out.local_rope = plain_rope(config.number("local_rope_theta", 10000, kRopeThetaRange));
}

// local_attention tokens in all, half of them on each side of the row's own.
void read_windows(ConfigReader& config, ModelConfig& out) {
  out.sliding_window = config.integer("local_attention", 128, 2, kMaxPositions) / 2 + 1;
  out.sliding_layers.assign(out.num_layers, false);
  const nlohmann::json* types = config.find("layer_types");
  if (types != nullptr && (!types->is_array() || static_cast<int>(types->size()) != out.num_layers)) {
    return config.fail("layer_types", "must list one type per layer");
  }
  const int every = config.integer("global_attn_every_n_layers", 3, 1, 1 << 20);
  for (int i = 0; i < out.num_layers; ++i) {
    out.sliding_layers[i] = i % every != 0;
    if (types == nullptr) continue;
    const nlohmann::json& type = (*types)[i];
    if (type != "full_attention" && type != "sliding_attention") {
      return config.fail("layer_types", "may hold full_attention and sliding_attention here");
    }
    out.sliding_layers[i] = type == "sliding_attention";
  }
  drop_idle_window(out);
}

void read_modernbert(ConfigReader& config, ModelConfig& out) {
  EncoderConfig& encoder = *out.encoder;
  out.norm_eps = config.number("norm_eps", 1e-5, kNormEpsRange);
  read_thetas(config, out);
  read_windows(config, out);
  const std::string pooling = config.text("classifier_pooling", "cls");
  if (pooling != "cls" && pooling != "mean") config.fail("classifier_pooling", "must be cls or mean");
  encoder.labels_of_mean = pooling == "mean";
  encoder.label_activation = config.text("classifier_activation", "gelu");
  if (out.head == ModelHead::labels && encoder.label_activation != "gelu" && encoder.label_activation != "tanh") {
    config.fail("classifier_activation", "must be gelu or tanh");
  }
}

}  // namespace

std::optional<DeclaredModel> declared_encoder(std::string_view architecture) {
  struct Family {
    std::string_view name;
    std::string_view encoder;  // XLM-RoBERTa is RoBERTa with another tokenizer
  };
  constexpr Family kFamilies[] = {{"Bert", "BertModel"}, {"Roberta", "RobertaModel"}, {"XLMRoberta", "RobertaModel"},
                                  {"ModernBert", "ModernBertModel"}};
  struct Suffix {
    std::string_view text;
    ModelHead head;
  };
  // A masked language model's states are its encoder's; what it has above them is not read.
  constexpr Suffix kSuffixes[] = {{"Model", ModelHead::none},
                                  {"ForMaskedLM", ModelHead::none},
                                  {"ForSequenceClassification", ModelHead::labels}};
  for (const Family& family : kFamilies) {
    if (!architecture.starts_with(family.name)) continue;
    for (const Suffix& suffix : kSuffixes) {
      if (architecture.substr(family.name.size()) == suffix.text)
        return DeclaredModel{std::string(family.encoder), suffix.head};
    }
  }
  return std::nullopt;
}

void read_encoder(ConfigReader& config, ModelConfig& out) {
  out.encoder.emplace();
  const bool modern = out.architecture == kModernBert;
  out.hidden_act = config.text(modern ? "hidden_activation" : "hidden_act", "gelu");
  out.tie_word_embeddings = true;  // nothing else is read by token
  modern ? read_modernbert(config, out) : read_bert(config, out);
}

}  // namespace warpweave
