// From flags to a running engine: opens the model, selects attention, packs weights, sizes the
// KV pool, starts the threads. Everything that can be refused is refused before weights are read.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "attention/tuning.h"
#include "engine/serve_plan.h"
#include "flags/server_args.h"
#include "lora/registry.h"
#include "model/model_bundle.h"
#include "spec/proposer.h"
#include "warpweave/engine.h"

namespace warpweave {

// What --attention-tuning-file holds; empty when it was not given.
Result<std::optional<TuningTable>> attention_tuning(const ServerArgs& args);

// Opens what --model-path names (`path` is the resolved folder or file).
Result<ModelBundle> open_served_model(const ServerArgs& args, const std::string& path);

struct EngineOptions {
  ServerArgs args;
  std::string model_path;                      // resolved
  std::function<void(int done, int all)> on_weights_progress;  // layers; may be empty
  Proposer* proposer = nullptr;                // outlives the engine; null: what the flags ask for
  int max_proposals = 0;                       // tokens that it may propose at once
  bool whole_batch_lengths = false;            // for tests: --speculative-adaptive by the GPUs' rule on CPUs, too
};

// The engine with the parts of the model that the server reads too.
struct ServedModel {
  std::unique_ptr<Tokenizer> tokenizer;        // outlives the engine; null without one
  std::string chat_template;
  GenerationDefaults generation;
  Resolved attention;
  std::unique_ptr<LoraRegistry> adapters;      // null: none are served
  std::unique_ptr<Engine> engine;              // destroyed first
};

Result<ServedModel> create_engine(const EngineOptions& options);

}  // namespace warpweave
