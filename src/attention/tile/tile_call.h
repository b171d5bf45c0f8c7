// From a batch and a call to the kernels' argument, and the grids to launch. Pure functions; the
// same for every device whose kernels get addresses.
#pragma once

#include "attention/backend.h"
#include "attention/tile/tile_args.h"
#include "attention/tile/tile_spec.h"

namespace warpweave::tile {

TileShape shape_of(const AttentionCall& call);

// For kernels that read the batch's arrays where the host does.
TileArgs make_args(const ForwardBatch& batch, const AttentionCall& call);
// For kernels of a GPU: the batch's device arrays.
TileArgs make_device_args(const ForwardBatch& batch, const AttentionCall& call);

// Whether every query, K and V row starts on a multiple of eight elements and 16 bytes, so that kernels
// may read rows in pieces of eight.
bool rows_are_aligned(const AttentionCall& call);

struct TileGrid {
  int tiles = 0;
  int kv_heads = 0;
  int splits = 1;
};

// Sets how `args` finds its tiles under `spec`, and returns the grid. `uniform_rows`: the query rows
// of every request where all have equally many (decode: 1), else 0. No request is looked at, so the
// grid of a captured graph stays right when lengths change.
TileGrid plan_grid(const TileSpec& spec, int uniform_rows, TileArgs& args);

// How many splits, at most `most`, let the grid have about `work_groups` of them.
int even_split_count(const TileGrid& grid, int work_groups, int most);
// Splits of fixed length that cover `max_kv_len`, and the bytes of the two partial arrays for them.
int split_count(const TileSpec& spec, int max_kv_len);
size_t partial_out_bytes(const TileSpec& spec, const TileArgs& args, int splits);
size_t partial_stats_bytes(const TileArgs& args, int splits);

}  // namespace warpweave::tile
