// The tile kernels on an NVIDIA GPU: what triton, flex_attention and dual_chunk_flash_attn are there.
//
// Programs are compiled by NVRTC for the device at hand, by compile() or the first time a shape is met, and kept for
// the process and on disk (device/cuda/nvrtc_program.h). Everything a launch reads of the batch lies
// in device memory, so that a captured decode step stays right when lengths change. One launch a
// layer; two, when few work-groups would leave the GPU idle: then KV is split over more of them.
// reserve() compiles, too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/registry.h"

namespace warpweave::tile {

struct CudaTileOptions {
  const Caps* caps = nullptr;
  std::string modifiers = {};             // kernel text, see tile_source
  std::vector<std::string> defines = {};  // SCORE_MOD, MASK_MOD: which of them it has
  bool mask_modifier = false;             // MASK_MOD is among them
};

std::unique_ptr<AttentionBackend> create_cuda_attention(const CudaTileOptions& options);

// Whether NVRTC is there; if not, what to install.
Status probe_nvrtc(Probe probe);

}  // namespace warpweave::tile
