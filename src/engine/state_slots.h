// How many states of recurrent layers a server holds: a slot for each running request, and checkpoints of the prefix
// cache in the others (sched/scheduler.h). Pure.
#pragma once

#include "flags/server_args.h"
#include "model/recurrent.h"
#include "sched/scheduler.h"

namespace warpweave {

// The flags of such states against the model: `unsupported` with the flag as field where the model has none.
Status check_state_flags(const ServerArgs& args, const ModelConfig& config);

DType state_dtype(const ServerArgs& args);  // --mamba-ssm-dtype

// Sets scheduler.state_* and, where --max-running-requests was not given, lowers max_running_requests to what the
// states allow: half of the slots where there is a prefix cache. `pool_bytes` are for states and KV pool together.
// Errors name the flag to change.
Status size_state_slots(const ServerArgs& args, const ModelConfig& config, double pool_bytes,
                        SchedulerConfig& scheduler);

// For --enable-deterministic-inference where chunks of linear attention show in bits: prompts are cut between them
// only, so that their bits depend neither on other requests nor on drafts.
// Errors name the flag that asks for other cuts.
Status keep_prompt_bits(const ServerArgs& args, SchedulerConfig& scheduler);

}  // namespace warpweave
