// Split-KV over tiles of rows: what an attention kernel whose CTA takes many rows of a request at a time, and the
// kernel that merges the pieces (split_combine.cuh), hand each other. All pointers are device pointers.
//
// The plan is that of decode (DecodeWorker). What stands there as a kv head is a unit here: so many rows of a request
// that read the same K and V. A unit that is cut has one piece per worker that it touches. A piece is [16 rows][8
// columns][lane] of what a lane holds of the mma accumulators of 16 x 8: four numbers, of rows lane / 4 (two) and lane
// / 4 + 8. The value dim is known to the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/attention_params.h"

namespace warpweave::cuda {

struct SplitCut {
  int32_t q_begin = 0, q_len = 0, unit = 0;
  int32_t pieces = 0;  // 0: no cut unit begins at the worker
};

struct SplitWork {
  const DecodeWorker* workers = nullptr;
  SplitCut* cuts = nullptr;          // [workers], written by the attention kernel
  int32_t* arrivals = nullptr;       // [workers, 2] of the unit that is cut and begins there (split_in_place.cuh)
  float* partial_out = nullptr;      // [2 * workers, tile_rows * value_dim] unnormalised
  float* partial_max_sum = nullptr;  // [2 * workers, tile_rows, 2] maximum (log2 units), sum
  int num_workers = 0;
  int tile_rows = 64;                // of a unit
  int units = 1;                     // of a request
  int lockstep = 1;                  // neighbouring units that as many neighbouring workers take in lockstep
  bool plan_is_older = false;        // than the kernel before this one, and so are the lengths and the page table
};

// Where the parts stand in a workspace of split_workspace_bytes().
size_t split_workspace_bytes(int num_workers, int tile_rows, int value_dim);
SplitWork split_work_of(void* workspace, int num_workers, int tile_rows);

}  // namespace warpweave::cuda
