#include "model/config_rope.h"

#include <algorithm>
#include <numeric>

namespace warpweave {
namespace {

using nlohmann::json;

std::vector<float> read_factors(ConfigReader& config, const char* key) {
  constexpr size_t kMostFactors = 4096;
  const json* list = config.find(key);
  std::vector<float> out;
  if (list != nullptr && list->is_array() && list->size() <= kMostFactors) {
    for (const json& value : *list) {
      if (!value.is_number() || !(value.get<double>() >= 1e-6 && value.get<double>() <= 1e6)) break;
      out.push_back(value.get<float>());
    }
    if (!out.empty() && out.size() == list->size()) return out;
  }
  config.fail(key, "must list one number from 1e-6 to 1e6 for every frequency");
  return {};
}

void read_longrope(ConfigReader& config, RopeConfig& rope) {
  rope.short_factors = read_factors(config, "short_factor");
  rope.long_factors = read_factors(config, "long_factor");
  if (rope.short_factors.size() != rope.long_factors.size()) {
    config.fail("long_factor", "must be as long as short_factor");
  }
  if (config.has("short_mscale")) rope.short_mscale = config.number("short_mscale", 1.0, 0, 1e6);
  if (config.has("long_mscale")) rope.long_mscale = config.number("long_mscale", 1.0, 0, 1e6);
}

// "mrope_section" of models whose prompts have pictures (Qwen2-VL, Qwen3.5).
void read_sections(ConfigReader& r, RopeConfig& rope) {
  const json* list = r.find("mrope_section");
  if (list == nullptr) return;
  for (const json& value : *list) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > 4096) break;
    rope.sections.push_back(value.get<int>());
  }
  if (!list->is_array() || list->size() != 3 || rope.sections.size() != 3) {
    rope.sections.clear();
    return r.fail("mrope_section", "must list how many frequencies are of time, height and width");
  }
  rope.interleaved_sections = r.boolean("mrope_interleaved", false);
}

// The part of a head that is rotated, where a file leaves it out.
double default_rotated_part(const std::string& model_type) {
  if (model_type == "glm4" || model_type == "glm4_moe") return 0.5;
  return is_gated_hybrid(model_type) || model_type == "stablelm" ? 0.25 : 1.0;
}

RopeConfig::Type read_type(ConfigReader& r, const std::string& model_type) {
  using Type = RopeConfig::Type;
  const std::string type = r.text("rope_type", r.text("type", "default"));
  // Phi-3's first files name longrope after what it was before its paper.
  if (type == "longrope" || type == "su" || (type == "yarn" && model_type == "phi3")) return Type::longrope;
  if (type == "default" || type == "mrope") return Type::plain;
  if (type == "linear") return Type::linear;
  if (type == "llama3") return Type::llama3;
  if (type == "yarn") return Type::yarn;
  if (type == "dynamic") return Type::dynamic;
  r.fail("rope_type",
         "is '" + type.substr(0, 40) + "'; supported are default, linear, llama3, yarn, longrope and dynamic");
  return Type::plain;
}

RopeConfig read_rope(ConfigReader& config, const json* section, double theta) {
  RopeConfig rope;
  rope.theta = theta;
  const std::string model_type = config.text("model_type", "");
  rope.partial_rotary_factor = config.number("partial_rotary_factor", default_rotated_part(model_type), 1e-3, 1.0);
  if (section == nullptr || *section == false) return rope;
  if (!section->is_object()) {
    config.fail("rope_scaling", "must be an object");
    return rope;
  }
  ConfigReader r(*section, "config.json: rope");
  rope.theta = r.number("rope_theta", rope.theta, kRopeThetaRange);
  rope.partial_rotary_factor = r.number("partial_rotary_factor", rope.partial_rotary_factor, 1e-3, 1.0);
  rope.type = read_type(r, model_type);
  if (rope.type == RopeConfig::Type::longrope) read_longrope(r, rope);
  // The factor of yarn may follow from the lengths (check_rope).
  const bool follows = rope.type == RopeConfig::Type::yarn && !r.has("factor");
  rope.factor = follows ? 0 : r.number("factor", 1.0, kRopeFactorRange);
  rope.alpha = r.has("alpha") ? r.number("alpha", 1.0, kRopeFactorRange) : 0;
  rope.low_freq_factor = r.number("low_freq_factor", 1.0, kRopeFactorRange);
  rope.high_freq_factor = r.number("high_freq_factor", 4.0, kRopeFactorRange);
  rope.original_max_positions = r.integer("original_max_position_embeddings", 0, 0, 1 << 28);
  rope.beta_fast = r.number("beta_fast", 32.0, kRopeFactorRange);
  rope.beta_slow = r.number("beta_slow", 1.0, kRopeFactorRange);
  if (r.has("attention_factor")) rope.attention_factor = r.number("attention_factor", 1.0, kRopeFactorRange);
  if (r.has("mscale")) rope.mscale = r.number("mscale", 1.0, 0, 1e6);
  if (r.has("mscale_all_dim")) rope.mscale_all_dim = r.number("mscale_all_dim", 0.0, 0, 1e6);
  rope.truncate = r.boolean("truncate", true);
  read_sections(r, rope);
  if (rope.type == RopeConfig::Type::llama3) {
    if (rope.original_max_positions == 0) r.fail("original_max_position_embeddings", "must be given for llama3");
    if (rope.high_freq_factor <= rope.low_freq_factor) r.fail("high_freq_factor", "must be above low_freq_factor");
  }
  if (rope.type == RopeConfig::Type::dynamic && rope.factor < 1) r.fail("factor", "must be at least 1 for dynamic");
  if (!r.status().ok()) config.fail("rope_scaling", r.status().message());
  return rope;
}

void check_longrope(ConfigReader& config, int head_dim, RopeConfig& rope) {
  if (rope.original_max_positions == 0) {
    rope.original_max_positions = config.integer("original_max_position_embeddings", 0, 0, 1 << 28);
  }
  const size_t frequencies = static_cast<size_t>(head_dim * rope.partial_rotary_factor) / 2;
  if (rope.short_factors.size() != frequencies) {
    config.fail("rope_scaling", "short_factor and long_factor must hold " + std::to_string(frequencies) + " values");
  }
  if (rope.original_max_positions < 2) {
    config.fail("original_max_position_embeddings", "must be at least 2 for longrope");
  }
}

// Whether the factor stretches the context that the file gives. With alpha (HunYuan) the file gives the stretched
// length, and the frequencies are the same for every length.
bool stretches_context(const RopeConfig& rope) {
  return rope.type == RopeConfig::Type::dynamic && rope.alpha == 0 && rope.original_max_positions == 0;
}

void check_rope(ConfigReader& config, const ModelConfig& model, RopeConfig& rope) {
  const int head_dim = model.rope_head_dim();
  if (head_dim * rope.partial_rotary_factor < 2) {
    config.fail("partial_rotary_factor", "leaves no dimension of a head to rotate");
  }
  const int frequencies = static_cast<int>(head_dim * rope.partial_rotary_factor) / 2;
  if (!rope.sections.empty() && std::accumulate(rope.sections.begin(), rope.sections.end(), 0) != frequencies) {
    config.fail("mrope_section", "must add up to " + std::to_string(frequencies) + ", the frequencies of a head");
  }
  if (rope.type == RopeConfig::Type::longrope) check_longrope(config, head_dim, rope);
  if (rope.type == RopeConfig::Type::dynamic && head_dim * rope.partial_rotary_factor < 4) {
    config.fail("rope_scaling", "of type dynamic needs at least 4 rotated dimensions of a head");
  }
  if (stretches_context(rope)) rope.original_max_positions = model.max_position_embeddings;
  if (rope.factor == 0) {
    rope.factor = rope.original_max_positions > 0
                      ? static_cast<double>(model.max_position_embeddings) / rope.original_max_positions
                      : 1.0;
  }
}

// Of layers with a sliding window, where it is another than that of full attention.
std::optional<RopeConfig> read_local_rope(ConfigReader& config, const json* parameters, double theta,
                                          const ModelConfig& model) {
  if (parameters != nullptr) {
    if (!parameters->contains("sliding_attention")) return std::nullopt;
    return read_rope(config, &(*parameters)["sliding_attention"], theta);
  }
  RopeConfig local;
  local.theta =
      config.number("rope_local_base_freq", model.model_type == "olmo3" ? model.rope.theta : 1e4, kRopeThetaRange);
  // The windows of OLMo 3 are not stretched.
  return config.has("rope_local_base_freq") || model.model_type == "olmo3" ? std::optional(local) : std::nullopt;
}

// The base, where a file leaves it out: of config_defaults.h.
double default_theta(ConfigReader& config, const std::string& model_type) {
  return config.number("default_rope_theta", is_jet_nemotron(model_type) ? 1e6 : 1e4, kRopeThetaRange);
}

}  // namespace

// A rope_scaling that stands beside rope_parameters, as when someone wrote it there for long contexts as a model card
// says. It counts, as in transformers, but for rope_parameters of each layer type; the base may still stand in them.
static bool counts_more(const json* scaling, const json* parameters) {
  return scaling != nullptr && scaling->is_object() && !scaling->empty() && parameters->is_object() &&
         !parameters->contains("full_attention");
}

// Newer files have rope_parameters (one, or one per layer type); older ones rope_theta + rope_scaling.
void read_ropes(ConfigReader& config, ModelConfig& out) {
  const json* parameters = config.find("rope_parameters");
  const json* const scaling = config.find("rope_scaling");
  double theta = default_theta(config, out.model_type);
  if (parameters != nullptr && counts_more(scaling, parameters)) {
    ConfigReader base(*parameters, "config.json: rope_parameters");
    theta = base.number("rope_theta", theta, kRopeThetaRange);
    if (!base.status().ok()) config.fail(base.status());
    parameters = nullptr;
  }
  theta = config.number("rope_theta", theta, kRopeThetaRange);
  const bool by_layer_type = parameters != nullptr && parameters->is_object() && parameters->contains("full_attention");
  const json* section = parameters != nullptr ? parameters : scaling;
  out.rope = read_rope(config, by_layer_type ? &(*parameters)["full_attention"] : section, theta);
  out.local_rope = read_local_rope(config, by_layer_type ? parameters : nullptr, theta, out);
  const bool stretched = stretches_context(out.rope);
  check_rope(config, out, out.rope);
  if (out.local_rope) check_rope(config, out, *out.local_rope);
  if (!stretched) return;
  const double longest = std::min(out.max_position_embeddings * out.rope.factor, static_cast<double>(1 << 28));
  out.max_position_embeddings = static_cast<int>(longest);
}

void read_nope_layers(ConfigReader& config, ModelConfig& out) {
  out.nope_layers = nope_beside_windows(out);
  if (out.model_type != "smollm3") return;
  const json* rotated = config.find("no_rope_layers");  // 1 for the layers that are rotated, despite its name
  const int interval = config.integer("no_rope_layer_interval", 4, 1, 1 << 20);
  if (rotated != nullptr && (!rotated->is_array() || static_cast<int>(rotated->size()) != out.num_layers)) {
    return config.fail("no_rope_layers", "must list 0 or 1 for every layer");
  }
  for (int i = 0; i < out.num_layers; ++i) {
    if (rotated != nullptr && (*rotated)[i] != 0 && (*rotated)[i] != 1) {
      return config.fail("no_rope_layers", "must list 0 or 1 for every layer");
    }
    out.nope_layers.push_back(rotated != nullptr ? (*rotated)[i] == 0 : (i + 1) % interval == 0);
  }
}

std::vector<bool> nope_beside_windows(const ModelConfig& config) {
  const bool family = config.model_type == "cohere2" || config.model_type == "exaone4";
  if (!family || config.sliding_window == 0 || config.sliding_layers.empty()) return {};
  std::vector<bool> out = config.sliding_layers;
  out.flip();
  return out;
}

}  // namespace warpweave
