#include "cli/measure_latent.h"

namespace warpweave {

Status measure_latent_forms(const LatentMeasurement&, const std::function<void(const LatentFormPoint&)>&) { return {}; }

}  // namespace warpweave
