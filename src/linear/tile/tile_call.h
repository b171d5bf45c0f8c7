// From a call to the kernels' argument, the grids to launch and the workspace between the kernels. Pure functions; the
// same for every device whose kernels get addresses.
#pragma once

#include <string_view>
#include <vector>

#include "attention/tile/tile_args.h"
#include "linear/tile/linear_tile_args.h"
#include "linear/tile/tile_spec.h"

namespace warpweave::linear_tile {

size_t workspace_bytes(const TileSpec& spec, const LinearAttnLimits& limits);

LinearTileArgs make_args(const TileSpec& spec, const LinearAttnCall& call, LinearAttnPhase phase);

// The work-groups of a kernel.
struct Launch {
  std::string_view kernel;
  int x = 1, y = 1, z = 1;
  size_t local_bytes = 0;
};
// What runs a call, in order; empty for a batch of nobody.
std::vector<Launch> launches(const TileSpec& spec, const LinearAttnCall& call, LinearAttnPhase phase);

}  // namespace warpweave::linear_tile
