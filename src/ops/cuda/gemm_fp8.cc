// GEMMs of weights in e4m3: which way each goes.
#include <algorithm>
#include <string>

#include "base/log.h"
#include "ops/cuda/choice_gemm.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/stream_gemm.h"

namespace warpweave::gpu {
namespace {

constexpr size_t kWidenedBytes = size_t{64} << 20;

int64_t blocks_of(int64_t cols) { return (cols + kFp8Block - 1) / kFp8Block; }

// What cuBLASLt asks of 8-bit operands: whole 16 bytes; scales of blocks stand by fours.
bool tensor_takes(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  return linear.in_features % kFp8Columns == 0 && linear.out_features % 16 == 0 && call.y_stride % 8 == 0 &&
         (linear.scaling == Fp8Scaling::row || call.rows % 4 == 0);
}

}  // namespace

Status GpuGemm::reserve_fp8(int64_t max_rows, int64_t max_in_features) {
  const std::string_view what = "GEMMs of 8-bit weights; lower --chunked-prefill-size";
  WW_ASSIGN_OR_RETURN(fp8_codes_, DeviceBuffer::allocate(max_rows * max_in_features, what));
  WW_ASSIGN_OR_RETURN(fp8_scales_, DeviceBuffer::allocate(max_rows * blocks_of(max_in_features) * sizeof(float), what));
  WW_ASSIGN_OR_RETURN(fp8_widened_,
                      DeviceBuffer::allocate(std::max<size_t>(kWidenedBytes, kFp8Block * max_in_features * 2), what));
  return {};
}

Status GpuGemm::run_fp8(const GemmCall& call, Stream stream) {
  const auto allowed = [&](Fp8Path path) { return fp8_path_ == Fp8Path::automatic || fp8_path_ == path; };
  if (!batch_invariant_ && allowed(Fp8Path::small) && small_gemm_fp8_takes(call)) {
    small_gemm_fp8(call, stream);
    return {};
  }
  if (runs_streamed_codes(call)) {
    WW_ASSIGN_OR_RETURN(const GemmCall codes, round_inputs(call, stream));
    StreamPlan plan = stream_plan(codes);
    if (call.partials == nullptr && !call.fused_glu) plan.splits = 1;
    stream_gemm(codes, plan, call.partials, stream);
    return {};
  }
  if (!batch_invariant_ && allowed(Fp8Path::tensor) && tensor_takes(call)) {
    const Shape shape = shape_of(call);
    if (!fp8_refused_.contains(shape)) {
      const Status status = run_fp8_tensor(call, stream);
      if (status.ok() || call.x_scales != nullptr) return status;
      fp8_refused_.insert(shape);
      const std::string text = "8-bit GEMM of " + std::to_string(call.rows) + " rows, " +
                               std::to_string(call.linear->out_features) + " x " +
                               std::to_string(call.linear->in_features) + ": " + status.message() +
                               "; its weights are widened each time";
      fp8_refused_.size() == 1 ? LOG_WARN("{}", text) : LOG_DEBUG("{}", text);
    }
  }
  return run_fp8_widened(call, stream);
}

bool GpuGemm::runs_streamed_codes(const GemmCall& call) const {
  const bool whole = call.partials == nullptr && !call.fused_glu;
  return streams_codes(call) && (!whole || stream_gemm_pays_whole(call) || fp8_path_ == Fp8Path::stream);
}

RowCodes GpuGemm::input_codes(const GemmCall& call) const {
  const GpuLinear& linear = *call.linear;
  if (linear.dtype != DType::fp8_e4m3 || small_gemm_fp8_takes(call)) return {};
  // What cuBLASLt has not run yet it may refuse, and weights widened for it take no codes.
  const bool by_library = linear.scaling == Fp8Scaling::block && !batch_invariant_ && fp8_path_ == Fp8Path::automatic &&
                          tensor_takes(call) && plans_.contains(shape_of(call)) && !fp8_refused_.contains(shape_of(call));
  if (!runs_streamed_codes(call) && !by_library) return {};
  return {fp8_codes_.as<uint8_t>(), fp8_scales_.as<float>()};
}

int GpuGemm::choice_parts(const GemmCall& call) const {
  return streams_codes(call) && choice_gemm_takes(call) ? choice_gemm_parts() : 0;
}

Status GpuGemm::run_choice(const GemmCall& call, TopPart* parts, Stream stream) {
  WW_ASSIGN_OR_RETURN(const GemmCall codes, round_inputs(call, stream));
  choice_gemm(codes, parts, stream);
  return {};
}

// Whether inputs are rounded for stream_gemm.
bool GpuGemm::streams_codes(const GemmCall& call) const {
  const bool allowed = fp8_path_ == Fp8Path::automatic || fp8_path_ == Fp8Path::stream;
  return allowed && !batch_invariant_ && !library_only_ && call.rows > kSmallGemmFp8Rows && stream_gemm_takes(call) &&
         fp8_codes_.size_bytes() >= static_cast<size_t>(call.rows * call.linear->in_features);
}

// The call with inputs in e4m3.
Result<GemmCall> GpuGemm::round_inputs(const GemmCall& call, Stream stream) {
  if (call.x_scales != nullptr) return call;
  const GpuLinear& linear = *call.linear;
  const size_t scales = linear.scaling == Fp8Scaling::row ? 1 : blocks_of(linear.in_features);
  if (fp8_codes_.size_bytes() < static_cast<size_t>(call.rows * linear.in_features) ||
      fp8_scales_.size_bytes() < call.rows * scales * sizeof(float)) {
    return Status::internal("more rows than memory was reserved for");
  }
  quantize_rows({.x = call.x, .dtype = linear.x_dtype, .rows = call.rows, .cols = linear.in_features,
                 .scaling = linear.scaling, .codes = fp8_codes_.as<uint8_t>(), .scales = fp8_scales_.as<float>()},
                stream);
  GemmCall codes = call;
  codes.x = fp8_codes_.as<void>();
  codes.x_scales = fp8_scales_.as<float>();
  return codes;
}

Status GpuGemm::run_fp8_tensor(const GemmCall& call, Stream stream) {
  WW_ASSIGN_OR_RETURN(const GemmCall codes, round_inputs(call, stream));
  return run_by_plan(codes, stream);
}

Status GpuGemm::run_fp8_widened(const GemmCall& call, Stream stream) {
  GpuLinear wide = *call.linear;
  wide.dtype = wide.x_dtype;
  wide.weight = fp8_widened_.as<void>();
  const size_t row_bytes = wide.in_features * dtype_info(wide.dtype).block_bytes;
  const int64_t piece = static_cast<int64_t>(fp8_widened_.size_bytes() / row_bytes) / kFp8Block * kFp8Block;
  if (piece == 0) return Status::internal("no memory was reserved for GEMMs of 8-bit weights");
  for (int64_t first = 0; first < call.linear->out_features; first += piece) {
    wide.out_features = std::min(piece, call.linear->out_features - first);
    widen_rows(*call.linear, first, wide.out_features, fp8_widened_.as<void>(), stream);
    GemmCall part = call;
    part.linear = &wide;
    part.y = static_cast<std::byte*>(call.y) + first * dtype_info(call.y_dtype).block_bytes;
    // Not small_gemm(), which reads weights before the kernel ahead of it has ended.
    WW_RETURN_IF_ERROR(run_by_plan(part, stream));
  }
  return {};
}

}  // namespace warpweave::gpu
