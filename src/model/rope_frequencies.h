// Inverse frequencies of the rotary embedding and its scaled forms.
// Sources: RoFormer (2104.09864); YaRN (2309.00071); Llama 3.1's by-wavelength scaling.
#pragma once

#include <vector>

#include "model/config.h"

namespace warpweave {

struct RopeFrequencies {
  std::vector<double> inv_freq;      // [rotary_dim / 2]
  double attention_factor = 1.0;     // on cos and sin
};

// `max_positions`: the model's longest context; `served_positions`: the one it is served with.
RopeFrequencies rope_frequencies(const RopeConfig& rope, int head_dim, int max_positions, int served_positions);

}  // namespace warpweave
