// Sums of a tile of the experts' GEMMs (expert_gemm.cu) whose operands have 8 bits, stage by stage.
#pragma once

#include "ops/cuda/expert_fp8.cuh"
#include "ops/cuda/expert_sharing.cuh"
#include "ops/cuda/expert_walk.cuh"

namespace warpweave::gpu {

// Of x, for the tile's first place.
__device__ __forceinline__ int first_x_row(const ExpertShareArgs& a, const ExpertTile& tile) { return a.shared_rows ? 0 : tile.first; }

__device__ __forceinline__ void release(u32 empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
}

template <class C>
constexpr bool kFewPlaces = C::kMostPlaces <= kNarrowTilePlaces;  // of 8-bit operands: a tile's time is that of its weights

// Of a thread's two weight rows, for the blocks of a stage; behind the last one all sums are zero.
template <class C>
__device__ __forceinline__ void read_scales(const ExpertShareArgs& a, const ExpertFp8Scales<C>& scales, int stage, float2 (&of_rows)[C::kBlocks]) {
#pragma unroll
  for (int block = 0; block < C::kBlocks; ++block) {
    const int chunk = min(stage * C::kBlocks + block, a.chunks - 1);
    of_rows[block] = {scales.of_chunk(0, chunk), scales.of_chunk(1, chunk)};
  }
}

// The sums of each block of a stage of 8-bit operands, once it is full; then it is free again.
template <class C, int kPlaces, int kParts>
__device__ __forceinline__ void multiply_stage(const ExpertRing<C>& ring, float (&part)[C::kBlocks][kParts][kPlaces / 2]) {
  ptx::mbarrier_wait(ring.full(), ring.parity);
#pragma unroll
  for (int block = 0; block < C::kBlocks; ++block) {
    multiply_codes<kPlaces>(ring.at() + block * C::kRows * kExpertRowBytes, ring.at() + C::kWeightBytes + block * kPlaces * kExpertRowBytes, part[block]);
  }
  ptx::wgmma_wait<0>();
  release(ring.empty());
}

// 8-bit operands, x with a scale a place.
template <class C, int kPlaces>
__device__ __forceinline__ void sum_codes(const ExpertShareArgs& a, ExpertRing<C>& ring, const ExpertWalk<C>& walk, float (&sum)[kPlaces / 2]) {
  const Depth<C> depth(a);
  const ExpertFp8Scales<C> scales(a, walk.tile.expert, walk.row * C::kRows);
  ExpertPlaceScales<kPlaces> of_places;
  if constexpr (kFewPlaces<C>) of_places.read(a.x_scales + first_x_row(a, walk.tile), walk.tile.count);
  const float* coming_scales = nullptr;
  float part[C::kBlocks][1][kPlaces / 2];
  for (int i = 0; i < depth.count; ++i, ring.next()) {
    if (kFewPlaces<C> && i == 1 && walk.followed()) coming_scales = a.scales[walk.coming.x];
    float2 of_rows[C::kBlocks];
    read_scales<C>(a, scales, depth.begin + i, of_rows);
    multiply_stage<C, kPlaces>(ring, part);
#pragma unroll
    for (int block = 0; block < C::kBlocks; ++block) scales.add(of_rows[block].x, of_rows[block].y, part[block][0], sum);
  }
  if (coming_scales != nullptr) ExpertFp8Scales<C>::prefetch(a, coming_scales, walk.coming_row() * C::kRows);
  if constexpr (!kFewPlaces<C>) of_places.read(a.x_scales + first_x_row(a, walk.tile), walk.tile.count);
  scales.finish(of_places, sum);
}

// The same, x with a scale for each group of a place's columns.
template <class C, int kPlaces>
__device__ __forceinline__ void sum_grouped_codes(const ExpertShareArgs& a, ExpertRing<C>& ring, const ExpertWalk<C>& walk, float (&sum)[kPlaces / 2]) {
  const Depth<C> depth(a);
  const ExpertGroupScales<kPlaces> groups(a, walk.tile, ring.staging(0) + kPassBytes);
  const ExpertFp8Scales<C> scales(a, walk.tile.expert, walk.row * C::kRows);
  const float* coming_scales = nullptr;
  float part[C::kBlocks][4][kPlaces / 2];
  for (int i = 0; i < depth.count; ++i, ring.next()) {
    if (i == 1 && walk.followed()) coming_scales = a.scales[walk.coming.x];
    float2 of_rows[C::kBlocks];
    read_scales<C>(a, scales, depth.begin + i, of_rows);
    multiply_stage<C, kPlaces>(ring, part);
#pragma unroll
    for (int block = 0; block < C::kBlocks; ++block) {
      groups.add(min((depth.begin + i) * C::kBlocks + block, a.chunks - 1), of_rows[block], part[block], sum);
    }
  }
  if (coming_scales != nullptr) ExpertFp8Scales<C>::prefetch(a, coming_scales, walk.coming_row() * C::kRows);
  scales.finish(sum);
}

}  // namespace warpweave::gpu
