// Times of the two forms that prompts of latent attention can take (attention/latent_forms.h), for `tune`: a model of
// one layer with made-up weights and the dims of `config`, and steps of prompts behind cached tokens.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "attention/latent_forms.h"
#include "attention/select.h"
#include "model/config.h"

namespace warpweave {

struct LatentMeasurement {
  const ModelConfig& config;       // with `latent`
  const Resolved& attention;       // as selected: the backend of prefill, page size, KV format
  DType dtype = DType::bf16;
  double max_seconds = 0.005;  // per step and form, of which one runs at least
};

struct LatentPrompt {
  int new_tokens = 0;
  int prefix = 0;  // cached tokens before them, which no other prompt shares
};
using LatentStep = std::vector<LatentPrompt>;

// Microseconds of the GPU, the host's launches not counted: in a model's step they run behind the work of the layers
// before. Handed to `each` with the step's index as it is done. On the current GPU; nothing is measured where it has no
// kernels for the expanded form, nor by programs without GPU code.
Status measure_latent_steps(const LatentMeasurement& asked, std::span<const LatentStep> steps,
                            const std::function<void(size_t, const LatentFormTimes::Pair&)>& each);

// What `tune` measures for models of `context_len`, their times to be filled in: 1, 4 and 16 requests alike. Crowds of
// more than 8192 new tokens, or of more than 2^26 pairs of tokens, fill any GPU: LatentFormTimes takes them from
// smaller ones.
std::vector<LatentFormPoint> latent_points(int context_len);

}  // namespace warpweave
