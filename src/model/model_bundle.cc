#include "model/model_bundle.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "model/families/family.h"
#include "model/fp8_weights.h"
#include "model/gguf_model.h"
#include "model/renamed_weights.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

Result<std::string> optional_text(const std::string& path) {
  if (!path_exists(path)) return std::string();
  return read_text_file(path);
}

// chat_template.jinja, else the template in tokenizer_config.json (a string, or a list of named ones).
Result<std::string> find_chat_template(const std::string& folder, const std::string& tokenizer_config) {
  WW_ASSIGN_OR_RETURN(std::string own_file, optional_text(folder + "/chat_template.jinja"));
  if (!own_file.empty()) return own_file;
  if (tokenizer_config.empty()) return std::string();
  WW_ASSIGN_OR_RETURN(const nlohmann::json config,
                      read_json<nlohmann::json>(tokenizer_config,
                                                 {folder + "/tokenizer_config.json", StatusCode::data_loss}));
  if (!config.is_object() || !config.contains("chat_template")) return std::string();
  const auto& found = config["chat_template"];
  if (found.is_string()) return found.get<std::string>();
  if (found.is_array()) {
    for (const auto& entry : found) {
      if (entry.is_object() && entry.contains("name") && entry["name"] == "default" &&
          entry.contains("template") && entry["template"].is_string()) {
        return entry["template"].get<std::string>();
      }
    }
  }
  return std::string();
}

Status open_tokenizer(const std::string& folder, ModelBundle& out) {
  const std::string file = folder + "/tokenizer.json";
  if (!path_exists(file)) {
    const bool older = path_exists(folder + "/tokenizer.model") || path_exists(folder + "/vocab.json");
    const char* const made = older ? "save_pretrained() of transformers' AutoTokenizer makes one; or " : "";
    return Status::not_found(folder + ": no tokenizer.json; " + made + "give --tokenizer-path, or serve token ids with "
                             "--skip-tokenizer-init", "--tokenizer-path");
  }
  WW_ASSIGN_OR_RETURN(const std::string tokenizer, read_text_file(file));
  WW_ASSIGN_OR_RETURN(const std::string config, optional_text(folder + "/tokenizer_config.json"));
  auto loaded = load_hf_tokenizer(tokenizer, config);
  if (!loaded.ok()) return loaded.status().with_context(folder);  // the file's name is said
  out.tokenizer = std::move(loaded).value();
  WW_ASSIGN_OR_RETURN(out.chat_template, find_chat_template(folder, config));
  return {};
}

void merge_eos(ModelBundle& bundle) {
  for (const auto* ids : {&bundle.config.eos_token_ids, &bundle.generation.eos_token_ids}) {
    for (int32_t id : *ids) {
      auto& all = bundle.eos_token_ids;
      if (std::find(all.begin(), all.end(), id) == all.end()) all.push_back(id);
    }
  }
}

Status refuse_quantization(const std::string& what) {
  return Status::invalid_argument("--quantization fp8: " + what + "; leave the flag out", "--quantization");
}

// Weights in a format of fewer bits, by the checkpoint or by --quantization.
Status open_quantized(const std::string& folder, const ModelBundleOptions& options, ModelBundle& bundle) {
  const std::string& method = bundle.config.quant_method;
  const bool dummy = options.load_format == "dummy", stored = method == "fp8" && !dummy;
  WW_RETURN_IF_ERROR(check_weight_format(bundle.config, options, folder + "/config.json", bundle.weights.get()));
  if (stored) {
    bundle.weights = read_fp8_weights(std::move(bundle.weights), bundle.config.fp8);
  } else if (method == "fp8" || options.quantization == "fp8") {
    bundle.weights = quantize_weights_fp8(std::move(bundle.weights), bundle.config.fp8);
  } else {
    return {};
  }
  LOG_INFO("8-bit weights ({}, {})", stored ? "as stored" : "rounded while they are read",
           bundle.config.fp8.block_rows > 0 ? "scales of blocks"
           : stored                         ? "scales of tensors or rows"
                                            : "a scale for each output feature");
  return {};
}

// The one .gguf file of a folder, or empty.
std::string gguf_in_folder(const std::string& folder) {
  std::string found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".gguf") {
      if (!found.empty()) return {};
      found = entry.path();
    }
  }
  return found;
}

Result<ModelBundle> open_gguf_bundle(const std::string& file, const ModelBundleOptions& options) {
  if (!options.quantization.empty()) return refuse_quantization(file + " says itself how its weights are stored");
  WW_ASSIGN_OR_RETURN(GgufModel gguf, load_gguf_model(file));
  ModelBundle out;
  out.gguf = true;
  out.config = std::move(gguf.config);
  out.weights = std::move(gguf.weights);
  if (!options.skip_tokenizer) {
    if (options.tokenizer_path.empty()) {
      WW_ASSIGN_OR_RETURN(out.tokenizer, build_gguf_tokenizer(gguf.tokenizer));
      out.chat_template = std::move(gguf.chat_template);
    } else {
      WW_RETURN_IF_ERROR(open_tokenizer(options.tokenizer_path, out));
    }
  }
  merge_eos(out);
  return out;
}

}  // namespace

Result<ModelConfig> read_served_config(std::string_view config_json) {
  const Result<nlohmann::json> parsed = read_json<nlohmann::json>(config_json, {"config.json"});
  const auto names =
      parsed.ok() && parsed->is_object() ? parsed->value("architectures", nlohmann::json()) : nlohmann::json();
  if (names.is_array() && !names.empty() && names[0].is_string()) {
    WW_RETURN_IF_ERROR(find_family(names[0].get<std::string>()).status());
  }
  return parse_config_json(config_json);
}

Status check_weight_format(const ModelConfig& config, const ModelBundleOptions& options, const std::string& where,
                           const WeightSource* weights) {
  const std::string& method = config.quant_method;
  if (options.load_format == "dummy" || method.empty() || method == "fp8") return {};
  if (method != "mxfp4") {
    return Status::unsupported(
        where + ": quantization_config.quant_method \"" + method.substr(0, 40) +
            "\" is not supported; supported are fp8 and compressed-tensors of 8-bit floats; or use a "
            "checkpoint saved in bfloat16, or a GGUF file",
        "quantization_config");
  }
  if (!options.quantization.empty()) {
    return refuse_quantization(where + " says that its weights are stored as " + method);
  }
  if (weights == nullptr || weights->has("model.layers.0.mlp.experts.gate_up_proj_blocks")) {
    return Status::unsupported(where + ": MXFP4 expert weights are not supported; use a checkpoint saved in bfloat16",
                               "quantization_config");
  }
  return {};
}

Result<std::shared_ptr<WeightSource>> open_folder_weights(const std::string& folder, const ModelConfig& config) {
  WW_ASSIGN_OR_RETURN(std::shared_ptr<WeightSource> weights, open_safetensors(folder));
  weights = weights_of_floats(std::move(weights), config.quant_method == "fp8");
  if (config.encoder) return encoder_weight_names(std::move(weights), config.architecture);
  return with_model_prefix(language_model_weights(std::move(weights)));
}

Result<ModelBundle> open_model_bundle(const std::string& path, const ModelBundleOptions& options) {
  if (!path_exists(path)) {
    return Status::not_found("--model-path '" + path + "' does not exist; give a model folder or a .gguf file",
                             "--model-path");
  }
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  if (!is_folder || options.load_format == "gguf") {
    const std::string file = is_folder ? gguf_in_folder(path) : path;
    if (file.empty()) {
      return Status::invalid_argument(path + ": --load-format gguf needs exactly one .gguf file in the folder",
                                      "--load-format");
    }
    return open_gguf_bundle(file, options);
  }
  if (!path_exists(path + "/config.json")) {
    const std::string file = gguf_in_folder(path);
    if (!file.empty() && options.load_format == "auto") return open_gguf_bundle(file, options);
    return Status::not_found(path + ": no config.json; a model folder has config.json, *.safetensors and "
                             "tokenizer.json, or one .gguf file", "--model-path");
  }
  ModelBundle out;
  WW_ASSIGN_OR_RETURN(const std::string config, read_text_file(path + "/config.json"));
  WW_ASSIGN_OR_RETURN(out.config, read_served_config(config));
  WW_ASSIGN_OR_RETURN(const std::string generation, optional_text(path + "/generation_config.json"));
  if (!generation.empty()) {
    WW_ASSIGN_OR_RETURN(out.generation, parse_generation_config_json(generation));
  }
  if (options.load_format == "dummy") {
    out.weights = make_dummy_weights(options.dummy_dtype, options.dummy_seed);
  } else {
    WW_ASSIGN_OR_RETURN(out.weights, open_folder_weights(path, out.config));
  }
  WW_RETURN_IF_ERROR(open_quantized(path, options, out));
  WW_ASSIGN_OR_RETURN(out.pooling, read_pooling_config(path));
  if (!options.skip_tokenizer) {
    WW_RETURN_IF_ERROR(open_tokenizer(options.tokenizer_path.empty() ? path : options.tokenizer_path, out));
  }
  merge_eos(out);
  return out;
}

}  // namespace warpweave
