// AVX2 with FMA.
#define WW_LANES 8
#include "attention/backends/flex_attention/strips_generic.h"

namespace warpweave::flex_attention {

const Strips kAvx2Strips = {compute, copy, hide, any};

}  // namespace warpweave::flex_attention
