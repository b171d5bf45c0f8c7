// Decoder weights in GPU memory, streamed there through pinned memory while they are read.
//
// Matrices end in the serving dtype whatever the checkpoint holds (GGUF blocks are expanded), except that
// 8-bit weights of the layers stay e4m3 with their scales where ops/cuda/fp8.h has products for them;
// routers, norms, biases and rope tables are f32. Everything lives in one arena that the weights
// own. Errors: those of the weight source; `resource_exhausted` when the GPU's memory is too small.
#pragma once

#include <memory>
#include <vector>

#include "device/cuda/memory.h"
#include "model/build_decoder.h"
#include "model/layers/on_gpu.h"

namespace warpweave {

struct GpuDecoderWeights {
  const void* embedding = nullptr;   // [vocab, hidden] of the serving dtype
  gpu::GpuLinear lm_head;
  gpu::GpuLinear fc;                 // of an EAGLE head, which has no embedding, head and final norm: [hidden, 2 * hidden]
  GpuRowNorm final_norm;
  std::vector<GpuRope> ropes;
  std::vector<GpuLayerWeights> layers;
  std::unique_ptr<DeviceArena> arena;
};

Result<GpuDecoderWeights> load_gpu_weights(const ModelConfig& config, std::shared_ptr<WeightSource> source,
                                           const BuildOptions& options, ThreadTeam& team);
// Of an EAGLE head (model/draft_head.h).
Result<GpuDecoderWeights> load_gpu_eagle(const ModelConfig& config, std::shared_ptr<WeightSource> source,
                                         const BuildOptions& options, ThreadTeam& team);

}  // namespace warpweave
