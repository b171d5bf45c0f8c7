#include "model/layers/gpu_residual.h"

#include <algorithm>
#include <utility>

#include "ops/cuda/any_width.h"
#include "ops/cuda/norm_codes.h"
#include "ops/cuda/norms.h"
#include "ops/cuda/small_gemm.h"
#include "ops/cuda/stream_gemm.h"

namespace warpweave {
namespace {

// What memory delivers while a small kernel runs.
constexpr int64_t kPrefetchedBytes = int64_t{12} << 20;
// Of a step with prefill: with more rows GEMMs take longer than their weights take to arrive.
constexpr int64_t kPrefetchedRows = 128;

}  // namespace

void GpuResidual::reserve(const Limits& limits, GpuWorkspace& workspace) {
  const int64_t size = limits.tokens * hidden_size_;
  fp8_blocks_ = limits.fp8_blocks;
  draft_head_ = limits.draft_head;
  const int64_t begun_rows = draft_head_ ? gpu::kMostPartialRows * gpu::kMostPartials : 0;
  workspace.get(x_[0], std::max(limits.tokens, begun_rows) * hidden_size_, sizeof(float));
  workspace.get(x_[1], limits.kept_rows * hidden_size_, sizeof(float));
  workspace.get(h_, size, dtype_info(dtype_).block_bytes);
  workspace.get(partials_, gpu::kMostPartialRows * gpu::kMostPartials * limits.widest_gemm, sizeof(float));
  parallel_ = limits.parallel;
  if (parallel_) {
    workspace.get(held_[0], size, sizeof(float));
    workspace.get(held_[1], limits.kept_rows * hidden_size_, sizeof(float));
  }
  adapters_ = limits.adapters;
  if (adapters_ != nullptr) {
    workspace.get(lora_sums_, gpu::lora_sums_size(*adapters_, limits.tokens, limits.max_adapters), sizeof(float));
    const int64_t rows = std::min<int64_t>(limits.tokens, gpu::kSmallGemmRows);  // of GEMMs that read an addend
    workspace.get(lora_addend_,
                  max_lora_tiles(static_cast<int>(rows), limits.max_adapters) * kLoraTileRows * adapters_->widest(),
                  sizeof(float));
  }
  if (limits.branch_norms) workspace.get(branch_, size, sizeof(float));
  if (limits.exact_copies) workspace.get(h_f32_, size, sizeof(float));
}

void GpuResidual::start(const ForwardBatch& batch) {
  rows_ = batch.num_tokens;
  stream_ = batch.device.stream;
  decoding_ = batch.mode == ForwardMode::decode;
  current_ = 0;
  pending_ = std::exchange(begun_, {});
  experts_ = {};
  forked_ = false;
  lora_tiles_ = adapters_ != nullptr ? batch.device.lora_tiles : LoraTileArray{};
}

// The rows are the first of the GEMM's partial sums; the others stand behind it.
Status GpuResidual::begin(const gpu::GpuLinear& linear, const void* input, int64_t rows, gpu::Stream stream) {
  gpu::GemmCall call;
  call.linear = &linear;
  call.x = input;
  call.rows = rows;
  call.y = x_[0];
  call.y_dtype = DType::f32;
  call.y_stride = hidden_size_;
  const int splits = norms_add_sums() ? gemm_.partial_splits(call) : 0;
  begun_ = {};
  if (splits > 0) call.partials = x_[0];
  if (splits > 1) begun_ = {x_[0] + rows * hidden_size_, splits - 1, rows * hidden_size_};
  return gemm_.run(call, stream);
}

void GpuResidual::fork() {
  gpu::copy_rows({.x = x_[current_], .count = rows_ * hidden_size_, .out = held_[current_], .out_dtype = DType::f32},
                 stream_);
  forked_ = true;
}

// Decode steps have few sizes as it is; 8-bit operands with scales of blocks want rows by fours.
int64_t GpuResidual::gemm_rows() const {
  if (fp8_blocks_ && rows_ > gpu::kSmallGemmFp8Rows && (decoding_ || rows_ < kGemmRows)) return (rows_ + 3) / 4 * 4;
  return decoding_ || rows_ < kGemmRows ? rows_ : round_up_rows(rows_);
}

// Kernels of our own do so by themselves; many rows leave memory no idle time.
gpu::WeightPrefetch GpuResidual::ahead(const gpu::GpuLinear& next) const {
  if ((!decoding_ && rows_ > kPrefetchedRows) || rows_ <= gpu::kSmallGemmRows || next.empty()) return {};
  const bool glu = next.glu != GluActivation::none;
  const int64_t columns = glu ? next.out_features / 2 : next.out_features;
  if (!gemm_.runs_library({.linear = &next, .rows = rows_, .y_dtype = dtype_, .y_stride = columns, .fused_glu = glu}))
    return {};
  gpu::WeightPrefetch out;
  out.data = next.weight;
  out.rows = next.out_features;
  out.row_bytes = next.in_features * dtype_info(next.dtype).block_bytes;
  out.prefetched_bytes = std::min(kPrefetchedBytes / out.rows, out.row_bytes) / 128 * 128;
  return out;
}

void GpuResidual::add_experts(const gpu::ExpertSums& sums) {
  settle_experts();
  experts_ = sums;
  if (draft_head_ || !norms_add_sums() || hidden_size_ % gpu::kWholeWidth != 0 || pending_.data != nullptr)
    settle_experts();
}

bool GpuResidual::norms_add_sums() const {
  return !parallel_ && !norm_.layer_norm && hidden_size_ <= gpu::kNormPartialCols;
}

void GpuResidual::settle_experts() {
  if (experts_.results == nullptr) return;
  const gpu::CombineExpertsCall call = {.sums = experts_, .dtype = dtype_, .rows = rows_, .hidden = hidden_size_,
                                        .y = x_[current_]};
  hidden_size_ % gpu::kWholeWidth != 0 ? gpu::combine_experts_any_width(call, stream_)
                                       : gpu::combine_experts(call, stream_);
  experts_ = {};
}

void GpuResidual::normed(const GpuRowNorm& norm, const gpu::WeightPrefetch& prefetch, bool exact_copy) {
  if (norm.weight.empty() || pending_.data != nullptr) settle_experts();
  if (norm.weight.empty()) {
    gpu::CopyRowsCall copy;
    copy.x = branch_input();
    copy.partials = std::exchange(pending_, {});
    copy.count = rows_ * hidden_size_;
    copy.out = h_;
    copy.out_dtype = dtype_;
    copy.out_f32 = exact_copy ? h_f32_ : nullptr;
    return gpu::copy_rows(copy, stream_);
  }
  if (norm_.layer_norm) {
    return gpu::layer_norm({.x = branch_input(), .rows = rows_, .cols = hidden_size_, .weight = norm.weight.data,
                            .bias = norm.bias.data, .eps = norm_.eps, .out = h_, .out_dtype = dtype_,
                            .out_f32 = exact_copy ? h_f32_ : nullptr},
                           stream_);
  }
  const gpu::RmsNormCall call = {.x = branch_input(),
                                 .partials = pending_,
                                 .rows = rows_,
                                 .cols = hidden_size_,
                                 .weight = norm.weight.data,
                                 .weight_offset = norm_.weight_offset,
                                 .eps = norm_.eps,
                                 .out = h_,
                                 .out_dtype = dtype_,
                                 .out_f32 = exact_copy ? h_f32_ : nullptr,
                                 .prefetch = prefetch};
  experts_.results != nullptr ? gpu::norm_experts({call, experts_}, stream_) : gpu::rms_norm(call, stream_);
  pending_ = {};
  experts_ = {};
}

bool GpuResidual::joins_adapters(const gpu::GemmCall& call, LoraPlace place) const {
  const bool every_column = adapters_->shape(place).all_columns() == call.linear->out_features;
  return gemm_.takes_adapters(call) || (every_column && gemm_.takes_addend(call));
}

// A GEMM, and what the rows' adapters make of its input: in the GEMM's kernel; ahead of the GEMM, which streams its
// weights meanwhile; or added to its result.
Status GpuResidual::run_adapted(const gpu::GemmCall& call, std::optional<LoraPlace> place) {
  if (!place || !adapting() || adapters_->shape(*place).num_parts == 0) return gemm_.run(call, stream_);
  const gpu::LoraCall lora = {.model = adapters_,
                              .place = *place,
                              .tiles = lora_tiles_.tiles,
                              .places = lora_tiles_.places,
                              .num_tiles = lora_tiles_.count,
                              .rows = rows_,
                              .dtype = dtype_,
                              .sums = lora_sums_};
  gpu::GemmCall joined = call;
  if (gemm_.takes_adapters(call)) {
    joined.adapters = &lora;
    return gemm_.run(joined, stream_);
  }
  gpu::lora_shrink(lora, call.x, stream_);
  if (joins_adapters(call, *place)) {
    const int64_t columns = call.linear->out_features;
    gpu::lora_expand(lora, {.data = lora_addend_, .dtype = DType::f32, .row_stride = columns, .by_place = true},
                     stream_);
    joined.addend = {lora_addend_, columns, lora_tiles_.places};
    return gemm_.run(joined, stream_);
  }
  WW_RETURN_IF_ERROR(gemm_.run(call, stream_));
  gpu::LoraResult y = {.data = call.y, .dtype = call.y_dtype, .row_stride = call.y_stride};
  if (call.partials != nullptr)
    y = {.data = call.partials, .dtype = DType::f32, .row_stride = call.linear->out_features};
  gpu::lora_expand(lora, y, stream_);
  return {};
}

// Where the normed rows are left in e4m3 for the GEMM, if one kernel can make these of the rows.
gpu::RowCodes GpuResidual::codes_for(const GpuRowNorm& norm, const gpu::GemmCall& call) const {
  const bool any_norm = norm_.layer_norm && !norm.weight.empty();
  if (any_norm || adapting()) return {};
  const bool blocks = call.linear->scaling == gpu::Fp8Scaling::block;
  bool one_kernel = !blocks && gpu::code_sums_takes(hidden_size_);
  if (experts_.results != nullptr) {
    one_kernel = blocks && gpu::norm_experts_codes_takes(hidden_size_, dtype_) && !norm.weight.empty() &&
                 pending_.data == nullptr && call.rows == gemm_rows();
  }
  return one_kernel ? gemm_.input_codes(call) : gpu::RowCodes{};
}

void GpuResidual::normed_codes(const GpuRowNorm& norm, const gpu::RowCodes& to) {
  float* const x = branch_input();
  if (experts_.results != nullptr) {
    gpu::RmsNormCall call;
    call.x = x;
    call.rows = rows_;
    call.cols = hidden_size_;
    call.weight = norm.weight.data;
    call.weight_offset = norm_.weight_offset;
    call.eps = norm_.eps;
    call.out_dtype = dtype_;
    gpu::norm_experts_codes({{call, experts_}, to, gemm_rows()}, stream_);
    experts_ = {};
    return;
  }
  gpu::code_sums({.x = x,
                  .partials = pending_,
                  .x_out = pending_.data != nullptr ? x : nullptr,
                  .rows = rows_,
                  .cols = hidden_size_,
                  .weight = norm.weight.empty() ? nullptr : norm.weight.data,
                  .weight_offset = norm_.weight_offset,
                  .eps = norm_.eps,
                  .dtype = dtype_,
                  .to = to},
                 stream_);
  pending_ = {};
}

Status GpuResidual::run_normed(const GpuRowNorm& norm, gpu::GemmCall call, std::optional<LoraPlace> place) {
  call.norm = {x_[current_], norm.weight.data, norm_.weight_offset, norm_.eps};
  if (norm_.layer_norm || norm.weight.empty() || forked_ || has_partials() || adapting() || !gemm_.takes_fused(call)) {
    call.norm = {};
    if (const gpu::RowCodes codes = codes_for(norm, call); codes.codes != nullptr) {
      normed_codes(norm, codes);
      call.x = codes.codes;
      call.x_scales = codes.scales;
      return gemm_.run(call, stream_);
    }
    normed(norm, ahead(*call.linear));
    call.x = h_;
  }
  return run_adapted(call, place);
}

gpu::PartialSums GpuResidual::leave_partials(gpu::GemmCall& call) {
  const int splits = gemm_.partial_splits(call);
  if (splits == 0) return {};
  call.partials = partials_;
  return {partials_, splits, call.rows * call.linear->out_features};
}

Status GpuResidual::add(const gpu::GpuLinear& linear, const void* input, const GpuVector& out_norm,
                        std::optional<LoraPlace> place) {
  const int64_t cols = hidden_size_;
  const bool direct = out_norm.empty();
  gpu::GemmCall call = {.linear = &linear, .x = input, .rows = gemm_rows(), .y = direct ? x_[current_] : branch_,
                        .y_dtype = DType::f32, .y_stride = cols};
  if (direct && norms_add_sums()) pending_ = leave_partials(call);
  call.accumulate = direct && pending_.data == nullptr;
  WW_RETURN_IF_ERROR(run_adapted(call, place));
  if (direct) return {};
  gpu::rms_norm({.x = branch_, .rows = rows_, .cols = cols, .weight = out_norm.data,
                 .weight_offset = norm_.weight_offset, .eps = norm_.eps, .out = x_[current_],
                 .out_dtype = DType::f32, .accumulate = true},
                stream_);
  return {};
}

bool GpuResidual::keep(const ForwardBatch& batch) {
  const int64_t rows = static_cast<int64_t>(batch.logits_rows.size());
  if (rows == batch.num_tokens) return false;
  settle_experts();
  const int64_t row_bytes = hidden_size_ * static_cast<int64_t>(sizeof(float));
  gpu::gather_rows({x_[0], batch.device.logits_rows, rows, row_bytes, x_[1]}, stream_);
  if (forked_) gpu::gather_rows({held_[0], batch.device.logits_rows, rows, row_bytes, held_[1]}, stream_);
  current_ = 1;
  rows_ = rows;
  if (adapting()) lora_tiles_ = batch.device.logits_lora_tiles;
  return true;
}

}  // namespace warpweave
