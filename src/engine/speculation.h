// Which ways to speculate are served, and what makes the proposals.
#pragma once

#include <memory>

#include "attention/select.h"
#include "engine/serve_plan.h"
#include "flags/server_args.h"
#include "model/config.h"
#include "sample/row_sampler.h"
#include "spec/draft_options.h"
#include "spec/proposer.h"
#include "warpweave/status.h"

namespace warpweave {

// Refuses, by flag, what cannot be served whatever the attention backend.
Status check_speculation(const ServerArgs& args, const ModelConfig& model);
// And what cannot be once it is known how many tokens are checked at once.
Status check_draft_tokens(const ServerArgs& args, const Speculation& speculation, const ModelConfig& model);

// Whether the number of guesses follows what was measured: by flag, and on CPUs where no number is given, for there a
// draft model's passes are not small beside a step.
bool adapts_length(const ServerArgs& args, const Speculation& speculation, bool gpu);

// Tokens proposed at once to follow a request's last; 0 without speculation.
int max_proposals(const Speculation& speculation);
// The same of a draft model, or found in its place.
int max_proposals(const DraftOptions& options);

// Of all requests in a step together: with more, a step takes longer than the guesses save.
int max_step_proposals(bool gpu);

// What a step of decoding takes beside the time of its rows, in rows: about what reading the weights takes beside
// multiplying one row by them. Of CPUs the least that was measured, for guesses must not cost time where weights are
// cached; of GPUs an estimate (an H200's steps of 8 and of 64 rows, Llama-3.1-8B's shape, say 96).
double step_cost_rows(bool gpu);

// Without speculation: whether what a grammar forces is proposed all the same (jump-forward), at most so many tokens of
// a request at once. Not with recurrent layers, whose states would take memory for it, nor where answers must not
// depend on how steps are cut (--enable-deterministic-inference), nor on GPUs, where what a grammar allows is checked
// on the host, which costs more than it saves.
inline constexpr int kMaxForcedProposals = 15;
bool jumps_forward(const ServerArgs& args, const ModelConfig& model, const Resolved& attention, bool gpu);

// --speculative-accept-threshold-*.
AcceptThresholds accept_thresholds(const ServerArgs& args);

// What guesses on the host, or keeps room for the device's guesses; null without speculation. Of what a grammar forces,
// see ForcedProposer.
std::unique_ptr<Proposer> make_proposer(const ServerArgs& args, const ServePlan& plan);

}  // namespace warpweave
