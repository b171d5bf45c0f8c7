// kv_self_check.h on a GPU: the prompt runs through the GPU's decoder, once, with K and V stored in the type
// of its activations. Takes a pool of 48 tokens and the logits of one row, and gives them back.
#pragma once

#include "attention/caps.h"
#include "engine/kv_self_check.h"
#include "model/gpu_decoder.h"

namespace warpweave {

struct GpuKvCheckSetup {
  DeviceArch arch = DeviceArch::sm_90;
  DType dtype = DType::bf16;   // of the activations
  DType state_dtype = DType::f32;  // of recurrent layers, as the model was made for
  int max_tokens = 0;
  void* stream = nullptr;
  ThreadTeam* team = nullptr;
};

Result<KvSelfCheck> check_gpu_kv_format(GpuDecoder& model, KvFormat format, const GpuKvCheckSetup& setup);

}  // namespace warpweave
