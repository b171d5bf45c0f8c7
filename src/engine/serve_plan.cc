#include "engine/serve_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/attention_modifiers.h"
#include "engine/encoder_plan.h"
#include "engine/latent_plan.h"
#include "engine/open_adapters.h"
#include "engine/pool_size.h"
#include "engine/speculation.h"
#include "engine/state_slots.h"
#include "linear/host_backends.h"
#include "model/build_decoder.h"
#include "model/families/family.h"
#include "model/weight_bytes.h"

namespace warpweave {
namespace {

constexpr int kDefaultMaxRunningRequests = 256;
constexpr int kDefaultMaxRunningRequestsGpu = 512;
constexpr int kDefaultMaxQueuedRequests = 4096;
// A CPU computes some thousand prompt tokens a second: longer chunks would stall the requests that
// are decoding, shorter ones no longer fill the matrix kernels.
constexpr int kDefaultChunkedPrefillTokens = 512;
constexpr int kDefaultChunkedPrefillTokensGpu = 8192;
// A GPU multiplies some 150 rows in the time in which it reads the weights (656 TFLOP/s beside 4.2 TB/s on an H200);
// tiles make it 256.
constexpr int kDefaultMixedChunkRowsGpu = 512;
constexpr int kDefaultCudaGraphMaxBs = 256;

// What the engine's GPU code is compiled for (WARPWEAVE_CUDA_ARCHS in cmake/cuda.cmake): code of sm_80
// runs on sm_86, too.
constexpr EnumSet<DeviceArch> kGpuArchs = {DeviceArch::sm_80, DeviceArch::sm_86, DeviceArch::sm_89,
                                           DeviceArch::sm_90};

ModelDType model_dtype(DType dtype) {
  return dtype == DType::f32 ? ModelDType::f32 : dtype == DType::f16 ? ModelDType::f16 : ModelDType::bf16;
}

// The batch sizes that get graphs: dense where padding would cost most.
Result<std::vector<int>> graph_batch_sizes(const ServerArgs& args, int max_requests) {
  std::vector<int> sizes;
  const int max = std::min(max_requests, args.cuda_graph_max_bs.value_or(kDefaultCudaGraphMaxBs));
  const char* text = args.cuda_graph_bs.c_str();
  for (const char* end = text + args.cuda_graph_bs.size(); text < end;) {
    int size = 0;
    const auto [rest, error] = std::from_chars(text, end, size);
    if (error != std::errc() || size < 1 || (rest != end && *rest != ',' && *rest != '\n')) {
      return Status::invalid_argument(
          "--cuda-graph-bs '" + args.cuda_graph_bs + "' is not a list of batch sizes; try: --cuda-graph-bs 1 2 4 8",
          "--cuda-graph-bs");
    }
    sizes.push_back(size);
    text = rest == end ? end : rest + 1;
  }
  if (sizes.empty()) {
    for (int size : {1, 2, 4, 8, 12}) sizes.push_back(size);
    for (int size = 16; size <= max; size += size < 256 ? 8 : 16) sizes.push_back(size);
    sizes.push_back(max);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::erase_if(sizes, [&](int size) { return size < 1 || size > max; });
  return sizes;
}

Result<int> resolve_context(const ServerArgs& args, const ModelConfig& config) {
  const int limit = config.max_position_embeddings;
  if (!args.context_length) return limit;
  if (*args.context_length > limit) {
    return Status::invalid_argument(
        "--context-length " + std::to_string(*args.context_length) + " is more than the model's " +
            std::to_string(limit) + " positions; use --context-length " + std::to_string(limit) + " or less",
        "--context-length");
  }
  return *args.context_length;
}

// An expert multiplies few of a step's rows: so many more until reading its weights no longer bounds the step.
int default_mixed_chunk_rows(const ModelConfig& config) {
  if (config.num_experts == 0) return kDefaultMixedChunkRowsGpu;
  return kDefaultMixedChunkRowsGpu * std::max(1, config.num_experts / std::max(1, config.experts_per_token));
}

SchedulerConfig scheduler_config(const ServerArgs& args, int page_size, int context_len,
                                 const std::vector<int32_t>& eos_token_ids, bool gpu) {
  SchedulerConfig out;
  out.page_size = page_size;
  out.context_len = context_len;
  out.max_running_requests = args.max_running_requests.value_or(
      gpu ? kDefaultMaxRunningRequestsGpu : kDefaultMaxRunningRequests);
  out.log_page_events = args.enable_kv_canary;
  out.max_queued_requests = args.max_queued_requests.value_or(kDefaultMaxQueuedRequests);
  out.chunked_prefill_size = args.chunked_prefill_size.value_or(
      gpu ? kDefaultChunkedPrefillTokensGpu : kDefaultChunkedPrefillTokens);
  out.max_prefill_tokens = args.max_prefill_tokens;
  out.enable_mixed_chunk = args.enable_mixed_chunk || (gpu && !args.disable_mixed_chunk);
  out.schedule_policy = args.schedule_policy == "lpm"        ? SchedulePolicy::lpm
                        : args.schedule_policy == "priority" ? SchedulePolicy::priority
                                                             : SchedulePolicy::fcfs;
  out.schedule_conservativeness = args.schedule_conservativeness;
  out.disable_radix_cache = args.disable_radix_cache;
  out.prefix_match = args.prefix_match == "page" ? PrefixMatchMode::page : PrefixMatchMode::token;
  out.overlap_depth = args.disable_overlap_schedule ? 0 : 1;
  out.eos_token_ids = eos_token_ids;
  out.max_adapters = args.max_loras_per_batch;
  return out;
}

// Whether bits show where a prompt was cut: linear attention goes by chunks, but for GPUs' in f32.
bool cuts_show(const ModelConfig& config, DType dtype, bool gpu) {
  return config.linear.has_value() && (!gpu || dtype != DType::f32);
}

// Rows to fill steps up to where no prompt joins steps that decode.
Status check_mixed_rows(const ServerArgs& args, bool mixes) {
  const int rows = args.mixed_chunk_rows.value_or(0);
  if (mixes || args.disable_mixed_chunk || rows == 0) return {};
  const char* const way = args.enable_deterministic_inference ? "" : "add --enable-mixed-chunk, or ";
  return Status::invalid_argument(
      fmt::format("--mixed-chunk-rows {}: prompts join no steps that decode here; {}leave it out", rows, way),
      "--mixed-chunk-rows");
}

// Parts of a model beside its full attention that selection resolved but that are not written for this device, or not
// built for this machine's.
Status check_layers(const Resolved& attention, const ServeTarget& target) {
  const DeviceArch arch = target.hardware.arch;
  struct Layers { std::string_view what; AttentionKind kind; const std::string& name; };
  for (const Layers& layers : {Layers{"sparse attention", AttentionKind::sparse, attention.nsa.prefill},
                               {"linear attention", AttentionKind::linear, attention.linear.prefill},
                               {"linear attention", AttentionKind::linear, attention.linear.decode},
                               {"linear attention", AttentionKind::linear, attention.linear_verify},
                               {"vision towers", AttentionKind::mm, attention.mm}}) {
    if (layers.name.empty()) continue;
    const auto known = known_layer_backends();
    if (std::any_of(known.begin(), known.end(), [&](const KnownBackend& backend) {
          return (target.described ? backend.written : backend.built) && backend.caps->kinds.has(layers.kind) &&
                 backend.caps->name == layers.name && backend.caps->archs.has(arch);
        })) {
      continue;
    }
    return Status::unsupported(fmt::format("{} ({}) are not written yet for {}, and this model has such layers",
                                           layers.what, layers.name, arch_name(arch)), "--model-path");
  }
  return {};
}

// Layers with a sliding window keep their pages apart, unless that is off, other layers keep states, or a plug-in or a
// recording, which know one page table, take part.
CacheLayout cache_layout(const ServerArgs& args, const ModelConfig& config, const ServePlan& plan) {
  const bool one_table = !args.attention_backend_plugin.empty() || args.dump_batch.has_value();
  if (args.disable_hybrid_swa_memory || !config.has_windows() || config.encoder || config.has_recurrent_layers() ||
      one_table) {
    return single_cache_group(config.num_layers, config.recurrent_layers);
  }
  std::vector<int> window_left(config.num_layers, -1);
  for (int i = 0; i < config.num_layers; ++i) {
    if (config.sliding_layers[i]) window_left[i] = config.sliding_window - 1;
  }
  return plan_cache_layout({window_left, plan.context_len, plan.attention.page_size});
}

// Whether the kernels that were named for linear layers run on this machine's CPU: those through OpenCL need a driver.
Status check_linear_kernels(const ServerArgs& args, const ModelConfig& config, const ServeTarget& target,
                            const ServePlan& plan) {
  if (!config.linear || target.described || is_gpu_target(target.hardware.arch)) return {};
  ThreadTeam team(1);  // nothing is run
  return choose_linear_attn(linear_attn_shape(config).kind, linear_attn_names(plan), state_dtype(args),
                            host_linear_attn_backends(team))
      .status();
}

}  // namespace

KvCacheShape kv_shape_of(const ModelConfig& config, const Resolved& attention) {
  KvCacheShape shape;
  shape.num_layers = config.num_kv_layers();
  shape.page_size = attention.page_size;
  shape.num_kv_heads = config.num_kv_heads;
  shape.k_head_dim = config.head_dim;
  shape.v_head_dim = config.cached_v_dim();
  shape.format = attention.kv_format;
  return shape;
}

ModelFacts attention_model_facts(const ModelConfig& config, DType dtype) {
  ModelFacts facts;
  facts.architecture = config.architecture;
  facts.dtype = model_dtype(dtype);
  facts.num_q_heads = config.num_q_heads;
  facts.num_kv_heads = config.num_kv_heads;
  facts.head_dim = config.head_dim;
  if (config.latent) {
    facts.kind = AttentionKind::mla;
    facts.v_head_dim = config.latent->kv_rank;
  }
  facts.sliding_window = config.has_windows();
  facts.window_tokens = config.has_windows() ? config.sliding_window : 0;
  facts.non_causal = config.encoder.has_value();
  facts.right_window = config.encoder && config.has_windows();
  facts.softcap = config.attention_softcap > 0;
  facts.sinks = config.model_type == "gpt_oss";
  facts.dual_chunk = config.dual_chunk.has_value();
  if (config.linear) facts.linear = config.linear->channel_decay ? LinearAttention::kda : LinearAttention::gdn;
  return facts;
}

AttentionFlags attention_flags(const ServerArgs& args) {
  AttentionFlags flags;
  flags.attention_backend = args.attention_backend;
  flags.prefill_attention_backend = args.prefill_attention_backend;
  flags.decode_attention_backend = args.decode_attention_backend;
  flags.nsa_prefill_backend = args.nsa_prefill_backend;
  flags.nsa_decode_backend = args.nsa_decode_backend;
  flags.linear_attn_backend = args.linear_attn_backend;
  flags.linear_attn_prefill_backend = args.linear_attn_prefill_backend;
  flags.linear_attn_decode_backend = args.linear_attn_decode_backend;
  flags.mm_attention_backend = args.mm_attention_backend;
  flags.page_size = args.page_size;
  flags.kv_cache_dtype = args.kv_cache_dtype;
  flags.speculative_algorithm = args.speculative_algorithm;
  flags.speculative_num_steps = args.speculative_num_steps;
  flags.speculative_eagle_topk = args.speculative_eagle_topk;
  if (!flags.speculative_eagle_topk) flags.speculative_eagle_topk = args.speculative_ngram_max_bfs_breadth;
  flags.speculative_num_draft_tokens = args.speculative_num_draft_tokens;
  flags.speculative_attention_mode = args.speculative_attention_mode;
  flags.enable_deterministic_inference = args.enable_deterministic_inference;
  flags.disable_cuda_graph = args.disable_cuda_graph;
  flags.cached_prefixes = !args.disable_radix_cache || args.chunked_prefill_size != -1;
  return flags;
}

Result<DType> resolve_dtype(const std::string& flag, DType checkpoint) {
  if (flag == "auto") {
    return is_quantized(checkpoint) || checkpoint == DType::bf16 ? DType::bf16 : checkpoint;
  }
  const std::optional<DType> dtype = parse_dtype(flag);
  if (!dtype || (*dtype != DType::f32 && *dtype != DType::bf16 && *dtype != DType::f16)) {
    return Status::invalid_argument("--dtype '" + flag + "' is not one of auto, float32, bfloat16, float16", "--dtype");
  }
  return *dtype;
}

ModelBundleOptions weight_options(const ServerArgs& args) {
  ModelBundleOptions options;
  options.load_format = args.load_format;
  options.quantization = args.quantization;
  return options;
}

bool is_gpu_target(DeviceArch arch) { return !kCpuArchs.has(arch); }

Status check_serve_device(const HardwareFacts& hardware) {
  if (kCpuArchs.has(hardware.arch) || kGpuArchs.has(hardware.arch)) return {};
  return Status::unsupported(
      fmt::format("{}: nothing is compiled for {}; models are served on CPUs and on NVIDIA GPUs of sm_80, sm_86, "
                  "sm_89 and sm_90; use --device cpu there", hardware.name, arch_name(hardware.arch)), "--device");
}

Status check_served_model(const ServerArgs& args, const ModelToServe& model, DeviceArch arch) {
  WW_RETURN_IF_ERROR(family_traits(model.config).status());
  WW_RETURN_IF_ERROR(check_weight_format(model.config, weight_options(args), model.where, model.weights));
  WW_RETURN_IF_ERROR(check_encoder_flags(args, model.config));
  WW_RETURN_IF_ERROR(check_adapters(args, model.config));
  if (!is_gpu_target(arch)) return {};
  if (args.is_embedding || model.config.head != ModelHead::vocabulary) {
    return Status::unsupported("--device cuda gives no embeddings or labels yet; use --device cpu", "--device");
  }
  return check_gpu_model(model.config);
}

Status check_weights_fit(const ServerArgs& args, const ModelConfig& config, const ServeTarget& target) {
  const Result<DType> dtype = resolve_dtype(args.dtype, config.dtype);
  if (target.memory_bytes == 0 || !is_gpu_target(target.hardware.arch) || !dtype.ok()) return {};
  const Fp8Config& blocks = config.fp8;
  const bool known_blocks = blocks.block_rows == 0 || (blocks.block_rows == 128 && blocks.block_cols == 128);
  const bool keeps_8_bits = target.hardware.arch == DeviceArch::sm_90 && *dtype != DType::f32 && known_blocks;
  const bool asks_8_bits = config.quant_method == "fp8" || args.quantization == "fp8";
  const int64_t bytes = weight_bytes(config, {*dtype, asks_8_bits && keeps_8_bits});
  if (bytes <= target.memory_bytes) return {};
  const int64_t rounded = weight_bytes(config, {*dtype, keeps_8_bits});
  const bool rounding_helps = config.quant_method.empty() && rounded <= target.memory_bytes;
  return Status::unsupported(
      fmt::format("the weights of this model ({}) take {} bytes{}, and {} has {}: they do not fit; use {}a smaller "
                  "model or --device cpu",
                  config.architecture, bytes,
                  asks_8_bits && keeps_8_bits ? "" : fmt::format(" in {}", dtype_info(*dtype).name),
                  target.hardware.name, target.memory_bytes,
                  rounding_helps ? fmt::format("--quantization fp8 ({} bytes), ", rounded) : ""),
      "--model-path");
}

LinearAttnNames linear_attn_names(const ServePlan& plan) {
  const Resolved& chosen = plan.attention;
  LinearAttnNames names = {.prefill = chosen.linear.prefill,
                           .decode = chosen.linear.decode,
                           .verify = chosen.linear_verify,
                           .verify_trees = chosen.speculation.topk > 1};
  if (names.verify.empty() && plan.scheduler.max_proposals > 0) {  // of a proposer that no algorithm stands behind
    names.verify = names.decode;
    names.verify_trees = true;
  }
  return names;
}

Result<ServePlan> plan_serving(const ServerArgs& args, const ModelToServe& model, const ServeTarget& target) {
  for (const Status& unserved : unserved_flags(args)) return unserved;
  WW_RETURN_IF_ERROR(check_serve_device(target.hardware));
  WW_RETURN_IF_ERROR(check_weights_fit(args, model.config, target));
  WW_RETURN_IF_ERROR(check_served_model(args, model, target.hardware.arch));
  const bool gpu = is_gpu_target(target.hardware.arch);
  if (args.dump_batch && args.dump_batch_layer && *args.dump_batch_layer < model.config.num_layers &&
      model.config.has_recurrent_layers() && model.config.recurrent_layers[*args.dump_batch_layer]) {
    return Status::invalid_argument(
        fmt::format("--dump-batch-layer {} is a recurrent layer, of which nothing is recorded; "
                    "name a layer with full attention",
                    *args.dump_batch_layer),
        "--dump-batch-layer");
  }
  if (gpu && args.dump_batch) {
    return Status::unsupported("--dump-batch records forwards of the CPU only; add --device cpu", "--dump-batch");
  }
  ServePlan plan;
  WW_ASSIGN_OR_RETURN(plan.dtype, resolve_dtype(args.dtype, model.config.dtype));
  WW_ASSIGN_OR_RETURN(plan.context_len, resolve_context(args, model.config));
  WW_RETURN_IF_ERROR(check_state_flags(args, model.config));
  WW_RETURN_IF_ERROR(check_speculation(args, model.config));
  plan.model = attention_model_facts(model.config, plan.dtype);
  AttentionFlags flags = attention_flags(args);
  flags.tuning = target.tuning;
  if (model.config.encoder) flags.cached_prefixes = false;
  const std::vector<KnownBackend> as_built = known_backends_as_built();
  WW_ASSIGN_OR_RETURN(plan.attention, select_attention(target.hardware, plan.model, flags,
                                                       target.described ? std::span(as_built) : known_backends(),
                                                       [&](const Resolved& proposed) {
                                                         return attention_modifiers(args, proposed).ok() &&
                                                                check_layers(proposed, target).ok();
                                                       }));
  WW_RETURN_IF_ERROR(check_layers(plan.attention, target));
  WW_RETURN_IF_ERROR(check_pool_tokens(args, plan.attention.page_size));
  if (model.config.latent) plan_latent_forms(args, model.config, target, plan);
  WW_RETURN_IF_ERROR(check_draft_tokens(args, plan.attention.speculation, model.config));
  WW_ASSIGN_OR_RETURN(plan.modifiers, attention_modifiers(args, plan.attention));
  plan.scheduler = scheduler_config(args, plan.attention.page_size, plan.context_len, model.eos_token_ids, gpu);
  plan.scheduler.mixed_chunk_rows = args.mixed_chunk_rows.value_or(gpu ? default_mixed_chunk_rows(model.config) : 0);
  if (model.config.encoder) schedule_whole_prompts(plan.scheduler);
  if (plan.attention.deterministic && cuts_show(model.config, plan.dtype, gpu)) {
    WW_RETURN_IF_ERROR(keep_prompt_bits(args, plan.scheduler));
  }
  WW_RETURN_IF_ERROR(check_mixed_rows(args, plan.scheduler.enable_mixed_chunk));
  plan.cache_layout = cache_layout(args, model.config, plan);
  plan.scheduler.cache_groups = plan.cache_layout.groups;
  WW_ASSIGN_OR_RETURN(plan.draft, plan_draft(args, {model.config, model.path, plan.attention, plan.cache_layout,
                                                    target.hardware, plan.context_len, plan.dtype}));
  plan.scheduler.max_proposals = plan.draft ? max_proposals(plan.draft->options)
                                            : max_proposals(plan.attention.speculation);
  plan.jump_forward = jumps_forward(args, model.config, plan.attention, gpu);
  if (plan.jump_forward) plan.scheduler.max_proposals = kMaxForcedProposals;
  WW_RETURN_IF_ERROR(check_linear_kernels(args, model.config, target, plan));
  plan.scheduler.max_step_proposals = max_step_proposals(gpu);
  plan.scheduler.num_pages = 1;  // until the memory is measured
  WW_RETURN_IF_ERROR(Scheduler::validate(plan.scheduler));
  WW_ASSIGN_OR_RETURN(plan.graph_batch_sizes, graph_batch_sizes(args, plan.scheduler.max_running_requests));
  return plan;
}

}  // namespace warpweave
