#include "model/weight_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/elementwise.h"
#include "ops/fp8_matrix.h"

namespace warpweave {
namespace {

void narrow_row(const std::vector<float>& row, DType to, std::byte* out) {
  const auto cols = static_cast<int64_t>(row.size());
  if (to == DType::bf16) {
    f32_to_bf16_row(row.data(), cols, reinterpret_cast<uint16_t*>(out));
  } else if (to == DType::f16) {
    f32_to_f16_row(row.data(), cols, reinterpret_cast<uint16_t*>(out));
  } else {
    std::memcpy(out, row.data(), cols * sizeof(float));
  }
}

void write_row(const LinearPart& part, int64_t row, DType to, std::byte* out, std::vector<float>& scratch) {
  const TensorView& weight = part.weight;
  const size_t stored_bytes = weight.size_bytes() / weight.shape[0];
  const std::byte* const from = static_cast<const std::byte*>(weight.data) + row * stored_bytes;
  if (weight.dtype == to) {  // codes, too, whose scales stand apart
    std::memcpy(out, from, stored_bytes);
    return;
  }
  scratch.resize(weight.shape[1]);
  if (part.scales != nullptr) widen_fp8_row(weight, *part.scales, row, scratch.data());
  else dequantize_row(weight.dtype, from, weight.shape[1], scratch.data());
  narrow_row(scratch, to, out);
}

}  // namespace

int64_t rows_of(const LinearPart& part) {
  return part.rows >= 0 ? part.rows : (part.weight.shape[0] - part.first_row) / part.row_step;
}

void write_rows(const LinearPart& part, int64_t begin, int64_t end, RowsOut out_rows) {
  auto [out, row_bytes, to] = out_rows;
  const size_t own_bytes = part.weight.shape[1] * dtype_info(to).block_bytes;
  const int64_t last = std::min(end, rows_of(part));
  const bool as_stored = part.weight.dtype == to && part.row_step == 1;
  if (as_stored && own_bytes == row_bytes && last == end) {
    const auto* const from = static_cast<const std::byte*>(part.weight.data) + (part.first_row + begin) * row_bytes;
    std::memcpy(out, from, (end - begin) * row_bytes);
    return;
  }
  std::vector<float> scratch;
  for (int64_t row = begin; row < last; ++row, out += row_bytes) {
    write_row(part, part.first_row + row * part.row_step, to, out, scratch);
    std::memset(out + own_bytes, 0, row_bytes - own_bytes);
  }
  std::memset(out, 0, (end - std::max(begin, last)) * row_bytes);
}

}  // namespace warpweave
