#include "engine/gpu_edited_rows.h"

#include <algorithm>
#include <cstring>

#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"

namespace warpweave {
namespace {

constexpr std::string_view kWhat = "sampling with masks and penalties; lower --max-running-requests";
constexpr size_t kLeastBytes = 4096;

// Grows by doubling.
template <typename Buffer>
Status grow(Buffer& buffer, size_t size_bytes) {
  if (size_bytes <= buffer.size_bytes()) return {};
  const size_t wanted = std::max({size_bytes, 2 * buffer.size_bytes(), kLeastBytes});
  buffer = Buffer();
  WW_ASSIGN_OR_RETURN(buffer, Buffer::allocate(wanted, kWhat));
  return {};
}

}  // namespace

Status GpuEditedRows::Pair::reserve(size_t size_bytes) {
  WW_RETURN_IF_ERROR(grow(host, size_bytes));
  return grow(device, size_bytes);
}

template <typename T>
Status GpuEditedRows::Pair::send(std::span<const T> values, cudaStream_t stream) {
  if (values.empty()) return {};
  WW_RETURN_IF_ERROR(reserve(values.size_bytes()));
  std::memcpy(host.as<void>(), values.data(), values.size_bytes());
  return copy_async(device.as<void>(), host.as<void>(), values.size_bytes(), stream, kWhat);
}

Status GpuEditedRows::reserve(int max_rows, int vocab_size) {
  vocab_size_ = vocab_size;
  mask_words_ = (vocab_size + 31) / 32;
  WW_RETURN_IF_ERROR(masks_.reserve(sizeof(uint32_t) * max_rows * mask_words_));
  WW_RETURN_IF_ERROR(params_.reserve(sizeof(gpu::SampleRowParams) * max_rows));
  WW_RETURN_IF_ERROR(rows_.reserve(sizeof(gpu::EditedRow) * max_rows));
  return grow(log_sums_, sizeof(double) * max_rows);
}

Status GpuEditedRows::launch(const Call& call, cudaStream_t stream) {
  const std::span<uint32_t> masks(masks_.host.as<uint32_t>(), masks_.host.size_bytes() / sizeof(uint32_t));
  packer_.pack(call.rows, vocab_size_, masks, *call.team);
  const size_t mask_bytes = sizeof(uint32_t) * packer_.num_masks() * mask_words_;
  if (mask_bytes > 0) {
    WW_RETURN_IF_ERROR(copy_async(masks_.device.as<void>(), masks_.host.as<void>(), mask_bytes, stream, kWhat));
  }
  WW_RETURN_IF_ERROR(params_.send(packer_.params(), stream));
  WW_RETURN_IF_ERROR(rows_.send(packer_.rows(), stream));
  WW_RETURN_IF_ERROR(edits_.send(packer_.edits(), stream));
  WW_RETURN_IF_ERROR(wanted_.send(packer_.wanted(), stream));
  const size_t score_bytes = sizeof(gpu::TokenScore) * packer_.num_scores();
  WW_RETURN_IF_ERROR(scores_.reserve(score_bytes));
  WW_RETURN_IF_ERROR(grow(old_values_, sizeof(float) * packer_.edits().size()));
  const int count = static_cast<int>(call.rows.size());
  const gpu::EditCall edit = {.rows = rows_.device.as<gpu::EditedRow>(),
                              .num_rows = count,
                              .masks = masks_.device.as<uint32_t>(),
                              .num_masks = packer_.num_masks(),
                              .mask_words = mask_words_,
                              .edits = edits_.device.as<gpu::LogitEdit>(),
                              .old_values = old_values_.as<float>(),
                              .num_edits = static_cast<int>(packer_.edits().size()),
                              .wanted = wanted_.device.as<int32_t>(),
                              .log_sums = log_sums_.as<double>(),
                              .scores = scores_.device.as<gpu::TokenScore>(),
                              .num_scores = packer_.num_scores(),
                              .tokens = call.tokens,
                              .logits = call.logits,
                              .vocab_size = vocab_size_};
  gpu::edit_logits(edit, stream);
  gpu::sample_rows({.rows = params_.device.as<gpu::SampleRowParams>(),
                    .num_rows = count,
                    .logits = call.logits,
                    .vocab_size = vocab_size_,
                    .out = call.tokens,
                    .maxima = call.maxima},
                   stream);
  gpu::score_chosen(edit, stream);
  WW_RETURN_IF_ERROR(launch_status(kWhat));
  if (score_bytes == 0) return {};
  return copy_async(scores_.host.as<void>(), scores_.device.as<void>(), score_bytes, stream, kWhat);
}

void GpuEditedRows::finish(std::span<SampledRow> sampled) const {
  packer_.unpack({scores_.host.as<gpu::TokenScore>(), static_cast<size_t>(packer_.num_scores())}, sampled);
}

}  // namespace warpweave
