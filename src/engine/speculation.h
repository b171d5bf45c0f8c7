// Which ways to speculate are served, and what makes the proposals.
#pragma once

#include <memory>

#include "attention/select.h"
#include "engine/serve_plan.h"
#include "flags/server_args.h"
#include "model/config.h"
#include "spec/proposer.h"
#include "warpweave/status.h"

namespace warpweave {

// Refuses, by flag, what cannot be served whatever the attention backend.
Status check_speculation(const ServerArgs& args, const ModelConfig& model, bool gpu);
// And what cannot be once it is known how many tokens are checked at once.
Status check_draft_tokens(const ServerArgs& args, const Speculation& speculation, const ModelConfig& model);

// Tokens proposed at once to follow a request's last; 0 without speculation.
int max_proposals(const Speculation& speculation);

// Of all requests in a step together: with more, a step takes longer than the guesses save.
int max_step_proposals(bool gpu);

// What guesses on the host, or keeps room for the device's guesses; null without speculation.
std::unique_ptr<Proposer> make_proposer(const ServerArgs& args, const ServePlan& plan);

}  // namespace warpweave
