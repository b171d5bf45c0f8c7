#include "spec/gpu_head_copy.h"

#include <utility>

#include "device/cuda/copy.h"
#include "device/cuda/stream.h"
#include "model/layers/gpu_residual.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/gpu_ops.h"

namespace warpweave {
namespace {

constexpr std::string_view kWhat =
    "a draft head's copy of the output head; add --speculative-draft-model-quantization unquant";

// Their rows one behind the other.
Status gather_tokens(const gpu::GpuLinear& whole, std::span<const int32_t> tokens, cudaStream_t stream,
                     GpuHeadCopy& out) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t row_bytes = whole.in_features * dtype_info(whole.dtype).block_bytes;
  WW_ASSIGN_OR_RETURN(const DeviceBuffer ids, DeviceBuffer::allocate(tokens.size_bytes(), kWhat));
  WW_RETURN_IF_ERROR(copy_async(ids.as<void>(), tokens.data(), tokens.size_bytes(), stream, kWhat));
  WW_ASSIGN_OR_RETURN(out.rows, DeviceBuffer::allocate(round_up_rows(count) * row_bytes, kWhat));
  gpu::gather_rows({whole.weight, ids.as<int32_t>(), count, row_bytes, out.rows.as<void>()}, stream);
  out.linear.weight = out.rows.as<void>();
  out.linear.out_features = count;
  return wait_for_stream(stream, kWhat);
}

Status round_rows(cudaStream_t stream, GpuHeadCopy& out) {
  gpu::GpuLinear& linear = out.linear;
  WW_ASSIGN_OR_RETURN(DeviceBuffer codes, DeviceBuffer::allocate(
                                              round_up_rows(linear.out_features) * linear.in_features, kWhat));
  WW_ASSIGN_OR_RETURN(out.scales, DeviceBuffer::allocate(linear.out_features * sizeof(float), kWhat));
  gpu::quantize_rows({.x = linear.weight, .dtype = linear.dtype, .rows = linear.out_features,
                      .cols = linear.in_features, .codes = codes.as<uint8_t>(), .scales = out.scales.as<float>()},
                     stream);
  linear.x_dtype = std::exchange(linear.dtype, DType::fp8_e4m3);
  linear.scales = out.scales.as<float>();
  linear.scaling = gpu::Fp8Scaling::row;
  linear.weight = codes.as<void>();
  const Status rounded = wait_for_stream(stream, kWhat);
  out.rows = std::move(codes);
  return rounded;
}

}  // namespace

bool rounds_head(const gpu::GpuLinear& whole, int64_t rows) {
  return (whole.dtype == DType::bf16 || whole.dtype == DType::f16) && whole.bias == nullptr && gpu::keeps_fp8() &&
         whole.in_features % gpu::kFp8Columns == 0 && rows % 16 == 0;
}

Result<GpuHeadCopy> copy_head(const gpu::GpuLinear& whole, std::span<const int32_t> tokens, bool in_8_bits,
                              cudaStream_t stream) {
  GpuHeadCopy out;
  out.linear = whole;
  if (!tokens.empty()) {
    if (whole.scales != nullptr || whole.bias != nullptr) {
      return Status::unsupported(
          "--speculative-token-map: the model's output head is quantized or has a bias; leave the map out",
          "--speculative-token-map");
    }
    WW_RETURN_IF_ERROR(gather_tokens(whole, tokens, stream, out));
  }
  if (in_8_bits) WW_RETURN_IF_ERROR(round_rows(stream, out));
  return out;
}

}  // namespace warpweave
