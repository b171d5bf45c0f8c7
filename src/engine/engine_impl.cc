#include "engine/engine_impl.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>

#include "attention/hybrid.h"
#include "base/log.h"
#include "device/cpu/cpu_info.h"
#include "engine/engine_core.h"
#include "model/build_decoder.h"

namespace warpweave {
namespace {

constexpr int kDefaultMaxRunningRequests = 256;
constexpr int kDefaultMaxQueuedRequests = 4096;
// A CPU computes some thousand prompt tokens a second: longer chunks would stall the requests that
// are decoding, shorter ones no longer fill the matrix kernels.
constexpr int kDefaultChunkedPrefillTokens = 512;
// Of the memory that is free at start; the rest is for weights of other programs and the page cache.
constexpr double kDefaultMemFraction = 0.6;

int64_t available_memory_bytes() {
  std::ifstream info("/proc/meminfo");
  std::string key, unit;
  int64_t kilobytes = 0;
  while (info >> key >> kilobytes) {
    std::getline(info, unit);
    if (key == "MemAvailable:") return kilobytes * 1024;
  }
  return int64_t{4} << 30;
}

ModelDType model_dtype(DType dtype) {
  return dtype == DType::f32 ? ModelDType::f32 : dtype == DType::f16 ? ModelDType::f16 : ModelDType::bf16;
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

Result<SchedulerConfig> scheduler_config(const ServerArgs& args, int page_size, int context_len,
                                         std::vector<int32_t> eos_token_ids) {
  SchedulerConfig out;
  out.page_size = page_size;
  out.context_len = context_len;
  out.max_running_requests = args.max_running_requests.value_or(kDefaultMaxRunningRequests);
  out.max_queued_requests = args.max_queued_requests.value_or(kDefaultMaxQueuedRequests);
  out.chunked_prefill_size = args.chunked_prefill_size.value_or(kDefaultChunkedPrefillTokens);
  out.max_prefill_tokens = args.max_prefill_tokens;
  out.enable_mixed_chunk = args.enable_mixed_chunk;
  out.schedule_policy = args.schedule_policy == "lpm"        ? SchedulePolicy::lpm
                        : args.schedule_policy == "priority" ? SchedulePolicy::priority
                                                             : SchedulePolicy::fcfs;
  out.schedule_conservativeness = args.schedule_conservativeness;
  out.disable_radix_cache = args.disable_radix_cache;
  out.prefix_match = args.prefix_match == "page" ? PrefixMatchMode::page : PrefixMatchMode::token;
  out.overlap_depth = args.disable_overlap_schedule ? 0 : 1;
  out.eos_token_ids = std::move(eos_token_ids);
  return out;
}

// Tokens of the KV pool: --max-total-tokens, or a share of the free memory, never more than all
// running requests could use.
Result<int64_t> pool_tokens(const ServerArgs& args, const SchedulerConfig& scheduler, size_t bytes_per_token,
                            size_t weight_bytes) {
  const int64_t useful = int64_t{scheduler.max_running_requests} * scheduler.context_len;
  int64_t tokens = 0;
  if (args.max_total_tokens) {
    tokens = *args.max_total_tokens;
  } else {
    const double share = args.mem_fraction_static.value_or(kDefaultMemFraction);
    const double bytes = static_cast<double>(available_memory_bytes()) * share -
                         (args.mem_fraction_static ? static_cast<double>(weight_bytes) : 0.0);
    tokens = std::min(useful, static_cast<int64_t>(bytes / static_cast<double>(bytes_per_token)));
  }
  const int64_t pages = tokens / scheduler.page_size;
  if (pages < 1) {
    return Status::invalid_argument("the KV pool would have no page of " + std::to_string(scheduler.page_size) +
                                    " tokens; give --max-total-tokens " + std::to_string(scheduler.page_size) +
                                    " or more, or raise --mem-fraction-static", "--max-total-tokens");
  }
  if (pages > INT32_MAX / scheduler.page_size) return Status::invalid_argument(
      "--max-total-tokens " + std::to_string(tokens) + " is more than 2147483647", "--max-total-tokens");
  return pages * scheduler.page_size;
}

EngineInfo describe(const EngineOptions& options, const ModelBundle& bundle, const Resolved& attention,
                    DType dtype, int threads) {
  const CpuInfo& cpu = cpu_info();
  EngineInfo info;
  info.model_path = options.model_path;
  info.served_model_name = options.args.served_model_name.empty()
                               ? (options.args.model_path.empty() ? "tale-llama" : options.args.model_path)
                               : options.args.served_model_name;
  info.model_type = bundle.config.model_type;
  info.architecture = bundle.config.architecture;
  info.dtype = dtype_info(dtype).name;
  info.kv_cache_dtype = kv_format_name(attention.kv_format);
  info.device = "cpu: " + cpu.model_name + ", " + std::string(cpu_tier_name(cpu.tier)) + ", " +
                std::to_string(threads) + " threads";
  info.prefill_attention_backend = attention.prefill;
  info.decode_attention_backend = attention.decode;
  info.attention_reasons = attention.reasons;
  info.vocab_size = bundle.config.vocab_size;
  info.page_size = attention.page_size;
  info.eos_token_ids = bundle.eos_token_ids;
  info.has_tokenizer = bundle.tokenizer != nullptr;
  return info;
}

KvCacheShape cache_shape(const ModelConfig& config, const Resolved& attention) {
  KvCacheShape shape;
  shape.num_layers = config.num_layers;
  shape.page_size = attention.page_size;
  shape.num_kv_heads = config.num_kv_heads;
  shape.k_head_dim = shape.v_head_dim = config.head_dim;
  shape.format = attention.kv_format;
  return shape;
}

}  // namespace

ModelFacts attention_model_facts(const ModelConfig& config, DType dtype) {
  ModelFacts facts;
  facts.architecture = config.architecture;
  facts.dtype = model_dtype(dtype);
  facts.num_q_heads = config.num_q_heads;
  facts.num_kv_heads = config.num_kv_heads;
  facts.head_dim = config.head_dim;
  facts.sliding_window = std::find(config.sliding_layers.begin(), config.sliding_layers.end(), true) !=
                         config.sliding_layers.end();
  facts.softcap = config.attention_softcap > 0;
  facts.sinks = config.model_type == "gpt_oss";
  facts.dual_chunk = config.dual_chunk;
  return facts;
}

AttentionFlags attention_flags(const ServerArgs& args) {
  AttentionFlags flags;
  flags.attention_backend = args.attention_backend;
  flags.prefill_attention_backend = args.prefill_attention_backend;
  flags.decode_attention_backend = args.decode_attention_backend;
  flags.page_size = args.page_size;
  flags.kv_cache_dtype = args.kv_cache_dtype;
  flags.speculative_algorithm = args.speculative_algorithm;
  flags.speculative_num_steps = args.speculative_num_steps;
  flags.speculative_eagle_topk = args.speculative_eagle_topk;
  flags.speculative_num_draft_tokens = args.speculative_num_draft_tokens;
  flags.speculative_attention_mode = args.speculative_attention_mode;
  flags.enable_deterministic_inference = args.enable_deterministic_inference;
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

Result<ModelBundle> open_served_model(const ServerArgs& args, const std::string& path) {
  ModelBundleOptions options;
  options.load_format = args.load_format;
  options.tokenizer_path = args.tokenizer_path;
  options.skip_tokenizer = args.skip_tokenizer_init;
  options.dummy_seed = static_cast<uint64_t>(args.random_seed.value_or(0));
  WW_ASSIGN_OR_RETURN(const DType dummy, resolve_dtype(args.dtype, DType::bf16));
  options.dummy_dtype = dummy;
  return open_model_bundle(path, options);
}

Result<ServedModel> create_engine(const EngineOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  const ServerArgs& args = options.args;
  WW_ASSIGN_OR_RETURN(ModelBundle bundle, open_served_model(args, options.model_path));
  WW_ASSIGN_OR_RETURN(const DType dtype, resolve_dtype(args.dtype, bundle.config.dtype));
  WW_ASSIGN_OR_RETURN(const int context_len, resolve_context(args, bundle.config));
  WW_ASSIGN_OR_RETURN(Resolved attention,
                      select_attention(cpu_hardware_facts(), attention_model_facts(bundle.config, dtype),
                                       attention_flags(args)));
  for (const std::string& line : explain_lines(attention)) LOG_DEBUG("{}", line);

  const int threads = args.threads.value_or(cpu_info().cpus);
  DeviceParts parts;
  parts.team = std::make_unique<ThreadTeam>(threads);
  WW_ASSIGN_OR_RETURN(parts.attention,
                      create_resolved_backend(attention, {.team = parts.team.get(),
                                                          .max_context_len = context_len,
                                                          .page_size = attention.page_size}));
  WW_ASSIGN_OR_RETURN(parts.model, build_decoder(bundle.config, std::move(bundle.weights),
                                                 {.dtype = dtype, .max_positions = context_len,
                                                  .progress = options.on_weights_progress},
                                                 *parts.team));

  EngineCoreOptions core;
  core.info = describe(options, bundle, attention, dtype, threads);
  core.info.context_len = context_len;
  core.info.weight_bytes = parts.model->weight_bytes();
  WW_ASSIGN_OR_RETURN(core.scheduler, scheduler_config(args, attention.page_size, context_len, bundle.eos_token_ids));
  KvCacheShape shape = cache_shape(bundle.config, attention);
  WW_ASSIGN_OR_RETURN(const int64_t max_total_tokens,
                      pool_tokens(args, core.scheduler, KvCache::bytes_per_token(shape), core.info.weight_bytes));
  shape.num_pages = core.scheduler.num_pages = static_cast<int>(max_total_tokens / attention.page_size);
  WW_RETURN_IF_ERROR(Scheduler::validate(core.scheduler));
  WW_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(shape));
  parts.cache = std::make_unique<KvCache>(std::move(cache));

  core.info.kv_cache_bytes = parts.cache->size_bytes();
  core.info.num_pages = shape.num_pages;
  core.info.max_total_tokens = max_total_tokens;
  core.info.max_running_requests = core.scheduler.max_running_requests;
  core.info.chunked_prefill_size = core.scheduler.chunked_prefill_size;
  core.info.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  core.tokenizer = bundle.tokenizer.get();
  core.stream_interval_tokens = args.stream_interval;
  core.log_interval_s = args.decode_log_interval_s;
  core.random_seed = args.random_seed ? static_cast<uint64_t>(*args.random_seed)
                                      : uint64_t{std::random_device{}()} << 32 | std::random_device{}();

  ServedModel served;
  served.tokenizer = std::move(bundle.tokenizer);
  served.chat_template = std::move(bundle.chat_template);
  served.generation = std::move(bundle.generation);
  served.attention = std::move(attention);
  served.engine = std::make_unique<EngineCore>(std::move(core), std::move(parts));
  return served;
}

}  // namespace warpweave
