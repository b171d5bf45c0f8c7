#include "engine/state_slots.h"

#include <fmt/format.h>

#include <algorithm>

#include "linear/linear_attn.h"

namespace warpweave {
namespace {

constexpr double kDefaultMemoryRatio = 0.9;
constexpr int kDefaultTrackInterval = 256;
constexpr int kMostSlots = 1 << 24;
// Prompts end closer to one another than checkpoints within them; denser ones than this would be of no use.
constexpr int kTokensPerCheckpoint = kLinearAttnLeastInterval;

int64_t useful_slots(const ServerArgs& args, const SchedulerConfig& scheduler) {
  const int64_t requests = scheduler.max_running_requests;
  if (scheduler.disable_radix_cache) return requests;
  const int64_t tokens = args.max_total_tokens ? *args.max_total_tokens : requests * scheduler.context_len;
  return std::min<int64_t>(kMostSlots, requests + std::max(requests, tokens / kTokensPerCheckpoint));
}

// Each running request has a state; `slots` is how many there are, if that is known.
Status check_running_requests(const ServerArgs& args, std::optional<int64_t> slots) {
  if (!slots || !args.max_running_requests || *args.max_running_requests <= *slots) return {};
  const bool given = args.max_mamba_cache_size.has_value();
  return Status::invalid_argument(
      fmt::format("--max-running-requests {} needs as many states of this model's recurrent layers, and there is room "
                  "for {}; lower it, or raise {}",
                  *args.max_running_requests, *slots, given ? "--max-mamba-cache-size" : "--mamba-full-memory-ratio"),
      given ? "--max-mamba-cache-size" : "--max-running-requests");
}

}  // namespace

Status check_state_flags(const ServerArgs& args, const ModelConfig& config) {
  if (config.short_conv && !args.mamba_ssm_dtype.empty()) {
    return Status::unsupported(
        fmt::format("--mamba-ssm-dtype: this model's recurrent layers ({}) keep the inputs of their "
                    "convolution alone, which are float32; leave it out",
                    config.architecture),
        "--mamba-ssm-dtype");
  }
  if (args.enable_deterministic_inference && args.mamba_ssm_dtype == "bfloat16" && config.linear) {
    return Status::invalid_argument(
        "--mamba-ssm-dtype bfloat16 rounds a state wherever a prompt is cut, which other requests decide; with "
        "--enable-deterministic-inference give float32",
        "--mamba-ssm-dtype");
  }
  if (args.mamba_track_interval && *args.mamba_track_interval < kLinearAttnLeastInterval) {
    return Status::invalid_argument(
        fmt::format("--mamba-track-interval is {}; it must be at least {}, and multiples of {} cost least",
                    *args.mamba_track_interval, kLinearAttnLeastInterval, kLinearAttnChunkTokens),
        "--mamba-track-interval");
  }
  if (args.max_mamba_cache_size && args.mamba_full_memory_ratio && config.has_recurrent_layers()) {
    return Status::invalid_argument(
        fmt::format("--mamba-full-memory-ratio: --max-mamba-cache-size {} says how many states there are; leave one of "
                    "the two out",
                    *args.max_mamba_cache_size),
        "--mamba-full-memory-ratio");
  }
  if (config.has_recurrent_layers()) return check_running_requests(args, args.max_mamba_cache_size);
  struct Given { const char* flag; bool given; };
  for (const Given& state : {Given{"--max-mamba-cache-size", args.max_mamba_cache_size.has_value()},
                             {"--mamba-full-memory-ratio", args.mamba_full_memory_ratio.has_value()},
                             {"--mamba-track-interval", args.mamba_track_interval.has_value()},
                             {"--mamba-ssm-dtype", !args.mamba_ssm_dtype.empty()}}) {
    if (!state.given) continue;
    return Status::unsupported(fmt::format("{}: this model ({}) has no recurrent layers; leave it out", state.flag,
                                           config.architecture), state.flag);
  }
  return {};
}

DType state_dtype(const ServerArgs& args) { return args.mamba_ssm_dtype == "bfloat16" ? DType::bf16 : DType::f32; }

Status size_state_slots(const ServerArgs& args, const ModelConfig& config, double pool_bytes,
                        SchedulerConfig& scheduler) {
  const double ratio = args.mamba_full_memory_ratio.value_or(kDefaultMemoryRatio);
  const auto slot_bytes =
      static_cast<double>(StateCache::bytes_per_slot(state_cache_shape(config, 1, state_dtype(args))));
  const int64_t fitting = static_cast<int64_t>(std::max(0.0, pool_bytes) * ratio / (1 + ratio) / slot_bytes);
  const int64_t slots = args.max_mamba_cache_size ? std::min(*args.max_mamba_cache_size, kMostSlots)
                                                  : std::min(fitting, useful_slots(args, scheduler));
  const int64_t requests = scheduler.disable_radix_cache ? slots : std::max<int64_t>(1, slots / 2);
  if (slots < 1) {
    return Status::invalid_argument(
        fmt::format(
            "a state of this model's recurrent layers takes {:.0f} bytes, and there is no memory for one; raise "
            "--mamba-full-memory-ratio or --mem-fraction-static",
            slot_bytes),
        "--mamba-full-memory-ratio");
  }
  const double state_bytes = static_cast<double>(slots) * slot_bytes;
  if (args.max_mamba_cache_size && !args.max_total_tokens && state_bytes >= pool_bytes) {
    return Status::invalid_argument(
        fmt::format("--max-mamba-cache-size {}: so many states take {:.1f} GB, and {:.1f} GB are there for them and "
                    "the KV pool; lower it, or raise --mem-fraction-static",
                    *args.max_mamba_cache_size, state_bytes / 1e9, std::max(0.0, pool_bytes) / 1e9),
        "--max-mamba-cache-size");
  }
  WW_RETURN_IF_ERROR(check_running_requests(args, slots));
  if (!args.max_running_requests) {
    scheduler.max_running_requests = static_cast<int>(std::min<int64_t>(scheduler.max_running_requests, requests));
  }
  scheduler.state_slots = static_cast<int>(slots);
  scheduler.state_request_slots = scheduler.max_running_requests;
  scheduler.state_interval = args.mamba_track_interval.value_or(kDefaultTrackInterval);
  return {};
}

Status keep_prompt_bits(const ServerArgs& args, SchedulerConfig& scheduler) {
  static constexpr int kTokens = kLinearAttnChunkTokens;
  const auto refuse = [](const char* flag, std::string_view fix) {
    return Status::invalid_argument(
        fmt::format("{}: --enable-deterministic-inference cuts prompts of models with recurrent layers at multiples of "
                    "{} tokens; {}",
                    flag, kTokens, fix),
        flag);
  };
  if (scheduler.chunked_prefill_size != -1 && scheduler.chunked_prefill_size < kTokens) {
    return refuse("--chunked-prefill-size", "give as many at least, or -1");
  }
  if (args.mamba_track_interval.value_or(kDefaultTrackInterval) % kTokens != 0) {
    return refuse("--mamba-track-interval", "give a multiple");
  }
  if (args.enable_mixed_chunk) return refuse("--enable-mixed-chunk", "leave it out, for it cuts them elsewhere");
  scheduler.enable_mixed_chunk = false;
  scheduler.state_cut_tokens = kTokens;
  return {};
}

}  // namespace warpweave
