// Latent attention (mla_decode.h) in bf16 behind a C interface, for mla_peers.py, by the kernels that backends choose.
#include <cuda_runtime_api.h>

#include "attention/cuda/mla/mla_decode.h"

using namespace warpweave::cuda;

static MlaShape shape_of(const MlaParams& p) {
  return {MlaElement::bf16, MlaFormat::same16, faster_mla_family(MlaFormat::same16, p)};
}

static MlaLayout layout_of(const MlaParams& p) {
  int device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  return mla_layout(shape_of(p), p, sms);
}

extern "C" {

size_t ww_mla_params_bytes() { return sizeof(MlaParams); }

size_t ww_mla_workspace_bytes(const MlaParams* p) { return layout_of(*p).workspace_bytes; }

int ww_mla_plan(const MlaParams* p, void* workspace, void* stream) {
  return launch_mla_plan(layout_of(*p), *p, workspace, static_cast<cudaStream_t>(stream));
}

int ww_mla_decode(const MlaParams* p, void* workspace, bool plan_is_older, void* stream) {
  return launch_mla_decode(shape_of(*p), layout_of(*p), *p, workspace, plan_is_older, static_cast<cudaStream_t>(stream));
}

}  // extern "C"
