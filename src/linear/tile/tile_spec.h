// What a program of linear attention's tile kernels is specialised for, and the choice of its tile sizes. Pure
// functions for every device; lanes and devices are those of attention/tile.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "attention/tile/tile_spec.h"
#include "linear/linear_attn.h"

namespace warpweave::linear_tile {

struct TileSpec {
  LinearAttnShape shape;                          // threads: its kind and dims are told to the compiler
  tile::LaneKind lanes = tile::LaneKind::vector;  // vector or threads
  int lane_count = 16;
  int warps = 1;
  int step_rows = 8;                // of the state in a warp's registers; warps * step_rows divides 16
  int block = 16;                   // tokens of a block of chunks.cl
  int row_block = 8;                // of them in registers at a time; divides block
  int tile_v = 0;                   // columns of a work-group there
  size_t declared_local_bytes = 0;  // vector: of a program, which is for all shapes

  int work_items() const { return lanes == tile::LaneKind::vector ? 1 : warps * lane_count; }
  int padded(int dim) const { return (dim + lane_count - 1) / lane_count * lane_count; }
};

// `device.lanes`: vector, else lanes are threads.
// `invalid_argument` for a shape whose smallest tile does not fit the device's local memory.
Result<TileSpec> choose_tile(const LinearAttnShape& shape, const tile::TileDevice& device);

// Local (shared) memory of a work-group of the kernel `chunks`; the others need none.
size_t chunk_local_bytes(const TileSpec& spec);

// "K_DIM=128", ... for -D options.
std::vector<std::string> tile_defines(const TileSpec& spec);
// The kernel text, all files in order, ready for any of the compilers.
std::string tile_source();

}  // namespace warpweave::linear_tile
