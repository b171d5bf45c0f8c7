// The kernels behind a C interface, so that a Python program can call them on torch tensors beside
// the peers. Pointers are device pointers; the structs of attention_params.h cross as they are.
#include <cuda_runtime_api.h>

#include "attention/backends/fa3/kernels/kernels.h"
#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/cuda/plan.h"

using namespace warpweave::cuda;

static int sms() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

extern "C" {

int ww_decode_workers(KernelShape shape, int rows, bool multi_row, int* partial_rows, int* heads) {
  const DecodeLayout layout = sm80_decode_layout(shape, rows, multi_row);
  *partial_rows = layout.rows;
  *heads = layout.heads;
  return sms() * layout.ctas_per_sm;
}

int ww_decode_plan(const PlanInput* input, void* workers, int num_workers, void* stream) {
  return launch_decode_plan(*input, static_cast<DecodeWorker*>(workers), num_workers,
                            static_cast<cudaStream_t>(stream));
}

int ww_sm80_decode(KernelShape shape, int rows, bool multi_row, const AttentionParams* p,
                   const DecodeWorkspace* w, int num_workers, void* stream) {
  return sm80_decode(shape, *p, {rows, multi_row, *w, num_workers}, static_cast<cudaStream_t>(stream));
}

int ww_extend_plan(const PlanInput* input, int tile_rows, int rows_per_token, void* items,
                   void* header, void* stream) {
  return launch_extend_plan(*input, {tile_rows, rows_per_token}, static_cast<ExtendItem*>(items),
                            static_cast<ExtendHeader*>(header),
                            static_cast<cudaStream_t>(stream));
}

int ww_sm80_extend(KernelShape shape, int tile_rows, const AttentionParams* p, const ExtendWorklist* work,
                   int max_items, void* stream) {
  const ExtendLaunch launch = {{tile_rows, p->group}, *work, max_items, sms()};
  return sm80_extend(shape, *p, launch, static_cast<cudaStream_t>(stream));
}

// Of a batch whose longest request has `max_q_len` new tokens.
void ww_sm90_layout(KernelShape shape, const AttentionParams* p, int max_q_len, ExtendLayout* layout) {
  *layout = sm90_extend_layout(shape, *p, max_q_len);
}

// On `num_sms` SMs, 0: on all.
int ww_sm90_extend(KernelShape shape, const AttentionParams* p, const ExtendWorklist* work, const ExtendLayout* layout,
                   int max_items, int num_sms, void* stream) {
  const ExtendLaunch launch = {*layout, *work, max_items, num_sms > 0 ? num_sms : sms()};
  return sm90_extend(shape, *p, launch, static_cast<cudaStream_t>(stream));
}

// Prompts of latent attention, Q and K of 192, V of 128 dims.
int ww_latent_tile_rows() { return kLatentTileRows; }
int ww_latent_extend(const AttentionParams* p, const ExtendWorklist* work, int max_items, void* stream) {
  ExtendLaunch launch;
  launch.layout.tile_rows = kLatentTileRows;
  launch.work = *work;
  launch.max_items = max_items;
  launch.num_sms = sms();
  return sm90_latent_extend(ElementType::bf16, *p, launch, static_cast<cudaStream_t>(stream));
}

// As ww_attention.py has them.
void ww_struct_sizes(size_t* sizes) {
  sizes[0] = sizeof(AttentionParams);
  sizes[1] = sizeof(PlanInput);
  sizes[2] = sizeof(DecodeWorkspace);
  sizes[3] = sizeof(ExtendWorklist);
  sizes[4] = sizeof(ExtendLayout);
  sizes[5] = sizeof(KernelShape);
}

}  // extern "C"
