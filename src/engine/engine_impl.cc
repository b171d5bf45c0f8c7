#include "engine/engine_impl.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <new>
#include <random>

#include "attention/hybrid.h"
#include "base/log.h"
#include "device/cpu/cpu_info.h"
#include "engine/attention_modifiers.h"
#include "engine/device_worker.h"
#include "engine/engine_core.h"
#include "engine/kv_self_check.h"
#include "engine/start_device.h"
#include "model/build_decoder.h"
#include "model/kv_scales.h"
#include "replay/recording_backend.h"

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

SchedulerConfig scheduler_config(const ServerArgs& args, int page_size, int context_len,
                                 std::vector<int32_t> eos_token_ids, bool gpu) {
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
  out.enable_mixed_chunk = resolve_mixed_chunk(args, gpu);
  out.mixed_chunk_rows = args.mixed_chunk_rows.value_or(gpu ? kDefaultMixedChunkRowsGpu : 0);
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

EngineInfo describe(const EngineOptions& options, const ModelBundle& bundle, const Resolved& attention,
                    DType dtype) {
  EngineInfo info;
  info.model_path = options.model_path;
  info.served_model_name = options.args.served_model_name.empty()
                               ? (options.args.model_path.empty() ? "tale-llama" : options.args.model_path)
                               : options.args.served_model_name;
  info.model_type = bundle.config.model_type;
  info.architecture = bundle.config.architecture;
  info.dtype = dtype_info(dtype).name;
  info.kv_cache_dtype = kv_format_name(attention.kv_format);
  info.prefill_attention_backend = attention.prefill;
  info.decode_attention_backend = attention.decode;
  info.attention_reasons = attention.reasons;
  for (const RefusedCandidate& refused : attention.refused) {
    info.attention_refused.push_back(refused.name + ": " + refused.rule);
  }
  info.vocab_size = bundle.config.vocab_size;
  info.page_size = attention.page_size;
  info.eos_token_ids = bundle.eos_token_ids;
  info.has_tokenizer = bundle.tokenizer != nullptr;
  return info;
}

}  // namespace

bool resolve_mixed_chunk(const ServerArgs& args, bool gpu) {
  return args.enable_mixed_chunk || (gpu && !args.disable_mixed_chunk);
}

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
  facts.dual_chunk = config.dual_chunk.has_value();
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
  flags.speculative_num_draft_tokens = args.speculative_num_draft_tokens;
  flags.speculative_attention_mode = args.speculative_attention_mode;
  flags.enable_deterministic_inference = args.enable_deterministic_inference;
  flags.disable_cuda_graph = args.disable_cuda_graph;
  return flags;
}

Result<std::optional<TuningTable>> attention_tuning(const ServerArgs& args) {
  if (args.attention_tuning_file.empty()) return std::optional<TuningTable>();
  WW_ASSIGN_OR_RETURN(TuningTable table, TuningTable::read(args.attention_tuning_file));
  return std::optional<TuningTable>(std::move(table));
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
  options.quantization = args.quantization;
  return open_model_bundle(path, options);
}

Result<std::optional<GpuChoice>> resolve_device(const std::string& flag) {
  if (flag == "cpu") return std::optional<GpuChoice>();
  Result<CudaDeviceInfo> info = probe_cuda_device();
  if (!info.ok()) {
    if (flag == "cuda") return info.status();
    LOG_DEBUG("no GPU: {}", info.status().message());
    return std::optional<GpuChoice>();
  }
  GpuChoice gpu;
  gpu.info = *std::move(info);
  const std::optional<DeviceArch> arch = arch_of_compute_capability(gpu.info.compute_capability);
  if (!arch) {
    if (flag == "cuda") {
      return Status::unsupported(gpu.info.name + " has compute capability " +
                                     std::to_string(gpu.info.compute_capability) +
                                     ", which is not known here; use --device cpu", "--device");
    }
    return std::optional<GpuChoice>();
  }
  gpu.facts = {gpu.info.name, *arch, gpu.info.driver_version};
  return std::optional<GpuChoice>(std::move(gpu));
}

Result<int> pool_pages(const ServerArgs& args, const SchedulerConfig& scheduler, double pool_bytes,
                       size_t bytes_per_token) {
  const int64_t useful = int64_t{scheduler.max_running_requests} * scheduler.context_len;
  const int64_t tokens = args.max_total_tokens.value_or(
      std::min(useful, static_cast<int64_t>(pool_bytes / static_cast<double>(bytes_per_token))));
  const int64_t pages = tokens / scheduler.page_size;
  if (pages < 1) {
    return Status::invalid_argument("the KV pool would have no page of " + std::to_string(scheduler.page_size) +
                                    " tokens; give --max-total-tokens " + std::to_string(scheduler.page_size) +
                                    " or more, or raise --mem-fraction-static", "--max-total-tokens");
  }
  if (pages > INT32_MAX / scheduler.page_size) return Status::invalid_argument(
      "--max-total-tokens " + std::to_string(tokens) + " is more than 2147483647", "--max-total-tokens");
  return static_cast<int>(pages);
}

KvCacheShape kv_cache_shape(const DeviceSetup& setup) {
  const ModelConfig& config = setup.bundle.config;
  KvCacheShape shape;
  shape.num_layers = config.num_layers;
  shape.num_pages = setup.scheduler.num_pages;
  shape.page_size = setup.attention.page_size;
  shape.num_kv_heads = config.num_kv_heads;
  shape.k_head_dim = shape.v_head_dim = config.head_dim;
  shape.format = setup.attention.kv_format;
  return shape;
}

Result<StartedDevice> start_cpu(const DeviceSetup& setup) {
  const ServerArgs& args = setup.options.args;
  const ModelConfig& config = setup.bundle.config;
  const KvFormat kv_format = setup.attention.kv_format;
  const CpuInfo& cpu = cpu_info();
  const int threads = args.threads.value_or(cpu.cpus);
  DeviceParts parts;
  parts.team = std::make_unique<ThreadTeam>(threads);
  WW_ASSIGN_OR_RETURN(parts.attention,
                      create_resolved_backend(setup.attention, {.team = parts.team.get(),
                                                                .max_context_len = setup.context_len,
                                                                .page_size = setup.attention.page_size,
                                                                .modifiers = &setup.modifiers}));
  if (args.dump_batch) {
    parts.attention = record_forward(std::move(parts.attention), {.forward = *args.dump_batch,
                                                                  .layer = args.dump_batch_layer,
                                                                  .num_layers = config.num_layers,
                                                                  .path = args.dump_batch_file});
  }
  WW_ASSIGN_OR_RETURN(KvHeadScales kv_scales, load_kv_scales(*setup.bundle.weights, config));
  WW_ASSIGN_OR_RETURN(parts.model, build_decoder(config, std::move(setup.bundle.weights),
                                                 {.dtype = setup.dtype, .max_positions = setup.context_len,
                                                  .progress = setup.options.on_weights_progress},
                                                 *parts.team));
  if (kv_format_is_scaled(kv_format) && kv_scales.k.empty()) {
    WW_ASSIGN_OR_RETURN(const KvSelfCheck check,
                        check_kv_format(*parts.model, kv_format, setup.context_len, *parts.team));
    LOG_WARN("{}", kv_self_check_text(check, kv_format));
  }
  parts.model->detect_nan(args.enable_nan_detection);
  StartedDevice out;
  out.description = "cpu: " + cpu.model_name + ", " + std::string(cpu_tier_name(cpu.tier)) + ", " +
                    std::to_string(threads) + " threads";
  out.weight_bytes = parts.model->weight_bytes();
  const double share = args.mem_fraction_static.value_or(kDefaultMemFraction);
  const double pool_bytes = static_cast<double>(available_memory_bytes()) * share -
                            (args.mem_fraction_static ? static_cast<double>(out.weight_bytes) : 0.0);
  WW_ASSIGN_OR_RETURN(setup.scheduler.num_pages,
                      pool_pages(args, setup.scheduler, pool_bytes, KvCache::bytes_per_token(kv_cache_shape(setup))));
  WW_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(kv_cache_shape(setup), std::move(kv_scales)));
  parts.cache = std::make_unique<KvCache>(std::move(cache));
  out.kv_cache_bytes = parts.cache->size_bytes();
  if (args.enable_kv_canary) parts.canary = std::make_unique<KvCanary>(*parts.cache);
  out.runner = std::make_unique<DeviceWorker>(std::move(parts));
  return out;
}

namespace {

Result<ServedModel> build_engine(const EngineOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  const ServerArgs& args = options.args;
  WW_ASSIGN_OR_RETURN(const std::optional<GpuChoice> gpu, resolve_device(args.device));
  if (gpu && (args.enable_nan_detection || args.enable_kv_canary)) {
    const char* flag = args.enable_nan_detection ? "--enable-nan-detection" : "--enable-kv-canary";
    return Status::unsupported(std::string(flag) + " looks into the CPU's memory only; add --device cpu", flag);
  }
  if (gpu && args.dump_batch) {
    return Status::unsupported("--dump-batch records forwards of the CPU only; add --device cpu", "--dump-batch");
  }
  WW_ASSIGN_OR_RETURN(ModelBundle bundle, open_served_model(args, options.model_path));
  WW_ASSIGN_OR_RETURN(const DType dtype, resolve_dtype(args.dtype, bundle.config.dtype));
  WW_ASSIGN_OR_RETURN(const int context_len, resolve_context(args, bundle.config));
  WW_ASSIGN_OR_RETURN(const std::optional<TuningTable> tuning, attention_tuning(args));
  AttentionFlags flags = attention_flags(args);
  flags.tuning = tuning ? &*tuning : nullptr;
  WW_ASSIGN_OR_RETURN(Resolved attention,
                      select_attention(gpu ? gpu->facts : cpu_hardware_facts(),
                                       attention_model_facts(bundle.config, dtype), flags));
  for (const std::string& line : explain_lines(attention)) LOG_DEBUG("{}", line);

  WW_ASSIGN_OR_RETURN(const mods::Modifiers modifiers, attention_modifiers(args, attention));
  EngineCoreOptions core;
  core.scheduler = scheduler_config(args, attention.page_size, context_len, bundle.eos_token_ids, gpu.has_value());
  const DeviceSetup setup = {options, bundle, dtype, context_len, attention, modifiers, core.scheduler};
  WW_ASSIGN_OR_RETURN(StartedDevice device, gpu ? start_gpu(setup, *gpu) : start_cpu(setup));
  WW_RETURN_IF_ERROR(Scheduler::validate(core.scheduler));

  core.info = describe(options, bundle, attention, dtype);
  core.info.device = std::move(device.description);
  core.info.context_len = context_len;
  core.info.weight_bytes = device.weight_bytes;
  core.info.kv_cache_bytes = device.kv_cache_bytes;
  core.info.num_pages = core.scheduler.num_pages;
  core.info.max_total_tokens = int64_t{core.scheduler.num_pages} * attention.page_size;
  core.info.max_running_requests = core.scheduler.max_running_requests;
  core.info.max_queued_requests = core.scheduler.max_queued_requests;
  core.info.chunked_prefill_size = core.scheduler.chunked_prefill_size;
  core.info.enable_mixed_chunk = core.scheduler.enable_mixed_chunk;
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
  served.engine = std::make_unique<EngineCore>(std::move(core), std::move(device.runner));
  return served;
}

}  // namespace

Result<ServedModel> create_engine(const EngineOptions& options) {
  try {
    return build_engine(options);
  } catch (const std::bad_alloc&) {
    return Status::unavailable(
        "there is not enough memory to start; use a smaller model, --max-total-tokens or --context-length");
  } catch (const std::exception& error) {
    return Status::internal(std::string("the engine could not start: ") + error.what());
  }
}

}  // namespace warpweave
