#include "engine/engine_impl.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <exception>
#include <new>
#include <random>

#include <fmt/format.h>

#include "attention/hybrid.h"
#include "base/log.h"
#include "base/machine_share.h"
#include "device/cpu/cpu_info.h"
#include "engine/device_worker.h"
#include "engine/engine_core.h"
#include "engine/kv_self_check.h"
#include "engine/open_adapters.h"
#include "engine/pool_size.h"
#include "engine/speculation.h"
#include "engine/start_device.h"
#include "engine/state_slots.h"
#include "engine/widest_step.h"
#include "linear/host_backends.h"
#include "lora/blank_adapter.h"
#include "model/build_decoder.h"
#include "model/kv_scales.h"
#include "replay/recording_backend.h"

namespace warpweave {
namespace {

// Of the memory that is free at start; the rest is for weights of other programs and the page cache.
constexpr double kDefaultMemFraction = 0.6;

// "weights/Qwen3-0.6B/" -> "Qwen3-0.6B", "SmolLM2.Q4_1.gguf" -> "SmolLM2.Q4_1".
std::string model_name_of(const std::string& path) {
  if (path.empty()) return "tale-llama";
  std::error_code no_folder;
  std::filesystem::path whole = std::filesystem::absolute(path, no_folder).lexically_normal();
  if (whole.filename().empty()) whole = whole.parent_path();  // "folder/"
  const std::filesystem::path name = whole.extension() == ".gguf" ? whole.stem() : whole.filename();
  return name.empty() ? path : name.string();
}

// Whether guesses are checked at position_ids: draft models, and steps of GPUs that check, count places themselves.
bool speculation_knows_places(const ServerArgs& args, bool on_gpu) {
  return args.speculative_algorithm.empty() || (args.speculative_algorithm == "NGRAM" && !on_gpu);
}

EngineInfo describe(const EngineOptions& options, const ModelBundle& bundle, const Resolved& attention,
                    DType dtype) {
  EngineInfo info;
  info.model_path = options.model_path;
  info.served_model_name =
      options.args.served_model_name.empty() ? model_name_of(options.args.model_path) : options.args.served_model_name;
  info.model_type = bundle.config.model_type;
  info.architecture =
      bundle.config.declared_architecture.empty() ? bundle.config.architecture : bundle.config.declared_architecture;
  info.dtype = dtype_info(dtype).name;
  info.kv_cache_dtype = kv_format_name(attention.kv_format);
  info.prefill_attention_backend = attention.prefill;
  info.decode_attention_backend = attention.decode;
  info.attention_reasons = attention.reasons;
  for (const RefusedCandidate& refused : attention.refused) {
    info.attention_refused.push_back(refused.name + ": " + refused.rule);
  }
  info.vocab_size = bundle.config.vocab_size;
  info.hidden_size = bundle.config.hidden_size;
  info.generates = bundle.config.head == ModelHead::vocabulary;
  info.reads_pairs = bundle.config.encoder.has_value();
  info.labels = bundle.config.labels;
  info.page_size = attention.page_size;
  info.eos_token_ids = bundle.eos_token_ids;
  info.has_tokenizer = bundle.tokenizer != nullptr;
  return info;
}

}  // namespace

Result<std::optional<TuningTable>> attention_tuning(const ServerArgs& args) {
  if (args.attention_tuning_file.empty()) return std::optional<TuningTable>();
  WW_ASSIGN_OR_RETURN(TuningTable table, TuningTable::read(args.attention_tuning_file));
  return std::optional<TuningTable>(std::move(table));
}

Result<ModelBundle> open_served_model(const ServerArgs& args, const std::string& path) {
  ModelBundleOptions options = weight_options(args);
  options.tokenizer_path = args.tokenizer_path;
  options.skip_tokenizer = args.skip_tokenizer_init;
  options.dummy_seed = static_cast<uint64_t>(args.random_seed.value_or(0));
  WW_ASSIGN_OR_RETURN(options.dummy_dtype, resolve_dtype(args.dtype, DType::bf16));
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

KvCacheShape kv_cache_shape(const DeviceSetup& setup) {
  KvCacheShape shape = kv_shape_of(setup.bundle.config, setup.plan.attention);
  shape.num_pages = setup.scheduler.num_pages;
  shape.layout = setup.plan.cache_layout;
  return shape;
}

Result<StateCacheShape> size_states(const DeviceSetup& setup, double pool_bytes,
                                    std::span<const LinearAttnBackend> backends) {
  const ServerArgs& args = setup.options.args;
  const ModelConfig& config = setup.bundle.config;
  WW_RETURN_IF_ERROR(size_state_slots(args, config, pool_bytes, setup.scheduler));
  setup.scheduler.state_checkpoints_within_rows =
      leaves_checkpoints(config, linear_attn_names(setup.plan), state_dtype(args), backends);
  WW_RETURN_IF_ERROR(Scheduler::validate(setup.scheduler));
  const StateCacheShape shape = state_cache_shape(config, setup.scheduler.state_slots, state_dtype(args));
  LOG_INFO("state pool: {} slots of {} bytes, {} of them for running requests, {} for checkpoints", shape.num_slots,
           StateCache::bytes_per_slot(shape), setup.scheduler.state_request_slots,
           shape.num_slots - setup.scheduler.state_request_slots);
  return shape;
}

namespace {

BatchCache batch_cache_of(const DeviceSetup& setup) {
  const KvCacheShape cache = kv_cache_shape(setup);
  return {setup.plan.attention.page_size, cache.num_groups(), cache.blank_page(), !setup.bundle.config.encoder,
          setup.bundle.config.vocab_size, /*prompts_apart=*/setup.scheduler.state_cut_tokens > 1};
}

// The buffers of the widest step get their size.
Status rehearse_widest(const DeviceSetup& setup, int layers, DeviceWorker& worker) {
  const ServerArgs& args = setup.options.args;
  const ModelConfig& config = setup.bundle.config;
  WidestStep widest = WidestStep::of(setup.scheduler, batch_cache_of(setup), worker.logits_head());
  std::unique_ptr<LoraAdapter> blank;
  if (args.wants_lora()) {
    WW_ASSIGN_OR_RETURN(const LoraTargets targets, lora_targets(config));
    WW_ASSIGN_OR_RETURN(blank, blank_lora_adapter(targets, layers, args.max_lora_rank, setup.plan.dtype));
  }
  widest.adapter = blank.get();
  const Result<int64_t> bytes = worker.rehearse(widest);
  if (!bytes.ok()) {
    return bytes.status().with_context(
        fmt::format("the widest step, of {} rows, was tried; a lower --chunked-prefill-size or "
                    "--max-running-requests makes it smaller",
                    widest.rows));
  }
  LOG_INFO("buffers: {} bytes beside weights and KV pool for steps of up to {} rows, {} of them with logits", *bytes,
           widest.rows, widest.logits_rows);
  return {};
}

// One behind the last layer with attention, after which a forward's recording is whole.
int attention_layers_end(const ModelConfig& config) {
  int end = config.num_layers;
  while (end > 0 && config.has_recurrent_layers() && config.recurrent_layers[end - 1]) --end;
  return end;
}

// With --dump-batch it records what it is given.
Result<std::unique_ptr<AttentionBackend>> create_attention(const DeviceSetup& setup, ThreadTeam& team) {
  const ServerArgs& args = setup.options.args;
  const ServePlan& plan = setup.plan;
  WW_ASSIGN_OR_RETURN(auto attention, create_resolved_backend(plan.attention, {.team = &team,
                                                                               .max_context_len = plan.context_len,
                                                                               .page_size = plan.attention.page_size,
                                                                               .modifiers = &plan.modifiers}));
  if (!args.dump_batch) return attention;
  return record_forward(std::move(attention), {.forward = *args.dump_batch,
                                               .layer = args.dump_batch_layer,
                                               .num_layers = attention_layers_end(setup.bundle.config),
                                               .path = args.dump_batch_file});
}

Status size_host_pool(const ServerArgs& args, double pool_bytes, size_t page_bytes, SchedulerConfig& scheduler) {
  WW_RETURN_IF_ERROR(size_pool(args, pool_bytes, page_bytes, scheduler));
  return check_pool_fits(args, page_bytes, available_memory_bytes(), scheduler);
}

}  // namespace

Result<StartedDevice> start_cpu(const DeviceSetup& setup) {
  const ServerArgs& args = setup.options.args;
  const ModelConfig& config = setup.bundle.config;
  const KvFormat kv_format = setup.plan.attention.kv_format;
  const CpuInfo& cpu = cpu_info();
  const int threads = args.threads.value_or(cpu.cpus);
  DeviceParts parts;
  parts.team = std::make_unique<ThreadTeam>(threads);
  WW_ASSIGN_OR_RETURN(parts.attention, create_attention(setup, *parts.team));
  WW_ASSIGN_OR_RETURN(KvHeadScales kv_scales, load_kv_scales(*setup.bundle.weights, config));
  WW_ASSIGN_OR_RETURN(parts.model, build_decoder(config, std::move(setup.bundle.weights),
                                                 {.dtype = setup.plan.dtype, .max_positions = setup.plan.context_len,
                                                  .batch_invariant = setup.plan.attention.deterministic,
                                                  .progress = setup.options.on_weights_progress},
                                                 *parts.team));
  if (kv_format_is_scaled(kv_format) && kv_scales.k.empty()) {
    WW_ASSIGN_OR_RETURN(const KvSelfCheck check,
                        check_kv_format(*parts.model, kv_format, setup.plan.context_len, *parts.team));
    LOG_WARN("{}", kv_self_check_text(check, kv_format));
  }
  parts.model->detect_nan(args.enable_nan_detection);
  StartedDevice out;
  out.description = "cpu: " + cpu.model_name + ", " + std::string(cpu_tier_name(cpu.tier)) + ", " +
                    std::to_string(threads) + " threads";
  out.weight_bytes = parts.model->weight_bytes();
  const double share = args.mem_fraction_static.value_or(kDefaultMemFraction);
  double pool_bytes = static_cast<double>(available_memory_bytes()) * share -
                      (args.mem_fraction_static ? static_cast<double>(out.weight_bytes) : 0.0);
  if (config.has_recurrent_layers()) {
    WW_ASSIGN_OR_RETURN(const auto shape, size_states(setup, pool_bytes, host_linear_attn_backends(*parts.team)));
    WW_ASSIGN_OR_RETURN(parts.recurrent,
                        HostRecurrent::create(config, shape, linear_attn_names(setup.plan), *parts.team));
    parts.recurrent->same_bits_drafted = setup.plan.attention.deterministic;
    for (const std::string& reason : parts.recurrent->kernels.reasons()) LOG_DEBUG("{}", reason);
    pool_bytes -= static_cast<double>(parts.recurrent->states.size_bytes());
  }
  const std::optional<DraftPlan>& draft = setup.plan.draft;
  const size_t page_bytes = KvCache::page_bytes(kv_cache_shape(setup)) + (draft ? draft_page_bytes(*draft) : 0);
  WW_RETURN_IF_ERROR(size_host_pool(args, pool_bytes, page_bytes, setup.scheduler));
  WW_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(kv_cache_shape(setup), std::move(kv_scales)));
  parts.cache = std::make_unique<KvCache>(std::move(cache));
  out.kv_cache_bytes = parts.cache->size_bytes();
  if (draft) {
    WW_ASSIGN_OR_RETURN(parts.drafter, start_drafter(*draft, {.num_pages = setup.scheduler.num_pages,
                                                                .context_len = setup.plan.context_len,
                                                                .max_requests = setup.scheduler.max_running_requests},
                                                       *parts.model, *parts.team));
    keep_for_drafts(*draft, *parts.model);
    out.weight_bytes += parts.drafter->model().weight_bytes();
    out.kv_cache_bytes += parts.drafter->model().cache_bytes();
  }
  if (args.enable_kv_canary) parts.canary = std::make_unique<KvCanary>(*parts.cache);
  const int rehearsed_layers = parts.model->rehearsed_layers();
  auto worker = std::make_unique<DeviceWorker>(std::move(parts));
  // A recording counts forwards from the first request's.
  if (!args.dump_batch) WW_RETURN_IF_ERROR(rehearse_widest(setup, rehearsed_layers, *worker));
  out.runner = std::move(worker);
  return out;
}

namespace {

// --pooling before the model's files.
Result<PoolingConfig> resolve_pooling(const ServerArgs& args, const ModelBundle& bundle) {
  PoolingConfig out = bundle.pooling;
  if (bundle.config.encoder && !out.stored) out.method = PoolingMethod::first;
  if (args.pooling == "auto") return out;
  if (bundle.config.head == ModelHead::labels) {
    return Status::invalid_argument(
        "--pooling " + args.pooling + ": a classifier says itself which state it reads; leave it out", "--pooling");
  }
  if (!args.is_embedding && !out.stored && bundle.config.head == ModelHead::vocabulary) {
    return Status::invalid_argument("--pooling " + args.pooling + " is of embeddings; add --is-embedding", "--pooling");
  }
  for (const PoolingMethod method : {PoolingMethod::last, PoolingMethod::mean, PoolingMethod::first}) {
    if (pooling_method_name(method) == args.pooling) out.method = method;
  }
  return out;
}

// A test's, or what --speculative-algorithm asks for.
void set_proposer(const EngineOptions& options, bool gpu, ServePlan& plan, EngineCoreOptions& core) {
  if (options.proposer != nullptr) {
    core.proposer = options.proposer;
    plan.scheduler.max_proposals = options.max_proposals;
    plan.scheduler.max_step_proposals = INT32_MAX;
    plan.jump_forward = false;
    return;
  }
  core.owned_proposer = make_proposer(options.args, plan);
  core.drafts = plan.draft.has_value();
  core.accept = accept_thresholds(options.args);
  if (plan.draft && adapts_length(options.args, plan.attention.speculation, gpu)) {
    const DraftOptions& draft = plan.draft->options;
    AdaptiveOptions& lengths = core.adaptive.emplace();
    lengths.max_length = draft.num_steps;
    lengths.whole_batch = gpu || options.whole_batch_lengths;
    lengths.knows_first = draft.eagle;
    lengths.looks_up = draft.eagle && draft.looks_up;
  }
  core.proposer = core.owned_proposer.get();
  core.proposes_forced = plan.jump_forward || plan.attention.speculation.algorithm == "NGRAM";
}

void describe_pooling(const PoolingConfig& pooling, const ServerArgs& args, bool gpu, EngineCoreOptions& core) {
  EngineInfo& info = core.info;
  info.gives_states = !gpu;
  info.pools = info.gives_states && (pooling.stored || args.is_embedding || !info.generates);
  info.pooled_size = core.pooler.size();
  info.normalizes_pooled = core.pooler.normalizes();
  info.pooling = fmt::format("{}{}", pooling_method_name(core.pooler.method()),
                             info.normalizes_pooled ? ", normalized" : "");
}

// Once the device has sized the pool.
void describe_capacity(const DeviceSetup& setup, EngineCoreOptions& core) {
  const PoolTokens pool = pool_tokens(core.scheduler);
  core.batch_cache = batch_cache_of(setup);
  EngineInfo& info = core.info;
  info.context_len = setup.plan.context_len;
  info.num_pages = core.scheduler.num_pages;
  info.max_total_tokens = pool.total;
  info.max_window_tokens = pool.windows;
  info.max_tokens_at_context = pool.at_context;
  info.max_running_requests = core.scheduler.max_running_requests;
  info.max_queued_requests = core.scheduler.max_queued_requests;
  info.chunked_prefill_size = core.scheduler.chunked_prefill_size;
  info.enable_mixed_chunk = core.scheduler.enable_mixed_chunk;
}

Result<ServedModel> build_engine(const EngineOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  const ServerArgs& args = options.args;
  WW_ASSIGN_OR_RETURN(const std::optional<GpuChoice> gpu, resolve_device(args.device));
  if (gpu && (args.enable_nan_detection || args.enable_kv_canary)) {
    const char* flag = args.enable_nan_detection ? "--enable-nan-detection" : "--enable-kv-canary";
    return Status::unsupported(std::string(flag) + " looks into the CPU's memory only; add --device cpu", flag);
  }
  WW_ASSIGN_OR_RETURN(ModelBundle bundle, open_served_model(args, options.model_path));
  WW_ASSIGN_OR_RETURN(const std::optional<TuningTable> tuning, attention_tuning(args));
  const ModelToServe model = {bundle.config, bundle.eos_token_ids, bundle.weights.get(), options.model_path,
                              options.model_path};
  WW_ASSIGN_OR_RETURN(ServePlan plan,
                      plan_serving(args, model,
                                   {.hardware = gpu ? gpu->facts : cpu_hardware_facts(),
                                    .tuning = tuning ? &*tuning : nullptr,
                                    .memory_bytes = gpu ? static_cast<int64_t>(gpu->info.total_bytes) : 0}));
  for (const std::string& line : explain_lines(plan.attention)) LOG_DEBUG("{}", line);

  EngineCoreOptions core;
  WW_ASSIGN_OR_RETURN(const PoolingConfig pooling, resolve_pooling(args, bundle));
  WW_ASSIGN_OR_RETURN(core.pooler, Pooler::create(bundle.config, pooling, *bundle.weights));
  set_proposer(options, gpu.has_value(), plan, core);
  core.step_cost_rows = step_cost_rows(gpu.has_value());
  core.scheduler = plan.scheduler;
  core.info = describe(options, bundle, plan.attention, plan.dtype);
  core.info.takes_position_ids =
      bundle.config.takes_rope_positions() && speculation_knows_places(args, gpu.has_value());
  ServedModel served;
  AdapterMemory adapters;
  if (gpu) {
    WW_ASSIGN_OR_RETURN(adapters, gpu_adapter_memory(args, bundle.config, plan.dtype));
  }
  // Before the KV pool takes what memory is left.
  WW_ASSIGN_OR_RETURN(
      served.adapters,
      open_adapters(args,
                    {.config = bundle.config, .info = core.info, .dtype = plan.dtype, .placer = adapters.placer}));
  const DeviceSetup setup = {options, bundle, plan, core.scheduler, adapters.gpu};
  WW_ASSIGN_OR_RETURN(StartedDevice device, gpu ? start_gpu(setup, *gpu) : start_cpu(setup));

  core.info.device = std::move(device.description);
  core.info.weight_bytes = device.weight_bytes;
  core.info.kv_cache_bytes = device.kv_cache_bytes;
  describe_pooling(pooling, args, gpu.has_value(), core);
  describe_capacity(setup, core);
  core.info.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  core.tokenizer = bundle.tokenizer.get();
  core.stream_interval_tokens = args.stream_interval;
  core.log_interval_s = args.decode_log_interval_s;
  core.random_seed = args.random_seed ? static_cast<uint64_t>(*args.random_seed)
                                      : uint64_t{std::random_device{}()} << 32 | std::random_device{}();

  served.tokenizer = std::move(bundle.tokenizer);
  served.chat_template = std::move(bundle.chat_template);
  served.generation = std::move(bundle.generation);
  served.attention = std::move(plan.attention);
  served.engine = std::make_unique<EngineCore>(std::move(core), std::move(device.runner));
  return served;
}

}  // namespace

Result<ServedModel> create_engine(const EngineOptions& options) {
  Status no_memory(StatusCode::unavailable, "out of memory");  // a text that takes none
  try {
    no_memory = Status::unavailable(
        "there is not enough memory to start; use a smaller model, --max-total-tokens or --context-length");
    return build_engine(options);
  } catch (const std::bad_alloc&) {
    return no_memory;
  } catch (const std::exception& error) {
    return Status::internal(std::string("the engine could not start: ") + error.what());
  }
}

}  // namespace warpweave
