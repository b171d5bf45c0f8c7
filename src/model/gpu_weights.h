// Decoder weights in GPU memory, streamed there through pinned memory while they are read.
//
// Matrices end in the serving dtype whatever the checkpoint holds (GGUF blocks are expanded), except that
// 8-bit weights of the layers stay e4m3 with their scales where ops/cuda/fp8.h has GEMMs for them;
// routers, norms, biases and rope tables are f32. Everything lives in one arena that the weights
// own. Errors: those of the weight source; `resource_exhausted` when the GPU's memory is too small.
#pragma once

#include <memory>
#include <vector>

#include "device/cuda/memory.h"
#include "model/build_decoder.h"
#include "model/layers/on_gpu.h"

namespace warpweave {

// DraftNorms (decoder.h) on a GPU.
struct GpuDraftNorms {
  GpuRowNorm embedding;
  GpuRowNorm hidden;
};

struct GpuDecoderWeights {
  const void* embedding = nullptr;   // [vocab, hidden] of the serving dtype
  gpu::GpuLinear lm_head;
  gpu::GpuLinear fc;  // of a draft head (model/draft_head.h), which has no embedding: [hidden, fc_inputs * hidden]
  GpuDraftNorms draft_norms;         // of a draft head
  GpuRowNorm final_norm;
  std::vector<GpuRope> ropes;
  std::vector<GpuLayerWeights> layers;
  std::unique_ptr<DeviceArena> arena;
};

Result<GpuDecoderWeights> load_gpu_weights(const ModelConfig& config, std::shared_ptr<WeightSource> source,
                                           const BuildOptions& options, ThreadTeam& team);
// Of a draft head, with the traits of draft_head_traits() and a source of draft_head_weights().
Result<GpuDecoderWeights> load_gpu_draft_head(const ModelConfig& config, const FamilyTraits& traits,
                                              std::shared_ptr<WeightSource> head_weights, const BuildOptions& options,
                                              ThreadTeam& team);

}  // namespace warpweave
