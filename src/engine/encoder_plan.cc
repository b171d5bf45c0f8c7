#include "engine/encoder_plan.h"

#include <fmt/format.h>

namespace warpweave {

Status check_encoder_flags(const ServerArgs& args, const ModelConfig& config) {
  if (!config.encoder) return {};
  const auto refuse = [&](const char* flag, const char* rule) {
    return Status::invalid_argument(fmt::format("{}: {} is an encoder, which {}; leave the flag out", flag,
                                                config.declared_architecture, rule), flag);
  };
  if (args.chunked_prefill_size && *args.chunked_prefill_size > 0) {
    return refuse("--chunked-prefill-size", "reads a prompt as a whole");
  }
  if (args.enable_mixed_chunk) return refuse("--enable-mixed-chunk", "decodes nothing");
  if (args.wants_lora()) return refuse("--enable-lora", "takes no adapters");
  if (!args.speculative_algorithm.empty()) return refuse("--speculative-algorithm", "generates nothing");
  return {};
}

void schedule_whole_prompts(SchedulerConfig& scheduler) {
  scheduler.chunked_prefill_size = -1;
  scheduler.enable_mixed_chunk = false;
  scheduler.mixed_chunk_rows = 0;
  scheduler.disable_radix_cache = true;
}

}  // namespace warpweave
