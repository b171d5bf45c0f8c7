// What `explain` knows of a model without its weights: facts read from a config.json, be it of a
// model folder, or of a well-known model inside this program (known_models.json: excerpts of the
// configurations their authors published). Architectures that are not served can be explained too.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/select.h"
#include "flags/server_args.h"
#include "model/model_bundle.h"
#include "warpweave/status.h"

namespace warpweave {

// `config` is the text of a config.json; `dtype_flag` the value of --dtype. `data_loss` names the
// key that is missing or wrong.
Result<ModelFacts> model_facts_from_config(std::string_view config, const std::string& dtype_flag);

struct KnownModelConfig {
  std::string name;    // "Qwen/Qwen3-8B"
  std::string config;  // of its config.json; with another way to store weights where the name asked for one
};

// "Qwen/Qwen3-8B", or "qwen3-8b", or with what versions of it add ("-Instruct-2507", "-FP8").
std::optional<KnownModelConfig> find_known_model(std::string_view name);
std::vector<std::string> known_model_names();

// A model as far as it is known without reading weights.
struct ModelDescription {
  std::string where;                     // the file, for messages
  std::string path;                      // of the weights; empty: they are not at hand
  std::vector<std::string> notes;        // for the user
  Result<ModelConfig> config = Status::unavailable("not read");  // or why it is not served
  Result<ModelFacts> facts = Status::unavailable("not read");    // of unserved models, too
  std::vector<int32_t> eos_token_ids;
  std::shared_ptr<WeightSource> weights;  // where the rules need them; else null
};

// --model-path: a folder, a GGUF file, the name of a model at hand, or a well-known id. An error when
// there is no such model, or its file is broken.
Result<ModelDescription> describe_model(const ServerArgs& args);
// Its facts alone.
Result<ModelFacts> explain_model_facts(const ServerArgs& args);

}  // namespace warpweave
