// Which tiles a CTA of the experts' GEMMs multiplies (expert_gemm.cu), one after the other.
#pragma once

#include "ops/cuda/expert_gemm.cuh"
#include "ops/cuda/expert_sharing.cuh"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {

// CTAs that share tiles have one at most.
template <class C>
struct ExpertWalk {
  int at, end, row_tiles;
  ExpertTile tile;
  int row;                      // of the weights
  int4 coming;                  // the next one: asked for before this one is worked on

  // Before the plan is there, early tiles are known, and which expert the first tile has where that one is certain.
  __device__ explicit ExpertWalk(const ExpertShareArgs& a)
      : at(static_cast<int>(blockIdx.x) / (C::kSplit ? a.sharers : 1)), end(0), row_tiles(a.row_tiles),
        tile{a.first_certain + at / row_tiles, 0, 1, 0}, row(at % row_tiles) {
    if (early(a)) take_early(a);
  }
  // Goes on as another kind of tiles, which do not share their depth either.
  template <class Other>
  __device__ explicit ExpertWalk(const ExpertWalk<Other>& walk)
      : at(walk.at), end(walk.end), row_tiles(walk.row_tiles), tile(walk.tile), row(walk.row), coming(walk.coming) {
    static_assert(!C::kSplit && !Other::kSplit);
  }
  __device__ bool certain(const ExpertShareArgs& a) const { return at / row_tiles < a.certain; }
  // Whether the tile is one of experts that have all rows, which the plan puts first.
  __device__ bool early(const ExpertShareArgs& a) const { return C::kEarly && at < a.early.tiles * row_tiles; }
  // Reads the first tile of the plan beside their number.
  __device__ void start(const ExpertShareArgs& a) {
    const int tiles = __ldcg(a.num_tiles);
    coming = __ldcg(reinterpret_cast<const int4*>(a.tiles) + min(at / row_tiles, a.most_tiles - 1));
    end = tiles * row_tiles;
    take(a);
  }
  __device__ bool valid() const { return at < end; }
  __device__ void next(const ExpertShareArgs& a) {
    at += gridDim.x;
    take(a);
  }
  __device__ void next_early(const ExpertShareArgs& a) {
    at += gridDim.x;
    row = at % row_tiles;
    if (early(a)) take_early(a);
  }
  // As the warps that multiply go: behind early tiles they wait for the plan, or, where it is settled, for what they multiply.
  __device__ void begin(const ExpertShareArgs& a) {
    if (early(a)) return;
    if (a.plan_settled) start(a);
    wait_for_predecessor();
    if (!a.plan_settled) start(a);
  }
  __device__ void advance(const ExpertShareArgs& a) {
    if (!early(a)) return next(a);
    next_early(a);
    begin(a);
  }
  __device__ void take(const ExpertShareArgs& a) {
    tile = {coming.x, coming.y, coming.z, coming.w};
    row = at % row_tiles;
    if (followed()) coming = __ldcg(reinterpret_cast<const int4*>(a.tiles) + (at + static_cast<int>(gridDim.x)) / row_tiles);
  }
  __device__ bool followed() const { return !C::kSplit && at + static_cast<int>(gridDim.x) < end; }
  __device__ int coming_row() const { return (at + static_cast<int>(gridDim.x)) % row_tiles; }

 private:
  __device__ void take_early(const ExpertShareArgs& a) {
    const int index = at / row_tiles, expert = index / a.early.tiles_each, first = index % a.early.tiles_each * a.early.places;
    tile = {a.early.first_expert + expert, a.early.first_place + expert * a.early.rows + first,
            min(a.early.places, a.early.rows - first), 0};
    end = a.early.tiles * row_tiles;
  }
};

}  // namespace warpweave::gpu
