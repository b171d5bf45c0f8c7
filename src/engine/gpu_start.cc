// Starting the GPU: weights and activations first, then what memory is left is measured and the KV
// pool takes its share of it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "attention/hybrid.h"
#include "base/log.h"
#include "device/cpu/cpu_info.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/current_device.h"
#include "engine/gpu_compile_ahead.h"
#include "engine/gpu_draft.h"
#include "engine/gpu_kv_self_check.h"
#include "engine/gpu_runner.h"
#include "engine/pool_size.h"
#include "engine/speculation.h"
#include "engine/start_device.h"
#include "engine/state_slots.h"
#include "linear/cuda/cuda_device.h"
#include "model/gpu_weights.h"
#include "model/kv_scales.h"

namespace warpweave {
namespace {

// Of the GPU's memory for weights, activations and KV pool; the rest is for what CUDA and the
// libraries allocate later.
constexpr double kDefaultMemFraction = 0.9;

// Rows of one step at most: whole prompts when they are never split, decode rows beside a chunk.
int max_step_tokens(const SchedulerConfig& scheduler) {
  const int prefill = scheduler.chunked_prefill_size < 0
                          ? std::max(scheduler.max_prefill_tokens, scheduler.context_len)
                          : std::max(scheduler.max_prefill_tokens, scheduler.chunked_prefill_size);
  return prefill + scheduler.max_running_requests + static_cast<int>(Scheduler::max_step_proposals(scheduler));
}

Result<double> pool_bytes(const ServerArgs& args) {
  WW_ASSIGN_OR_RETURN(const GpuMemoryBytes bytes, gpu_memory_bytes());
  const double kept = (1 - args.mem_fraction_static.value_or(kDefaultMemFraction)) * static_cast<double>(bytes.total);
  return static_cast<double>(bytes.free) - kept;
}

// No step has more requests than there are states; the largest such step gets its graph, too.
void lower_requests(GpuRunnerOptions& options, int max_requests) {
  if (max_requests >= options.max_requests) return;
  options.max_requests = max_requests;
  std::vector<int>& sizes = options.graph_batch_sizes;
  const bool cut = std::erase_if(sizes, [&](int size) { return size > max_requests; }) > 0;
  if (cut && (sizes.empty() || sizes.back() < max_requests)) sizes.push_back(max_requests);
}

GpuDraftSetup draft_setup_of(const GpuRunnerOptions& options, const GpuParts& parts) {
  return {.max_requests = options.max_requests,
          .max_tokens = options.max_tokens,
          .max_step_proposals = max_step_proposals(/*gpu=*/true),
          .max_pages_per_request = options.max_pages_per_request,
          .context_len = options.context_len,
          .graph_batch_sizes = options.graph_batch_sizes,
          .stream = parts.stream.get(),
          .team = parts.team.get()};
}

// Of one step with proposals, padding included.
int max_verify_rows(const GpuRunnerOptions& options) {
  if (options.max_proposals == 0) return 0;
  const int rows =
      options.max_requests + std::min(options.max_requests * options.max_proposals, max_step_proposals(/*gpu=*/true));
  return options.graph_batch_sizes.empty() ? rows : std::max(rows, std::min(kMostGraphRows, options.max_tokens));
}

Result<GpuDecoderWeights> load_weights(const DeviceSetup& setup, const BuildOptions& build, ThreadTeam& team) {
  const auto started = SteadyClock::now();
  WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights,
                      load_gpu_weights(setup.bundle.config, std::move(setup.bundle.weights), build, team));
  const double load_s = std::chrono::duration<double>(SteadyClock::now() - started).count();
  const double loaded_gb = static_cast<double>(weights.arena->used_bytes()) / 1e9;
  LOG_INFO("weights: {:.2f} GB on the GPU in {:.2f} s, {:.1f} GB/s", loaded_gb, load_s, loaded_gb / load_s);
  return weights;
}

GpuRunnerOptions runner_options(const DeviceSetup& setup) {
  const ServePlan& plan = setup.plan;
  const int page_size = plan.attention.page_size;
  GpuRunnerOptions options;
  options.max_requests = setup.scheduler.max_running_requests;
  options.max_tokens = max_step_tokens(setup.scheduler);
  options.context_len = plan.context_len;
  options.max_proposals = setup.scheduler.max_proposals;
  if (setup.options.args.wants_lora()) options.max_adapters = setup.scheduler.max_adapters;
  options.may_guess_nothing = setup.options.args.speculative_adaptive;
  options.acceptance_dice = setup.options.args.acceptance_dice;
  if (!plan.attention.deterministic) {
    options.prefill_tokens = std::clamp(setup.scheduler.chunked_prefill_size, 0, plan.context_len);
  }
  options.max_pages_per_request = (plan.context_len + page_size - 1) / page_size;
  if (plan.attention.decode_graphs) options.graph_batch_sizes = plan.graph_batch_sizes;
  return options;
}

// How K and V fit a format whose scales the checkpoint does not have, as a warning.
Status check_kv_format(const DeviceSetup& setup, const GpuChoice& gpu, const GpuParts& parts) {
  const KvFormat format = setup.plan.attention.kv_format;
  const GpuKvCheckSetup check_setup = {.arch = gpu.facts.arch, .dtype = setup.plan.dtype,
                                       .state_dtype = state_dtype(setup.options.args),
                                       .max_tokens = setup.plan.context_len, .stream = parts.stream.get(),
                                       .team = parts.team.get()};
  WW_ASSIGN_OR_RETURN(const KvSelfCheck check, check_gpu_kv_format(*parts.model, format, check_setup));
  LOG_WARN("{}", kv_self_check_text(check, format));
  return {};
}

GpuDecoderLimits decoder_limits(const DeviceSetup& setup, const GpuRunnerOptions& options,
                                const GpuAdapters* adapters) {
  const ServePlan& plan = setup.plan;
  const std::optional<DraftPlan>& draft = plan.draft;
  return {.max_tokens = options.max_tokens,
          .max_logits_rows = options.max_tokens,
          .batch_invariant = plan.attention.deterministic,
          .keep_hidden = draft && draft->options.eagle && draft->target_layers.empty(),
          .keep_layers = draft ? draft->target_layers : std::vector<int>(),
          .routing_dice = setup.options.args.routing_dice,
          .count_experts = true,
          .adapters = adapters != nullptr ? &adapters->model() : nullptr,
          .max_adapters = options.max_adapters,
          .max_requests = options.max_requests,
          .max_verify_rows = max_verify_rows(options),
          .linear = linear_attn_names(plan),
          .state_dtype = state_dtype(setup.options.args),
          .latent_forms = plan.latent_forms,
          .expands_latent_prefixes = !setup.options.args.disable_chunked_prefix_cache};
}

// The states of recurrent layers and the KV pool, of the memory that is left.
Status reserve_caches(const DeviceSetup& setup, const KvHeadScales& kv_scales, GpuRunnerOptions& options,
                      GpuParts& parts) {
  const ServerArgs& args = setup.options.args;
  const std::optional<DraftPlan>& draft = setup.plan.draft;
  WW_ASSIGN_OR_RETURN(double bytes, pool_bytes(args));
  if (setup.bundle.config.has_recurrent_layers()) {
    WW_ASSIGN_OR_RETURN(const StateCacheShape shape, size_states(setup, bytes, linear::cuda_linear_attn_backends()));
    WW_ASSIGN_OR_RETURN(GpuStateCache states, GpuStateCache::create(shape));
    bytes -= static_cast<double>(states.size_bytes());
    parts.states = std::make_unique<GpuStateCache>(std::move(states));
    lower_requests(options, setup.scheduler.max_running_requests);
  }
  const size_t page_bytes = GpuKvCache::page_bytes(kv_cache_shape(setup)) +
                            (draft ? GpuKvCache::page_bytes(draft_cache_shape(*draft, 1)) : 0);
  WW_RETURN_IF_ERROR(size_pool(args, bytes, page_bytes, setup.scheduler));
  WW_ASSIGN_OR_RETURN(GpuKvCache cache, GpuKvCache::create(kv_cache_shape(setup), kv_scales));
  parts.cache = std::make_unique<GpuKvCache>(std::move(cache));
  return {};
}

std::string description(const CudaDeviceInfo& gpu) {
  return fmt::format("cuda: {}, {} GiB, driver for CUDA {}.{}", gpu.name, gpu.total_bytes >> 30,
                     gpu.driver_version / 1000, gpu.driver_version % 1000 / 10);
}

}  // namespace

Result<AdapterMemory> gpu_adapter_memory(const ServerArgs& args, const ModelConfig& config, DType dtype) {
  AdapterMemory out;
  if (!args.wants_lora()) return out;
  forget_cuda_failure();
  WW_ASSIGN_OR_RETURN(const LoraTargets targets, lora_targets(config));
  WW_ASSIGN_OR_RETURN(
      out.gpu, GpuAdapters::create(
                   targets, {.max_rank = args.max_lora_rank, .max_loaded = args.max_loaded_loras, .dtype = dtype}));
  out.placer = [adapters = out.gpu] { return adapters->placer(); };
  return out;
}

Result<StartedDevice> start_gpu(const DeviceSetup& setup, const GpuChoice& gpu) {
  const ServerArgs& args = setup.options.args;
  const ModelConfig& config = setup.bundle.config;
  const ServePlan& plan = setup.plan;
  forget_cuda_failure();
  const std::optional<DraftPlan>& draft = plan.draft;
  GpuParts parts;
  parts.team = std::make_unique<ThreadTeam>(args.threads.value_or(cpu_info().cpus));
  WW_ASSIGN_OR_RETURN(parts.stream, create_stream());
  WW_ASSIGN_OR_RETURN(parts.attention, create_resolved_backend(plan.attention, {.team = parts.team.get(),
                                                                                .max_context_len = plan.context_len,
                                                                                .page_size = plan.attention.page_size,
                                                                                .modifiers = &plan.modifiers}));
  auto compiling = compile_attention_ahead(setup, *parts.attention);
  WW_ASSIGN_OR_RETURN(const KvHeadScales kv_scales, load_kv_scales(*setup.bundle.weights, config));
  const BuildOptions build = {.dtype = plan.dtype, .max_positions = plan.context_len,
                              .progress = setup.options.on_weights_progress};
  WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights, load_weights(setup, build, *parts.team));
  GpuRunnerOptions options = runner_options(setup);
  parts.adapters = setup.adapters;
  WW_ASSIGN_OR_RETURN(parts.model,
                      GpuDecoder::create(config, build, std::move(weights),
                                         decoder_limits(setup, options, parts.adapters.get())));
  if (kv_format_is_scaled(plan.attention.kv_format) && kv_scales.k.empty()) {
    WW_RETURN_IF_ERROR(check_kv_format(setup, gpu, parts));
  }
  const GpuDraftSetup draft_setup = draft_setup_of(options, parts);
  GpuDraftParts draft_parts;
  if (draft) {
    WW_ASSIGN_OR_RETURN(draft_parts, load_gpu_draft(*draft, draft_setup, *parts.model));
  }
  StartedDevice out;
  out.description = description(gpu.info);
  out.weight_bytes = parts.model->weight_bytes();
  WW_RETURN_IF_ERROR(reserve_caches(setup, kv_scales, options, parts));
  out.kv_cache_bytes = parts.cache->size_bytes();
  if (draft) {
    WW_ASSIGN_OR_RETURN(GpuDrafter started, start_gpu_drafter(*draft, std::move(draft_parts), setup.scheduler.num_pages,
                                                              draft_setup, *parts.model));
    parts.drafter = std::move(started.drafter);
    parts.draft_model = started.model;
    parts.draft_group = draft->cache_group;
    out.weight_bytes += parts.draft_model->weight_bytes();
    out.kv_cache_bytes += parts.draft_model->cache_bytes();
  }
  compiling.clear();  // waits: a runner that does not start takes the backend with it
  WW_ASSIGN_OR_RETURN(out.runner, GpuRunner::create(std::move(parts), options));
  return out;
}

}  // namespace warpweave
