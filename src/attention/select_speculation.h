// Speculative parameters, resolved before anything else: the rules about pages and backends depend
// on them.
#pragma once

#include <string>
#include <vector>

#include "attention/select.h"
#include "warpweave/status.h"

namespace warpweave {

// Fills what is unset by the field's defaults (Llama and Grok: 5 steps, topk 4, 8 draft tokens;
// others 3, 1, 4; NGRAM: topk 10, 12 draft tokens). A chain verifies num_steps + 1 tokens.
// Errors are `invalid_argument` with the flag as field. Appends a reason when speculation is on.
// On CPUs, where a pass of the draft model is not small beside a step, unset are topk 1 and 4 steps, of which the
// engine takes as many as pay, or 2 steps of a tree. A tree is no deeper than the narrowest sliding window: unset
// numbers shrink to that, or to a chain.
Result<Speculation> resolve_speculation(const AttentionFlags& flags, const ModelFacts& model, DeviceArch arch,
                                        std::vector<std::string>& reasons);

}  // namespace warpweave
