// What `explain` knows of a model without its weights: facts read from a config.json, be it of a
// model folder, or of a well-known model inside this program (known_models.json: excerpts of the
// configurations their authors published). Architectures that are not served can be explained too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attention/select.h"
#include "flags/server_args.h"
#include "warpweave/status.h"

namespace warpweave {

// `config` is the text of a config.json; `dtype_flag` the value of --dtype. `data_loss` names the
// key that is missing or wrong.
Result<ModelFacts> model_facts_from_config(std::string_view config, const std::string& dtype_flag);

// "Qwen/Qwen3-8B", or "qwen3-8b", or with what instruction-tuned versions add ("-Instruct-2507").
// Empty for others.
std::string_view known_model_config(std::string_view name);
std::vector<std::string> known_model_names();

// --model-path: a folder, a GGUF file, the name of a model at hand, or a well-known id.
Result<ModelFacts> explain_model_facts(const ServerArgs& args);

}  // namespace warpweave
