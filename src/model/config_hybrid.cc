#include "model/config_hybrid.h"

#include <algorithm>
#include <cstdlib>

namespace warpweave {
namespace {

using nlohmann::json;

constexpr int kWidestConv = 8;  // tokens

// By layer_types, where a file has them: those called `type`; nullopt: it has none.
std::optional<std::vector<bool>> layers_of_type(ConfigReader& config, const ModelConfig& model, std::string_view type) {
  const json* types = config.find("layer_types");
  if (types == nullptr || !types->is_array() || static_cast<int>(types->size()) != model.num_layers)
    return std::nullopt;
  std::vector<bool> out;
  for (const json& each : *types) out.push_back(each == type);
  return out;
}

void need_full_attention(ConfigReader& config, const char* key, const ModelConfig& model) {
  if (model.num_kv_layers() == 0) config.fail(key, "must leave a layer with full attention");
}

// By their types, or all but one in full_attention_interval.
void read_delta_layers(ConfigReader& config, ModelConfig& out) {
  const int interval = config.integer("full_attention_interval", 4, 1, 1 << 20);
  const auto typed = layers_of_type(config, out, "linear_attention");
  for (int i = 0; i < out.num_layers; ++i)
    out.recurrent_layers.push_back(typed ? (*typed)[i] : (i + 1) % interval != 0);
  need_full_attention(config, typed ? "layer_types" : "full_attention_interval", out);
}

void read_gated_hybrid(ConfigReader& config, ModelConfig& out) {
  if (!config.boolean("attn_output_gate", true))
    config.fail("attn_output_gate", "must be true: attention passes a gate");
  constexpr int kMostHeads = 4096, kWidestHead = 256;
  LinearAttnConfig& linear = out.linear.emplace();
  linear.k_heads = config.required_integer("linear_num_key_heads", 1, kMostHeads);
  linear.v_heads = config.required_integer("linear_num_value_heads", 1, kMostHeads);
  linear.k_dim = config.required_integer("linear_key_head_dim", 1, kWidestHead);
  linear.v_dim = config.required_integer("linear_value_head_dim", 1, kWidestHead);
  linear.conv_width = config.integer("linear_conv_kernel_dim", 4, 2, kWidestConv);
  if (linear.v_heads % linear.k_heads != 0) config.fail("linear_num_key_heads", "must divide linear_num_value_heads");
  if (linear.k_dim % 16 != 0) config.fail("linear_key_head_dim", "must be a multiple of 16");
  if (linear.v_dim % 16 != 0) config.fail("linear_value_head_dim", "must be a multiple of 16");
  read_delta_layers(config, out);
}

// 1-based numbers of layers in linear_attn_config, which together are all layers.
void read_kimi_layers(ConfigReader& config, const json& section, ModelConfig& out) {
  const char* const key = "linear_attn_config";
  std::vector<int> kinds(out.num_layers, 0);
  const auto read = [&](const char* list, int kind) {
    const json layers = section.value(list, json());
    if (!layers.is_array()) return config.fail(key, std::string("must have a list ") + list);
    for (const json& layer : layers) {
      const bool valid = layer.is_number_integer() && layer.get<double>() >= 1 && layer.get<double>() <= out.num_layers;
      if (!valid || kinds[layer.get<int>() - 1] != 0) {
        return config.fail(key, "must name every layer once, from 1, in kda_layers and full_attn_layers");
      }
      kinds[layer.get<int>() - 1] = kind;
    }
  };
  read("kda_layers", 1);
  read("full_attn_layers", 2);
  for (const int kind : kinds) {
    if (kind == 0) config.fail(key, "must name every layer once, from 1, in kda_layers and full_attn_layers");
    out.recurrent_layers.push_back(kind == 1);
  }
  need_full_attention(config, key, out);
}

// Kimi Linear, as published, with a section of its own, or as transformers saves it.
void read_kimi_linear(ConfigReader& config, ModelConfig& out) {
  constexpr int kMostHeads = 4096, kWidestHead = 256;
  if (!out.latent) config.fail("kv_lora_rank", "is missing: layers with full attention are latent");
  if (!config.boolean("mla_use_nope", true)) config.fail("mla_use_nope", "must be true: nothing is rotated");
  LinearAttnConfig& linear = out.linear.emplace();
  linear.channel_decay = true;
  const json* section = config.find("linear_attn_config");
  if (section != nullptr && !section->is_object()) return config.fail("linear_attn_config", "must be an object");
  if (section != nullptr) {
    ConfigReader own(*section, "config.json: linear_attn_config");
    linear.k_heads = linear.v_heads = own.required_integer("num_heads", 1, kMostHeads);
    linear.k_dim = linear.v_dim = own.required_integer("head_dim", 1, kWidestHead);
    linear.conv_width = own.integer("short_conv_kernel_size", 4, 2, kWidestConv);
    if (!own.status().ok()) config.fail(own.status());
    read_kimi_layers(config, *section, out);
  } else {
    linear.k_heads = linear.v_heads = config.required_integer("linear_num_heads", 1, kMostHeads);
    linear.k_dim = linear.v_dim = config.required_integer("linear_head_dim", 1, kWidestHead);
    linear.conv_width = config.integer("linear_conv_kernel_dim", 4, 2, kWidestConv);
    const auto typed = layers_of_type(config, out, "linear_attention");
    if (!typed) return config.fail("layer_types", "must say which layers have linear attention");
    out.recurrent_layers = *typed;
    need_full_attention(config, "layer_types", out);
  }
  if (linear.k_dim % 16 != 0) config.fail("linear_attn_config", "head_dim must be a multiple of 16");
  out.rope.type = RopeConfig::Type::none;
}

// Layers are called jet, swa (with a window) and attn. Widths of v are factors of k's, written with so many digits.
void read_jet_nemotron(ConfigReader& config, ModelConfig& out) {
  constexpr int kMostHeads = 4096, kWidestHead = 256;
  const char* const key = "efficient_attention_config";
  const json* section = config.find(key);
  const auto kind = [&](const char* name) {
    return section != nullptr && section->is_object() ? section->value(name, json()) : json();
  };
  const json jet = kind("jet"), window = kind("swa");
  if (!jet.is_object()) return config.fail(key, "must have an object jet");
  ConfigReader own(jet, "config.json: efficient_attention_config.jet");
  LinearAttnConfig& linear = out.linear.emplace();
  linear.k_heads = linear.v_heads = own.required_integer("num_heads", 1, kMostHeads);
  linear.k_dim = own.required_integer("head_dim", 16, kWidestHead);
  linear.v_dim = static_cast<int>(linear.k_dim * own.number("expand_v", 2, 1e-2, 1e2));
  linear.conv_width = own.integer("conv_size", 4, 2, kWidestConv);
  linear.generator_rank = linear.v_heads * linear.v_dim / own.integer("dconv_generator_reduction", 8, 1, 1 << 16);
  if (linear.k_dim % 16 != 0) own.fail("head_dim", "must be a multiple of 16");
  if (linear.v_dim % 16 != 0 || linear.v_dim < 16 || linear.v_dim > kWidestHead) {
    own.fail("expand_v", "times head_dim must be a multiple of 16 up to 256");
  }
  if (linear.generator_rank < 1) own.fail("dconv_generator_reduction", "leaves no row");
  const json eps = jet.value("norm_eps", json());  // a text in the published files
  const std::string digits = eps.is_string() ? eps.get<std::string>() : "";
  linear.norm_eps =
      eps.is_string() ? std::strtod(digits.c_str(), nullptr) : own.number("norm_eps", 1e-5, kNormEpsRange);
  if (!(linear.norm_eps >= kNormEpsRange.min && linear.norm_eps <= kNormEpsRange.max))
    own.fail("norm_eps", "must be a number from 1e-12 to 1");
  if (!own.status().ok()) config.fail(own.status());
  const auto jets = layers_of_type(config, out, "jet"), windows = layers_of_type(config, out, "swa"),
             full = layers_of_type(config, out, "attn");
  if (!jets) return config.fail("layer_types", "must list one type per layer");
  for (int i = 0; i < out.num_layers; ++i) {
    if (!(*jets)[i] && !(*windows)[i] && !(*full)[i]) return config.fail("layer_types", "may hold jet, swa and attn");
  }
  out.recurrent_layers = *jets;
  need_full_attention(config, "layer_types", out);
  if (std::count(windows->begin(), windows->end(), true) == 0) return;
  if (!window.is_object()) return config.fail(key, "must have an object swa for layers of that type");
  ConfigReader of_window(window, "config.json: efficient_attention_config.swa");
  out.sliding_window = of_window.required_integer("window_size", 1, 1 << 28);
  out.sliding_layers = *windows;
  if (!of_window.status().ok()) config.fail(of_window.status());
}

// LFM2's files say it by types, or name the layers that have attention.
void read_conv_layers(ConfigReader& config, ModelConfig& out) {
  if (const auto typed = layers_of_type(config, out, "conv")) {
    out.recurrent_layers = *typed;
    return need_full_attention(config, "layer_types", out);
  }
  const char* const key = "full_attn_idxs";
  const json* attention = config.find(key);
  if (attention == nullptr || !attention->is_array()) {
    return config.fail(config.has(key) ? key : "layer_types", "must say which layers have attention");
  }
  out.recurrent_layers.assign(out.num_layers, true);
  for (const json& layer : *attention) {
    if (!layer.is_number_integer() || layer.get<double>() < 0 || layer.get<double>() >= out.num_layers) {
      return config.fail(key, "must hold numbers of layers, from 0");
    }
    out.recurrent_layers[layer.get<int>()] = false;
  }
  need_full_attention(config, key, out);
}

void read_short_conv(ConfigReader& config, ModelConfig& out) {
  ShortConvConfig& conv = out.short_conv.emplace();
  conv.width = config.integer("conv_L_cache", 3, 2, kWidestConv);
  conv.bias = config.boolean("conv_bias", false);
  if (out.hidden_size % 16 != 0) config.fail("hidden_size", "must be a multiple of 16");
  read_conv_layers(config, out);
}

}  // namespace

int adjusted_intermediate_size(ConfigReader& config, int intermediate_size) {
  if (!config.boolean("block_auto_adjust_ff_dim", true)) return intermediate_size;
  const double factor = config.number("block_ffn_dim_multiplier", 1, 1e-3, 1e3);
  const int64_t multiple = config.integer("block_multiple_of", 256, 1, 1 << 20);
  const auto wanted = static_cast<int64_t>(factor * static_cast<double>(int64_t{2} * intermediate_size / 3));
  const int64_t rounded = (wanted + multiple - 1) / multiple * multiple;
  if (rounded < 1 || rounded > 1 << 24) {
    config.fail("block_ffn_dim_multiplier", "must leave a feed-forward of 1 to 16777216 columns");
    return intermediate_size;
  }
  return static_cast<int>(rounded);
}

void read_recurrent_layers(ConfigReader& config, ModelConfig& out) {
  if (is_gated_hybrid(out.model_type)) read_gated_hybrid(config, out);
  if (is_lfm2(out.model_type)) read_short_conv(config, out);
  if (is_jet_nemotron(out.model_type)) read_jet_nemotron(config, out);
  if (is_kimi_linear(out.model_type)) read_kimi_linear(config, out);
  if (out.num_recurrent_layers() > 0) return;
  out.linear.reset();  // attention in every layer: nothing keeps a state
  out.short_conv.reset();
  out.recurrent_layers.clear();
}

}  // namespace warpweave
