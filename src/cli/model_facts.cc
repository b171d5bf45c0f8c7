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
#include "model/unread_tensors.h"
#include "model/unread_weights.h"

namespace warpweave {
namespace {

using ConfigJson = nlohmann::json;

constexpr size_t kMaxNameBytes = 256;

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
  if (config.has_layer_type("swa")) return true;  // Jet-Nemotron
  if (!config.has_positive("sliding_window")) return false;
  const ConfigJson* use = config.find("use_sliding_window");
  if (use != nullptr && use->is_boolean() && !use->get<bool>()) return false;
  return config.find("layer_types") == nullptr || config.has_layer_type("sliding_attention");
}

LinearAttention linear_of(const Config& config) {
  if (config.find("linear_attn_config") != nullptr) return LinearAttention::kda;
  const bool spaced =
      config.find("linear_num_value_heads") != nullptr;  // every full_attention_interval-th layer is another
  const bool typed = config.has_layer_type("linear_attention") || config.has_layer_type("jet");
  return spaced || typed ? LinearAttention::gdn : LinearAttention::none;
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

// What a name says about how its weights are stored, where that is not the model's own way.
struct WeightSuffix {
  std::string_view suffix, quantization_config;
};
constexpr WeightSuffix kWeightSuffixes[] = {
    {"-fp8", R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"},
    {"-awq", R"({"quant_method": "awq"})"},
    {"-gptq-int4", R"({"quant_method": "gptq"})"},
    {"-gptq-int8", R"({"quant_method": "gptq"})"},
    {"-gptq", R"({"quant_method": "gptq"})"},
    {"-nvfp4", R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})"},
    {"-fp4", R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})"},
    {"-bnb-4bit", R"({"quant_method": "bitsandbytes"})"},
};

// Removes `part` where a word of the name ends; whether it was there.
bool remove_word(std::string& key, std::string_view part) {
  bool removed = false;
  for (size_t at = 0; (at = key.find(part, at)) != std::string::npos;) {
    const size_t end = at + part.size();
    if (end != key.size() && key[end] != '-') {
      at = end;
      continue;
    }
    key.erase(at, part.size());
    removed = true;
  }
  return removed;
}

// "Qwen/Qwen3-8B-Instruct-2507" -> "qwen3-8b": no owner, nothing that tuning or storing it otherwise adds.
std::string model_key(std::string_view name) {
  std::string key = lower(name);
  if (const size_t slash = key.rfind('/'); slash != std::string::npos) key.erase(0, slash + 1);
  if (key.starts_with("meta-")) key.erase(0, 5);
  for (const WeightSuffix& weights : kWeightSuffixes) remove_word(key, weights.suffix);
  for (const char* part : {"-instruct", "-it", "-chat", "-base", "-thinking", "-hf", "-2507", "-0528", "-0324"}) {
    remove_word(key, part);
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

// Tensors that the model would leave unread, or why it cannot be built of those that there are.
void note_tensors(const std::shared_ptr<WeightSource>& weights, ModelDescription& out) {
  const std::string beyond = layers_beyond_line(weights->unread(), *out.config);
  const Result<std::vector<std::string>> unread = unread_tensors(*out.config, weights);
  if (unread.ok()) {
    for (std::string& line : unread_weights_lines(*unread, *out.config)) out.notes.push_back(std::move(line));
    return;
  }
  if (!beyond.empty()) out.notes.push_back(beyond);
  out.notes.push_back("serve would stop while it reads the weights: " + unread.status().message());
}

// A GGUF file, as serving reads it.
Status read_file_model(ServerArgs args, const std::string& path, ModelDescription& out) {
  args.skip_tokenizer_init = true;
  WW_ASSIGN_OR_RETURN(ModelBundle bundle, open_served_model(args, path));
  WW_ASSIGN_OR_RETURN(const DType dtype, resolve_dtype(args.dtype, bundle.config.dtype));
  out.facts = attention_model_facts(bundle.config, dtype);
  out.eos_token_ids = bundle.eos_token_ids;
  out.weights = std::move(bundle.weights);
  out.config = std::move(bundle.config);
  if (args.load_format != "dummy") note_tensors(out.weights, out);
  return {};
}

// What the text says, and whether a model of it is served.
void read_config(const std::string& text, const ServerArgs& args, ModelDescription& out) {
  out.config = read_served_config(text);
  if (!out.config.ok()) {
    out.facts = model_facts_from_config(text, args.dtype);
    return;
  }
  const Result<DType> dtype = resolve_dtype(args.dtype, out.config->dtype);
  out.facts = dtype.ok() ? Result<ModelFacts>(attention_model_facts(*out.config, *dtype)) : dtype.status();
  out.eos_token_ids = out.config->eos_token_ids;
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

namespace {

// A configuration that is part of the program.
ConfigJson built_in(std::string_view text) { return read_json<ConfigJson>(text, {"a built-in configuration"}).value(); }

}  // namespace

std::optional<KnownModelConfig> find_known_model(std::string_view name) {
  if (name.size() > kMaxNameBytes) return std::nullopt;
  for (const KnownModel& model : known_models()) {
    if (lower(model.name) == lower(name)) return KnownModelConfig{model.name, model.config};
  }
  std::string key = lower(name);
  ConfigJson weights;
  for (const WeightSuffix& suffix : kWeightSuffixes) {
    if (weights.is_null() && remove_word(key, suffix.suffix)) weights = built_in(suffix.quantization_config);
  }
  for (const KnownModel& model : known_models()) {
    // A name without its owner is this very entry; otherwise one that is tuned or stored differently.
    if (lower(model.name).ends_with("/" + lower(name))) return KnownModelConfig{model.name, model.config};
  }
  for (const KnownModel& model : known_models()) {
    if (model.key != model_key(name)) continue;
    ConfigJson config = built_in(model.config);
    if (!weights.is_null()) config["quantization_config"] = weights;
    return KnownModelConfig{model.name, config.dump()};
  }
  return std::nullopt;
}

std::vector<std::string> known_model_names() {
  std::vector<std::string> names;
  for (const KnownModel& model : known_models()) names.push_back(model.name);
  return names;
}

namespace {

// What names, types and shapes alone tell; a folder without weights is explained all the same.
void look_at_weights(const std::string& folder, ModelDescription& out) {
  auto weights = open_folder_weights(folder, *out.config);
  if (!weights.ok()) return;
  out.path = folder;
  if (out.config->quant_method.empty() || out.config->quant_method == "fp8") note_tensors(*weights, out);
  if (out.config->quant_method == "mxfp4") out.weights = *std::move(weights);
}

}  // namespace

Result<ModelDescription> describe_model(const ServerArgs& args) {
  ModelDescription out;
  const Result<ModelSource> source = find_model(args.model_path);
  if (!source.ok()) {
    const std::optional<KnownModelConfig> known = find_known_model(args.model_path);
    if (!known) return no_model(source.status(), args.model_path);
    out.where = known->name + "'s config.json";
    out.notes.push_back(fmt::format("explained from the published configuration of {}; to serve it, give --model-path "
                                    "the folder of its files", known->name));
    read_config(known->config, args, out);
    return out;
  }
  out.where = source->path();
  const std::filesystem::path file = std::filesystem::path(source->path()) / "config.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    out.path = source->path();
    WW_RETURN_IF_ERROR(read_file_model(args, source->path(), out));
    return out;
  }
  out.where = file.string();
  WW_ASSIGN_OR_RETURN(const std::string text, read_text_file(file.string()));
  read_config(text, args, out);
  // Unreadable is an error of the file; not served is an answer.
  const Status& status = out.config.status();
  if (!out.config.ok() && !out.facts.ok() && status.code() != StatusCode::unsupported) {
    return status.with_context(file.string());
  }
  if (args.load_format == "dummy") {
    out.path = source->path();
  } else if (out.config.ok()) {
    look_at_weights(source->path(), out);
  }
  return out;
}

Result<ModelFacts> explain_model_facts(const ServerArgs& args) {
  WW_ASSIGN_OR_RETURN(ModelDescription model, describe_model(args));
  return std::move(model.facts);
}

}  // namespace warpweave
