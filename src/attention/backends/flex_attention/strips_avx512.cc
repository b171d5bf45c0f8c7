// AVX-512.
#define WW_LANES 16
#include "attention/backends/flex_attention/strips_generic.h"

namespace warpweave::flex_attention {

const Strips kAvx512Strips = {compute, copy, hide, any};

}  // namespace warpweave::flex_attention
