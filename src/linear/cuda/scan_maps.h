// Tensor maps through which chunk_scan brings whole chunks by TMA. A kernel's parameter.
#pragma once

#include "linear/cuda/linear_params.h"

namespace warpweave::linear {

// What cuda.h calls a CUtensorMap; kernels only hand on its address.
struct alignas(128) ScanMap {
  unsigned char bytes[128];
};

// Boxes of 64 tokens and 64 columns. KDA: k and q are kg and qg.
struct ScanMaps {
  ScanMap k, q, kd, v, t, p;
  bool usable = false;
};

// The same, and where outputs go.
struct FusedMaps : ScanMaps {
  ScanMap out;
};

// Not usable where a tensor has no such map, or less than 64 columns: then chunks are copied by cp.async.
ScanMaps make_scan_maps(const LinearParams& p);
FusedMaps make_fused_maps(const LinearParams& p);

}  // namespace warpweave::linear
