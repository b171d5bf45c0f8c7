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
#include "model/decoder.h"
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

// The experts of a layer as the grouped product wants them: arrays of pointers in GPU memory.
struct GpuExpertTable {
  const void* const* gate_up = nullptr;
  const void* const* down = nullptr;
  const float* const* gate_up_scales = nullptr;  // null: the weights are not in 8 bits
  const float* const* down_scales = nullptr;
  const float* const* gate_up_bias = nullptr;  // null: no biases
  const float* const* down_bias = nullptr;
};

using GpuDecoderLayer = DecoderLayerOf<gpu::GpuLinear, GpuVector, GpuExpert>;

struct GpuDecoderWeights {
  const void* embedding = nullptr;   // [vocab, hidden] of the serving dtype
  gpu::GpuLinear lm_head;
  GpuVector final_norm;
  std::vector<GpuRope> ropes;
  std::vector<GpuDecoderLayer> layers;
  std::vector<GpuExpertTable> expert_tables;  // by layer; empty for models without experts
  std::unique_ptr<DeviceArena> arena;
};

Result<GpuDecoderWeights> load_gpu_weights(const ModelConfig& config, std::shared_ptr<WeightSource> source,
                                           const BuildOptions& options, ThreadTeam& team);

}  // namespace warpweave
