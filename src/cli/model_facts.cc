#include "cli/model_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/mapped_file.h"
#include "cli/known_models.h"
#include "cli/model_search.h"
#include "engine/engine_impl.h"
#include "flags/nearest_name.h"

namespace warpweave {
namespace {

using ConfigJson = nlohmann::json;

// Keys of the language model stand at the top, or in text_config beside a vision tower.
struct Config {
  const ConfigJson& top;
  const ConfigJson& text;

  const ConfigJson* find(const char* key) const {
    for (const ConfigJson* part : {&text, &top}) {
      const auto found = part->find(key);
      if (found != part->end() && !found->is_null()) return &*found;
    }
    return nullptr;
  }
  int integer(const char* key, int absent) const {
    const ConfigJson* value = find(key);
    return value != nullptr && value->is_number_integer() ? value->get<int>() : absent;
  }
  bool has_positive(const char* key) const {
    const ConfigJson* value = find(key);
    return value != nullptr && value->is_number() && value->get<double>() > 0;
  }
  bool has_layer_type(std::string_view type) const {
    const ConfigJson* types = find("layer_types");
    return types != nullptr && types->is_array() &&
           std::any_of(types->begin(), types->end(),
                       [&](const ConfigJson& t) { return t.is_string() && t.get<std::string>() == type; });
  }
};

ModelDType dtype_of(const Config& config, const std::string& flag) {
  std::string name = flag;
  if (flag == "auto") {
    const ConfigJson* value = config.find("dtype");
    if (value == nullptr) value = config.find("torch_dtype");
    name = value != nullptr && value->is_string() ? value->get<std::string>() : "bfloat16";
  }
  const std::optional<DType> dtype = parse_dtype(name);
  return dtype == DType::f32 ? ModelDType::f32 : dtype == DType::f16 ? ModelDType::f16 : ModelDType::bf16;
}

bool uses_window(const Config& config) {
  if (!config.has_positive("sliding_window")) return false;
  const ConfigJson* use = config.find("use_sliding_window");
  if (use != nullptr && use->is_boolean() && !use->get<bool>()) return false;
  return config.find("layer_types") == nullptr || config.has_layer_type("sliding_attention");
}

LinearAttention linear_of(const Config& config) {
  if (config.find("linear_attn_config") != nullptr) return LinearAttention::kda;
  return config.has_layer_type("linear_attention") ? LinearAttention::gdn : LinearAttention::none;
}

void set_heads(const Config& config, ModelFacts& facts) {
  facts.num_q_heads = config.integer("num_attention_heads", 0);
  if (const int rank = config.integer("kv_lora_rank", 0); rank > 0) {
    facts.kind = config.integer("index_topk", 0) > 0 ? AttentionKind::sparse : AttentionKind::mla;
    facts.num_kv_heads = 1;
    facts.head_dim = rank + config.integer("qk_rope_head_dim", 0);
    facts.v_head_dim = rank;
    return;
  }
  facts.num_kv_heads = config.integer("num_key_value_heads", facts.num_q_heads);
  const int hidden = config.integer("hidden_size", 0);
  facts.head_dim =
      config.integer("head_dim", facts.num_q_heads > 0 ? hidden / facts.num_q_heads : 0);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

// "Qwen/Qwen3-8B-Instruct-2507" -> "qwen3-8b": no owner, nothing that tuning adds.
std::string model_key(std::string_view name) {
  std::string key = lower(name);
  if (const size_t slash = key.rfind('/'); slash != std::string::npos) key.erase(0, slash + 1);
  for (const char* part : {"-instruct", "-it", "-chat", "-base", "-thinking", "-2507", "-0528", "-fp8"}) {
    const size_t length = std::string_view(part).size();
    for (size_t at; (at = key.find(part)) != std::string::npos &&
                    (at + length == key.size() || key[at + length] == '-');) {
      key.erase(at, length);
    }
  }
  return key;
}

struct KnownModel {
  std::string name, key, config;
};

const std::vector<KnownModel>& known_models() {
  static const std::vector<KnownModel> models = [] {
    std::vector<KnownModel> list;
    const auto json = read_json<nlohmann::ordered_json>(known_models_json(), {}).value();
    for (const auto& [name, config] : json.items()) list.push_back({name, model_key(name), config.dump()});
    return list;
  }();
  return models;
}

// As serving reads them, for formats other than a folder with a config.json.
Result<ModelFacts> facts_of_file(ServerArgs args, const std::string& path) {
  args.skip_tokenizer_init = true;
  WW_ASSIGN_OR_RETURN(const ModelBundle bundle, open_served_model(args, path));
  WW_ASSIGN_OR_RETURN(const DType dtype, resolve_dtype(args.dtype, bundle.config.dtype));
  return attention_model_facts(bundle.config, dtype);
}

Status no_model(const Status& status, const std::string& name) {
  const std::vector<std::string> names = known_model_names();
  std::vector<std::string_view> views(names.begin(), names.end());
  if (name.find('/') == std::string::npos) {
    for (std::string_view& view : views) view.remove_prefix(view.find('/') + 1);
  }
  const std::string_view near = nearest_name(name, views);
  return Status(status.code(),
                fmt::format("{}; explain also knows models by id{}, such as {}", status.message(),
                            near.empty() ? "" : fmt::format(" (did you mean {}?)", near), names[0]),
                status.field());
}

}  // namespace

Result<ModelFacts> model_facts_from_config(std::string_view text, const std::string& dtype_flag) {
  WW_ASSIGN_OR_RETURN(const ConfigJson json, read_json<ConfigJson>(text, {"config.json", StatusCode::data_loss}));
  if (!json.is_object()) return Status::data_loss("config.json is no JSON object");
  const auto nested = json.find("text_config");
  const Config config = {json, nested != json.end() && nested->is_object() ? *nested : json};
  ModelFacts facts;
  const auto names = json.find("architectures");
  if (names != json.end() && names->is_array() && !names->empty() && (*names)[0].is_string()) {
    facts.architecture = (*names)[0].get<std::string>();
  }
  facts.dtype = dtype_of(config, dtype_flag);
  set_heads(config, facts);
  if (facts.num_q_heads <= 0 || facts.num_kv_heads <= 0 || facts.head_dim <= 0) {
    return Status::data_loss("config.json needs num_attention_heads, and head_dim or hidden_size");
  }
  facts.sliding_window = uses_window(config);
  facts.softcap = config.has_positive("attn_logit_softcapping");
  facts.sinks = facts.architecture.starts_with("GptOss");
  facts.dual_chunk = config.find("dual_chunk_attention_config") != nullptr;
  facts.linear = linear_of(config);
  facts.vision = json.contains("vision_config");
  return facts;
}

std::string_view known_model_config(std::string_view name) {
  for (const KnownModel& model : known_models()) {
    if (lower(model.name) == lower(name)) return model.config;
  }
  const std::string key = model_key(name);
  for (const KnownModel& model : known_models()) {
    if (model.key == key) return model.config;
  }
  return {};
}

std::vector<std::string> known_model_names() {
  std::vector<std::string> names;
  for (const KnownModel& model : known_models()) names.push_back(model.name);
  return names;
}

Result<ModelFacts> explain_model_facts(const ServerArgs& args) {
  const Result<ModelSource> source = find_model(args.model_path);
  if (!source.ok()) {
    const std::string_view known = known_model_config(args.model_path);
    if (known.empty()) return no_model(source.status(), args.model_path);
    return model_facts_from_config(known, args.dtype);
  }
  const std::filesystem::path file = std::filesystem::path(source->path()) / "config.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return facts_of_file(args, source->path());
  WW_ASSIGN_OR_RETURN(const std::string text, read_text_file(file.string()));
  Result<ModelFacts> facts = model_facts_from_config(text, args.dtype);
  return facts.ok() ? std::move(facts) : Result<ModelFacts>(facts.status().with_context(file.string()));
}

}  // namespace warpweave
