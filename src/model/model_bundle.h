// A model folder (or .gguf file) opened: its configuration, where its weights are, its tokenizer
// and chat template. Nothing is packed yet: build_decoder() does that after the attention backend
// has been chosen. Errors name the file and the cause.
#pragma once

#include <memory>
#include <string>

#include "model/config.h"
#include "model/pooling.h"
#include "model/weight_source.h"
#include "text/tokenizer.h"

namespace warpweave {

struct ModelBundleOptions {
  std::string load_format = "auto";     // auto, safetensors, gguf, dummy
  std::string tokenizer_path;           // empty: the model's own
  bool skip_tokenizer = false;
  DType dummy_dtype = DType::bf16;      // of --load-format dummy
  uint64_t dummy_seed = 0;
  std::string quantization = {};        // "fp8": projections are rounded to 8 bits; empty: as stored
};

struct ModelBundle {
  ModelConfig config;
  GenerationDefaults generation;
  std::shared_ptr<WeightSource> weights;
  std::unique_ptr<Tokenizer> tokenizer;  // null with skip_tokenizer
  std::string chat_template;             // empty: the model has none
  PoolingConfig pooling;                 // of states, where they are asked for
  std::vector<int32_t> eos_token_ids;    // of config and generation config, without repeats
  bool gguf = false;                     // it is a GGUF file
};

Result<ModelBundle> open_model_bundle(const std::string& path, const ModelBundleOptions& options);

// The safetensors of `folder` by the names that the decoder's builder asks for; 8-bit ones as they are stored.
Result<std::shared_ptr<WeightSource>> open_folder_weights(const std::string& folder, const ModelConfig& config);

// The checks of open_model_bundle that need no weights, for who has a config.json alone.
// parse_config_json, after a look at the family: of one that is not served nothing else is said.
Result<ModelConfig> read_served_config(std::string_view config_json);
// How the weights are stored and what --quantization asks for. `where` names the file. `weights`: null
// when they are not at hand; those of MXFP4 checkpoints are looked at.
Status check_weight_format(const ModelConfig& config, const ModelBundleOptions& options, const std::string& where,
                           const WeightSource* weights);

}  // namespace warpweave
