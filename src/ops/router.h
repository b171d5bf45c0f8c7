// The router of a mixture of experts on the host: rows of logits to the chosen experts and their weights, by a
// RouterRule. Rows are independent, so a row's choice and weights do not depend on the batch.
//
// Softmax without bias and groups chooses by the logits themselves, which have the order of their softmax without
// its rounding. A NaN logit never wins against a number. Thread-safe; no allocation; the rule is asserted, so
// rules that come from outside are checked first.
#pragma once

#include <cstdint>

#include "ops/router_rule.h"
#include "warpweave/status.h"

namespace warpweave {

// `invalid_argument`, naming the rule that is broken.
Status check_router_rule(const RouterRule& rule);

struct ChooseExpertsCall {
  const float* logits = nullptr;      // [rows, rule.num_experts]
  int64_t rows = 0;
  RouterRule rule;
  const float* correction = nullptr;  // [rule.num_experts] added for the choice only, or null
  int32_t* experts_out = nullptr;     // [rows, rule.k]
  float* weights_out = nullptr;       // [rows, rule.k]
};
void choose_experts(const ChooseExpertsCall& call);

}  // namespace warpweave
