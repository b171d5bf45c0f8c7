// Times of the two forms that prompts of latent attention can take (attention/latent_forms.h), for `tune`: a model of
// one layer with made-up weights and the dims of `config`, a request of so many new tokens behind so many cached ones.
#pragma once

#include <functional>
#include <vector>

#include "attention/latent_forms.h"
#include "attention/select.h"
#include "model/config.h"

namespace warpweave {

struct LatentMeasurement {
  const ModelConfig& config;       // with `latent`
  const Resolved& attention;       // as selected: the backend of prefill, page size, KV format
  DType dtype = DType::bf16;
  std::vector<int> new_tokens = {32, 64, 128, 256, 512, 1024, 2048};
  std::vector<int> prefixes = {0, 1024, 4096, 16384, 32768};
  double max_seconds = 0.3;        // per point and form
};

// Every point of the grid, handed to `each` as it is done. On the current GPU; nothing is measured where it has no
// kernels for the expanded form, nor by programs without GPU code. Lengths beyond the model's context are left out.
Status measure_latent_forms(const LatentMeasurement& asked, const std::function<void(const LatentFormPoint&)>& each);

}  // namespace warpweave
