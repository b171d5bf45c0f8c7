// What drafted nodes find, in f32: the recurrence (recurrent.cuh) over each path of a tree, from the request's state, which stays.
// Grid: as recurrent.cuh's. A lane has one row of the state, for paths are in registers, too.
#pragma once

#include "linear/cuda/launch_grids.h"
#include "linear/cuda/recurrent.cuh"

namespace warpweave::linear {

// The path to a node as bits, or every node before it in a chain.
WW_DEVICE ptx::u64 path_to(const LinearAttnBatch& batch, int first, int last) {
  ptx::u64 path = 0;
  for (int node = last; node >= 0; node = batch.parents == nullptr ? node - 1 : batch.parents[first + node]) {
    path |= ptx::u64{1} << node;
  }
  return path;
}

// Path by path: a node of several paths is computed again for each, to the same bits.
template <class C>
WW_DEVICE void recur_over_tree(Recurrence<C>& state, const LinearAttnBatch& batch, int request) {
  const int first = first_row(batch, request), nodes = first_row(batch, request + 1) - first;
  if (batch.slots[request] < 0) {
    const float zeros[C::kRows] = {};
    for (int node = 0; node < nodes; ++node) state.write(first + node, zeros);
    return;
  }
  ptx::u64 followed = 0;  // nodes that others follow: no path ends there
  for (int node = 0; node < nodes; ++node) {
    const int parent = batch.parents == nullptr ? node - 1 : batch.parents[first + node];
    if (parent >= 0) followed |= ptx::u64{1} << parent;
  }
  for (int leaf = 0; leaf < nodes; ++leaf) {
    if (followed >> leaf & 1) continue;
    state.load(initial_slot(batch, request));
    const ptx::u64 path = path_to(batch, first, leaf);
    for (int node = 0; node <= leaf; ++node) {
      if (!(path >> node & 1)) continue;
      state.ask(first + node);
      state.step(first + node);
      state.round_to_stored();
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kMaxDim > 128 ? 2 : 4) recurrent_verify(const __grid_constant__ LinearParams p) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  const int tiles = (p.v_dim + C::kTileRows - 1) / C::kTileRows;
  Recurrence<C> state(p, blockIdx.y, blockIdx.x / tiles, blockIdx.x % tiles);
  recur_over_tree(state, p.batch, blockIdx.y);
}

// As recurrent_grid().
template <class Run>
void verify_grid(const LinearParams& p, const Run& run) {
  const auto kinds = [&]<class State, int kDim, bool kKda> {
    using C = RecurrentConfig<State, kDim, 1, kKda, RecurrentMode::extend>;
    run.template operator()<C>((p.v_dim + C::kTileRows - 1) / C::kTileRows * p.v_heads, p.batch.num_requests);
  };
  const auto sizes = [&]<class State> {
    with_dim<64, 128, 256>(p.k_dim, [&]<int kDim> {
      if (p.decay_channels > 1) kinds.template operator()<State, kDim, true>();
      else kinds.template operator()<State, kDim, false>();
    });
  };
  if (p.state.dtype == DType::f32) sizes.template operator()<F32State>();
  else sizes.template operator()<Bf16State>();
}

}  // namespace warpweave::linear
