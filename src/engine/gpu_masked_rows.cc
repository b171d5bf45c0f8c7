#include "engine/gpu_masked_rows.h"

#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "engine/gpu_runner.h"
#include "sample/cuda/gpu_sampler.h"

namespace warpweave {

Status GpuMaskedRows::reserve(int max_rows, int vocab_size) {
  constexpr std::string_view kWhat = "masks of tokens; lower --max-running-requests";
  vocab_size_ = vocab_size;
  mask_words_ = (vocab_size + 31) / 32;
  const size_t masks_bytes = sizeof(uint32_t) * max_rows * mask_words_;
  const size_t params_bytes = sizeof(gpu::SampleRowParams) * max_rows, tokens_bytes = sizeof(int32_t) * max_rows;
  WW_ASSIGN_OR_RETURN(masks_, DeviceBuffer::allocate(masks_bytes, kWhat));
  WW_ASSIGN_OR_RETURN(params_, DeviceBuffer::allocate(params_bytes, kWhat));
  WW_ASSIGN_OR_RETURN(tokens_, DeviceBuffer::allocate(tokens_bytes, kWhat));
  WW_ASSIGN_OR_RETURN(host_masks_, PinnedBuffer::allocate(masks_bytes, kWhat));
  WW_ASSIGN_OR_RETURN(host_params_, PinnedBuffer::allocate(params_bytes, kWhat));
  WW_ASSIGN_OR_RETURN(host_tokens_, PinnedBuffer::allocate(tokens_bytes, kWhat));
  return {};
}

Status GpuMaskedRows::launch(std::span<const SampleRow> rows, float* logits, cudaStream_t stream) {
  none_allowed_.assign(rows.size(), false);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<uint32_t> mask(host_masks_.as<uint32_t>() + i * mask_words_, static_cast<size_t>(mask_words_));
    rows[i].state->fill_mask(mask, vocab_size_);
    none_allowed_[i] = std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; });
    host_params_.as<gpu::SampleRowParams>()[i] = sample_params(rows[i], rows[i].logits_row, 0);
  }
  constexpr std::string_view kWhat = "sampling under masks";
  const int count = static_cast<int>(rows.size());
  WW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(masks_.as<void>(), host_masks_.as<void>(), sizeof(uint32_t) * count * mask_words_,
                                          cudaMemcpyHostToDevice, stream), kWhat);
  WW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(params_.as<void>(), host_params_.as<void>(), sizeof(gpu::SampleRowParams) * count,
                                          cudaMemcpyHostToDevice, stream), kWhat);
  gpu::mask_logits({.rows = params_.as<gpu::SampleRowParams>(), .num_rows = count, .masks = masks_.as<uint32_t>(),
                    .mask_words = mask_words_, .logits = logits, .vocab_size = vocab_size_}, stream);
  gpu::sample_rows(params_.as<gpu::SampleRowParams>(), count, logits, vocab_size_, tokens_.as<int32_t>(), stream);
  WW_CUDA_RETURN_IF_ERROR(cudaPeekAtLastError(), kWhat);
  return cuda_status(cudaMemcpyAsync(host_tokens_.as<void>(), tokens_.as<void>(), sizeof(int32_t) * count,
                                     cudaMemcpyDeviceToHost, stream), kWhat);
}

std::span<const int32_t> GpuMaskedRows::tokens() {
  int32_t* const tokens = host_tokens_.as<int32_t>();
  for (size_t i = 0; i < none_allowed_.size(); ++i) {
    if (none_allowed_[i] && tokens[i] < 0) tokens[i] = kNoAllowedToken;
  }
  return {tokens, none_allowed_.size()};
}

}  // namespace warpweave
