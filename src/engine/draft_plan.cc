#include "engine/draft_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "attention/hybrid.h"
#include "attention/registry.h"
#include "base/mapped_file.h"
#include "engine/serve_plan.h"
#include "engine/speculation.h"
#include "model/build_decoder.h"
#include "model/fp8_weights.h"
#include "model/gguf_arch.h"
#include "model/renamed_weights.h"
#include "spec/drafter.h"
#include "spec/host_draft_model.h"
#include "spec/token_map.h"

namespace warpweave {
namespace {

constexpr const char* kPathFlag = "--speculative-draft-model-path";
constexpr const char* kTokenMapFlag = "--speculative-token-map";
constexpr size_t kMostTokenMapBytes = size_t{16} << 20;
constexpr uint64_t kDummySeed = 1;  // other weights than the target's
constexpr const char* kAlgorithmFlag = "--speculative-algorithm";
constexpr const char* kQuantizationFlag = "--speculative-draft-model-quantization";
constexpr const char* kWindowFlag = "--speculative-draft-window-size";
constexpr std::string_view kEagleHead = "LlamaForCausalLMEagle", kEagle3Head = "LlamaForCausalLMEagle3";

Status refused(const std::string& why) { return Status::unsupported(fmt::format("{}: {}", kPathFlag, why), kPathFlag); }

Status check_fit(const DraftPlan& plan, const DraftTarget& target) {
  const ModelConfig& draft = plan.config;
  if (draft.vocab_size != target.config.vocab_size) {
    return refused(fmt::format("it has {} tokens and the model {}; drafts need the model's own vocabulary",
                               draft.vocab_size, target.config.vocab_size));
  }
  if (!plan.options.eagle && draft.max_position_embeddings < target.context_len) {
    return refused(fmt::format("it has {} positions, and {} are served; add --context-length {}",
                               draft.max_position_embeddings, target.context_len, draft.max_position_embeddings));
  }
  if (plan.options.eagle && draft.hidden_size != target.config.hidden_size) {
    return refused(fmt::format("the head reads hidden states of {} values, and the model's have {}", draft.hidden_size,
                               target.config.hidden_size));
  }
  return {};
}

Status at_path(const Status& status) {
  return Status(status.code(), fmt::format("{}: {}", kPathFlag, status.message()), kPathFlag);
}

// What --quantization would be for the draft model's checkpoint; `unset`: where the flag is not given.
std::string draft_quantization(const ServerArgs& args, const std::string& unset) {
  const std::string& given = args.speculative_draft_model_quantization;
  return given.empty() ? unset : given == "fp8" ? given : std::string();
}

Status of_draft(const ServerArgs& args, const Status& status) {
  const bool by_flag = status.field() == "--quantization" && !args.speculative_draft_model_quantization.empty();
  return by_flag ? Status(status.code(), fmt::format("{}: {}", kQuantizationFlag, status.message()), kQuantizationFlag)
                 : at_path(status);
}

// The configuration and the weights of a head that has a folder of its own.
Status open_head(const ServerArgs& args, std::string_view architecture, DraftPlan& plan) {
  const std::string& path = args.speculative_draft_model_path;
  if (!path_exists(path + "/config.json"))
    return Status::not_found(fmt::format("{} '{}': no config.json", kPathFlag, path), kPathFlag);
  const Result<std::string> text = read_text_file(path + "/config.json");
  if (!text.ok()) return at_path(text.status());
  Result<ModelConfig> config = parse_config_json(*text);
  if (!config.ok()) return at_path(config.status());
  plan.config = *std::move(config);
  if (plan.config.architecture != architecture) {
    return refused(
        fmt::format("{} is no such head; --speculative-algorithm EAGLE runs {}, EAGLE3 {}, and STANDALONE any model "
                    "with the target's vocabulary",
                    plan.config.architecture, kEagleHead, kEagle3Head));
  }
  if (plan.config.num_layers != 1) {
    return refused(fmt::format("the head has {} layers; heads of one layer are served", plan.config.num_layers));
  }
  if (!plan.config.quant_method.empty()) return refused("the head's weights are quantized; use one in bfloat16");
  if (args.load_format == "dummy") {
    plan.weights = make_dummy_weights(plan.config.dtype, kDummySeed);
  } else {
    auto weights = open_safetensors(path);
    if (!weights.ok()) return at_path(weights.status());
    plan.weights = weights_of_floats(*std::move(weights), /*fp8=*/false);
  }
  if (draft_quantization(args, "") == "fp8") {
    plan.weights = quantize_weights_fp8(std::move(plan.weights), plan.config.fp8);
  }
  return {};
}

// A head of its own vocabulary: `config` then says its size.
Status open_eagle3(const ServerArgs& args, const DraftTarget& target, DraftPlan& plan) {
  WW_RETURN_IF_ERROR(open_head(args, kEagle3Head, plan));
  const Eagle3Config& head = *plan.config.eagle3;
  auto layers = eagle3_target_layers(head, target.config.num_layers);
  if (!layers.ok()) return at_path(layers.status());
  plan.target_layers = *std::move(layers);
  WW_RETURN_IF_ERROR(check_fit(plan, target));
  if (head.draft_vocab_size > 0) plan.config.vocab_size = head.draft_vocab_size;
  if (args.load_format == "dummy") return {};
  auto tokens = eagle3_tokens(plan.config, *plan.weights, target.config.vocab_size);
  if (!tokens.ok()) return at_path(tokens.status());
  plan.tokens = *std::move(tokens);
  if (plan.tokens.empty() && plan.config.vocab_size != target.config.vocab_size) {
    return refused(
        fmt::format("the head guesses {} tokens, and its checkpoint has no d2t that says which of the model's {} "
                    "they are",
                    plan.config.vocab_size, target.config.vocab_size));
  }
  return {};
}

// The layers are in the model's own checkpoint, or in another one of its kind.
Status open_nextn(const ServerArgs& args, const DraftTarget& target, DraftPlan& plan) {
  ModelBundleOptions options = weight_options(args);
  options.quantization = draft_quantization(args, args.quantization);
  options.skip_tokenizer = true;
  const std::string& own = args.speculative_draft_model_path;
  const std::string& path = own.empty() ? target.path : own;
  if (path.empty()) {
    if (!has_nextn_layers(target.config)) {
      return Status::unsupported(fmt::format("{} {}: {} has no layer that predicts further tokens", kAlgorithmFlag,
                                             args.speculative_algorithm, target.config.architecture),
                                 kAlgorithmFlag);
    }
    plan.config = nextn_layer_config(target.config);
    return {};
  }
  WW_ASSIGN_OR_RETURN(ModelBundle bundle, open_model_bundle(path, options));
  auto config = nextn_config(bundle.config, *bundle.weights);
  if (!config.ok()) {
    const std::string in_gguf = fmt::format(
        "; GGUF files have it as blk.N.nextn.*, which is read of {}", gguf_nextn_archs());
    return Status::unsupported(fmt::format("{} {}: {}{}", kAlgorithmFlag, args.speculative_algorithm,
                                           config.status().message(), bundle.gguf ? in_gguf : ""),
                               kAlgorithmFlag);
  }
  plan.config = *std::move(config);
  plan.weights = std::move(bundle.weights);
  if (plan.config.architecture == target.config.architecture) return {};
  return refused(fmt::format("it is {}, and the model {}", plan.config.architecture, target.config.architecture));
}

Status open_standalone(const ServerArgs& args, DraftPlan& plan) {
  ModelBundleOptions options = weight_options(args);
  if (args.load_format != "dummy") options.load_format = "auto";
  options.dummy_seed = kDummySeed;
  options.quantization = draft_quantization(args, "");
  options.skip_tokenizer = true;
  auto bundle = open_model_bundle(args.speculative_draft_model_path, options);
  if (!bundle.ok()) return of_draft(args, bundle.status());
  plan.config = std::move(bundle->config);
  plan.weights = std::move(bundle->weights);
  if (plan.config.has_recurrent_layers())
    return refused("a draft model with recurrent layers cannot go back behind rejected tokens; use another");
  return {};
}

Status read_token_map(const ServerArgs& args, const DraftTarget& target, DraftPlan& plan) {
  const std::string& path = args.speculative_token_map;
  if (path.empty()) return {};
  if (!plan.head || plan.head == DraftHeadKind::eagle3) {
    return Status::unsupported(
        fmt::format("{}: heads of EAGLE and NEXTN share the model's vocabulary, of which a map takes a "
                    "part; EAGLE3 and STANDALONE have their own; leave it out",
                    kTokenMapFlag),
        kTokenMapFlag);
  }
  auto bytes = read_text_file(path, kMostTokenMapBytes);
  if (!bytes.ok())
    return Status(bytes.status().code(), fmt::format("{}: {}", kTokenMapFlag, bytes.status().message()), kTokenMapFlag);
  WW_ASSIGN_OR_RETURN(plan.tokens, parse_token_map(*bytes, target.config.vocab_size));
  return {};
}

// A window over every layer, in which the draft model's K/V are kept all the same: they share the target's pages.
Status limit_window(const ServerArgs& args, DraftPlan& plan) {
  if (!args.speculative_draft_window_size) return {};
  ModelConfig& config = plan.config;
  if (config.has_windows() || config.local_rope) {
    return Status::unsupported(
        fmt::format("{}: the draft model has windows of its own; leave the flag out", kWindowFlag), kWindowFlag);
  }
  config.sliding_window = *args.speculative_draft_window_size;
  config.sliding_layers.assign(config.num_layers, true);
  return {};
}

// The layer of a head of EAGLE or EAGLE3 is Llama's.
Status check_gpu_draft(const DraftPlan& plan) {
  ModelConfig config = plan.config;
  if (plan.head && plan.head != DraftHeadKind::nextn) config.architecture = "LlamaForCausalLM";
  const Status fits = check_gpu_model(config);
  if (!fits.ok()) return refused(fits.message());
  constexpr int kWidth = 8;  // that a thread of the drafts' kernels reads at once
  if (config.hidden_size % kWidth == 0) return {};
  return refused(fmt::format("--device cuda drafts with hidden sizes that are multiples of {}; this model has {}; "
                             "use --device cpu", kWidth, config.hidden_size));
}

// Every token's page must stay for as long as the request runs.
Result<int> whole_group(const CacheLayout& layout) {
  for (int group = 0; group < layout.num_groups(); ++group) {
    if (!layout.groups[group].windowed()) return group;
  }
  return Status::unsupported(
      fmt::format("{}: every layer of the model has a sliding window, so pages are given back that "
                  "the draft model still reads; add --disable-hybrid-swa-memory",
                  kPathFlag),
      "--disable-hybrid-swa-memory");
}

bool has_kernels(const std::string& name, AttentionKind kind) {
  return std::ranges::any_of(known_backends(), [&](const KnownBackend& backend) {
    return backend.caps->name == name && backend.caps->kinds.has(kind);
  });
}

// Names that are the target's go on for the draft model where they have kernels for its kind of attention; those of
// layers that it has not got are the target's alone.
AttentionFlags draft_flags(const ServerArgs& args, const DraftTarget& target, const ModelFacts& facts) {
  ServerArgs own = args;
  for (std::string* name : {&own.attention_backend, &own.prefill_attention_backend, &own.decode_attention_backend}) {
    if (!has_kernels(*name, facts.kind)) name->clear();
  }
  if (!args.speculative_draft_attention_backend.empty()) {
    own.attention_backend = args.speculative_draft_attention_backend;
    own.prefill_attention_backend.clear();
    own.decode_attention_backend.clear();
  }
  own.kv_cache_dtype = "auto";
  own.page_size = target.attention.page_size;
  AttentionFlags flags = attention_flags(own);
  if (facts.linear == LinearAttention::none) {
    flags.linear_attn_backend.clear();
    flags.linear_attn_prefill_backend.clear();
    flags.linear_attn_decode_backend.clear();
  }
  if (facts.kind != AttentionKind::sparse) flags.nsa_prefill_backend.clear(), flags.nsa_decode_backend.clear();
  if (!facts.vision) flags.mm_attention_backend.clear();
  const Speculation& speculation = target.attention.speculation;
  flags.speculative_num_steps = speculation.num_steps;
  flags.speculative_eagle_topk = speculation.topk;
  flags.speculative_num_draft_tokens = speculation.num_draft_tokens;
  return flags;
}

// What a draft model's matrices are rounded to. On a CPU, where weights of fewer bits are read and multiplied in less
// time, 4 bits unless another number is asked for: the text is the target's in any case.
Result<std::optional<DType>> draft_blocks(const ServerArgs& args, const DraftPlan& plan, const DraftTarget& target) {
  const std::string& given = args.speculative_draft_model_quantization;
  const bool cpu = !is_gpu_target(target.hardware.arch), asked = given == "int8" || given == "int4";
  if (asked && (!cpu || plan.dtype != DType::bf16)) {
    return Status::unsupported(
        fmt::format("{} {} is of draft models in bfloat16 on a CPU; {}", kQuantizationFlag, given,
                    cpu ? "leave it out or add --dtype bfloat16" : "use fp8, or leave it out"),
        kQuantizationFlag);
  }
  if (!cpu || plan.dtype != DType::bf16 || (!given.empty() && !asked)) return std::optional<DType>();
  return std::optional(given == "int8" ? DType::q8_0 : DType::iq4_nl);
}

// What a head on a GPU reads in 8 bits: the model's output head, two thirds of all, and unless its weights are what
// --quantization says, or were rounded as they were opened, these. The text is the target's in any case.
void round_head(const ServerArgs& args, bool gpu, DraftPlan& plan) {
  const std::string& given = args.speculative_draft_model_quantization;
  plan.head_in_8_bits = gpu && plan.head && plan.dtype != DType::f32 && (given.empty() || given == "fp8");
  plan.rounds_weights = plan.head_in_8_bits && given.empty() && plan.head != DraftHeadKind::nextn;
}

std::optional<DraftHeadKind> head_kind(const ServerArgs& args) {
  const std::string& algorithm = args.speculative_algorithm;
  if (algorithm == "STANDALONE") return std::nullopt;
  if (algorithm == "EAGLE3") return DraftHeadKind::eagle3;
  const bool own = algorithm == "NEXTN" || args.speculative_draft_model_path.empty();
  return own ? DraftHeadKind::nextn : DraftHeadKind::eagle;
}

Status open_draft(const ServerArgs& args, const DraftTarget& target, DraftPlan& plan) {
  if (plan.head == DraftHeadKind::eagle3) return open_eagle3(args, target, plan);
  if (plan.head == DraftHeadKind::nextn) {
    WW_RETURN_IF_ERROR(open_nextn(args, target, plan));
  } else if (plan.head == DraftHeadKind::eagle) {
    WW_RETURN_IF_ERROR(open_head(args, kEagleHead, plan));
  } else {
    WW_RETURN_IF_ERROR(open_standalone(args, plan));
  }
  return check_fit(plan, target);
}

}  // namespace

bool has_nextn_layers(const ModelConfig& config) {
  return config.num_nextn_layers > 0 || is_gated_hybrid(config.model_type);
}

void keep_for_drafts(const DraftPlan& plan, DecoderModel& target) {
  if (plan.head == DraftHeadKind::eagle3) return target.keep_layers(plan.target_layers);
  target.keep_hidden(plan.head.has_value());
}

Result<std::optional<DraftPlan>> plan_draft(const ServerArgs& args, const DraftTarget& target) {
  const Speculation& speculation = target.attention.speculation;
  if (speculation.algorithm.empty() || speculation.algorithm == "NGRAM") return std::optional<DraftPlan>();
  DraftPlan plan;
  plan.head = head_kind(args);
  const bool gpu = is_gpu_target(target.hardware.arch);
  plan.options = {plan.head.has_value(), speculation.num_steps, speculation.topk, speculation.num_draft_tokens,
                  !gpu && adapts_length(args, speculation, gpu)};
  WW_RETURN_IF_ERROR(open_draft(args, target, plan));
  WW_RETURN_IF_ERROR(read_token_map(args, target, plan));
  WW_RETURN_IF_ERROR(limit_window(args, plan));
  WW_ASSIGN_OR_RETURN(plan.cache_group, whole_group(target.cache_layout));
  if (gpu) WW_RETURN_IF_ERROR(check_gpu_draft(plan));
  WW_ASSIGN_OR_RETURN(plan.dtype, resolve_dtype(args.dtype, plan.config.dtype));
  if (plan.options.eagle) plan.dtype = target.dtype;  // it goes on from the target's rows
  WW_ASSIGN_OR_RETURN(plan.blocks, draft_blocks(args, plan, target));
  round_head(args, gpu, plan);
  const ModelFacts facts = attention_model_facts(plan.config, plan.dtype);
  WW_ASSIGN_OR_RETURN(plan.attention, select_attention(target.hardware, facts, draft_flags(args, target, facts)));
  return std::optional<DraftPlan>(std::move(plan));
}

KvCacheShape draft_cache_shape(const DraftPlan& plan, int num_pages) {
  KvCacheShape shape = kv_shape_of(plan.config, plan.attention);
  shape.num_pages = num_pages;
  shape.layout = single_cache_group(plan.config.num_layers);
  return shape;
}

size_t draft_page_bytes(const DraftPlan& plan) { return KvCache::page_bytes(draft_cache_shape(plan, 1)); }

namespace {

Result<std::unique_ptr<DecoderModel>> build_draft(const DraftPlan& plan, const BuildOptions& build, ThreadTeam& team) {
  auto model = plan.head ? build_draft_head(*plan.head, plan.config, plan.weights, build, team)
                         : build_decoder(plan.config, plan.weights, build, team);
  // The layers of NEXTN may be the model's own.
  if (!model.ok() && plan.head != DraftHeadKind::nextn) return at_path(model.status());
  return model;
}

}  // namespace

// The output head that a draft head reads in place of the target's, if it is to be another; empty: none.
static Result<PackedLinear> draft_head_copy(const DraftPlan& plan, const DecoderModel& model,
                                            const DecoderModel& target, ThreadTeam& team) {
  if (!plan.head || model.has_head()) return PackedLinear();
  const bool compress = plan.blocks && multiplies_bytes() &&
                        target.config().hidden_size % dtype_info(*plan.blocks).block_elements == 0;
  if (!plan.tokens.empty()) return target.head_of(plan.tokens, compress ? plan.blocks : std::nullopt, team);
  if (!compress || target.head().rounds_to_int8() || target.config().lm_head_bias) return PackedLinear();
  std::vector<int32_t> all(target.config().vocab_size);
  std::iota(all.begin(), all.end(), 0);
  return target.head_of(all, plan.blocks, team);
}

Result<std::unique_ptr<Drafter>> start_drafter(const DraftPlan& plan, const DraftLimits& limits, DecoderModel& target,
                                               ThreadTeam& team) {
  HostDraftParts parts;
  const BuildOptions build = {.dtype = plan.dtype, .max_positions = limits.context_len,
                              .batch_invariant = plan.attention.deterministic, .blocks = plan.blocks,
                              .progress = {}};
  WW_ASSIGN_OR_RETURN(parts.model, build_draft(plan, build, team));
  WW_ASSIGN_OR_RETURN(parts.attention,
                      create_resolved_backend(plan.attention, {.team = &team,
                                                               .max_context_len = limits.context_len,
                                                               .page_size = plan.attention.page_size}));
  WW_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(draft_cache_shape(plan, limits.num_pages), {}));
  parts.cache = std::make_unique<KvCache>(std::move(cache));
  parts.cache_group = plan.cache_group;
  parts.tokens = plan.tokens;
  parts.kind = plan.head;
  WW_ASSIGN_OR_RETURN(parts.head, draft_head_copy(plan, *parts.model, target, team));
  auto model = std::make_unique<HostDraftModel>(std::move(parts), target, team);
  return std::make_unique<Drafter>(std::move(model), plan.options, kDraftSlotsPerRequest * limits.max_requests,
                                   plan.cache_group);
}

}  // namespace warpweave
