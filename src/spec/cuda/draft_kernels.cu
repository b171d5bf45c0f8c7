#include "spec/cuda/draft_kernels.h"

#include <cuda_runtime.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/types.cuh"
#include "spec/cuda/chain_steps.cuh"
#include "spec/cuda/draft_inputs.cuh"
#include "spec/cuda/top_choices.cuh"
#include "spec/cuda/tree_growth.cuh"

namespace warpweave::gpu {
namespace {

template <typename Source, typename T>
__global__ void keep_rows_kernel(KeepRowsCall call) {
  constexpr int kPack = 4;
  const int64_t row = blockIdx.x, cols = call.cols;
  const Source* const x = static_cast<const Source*>(call.x) + row * cols;
  T* const out = static_cast<T*>(call.out) + row * cols;
  T* const kept = static_cast<T*>(call.kept) + call.keep[row] * cols;
  for (int64_t i = threadIdx.x * kPack; i < cols; i += kDraftRowThreads * kPack) {
    float values[kPack];
    PartialPack<kPack> sums;
    sums.load(call.partials.data + row * cols + i, call.partials.splits, call.partials.stride);
    load_f32(x + i, values);
    sums.add_to(values);
    if (call.out != nullptr) store_f32(out + i, values);
    store_f32(kept + i, values);
  }
}

template <typename Launch>
void with_dtype(DType dtype, Launch&& launch) {
  switch (dtype) {
    case DType::f32: return launch(static_cast<float*>(nullptr));
    case DType::f16: return launch(static_cast<__half*>(nullptr));
    default: return launch(static_cast<__nv_bfloat16*>(nullptr));
  }
}

}  // namespace

void top_choices(const TopChoicesCall& call, void* stream) {
  if (call.rows == 0) return;
  const auto on = static_cast<cudaStream_t>(stream);
  const int parts = call.topk == 1 && call.parts != nullptr ? top_parts(call.rows) : 1;
  if (parts == 1) {
    top_choices_kernel<<<call.rows, kTopThreads, 0, on>>>(call.logits, call.vocab_size, call.tokens, call.topk,
                                                          call.out);
    return;
  }
  const dim3 grid(parts, call.rows);
  top_parts_kernel<<<grid, kPartThreads, 0, on>>>(call.logits, call.vocab_size, parts, call.parts);
  top_of_parts({.found = call.parts, .rows = call.rows, .parts = parts, .tokens = call.tokens, .out = call.out},
               stream);
}

void top_of_parts(const TopOfPartsCall& call, void* stream) {
  if (call.rows == 0) return;
  launch_dependent({dim3(call.rows), kMergeThreads, 0, static_cast<cudaStream_t>(stream)}, top_of_parts_kernel, call);
}

void tree_level(const TreeLevelCall& call, void* stream) {
  if (call.requests == 0) return;
  tree_level_kernel<<<call.requests, kTreeThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
}

void place_guesses(const PlaceGuessesCall& call, void* stream) {
  if (call.requests == 0) return;
  const int blocks = (call.requests + kChainThreads - 1) / kChainThreads;
  place_guesses_kernel<<<blocks, kChainThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
}

void follow_chains(const FollowChainsCall& call, void* stream) {
  if (call.requests == 0) return;
  const int blocks = (call.requests + kChainThreads - 1) / kChainThreads;
  follow_chains_kernel<<<blocks, kChainThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
}

void draft_inputs(const DraftInputsCall& call, void* stream) {
  if (call.rows == 0) return;
  with_dtype(call.dtype, [&]<typename T>(T*) {
    const dim3 grid(static_cast<unsigned>(call.rows), call.features != nullptr ? 2 : 1);
    draft_inputs_kernel<T><<<grid, kDraftRowThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  });
}

void keep_rows(const KeepRowsCall& call, void* stream) {
  if (call.rows == 0) return;
  with_dtype(call.dtype, [&]<typename T>(T*) {
    const auto on = static_cast<cudaStream_t>(stream);
    if (call.x_dtype == DType::f32) return keep_rows_kernel<float, T><<<call.rows, kDraftRowThreads, 0, on>>>(call);
    keep_rows_kernel<T, T><<<call.rows, kDraftRowThreads, 0, on>>>(call);
  });
}

}  // namespace warpweave::gpu
