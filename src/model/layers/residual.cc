#include "model/layers/residual.h"

#include <cstring>

#include "ops/elementwise.h"

namespace warpweave {

void keep_rows(float* values, int64_t cols, std::span<const int32_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == static_cast<int32_t>(i)) continue;  // rows ascend, so sources lie ahead
    std::memcpy(values + i * cols, values + rows[i] * cols, cols * sizeof(float));
  }
}

void ResidualStream::start(int64_t rows, ThreadTeam& team) {
  team_ = &team;
  rows_ = rows;
  forked_ = false;  // a forward that failed may have left it so
  const size_t size = static_cast<size_t>(rows) * hidden_size_;
  if (size <= x_.size()) return;
  h_.resize(size);
  x_.resize(size);  // last: its size says that both are there
}

LinearInput ResidualStream::normed(const RowNorm& norm, const PackedLinear& next, int64_t first_row, int64_t rows) {
  const int64_t cols = hidden_size_;
  const DType dtype = next.preferred_input();
  if (norm.weight.empty() && dtype == DType::f32) {
    return {.data = branch_input() + first_row * cols, .dtype = dtype, .rows = rows, .row_stride = cols};
  }
  norm_to(norm, {first_row, rows}, h_.data(), dtype);
  return {.data = h_.data(), .dtype = dtype, .rows = rows, .row_stride = cols};
}

LinearInput ResidualStream::normed_beside(const RowNorm& norm, const PackedLinear& next) {
  if (beside_ == nullptr) return normed(norm, next);
  const int64_t cols = hidden_size_;
  if (both_.size() < static_cast<size_t>(rows_ * 2 * cols)) both_.resize(rows_ * 2 * cols);
  const auto half = [&](const float* x, const RowNorm& of, float* out) {
    rms_norm({.x = x, .rows = rows_, .cols = cols, .x_stride = cols, .weight = of.weight.data(),
              .weight_offset = norm_.weight_offset, .eps = norm_.eps, .out = out, .out_stride = 2 * cols},
             *team_);
  };
  half(beside_, *beside_norm_, both_.data());
  half(branch_input(), norm, both_.data() + cols);
  return {.data = both_.data(), .dtype = DType::f32, .rows = rows_, .row_stride = 2 * cols};
}

void ResidualStream::normed_into(const RowNorm& norm, float* out) { norm_to(norm, {0, rows_}, out, DType::f32); }

void ResidualStream::norm_to(const RowNorm& norm, Rows rows, void* out, DType out_dtype) {
  const int64_t cols = hidden_size_;
  const float* const x = branch_input() + rows.first * cols;
  if (norm.weight.empty() && out_dtype == DType::f32) {
    std::memcpy(out, x, static_cast<size_t>(rows.count * cols) * sizeof(float));
  } else if (norm.weight.empty()) {
    f32_to_bf16_rows(x, rows.count, static_cast<uint16_t*>(out));
  } else if (norm_.layer_norm) {
    layer_norm({.x = x, .rows = rows.count, .cols = cols, .x_stride = cols, .weight = norm.weight.data(),
                .bias = data_or_null(norm.bias), .eps = norm_.eps, .out = out, .out_dtype = out_dtype,
                .out_stride = cols},
               *team_);
  } else {
    rms_norm({.x = x, .rows = rows.count, .cols = cols, .x_stride = cols, .weight = norm.weight.data(),
              .weight_offset = norm_.weight_offset, .eps = norm_.eps, .out = out, .out_dtype = out_dtype,
              .out_stride = cols},
             *team_);
  }
}

void ResidualStream::add(const PackedLinear& linear, const LinearInput& input, const std::vector<float>& out_norm,
                         const LinearAddend& adapted) {
  const int64_t cols = hidden_size_;
  if (out_norm.empty()) {
    linear.forward(input, {.data = x_.data(), .row_stride = cols, .accumulate = true, .addend = adapted}, *team_);
    return;
  }
  if (branch_.size() < x_.size()) branch_.resize(x_.size());
  linear.forward(input, {.data = branch_.data(), .row_stride = cols, .addend = adapted}, *team_);
  rms_norm({.x = branch_.data(), .rows = input.rows, .cols = cols, .x_stride = cols, .weight = out_norm.data(),
            .weight_offset = norm_.weight_offset, .eps = norm_.eps, .out = x_.data(), .out_stride = cols,
            .accumulate = true},
           *team_);
}

void ResidualStream::renorm(const RowNorm& norm) {
  if (!norm.weight.empty()) norm_to(norm, {0, rows_}, x_.data(), DType::f32);
}

void ResidualStream::f32_to_bf16_rows(const float* x, int64_t rows, uint16_t* out) {
  const int64_t cols = hidden_size_;
  team_->parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    f32_to_bf16_row(x + begin * cols, (end - begin) * cols, out + begin * cols);
  });
}

void ResidualStream::fork() {
  const auto size = static_cast<size_t>(rows_ * hidden_size_);
  if (held_.size() < size) held_.resize(size);
  std::memcpy(held_.data(), x_.data(), size * sizeof(float));
  forked_ = true;
}

void ResidualStream::keep(std::span<const int32_t> rows) {
  if (forked_) keep_rows(held_.data(), hidden_size_, rows);
  keep_rows(x_.data(), hidden_size_, rows);
  adapters_.keep(rows);
  rows_ = static_cast<int64_t>(rows.size());
}

}  // namespace warpweave
