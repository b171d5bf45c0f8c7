// From flags, a model's configuration and a device to what would be served: every rule that can refuse
// before weights are read. serve starts from the plan, explain prints it, so that both give one answer.
// Pure but for the probes of attention backends on this machine, and for a draft model's configuration, which is read.
// Errors name the flag or the file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/latent_forms.h"
#include "attention/mods/expression.h"
#include "attention/select.h"
#include "engine/draft_plan.h"
#include "flags/server_args.h"
#include "kv/kv_cache.h"
#include "linear/dispatch.h"
#include "model/model_bundle.h"
#include "sched/scheduler.h"

namespace warpweave {

// Members outlive the call only.
struct ModelToServe {
  const ModelConfig& config;
  const std::vector<int32_t>& eos_token_ids;
  const WeightSource* weights = nullptr;  // null: only the configuration is known
  std::string where;                      // the folder or file, for messages
  std::string path;                       // of its weights; empty: only the configuration is known
};

struct ServeTarget {
  HardwareFacts hardware;
  bool described = false;                 // by name: judged as by a program built for it
  const TuningTable* tuning = nullptr;    // of --attention-tuning-file
  int64_t memory_bytes = 0;               // of a GPU; 0: not known
};

struct ServePlan {
  DType dtype = DType::bf16;
  int context_len = 0;
  ModelFacts model;
  Resolved attention;
  mods::Modifiers modifiers;              // of flex_attention
  CacheLayout cache_layout;
  LatentFormTimes latent_forms;           // by which prompts of latent attention are computed; empty: by counting
  std::optional<DraftPlan> draft;         // the draft model of speculative decoding
  bool jump_forward = false;              // without speculation: forced text is proposed
  SchedulerConfig scheduler;              // all but num_pages, which waits for the memory
  std::vector<int> graph_batch_sizes = {};     // where decode is captured
};

// The kernels of linear layers that selection named.
LinearAttnNames linear_attn_names(const ServePlan& plan);

Result<ServePlan> plan_serving(const ServerArgs& args, const ModelToServe& model, const ServeTarget& target);

// The parts of plan_serving that explain lists one by one: whether anything is compiled for the device,
// and what is wrong with the model before attention is asked.
Status check_serve_device(const HardwareFacts& hardware);
Status check_served_model(const ServerArgs& args, const ModelToServe& model, DeviceArch arch);
// Whether the weights alone fit a GPU whose memory is known.
Status check_weights_fit(const ServerArgs& args, const ModelConfig& config, const ServeTarget& target);
bool is_gpu_target(DeviceArch arch);

// What plan_serving hands to selection.
ModelFacts attention_model_facts(const ModelConfig& config, DType dtype);
AttentionFlags attention_flags(const ServerArgs& args);

// How the weights are asked for: --load-format and --quantization.
ModelBundleOptions weight_options(const ServerArgs& args);

// --dtype for this checkpoint: f32, bf16 or f16.
Result<DType> resolve_dtype(const std::string& flag, DType checkpoint);

// Of a model's layers under a choice of attention; pages and their layout are left to the caller.
KvCacheShape kv_shape_of(const ModelConfig& config, const Resolved& attention);

}  // namespace warpweave
