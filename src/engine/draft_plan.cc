#include "engine/draft_plan.h"

#include <fmt/format.h>

#include "attention/hybrid.h"
#include "base/mapped_file.h"
#include "engine/serve_plan.h"
#include "model/build_decoder.h"
#include "spec/drafter.h"
#include "spec/host_draft_model.h"
#include "spec/token_map.h"

namespace warpweave {
namespace {

constexpr const char* kPathFlag = "--speculative-draft-model-path";
constexpr const char* kTokenMapFlag = "--speculative-token-map";
constexpr size_t kMostTokenMapBytes = size_t{16} << 20;
constexpr uint64_t kDummySeed = 1;  // other weights than the target's
constexpr std::string_view kEagleHead = "LlamaForCausalLMEagle";

Status refused(const std::string& why) { return Status::unsupported(fmt::format("{}: {}", kPathFlag, why), kPathFlag); }

// The configuration and the weights of an EAGLE head.
Status open_eagle(const ServerArgs& args, DraftPlan& plan) {
  const std::string& path = args.speculative_draft_model_path;
  if (!path_exists(path + "/config.json")) return Status::not_found(fmt::format("{} '{}': no config.json", kPathFlag, path), kPathFlag);
  WW_ASSIGN_OR_RETURN(const std::string text, read_text_file(path + "/config.json"));
  WW_ASSIGN_OR_RETURN(plan.config, parse_config_json(text));
  if (plan.config.architecture != kEagleHead) {
    return refused(fmt::format("{} is no EAGLE head; --speculative-algorithm EAGLE runs {}, and STANDALONE any model with "
                               "the target's vocabulary", plan.config.architecture, kEagleHead));
  }
  if (plan.config.num_layers != 1) {
    return refused(fmt::format("the head has {} layers; heads of one layer are served", plan.config.num_layers));
  }
  if (!plan.config.quant_method.empty()) return refused("the head's weights are quantized; use one in bfloat16");
  if (args.load_format == "dummy") {
    plan.weights = make_dummy_weights(plan.config.dtype, kDummySeed);
  } else {
    WW_ASSIGN_OR_RETURN(plan.weights, open_safetensors(path));
  }
  return {};
}

Status open_standalone(const ServerArgs& args, DraftPlan& plan) {
  ModelBundleOptions options = weight_options(args);
  if (args.load_format != "dummy") options.load_format = "auto";
  options.dummy_seed = kDummySeed;
  options.quantization.clear();
  options.skip_tokenizer = true;
  auto bundle = open_model_bundle(args.speculative_draft_model_path, options);
  if (!bundle.ok()) return Status(bundle.status().code(), fmt::format("{}: {}", kPathFlag, bundle.status().message()), kPathFlag);
  plan.config = std::move(bundle->config);
  plan.weights = std::move(bundle->weights);
  if (plan.config.linear) return refused("a draft model with recurrent layers cannot go back behind rejected tokens; use another");
  return {};
}

Status check_fit(const DraftPlan& plan, const DraftTarget& target) {
  const ModelConfig& draft = plan.config;
  if (draft.vocab_size != target.config.vocab_size) {
    return refused(fmt::format("it has {} tokens and the model {}; drafts need the model's own vocabulary", draft.vocab_size,
                               target.config.vocab_size));
  }
  if (draft.max_position_embeddings < target.context_len) {
    return refused(fmt::format("it has {} positions, and {} are served; add --context-length {}", draft.max_position_embeddings,
                               target.context_len, draft.max_position_embeddings));
  }
  if (plan.options.eagle && draft.hidden_size != target.config.hidden_size) {
    return refused(fmt::format("the head reads hidden states of {} values, and the model's have {}", draft.hidden_size,
                               target.config.hidden_size));
  }
  return {};
}

Status read_token_map(const ServerArgs& args, const DraftTarget& target, DraftPlan& plan) {
  const std::string& path = args.speculative_token_map;
  if (path.empty()) return {};
  if (!plan.options.eagle) {
    return Status::unsupported(fmt::format("{}: EAGLE's head shares the model's vocabulary, of which a map takes a part; a "
                                           "STANDALONE model has a head of its own; leave it out", kTokenMapFlag), kTokenMapFlag);
  }
  auto bytes = read_text_file(path, kMostTokenMapBytes);
  if (!bytes.ok()) return Status(bytes.status().code(), fmt::format("{}: {}", kTokenMapFlag, bytes.status().message()), kTokenMapFlag);
  WW_ASSIGN_OR_RETURN(plan.tokens, parse_token_map(*bytes, target.config.vocab_size));
  return {};
}

// An EAGLE head's layer is Llama's.
Status check_gpu_draft(const DraftPlan& plan) {
  ModelConfig config = plan.config;
  if (plan.options.eagle) config.architecture = "LlamaForCausalLM";
  const Status fits = check_gpu_model(config);
  return fits.ok() ? fits : refused(fits.message());
}

// Every token's page must stay for as long as the request runs.
Result<int> whole_group(const CacheLayout& layout) {
  for (int group = 0; group < layout.num_groups(); ++group) {
    if (!layout.groups[group].windowed()) return group;
  }
  return Status::unsupported(fmt::format("{}: every layer of the model has a sliding window, so pages are given back that "
                                         "the draft model still reads; add --disable-hybrid-swa-memory", kPathFlag),
                             "--disable-hybrid-swa-memory");
}

AttentionFlags draft_flags(const ServerArgs& args, const DraftTarget& target) {
  ServerArgs own = args;
  if (!args.speculative_draft_attention_backend.empty()) {
    own.attention_backend = args.speculative_draft_attention_backend;
    own.prefill_attention_backend.clear();
    own.decode_attention_backend.clear();
  }
  own.kv_cache_dtype = "auto";
  own.page_size = target.attention.page_size;
  AttentionFlags flags = attention_flags(own);
  const Speculation& speculation = target.attention.speculation;
  flags.speculative_num_steps = speculation.num_steps;
  flags.speculative_eagle_topk = speculation.topk;
  flags.speculative_num_draft_tokens = speculation.num_draft_tokens;
  return flags;
}

}  // namespace

Result<std::optional<DraftPlan>> plan_draft(const ServerArgs& args, const DraftTarget& target) {
  const Speculation& speculation = target.attention.speculation;
  if (speculation.algorithm.empty() || speculation.algorithm == "NGRAM") return std::optional<DraftPlan>();
  DraftPlan plan;
  plan.options = {speculation.algorithm == "EAGLE", speculation.num_steps, speculation.topk, speculation.num_draft_tokens};
  WW_RETURN_IF_ERROR(plan.options.eagle ? open_eagle(args, plan)
                                        : open_standalone(args, plan));
  WW_RETURN_IF_ERROR(check_fit(plan, target));
  WW_RETURN_IF_ERROR(read_token_map(args, target, plan));
  WW_ASSIGN_OR_RETURN(plan.cache_group, whole_group(target.cache_layout));
  if (is_gpu_target(target.hardware.arch)) WW_RETURN_IF_ERROR(check_gpu_draft(plan));
  WW_ASSIGN_OR_RETURN(plan.dtype, resolve_dtype(args.dtype, plan.config.dtype));
  if (plan.options.eagle) plan.dtype = target.dtype;  // it goes on from the target's rows
  WW_ASSIGN_OR_RETURN(plan.attention, select_attention(target.hardware, attention_model_facts(plan.config, plan.dtype),
                                                       draft_flags(args, target)));
  return std::optional<DraftPlan>(std::move(plan));
}

KvCacheShape draft_cache_shape(const DraftPlan& plan, int num_pages) {
  KvCacheShape shape = kv_shape_of(plan.config, plan.attention);
  shape.num_pages = num_pages;
  shape.layout = single_cache_group(plan.config.num_layers);
  return shape;
}

size_t draft_page_bytes(const DraftPlan& plan) { return KvCache::page_bytes(draft_cache_shape(plan, 1)); }

Result<std::unique_ptr<Drafter>> start_drafter(const DraftPlan& plan, const DraftLimits& limits, DecoderModel& target,
                                               ThreadTeam& team) {
  HostDraftParts parts;
  const BuildOptions build = {.dtype = plan.dtype, .max_positions = limits.context_len, .progress = {}};
  if (plan.options.eagle) {
    WW_ASSIGN_OR_RETURN(parts.model, build_eagle_layers(plan.config, plan.weights, build, team));
  } else {
    WW_ASSIGN_OR_RETURN(parts.model, build_decoder(plan.config, plan.weights, build, team));
  }
  WW_ASSIGN_OR_RETURN(parts.attention, create_resolved_backend(plan.attention, {.team = &team,
                                                                                .max_context_len = limits.context_len,
                                                                                .page_size = plan.attention.page_size}));
  WW_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(draft_cache_shape(plan, limits.num_pages), {}));
  parts.cache = std::make_unique<KvCache>(std::move(cache));
  parts.cache_group = plan.cache_group;
  parts.tokens = plan.tokens;
  if (!plan.tokens.empty()) {
    WW_ASSIGN_OR_RETURN(parts.head, target.head_of(plan.tokens, team));
  }
  auto model = std::make_unique<HostDraftModel>(std::move(parts), plan.options.eagle, target, team);
  return std::make_unique<Drafter>(std::move(model), plan.options, kDraftSlotsPerRequest * limits.max_requests,
                                   plan.cache_group);
}

}  // namespace warpweave
