#include "lora/adapter_config.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_file.h"

namespace warpweave {
namespace {

using Json = nlohmann::ordered_json;  // the order of patterns counts

// What the saved tensors show by themselves, and what only training looks at.
constexpr std::string_view kWithoutEffect[] = {
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "exclude_modules", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core", "peft_version", "qalora_group_size",
    "revision", "runtime_config", "task_type"};

// What asks for more than two low-rank matrices beside a GEMM.
struct Refused {
  std::string_view field;
  std::string_view fix;
};
constexpr Refused kRefused[] = {
    {"alora_invocation_tokens", "train without it"},
    {"arrow_config", "load the adapters it routes to by themselves"},
    {"corda_config", "convert the adapter to plain LoRA when saving it"},
    {"fan_in_fan_out", "only models with linear layers stored as [out, in] are served"},
    {"kasa_config", "train without it"},
    {"layer_replication", "serve a model that has the replicated layers"},
    {"lora_bias", "train with lora_bias false"},
    {"megatron_config", "save the adapter in PEFT's own layout"},
    {"modules_to_save", "merge the adapter into the model"},
    {"target_parameters", "merge the adapter into the model"},
    {"trainable_token_indices", "merge the adapter into the model"},
    {"use_bdlora", "merge the adapter into the model"},
    {"use_dora", "merge the adapter into the model"},
    {"use_qalora", "merge the adapter into the model"},
};

bool asks_nothing(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_structured() || value.is_string()) return value.empty();
  return value.is_null();
}

Status refuse(std::string_view field, std::string_view what) {
  return Status::unsupported(fmt::format("adapter_config.json: {} {}", field, what), std::string(field));
}

Status wrong(std::string_view field, std::string_view rule) {
  return Status::invalid_argument(fmt::format("adapter_config.json: {} must be {}", field, rule), std::string(field));
}

Result<int> read_rank(const Json& value, std::string_view field) {
  if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > kMostLoraRank) {
    return wrong(field, fmt::format("a whole number between 1 and {}", kMostLoraRank));
  }
  return value.get<int>();
}

Result<double> read_alpha(const Json& value, std::string_view field) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || std::fabs(value.get<double>()) > 1e6) {
    return wrong(field, "a number between -1e6 and 1e6");
  }
  return value.get<double>();
}

// PEFT takes the keys as regular expressions; those that are written are paths, or ends of paths.
Status check_pattern_key(std::string_view key, std::string_view field) {
  const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-';
  });
  if (plain) return {};
  return refuse(field, "has a key that is no path of a module; write one key for each module, as in "
                       "\"model.layers.0.self_attn.q_proj\" or \"q_proj\"");
}

template <typename Value, typename Read>
Status read_pattern(const Json& json, std::string_view field, Read read,
                    std::vector<std::pair<std::string, Value>>& out) {
  const auto it = json.find(field);
  if (it == json.end() || it->is_null()) return {};
  if (!it->is_object()) return wrong(field, "an object from modules to numbers");
  if (it->size() > kMaxLoraPatterns)
    return wrong(field, fmt::format("an object of at most {} members", kMaxLoraPatterns));
  for (const auto& [key, value] : it->items()) {
    WW_RETURN_IF_ERROR(check_pattern_key(key, field));
    WW_ASSIGN_OR_RETURN(const Value number, read(value, field));
    out.emplace_back(key, number);
  }
  return {};
}

// Which modules have matrices is seen by the tensors; here only that it is one of PEFT's forms.
Status check_target_modules(const Json& value) {
  if (value.is_null() || value.is_string()) return {};
  const bool names =
      value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_string(); });
  return names ? Status() : wrong("target_modules", "a list of names, or a string");
}

// Some ways to begin training change the model's own weights, too, so that the adapter belongs to others than these.
Status check_beginning(const Json& value) {
  if (value.is_null() || value.is_boolean()) return {};
  if (!value.is_string()) return wrong("init_lora_weights", "true, false or a name");
  constexpr std::string_view kKeepTheModel[] = {"gaussian", "eva", "orthogonal"};
  if (std::find(std::begin(kKeepTheModel), std::end(kKeepTheModel), value.get<std::string>()) !=
      std::end(kKeepTheModel)) {
    return {};
  }
  return refuse("init_lora_weights",
                "changes the model's own weights; convert the adapter to plain LoRA when saving it "
                "(path_initial_model_for_weight_conversion)");
}

Status check_field(const std::string& name, const Json& value) {
  if (name == "r" || name == "lora_alpha" || name == "use_rslora" || name == "rank_pattern" || name == "alpha_pattern")
    return {};
  if (name == "target_modules") return check_target_modules(value);
  if (name == "init_lora_weights") return check_beginning(value);
  if (name == "peft_type") {
    return value == "LORA"
               ? Status()
               : refuse(name, "must be LORA; other methods are not served: merge the adapter into the model");
  }
  if (name == "bias") {
    const bool none = value.is_null() || value == "none";
    return none ? Status() : refuse(name, "must be \"none\"; train without biases or merge the adapter into the model");
  }
  if (asks_nothing(value)) return {};
  for (const Refused& refused : kRefused) {
    if (refused.field == name) return refuse(name, fmt::format("is not served; {}", refused.fix));
  }
  // How training began or which modules it took; the matrices are saved as they are.
  if (name == "eva_config" || name == "loftq_config" || name == "lora_ga_config") {
    return name == "eva_config"
               ? Status()
               : refuse(name, "changes the model's own weights; convert the adapter to plain LoRA when saving it");
  }
  if (std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), name) != std::end(kWithoutEffect)) return {};
  const bool printable =
      name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 127; });
  return Status::unsupported(fmt::format("adapter_config.json: {} is not known here; leave it out or null",
                                         printable ? name : "a member"), printable ? name : "adapter_config.json");
}

// The entry for a module, as PEFT finds it: the key is the path's end.
template <typename Value>
const Value* find_pattern(const std::vector<std::pair<std::string, Value>>& patterns, std::string_view module) {
  for (const auto& [key, value] : patterns) {
    if (module == key) return &value;
    if (module.size() > key.size() && module.ends_with(key) && module[module.size() - key.size() - 1] == '.')
      return &value;
  }
  return nullptr;
}

}  // namespace

int LoraConfig::rank_of(std::string_view module) const {
  const int* const own = find_pattern(rank_pattern, module);
  return own != nullptr ? *own : rank;
}

float LoraConfig::scale_of(std::string_view module) const {
  const double* const own = find_pattern(alpha_pattern, module);
  const double r = rank_of(module);
  return static_cast<float>((own != nullptr ? *own : alpha) / (rank_stabilized ? std::sqrt(r) : r));
}

Result<LoraConfig> parse_adapter_config(std::string_view json_text) {
  if (json_text.size() > kMaxAdapterConfigBytes) {
    return Status::invalid_argument(fmt::format("adapter_config.json has more than {} bytes", kMaxAdapterConfigBytes),
                                    "adapter_config.json");
  }
  WW_ASSIGN_OR_RETURN(const Json json,
                      read_json<Json>(json_text, {.what = "adapter_config.json", .field = "adapter_config.json"}));
  if (!json.is_object())
    return Status::invalid_argument("adapter_config.json must be an object", "adapter_config.json");
  if (!json.contains("peft_type")) return wrong("peft_type", "LORA; is this the folder of an adapter?");
  for (const auto& [name, value] : json.items()) WW_RETURN_IF_ERROR(check_field(name, value));
  LoraConfig out;
  if (!json.contains("r")) return wrong("r", "given");
  if (!json.contains("lora_alpha")) return wrong("lora_alpha", "given");
  WW_ASSIGN_OR_RETURN(out.rank, read_rank(json["r"], "r"));
  WW_ASSIGN_OR_RETURN(out.alpha, read_alpha(json["lora_alpha"], "lora_alpha"));
  if (const auto it = json.find("use_rslora"); it != json.end() && !it->is_null()) {
    if (!it->is_boolean()) return wrong("use_rslora", "true or false");
    out.rank_stabilized = it->get<bool>();
  }
  WW_RETURN_IF_ERROR(read_pattern(json, "rank_pattern", read_rank, out.rank_pattern));
  WW_RETURN_IF_ERROR(read_pattern(json, "alpha_pattern", read_alpha, out.alpha_pattern));
  return out;
}

}  // namespace warpweave
