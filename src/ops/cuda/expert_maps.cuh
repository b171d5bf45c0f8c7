// The tensor maps of the experts' GEMMs (expert_gemm.cu): weights of all experts, rows by place. They fail where the driver is
// older than the chip.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/cuda/tensor_map.h"
#include "ops/cuda/expert_config.cuh"
#include "ops/cuda/expert_sharing.cuh"

namespace warpweave::gpu {

// `x` is [rows, columns] of elements of 16 bits.
template <class C>
bool make_place_maps(PlaceMaps& maps, const void* x, int64_t rows, int64_t columns) {
  // Of shared rows, which all CTAs read, whole lines.
  constexpr auto kPromotion = C::kMostPlaces == kSharedRows ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_NONE;
  const cuda::MatrixStack places = {x, 1, rows * columns * 2, rows, columns, kPromotion};
  for (int i = 0; i < PlaceMaps::kCount && PlaceMaps::width<C::kMostPlaces>(i) <= C::kMostPlaces; ++i) {
    const int width = PlaceMaps::width<C::kMostPlaces>(i);
    const cudaError_t made = C::kBlocks > 1 ? cuda::make_blocks_map(&maps.of[i], places, width, C::kBlocks)
                                            : cuda::make_matrix_map(&maps.of[i], x, rows, columns, width);
    if (made != cudaSuccess) return false;
  }
  return true;
}

template <class C>
bool make_weight_map(CUtensorMap& map, const ExpertWeights& weights) {
  const int64_t columns = weights.cols / (C::kFp8 ? 2 : 1);  // one-byte elements are taken by twos
  // With promotion to 256 bytes a CTA without another on its SM gets a quarter less.
  const cuda::MatrixStack stack = {weights.data, weights.experts, weights.stride_bytes, weights.rows, columns,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B};
  const cudaError_t made = C::kBlocks > 1 ? cuda::make_blocks_map(&map, stack, C::kRows, C::kBlocks)
                                          : cuda::make_stack_map(&map, stack, C::kRows);
  return made == cudaSuccess;
}

template <class C>
bool make_maps(ExpertShareArgs& args, const ExpertGemmCall& call) {
  const int64_t columns = call.weights.cols / (C::kFp8 ? 2 : 1);
  const EarlyExperts& early = call.early;
  return make_weight_map<C>(args.w, call.weights) && make_place_maps<C>(args.places, call.x, args.x_rows, columns) &&
         (!C::kEarly || early.rows == 0 || make_place_maps<C>(args.other_places, early.x, early.rows, columns));
}

// Of the second kind of tiles that a kernel has.
template <class C>
bool make_crowded_maps(ExpertShareArgs& args, const ExpertGemmCall& call) {
  return make_weight_map<C>(args.crowded_w, call.weights) &&
         make_place_maps<C>(args.other_places, call.x, args.x_rows, call.weights.cols / (C::kFp8 ? 2 : 1));
}

}  // namespace warpweave::gpu
