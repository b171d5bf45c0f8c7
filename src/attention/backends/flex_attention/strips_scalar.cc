// Baseline lanes.
#define WW_LANES 4
#include "attention/backends/flex_attention/strips_generic.h"

namespace warpweave::flex_attention {

const Strips kScalarStrips = {compute, copy, hide, any};

}  // namespace warpweave::flex_attention
