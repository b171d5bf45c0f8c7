// Decoder weights in GPU memory, streamed there through pinned memory while they are read.
//
// Matrices end in the serving dtype whatever the checkpoint holds (GGUF blocks are expanded), except that
// 8-bit weights of the layers stay e4m3 with their scales where ops/cuda/fp8.h has products for them;
// routers, norms, biases and rope tables are f32. Everything lives in one arena that the weights
// own. Errors: those of the weight source; `resource_exhausted` when the GPU's memory is too small.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "device/cuda/memory.h"
#include "model/build_decoder.h"
#include "model/decoder.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/gemm.h"

namespace warpweave {

struct GpuVector {
  const float* data = nullptr;
  bool empty() const { return data == nullptr; }
};

struct GpuRope {
  int rotary_dim = 0;
  bool interleaved = false;
  const float* cos = nullptr;   // [positions, rotary_dim / 2]
  const float* sin = nullptr;
};

struct GpuExpert {
  gpu::GpuLinear gate_up;
  gpu::GpuLinear down;
};

// The experts of a layer as their kernels want them; they stand equally far apart in memory, gate and up in turns
// (ops/cuda/experts.h).
struct GpuExpertLayer {
  gpu::ExpertWeights gate_up;
  gpu::ExpertWeights down;
};

using GpuDecoderLayer = DecoderLayerOf<gpu::GpuLinear, GpuVector, GpuExpert>;

struct GpuDecoderWeights {
  const void* embedding = nullptr;   // [vocab, hidden] of the serving dtype
  gpu::GpuLinear lm_head;
  GpuVector final_norm;
  GpuVector final_norm_bias;
  std::vector<GpuRope> ropes;
  std::vector<GpuDecoderLayer> layers;
  std::vector<GpuExpertLayer> expert_layers;  // by layer; of dense ones empty
  std::unique_ptr<DeviceArena> arena;

  bool has_dense_layers() const {
    return std::any_of(layers.begin(), layers.end(), [](const GpuDecoderLayer& layer) { return layer.experts.empty(); });
  }
};

Result<GpuDecoderWeights> load_gpu_weights(const ModelConfig& config, std::shared_ptr<WeightSource> source,
                                           const BuildOptions& options, ThreadTeam& team);

}  // namespace warpweave
