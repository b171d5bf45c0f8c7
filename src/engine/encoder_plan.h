// What serving an encoder asks of flags and scheduling: every token attends to all of its prompt, so prompts are
// computed whole, nothing of one is of use to another, and nothing is generated.
#pragma once

#include "flags/server_args.h"
#include "model/config.h"
#include "sched/scheduler.h"

namespace warpweave {

// `invalid_argument`, naming the flag, for one that asks an encoder for what it does not do. Success for other models.
Status check_encoder_flags(const ServerArgs& args, const ModelConfig& config);

// Neither cuts prompts nor keeps what was computed of them.
void schedule_whole_prompts(SchedulerConfig& scheduler);

}  // namespace warpweave
