// Low-rank adapters beside the GEMMs of a model, on the GPU: y += scale * (x A^T) B^T, where rows of one batch have
// different adapters, or none (LoRA, Hu et al. 2021; batches of many adapters: Punica, Chen et al. 2023). ops/lora.h's twin.
//
// GEMMs of 17 to 64 rows do both in their own kernel (lora_join.cuh): which of their partial sums a row's ranks join there
// depends on the batch's other adapters, and so does the last bit of a row. Else two kernels a GEMM: the first brings the
// rows of a tile (ops/lora_tiles.h) to the ranks of its adapter, ahead of the GEMM; the second adds what they give to its
// result, or to one of the partial sums that it leaves. Both begin under the kernels before them and ask for their matrices
// there. The depth is summed in slices, in one order whatever the batch: what these two add to a row depends on that row and
// its adapter alone. Tiles are read from the step's arrays, so that one CUDA graph serves steps of any mixture. Neither
// allocates nor waits; both may be captured. Inputs f32, bf16 or f16; sums are f32.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ops/cuda/gpu_ops.h"
#include "ops/lora_site.h"
#include "ops/lora_tiles.h"
#include "warpweave/tensor.h"

namespace warpweave::gpu {

inline constexpr int kLoraParts = 3;          // of a GEMM: q, k and v; gate and up
inline constexpr int kLoraRankMultiple = 16;  // ranks are filled up to it with zeros
inline constexpr int padded_lora_rank(int rank) { return (rank + kLoraRankMultiple - 1) / kLoraRankMultiple * kLoraRankMultiple; }

// What adapters may change of one GEMM; the same for all of them.
struct LoraSiteShape {
  int64_t in_features = 0;       // 0: nothing
  int num_parts = 0;
  int64_t first_column[kLoraParts] = {};
  int64_t columns[kLoraParts] = {};

  int64_t all_columns() const { return columns[0] + columns[1] + columns[2]; }
};

// One adapter's matrices for one GEMM, in GPU memory, in the type of the activations.
struct LoraSiteWeights {
  const void* shrink = nullptr;              // [ranks, in_features]: the parts' A, one below the other
  const void* expand[kLoraParts] = {};       // [columns, rank]: B; null: the adapter leaves this part as it is
  int32_t ranks = 0;                         // of all parts together; 0: the adapter leaves the GEMM as it is
  int32_t first_rank[kLoraParts] = {};
  int32_t rank[kLoraParts] = {};             // a multiple of kLoraRankMultiple
  float scale[kLoraParts] = {};
};

// The adapters of a server, as a model's layers see them.
struct LoraModel {
  const LoraSiteWeights* sites = nullptr;    // [slots, layers, kLoraSites], in GPU memory
  int32_t* counters = nullptr;               // [2] in GPU memory, zeros between GEMMs: of lora_join.cuh
  std::vector<std::array<LoraSiteShape, kLoraSites>> layers;
  int max_rank = 0;                          // of one part of any adapter

  int64_t widest() const;                    // columns of a GEMM
  const LoraSiteShape& shape(LoraPlace place) const { return layers[place.layer][static_cast<int>(place.site)]; }
  // Of slot 0; those of the next slot are layers.size() * kLoraSites further.
  const LoraSiteWeights* site(LoraPlace place) const { return sites + place.layer * kLoraSites + static_cast<int>(place.site); }
};

struct LoraCall {
  const LoraModel* model = nullptr;
  LoraPlace place;
  const LoraTile* tiles = nullptr;  // in GPU memory
  const int32_t* places = nullptr;  // [rows], fill_lora_tiles(); of lora_join() only
  int num_tiles = 0;
  int64_t rows = 0;              // of the batch
  DType dtype = DType::bf16;     // of x and the matrices
  float* sums = nullptr;         // lora_sums_size() of room: the rows' ranks
};

// Elements of LoraCall::sums for up to `rows` rows of `adapters` adapters.
int64_t lora_sums_size(const LoraModel& model, int64_t rows, int adapters);

// sums = x A^T. x: [rows, in_features] dense; in_features a multiple of 8 where 16-bit.
void lora_shrink(const LoraCall& call, const void* x, Stream stream);

struct LoraJoin;
// What the kernel of a GEMM of x needs for both; every CTA of it may bring rows to ranks.
LoraJoin lora_join(const LoraCall& call, const void* x);

// What adapters add to.
struct LoraResult {
  void* data = nullptr;          // [rows, columns] with rows row_stride elements apart
  DType dtype = DType::bf16;     // LoraCall::dtype or f32
  int64_t row_stride = 0;
  bool by_place = false;         // [tiles * kLoraTileRows, columns] of f32, written where rows have their places; 16-bit calls
};
// y += scale * sums B^T, behind lora_shrink() of the same call.
void lora_expand(const LoraCall& call, const LoraResult& y, Stream stream);

}  // namespace warpweave::gpu
