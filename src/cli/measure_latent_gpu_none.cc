#include "cli/measure_latent.h"

namespace warpweave {

Status measure_latent_steps(const LatentMeasurement&, std::span<const LatentStep>,
                            const std::function<void(size_t, const LatentFormTimes::Pair&)>&) {
  return {};
}

}  // namespace warpweave
