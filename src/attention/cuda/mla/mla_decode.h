// Latent attention over paged pools (mla_params.h): what to allocate, and the launches. One stream at a time per
// workspace. All launches may be captured; a plan holds for as many attention calls as have its lengths, and is made by
// the device, so that a captured one replays with any lengths.
//
//   const MlaLayout layout = mla_layout(shape, p, num_sms);
//   ... allocate layout.workspace_bytes, 256-byte aligned
//   launch_mla_plan(layout, p, workspace, stream);                 // once a step
//   launch_mla_decode(shape, layout, p, workspace, older, stream); // once a layer
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "attention/cuda/element_type.h"
#include "attention/cuda/mla/mla_params.h"

namespace warpweave::cuda {

using MlaElement = ElementType;
enum class MlaFamily {
  wgmma,  // sm_90a: sm90_mla.cuh
  mma,    // sm_80 and later: sm80_mla.cuh
};

struct MlaShape {
  MlaElement element = MlaElement::bf16;
  MlaFormat format = MlaFormat::same16;
  MlaFamily family = MlaFamily::wgmma;
};

struct MlaLayout {
  int tile_rows = 0;  // 0: not written for that
  int row_tiles = 1;
  int lockstep = 1;
  int num_workers = 0;
  bool whole_pairs = false;  // nothing is cut: a row's bits are those of its own tokens
  size_t workspace_bytes = 0;
  bool operator==(const MlaLayout&) const = default;
};

// The faster family on Hopper, by what an H200 takes (docs/gpu-tuning.md). Reads as little as mla_layout.
MlaFamily faster_mla_family(MlaFormat format, const MlaParams& p);

// The layout under which the bits of a request of one token are the same whatever else there is, at any page size.
MlaLayout with_whole_pairs(MlaLayout layout);

// Reads the pools' page size, num_heads and max_q_len of `p` alone. num_sms: no more than the GPU has, since CTAs
// wait for each other (split_in_place.cuh).
MlaLayout mla_layout(const MlaShape& shape, const MlaParams& p, int num_sms);

// Of the layout that takes most.
size_t most_mla_workspace_bytes(int num_sms);

cudaError_t launch_mla_plan(const MlaLayout& layout, const MlaParams& p, void* workspace, cudaStream_t stream);

// `plan_is_older`: than the kernel before this one in the stream, and so are the lengths and the page table (from a
// step's second layer on): this one may begin under its predecessor.
cudaError_t launch_mla_decode(const MlaShape& shape, const MlaLayout& layout, const MlaParams& p, void* workspace,
                              bool plan_is_older, cudaStream_t stream);

}  // namespace warpweave::cuda
