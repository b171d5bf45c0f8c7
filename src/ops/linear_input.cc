#include "ops/linear_input.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "ops/aligned_buffer.h"
#include "ops/elementwise.h"

namespace warpweave {

std::byte* thread_scratch(LinearScratch use, size_t bytes) {
  thread_local std::array<AlignedBuffer, 4> buffers;
  AlignedBuffer& buffer = buffers[static_cast<int>(use)];
  if (buffer.size() < bytes) buffer = AlignedBuffer::allocate(std::max(bytes, buffer.size() * 3 / 2));
  if (buffer.size() < bytes) throw std::bad_alloc();
  return buffer.data();
}

void convert_rows(const LinearInput& x, const RowsWanted& wanted, std::byte* out, ThreadTeam& team) {
  const auto convert = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::byte* to = out + r * wanted.padded_width * (wanted.want_bf16 ? 2 : 4);
      if (!wanted.want_bf16) {
        bf16_to_f32_row(static_cast<const uint16_t*>(x.data) + r * x.row_stride, wanted.width,
                        reinterpret_cast<float*>(to));
        continue;
      }
      uint16_t* const row = reinterpret_cast<uint16_t*>(to);
      if (x.dtype == DType::bf16) {
        std::memcpy(row, static_cast<const uint16_t*>(x.data) + r * x.row_stride, wanted.width * 2);
      } else {
        f32_to_bf16_row(static_cast<const float*>(x.data) + r * x.row_stride, wanted.width, row);
      }
      std::fill(row + wanted.width, row + wanted.padded_width, uint16_t{0});
    }
  };
  team.parallel_for(x.rows, std::max<int64_t>(1, (64 << 10) / wanted.width), convert);
}

const void* prepare_input(const LinearInput& x, const RowsWanted& wanted, int64_t* stride, ThreadTeam& team) {
  if ((x.dtype == DType::bf16) == wanted.want_bf16 && (!wanted.want_bf16 || wanted.padded_width == wanted.width)) {
    *stride = x.row_stride;
    return x.data;
  }
  *stride = wanted.padded_width;
  std::byte* const out =
      thread_scratch(LinearScratch::input, x.rows * wanted.padded_width * (wanted.want_bf16 ? 2 : 4));
  convert_rows(x, wanted, out, team);
  return out;
}

}  // namespace warpweave
