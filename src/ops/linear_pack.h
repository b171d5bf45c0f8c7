// How PackedLinear lays weights out: pure functions from source rows to panels and back.
#pragma once

#include <cstdint>
#include <span>

#include "ops/kernels/linear_kernels.h"
#include "warpweave/tensor.h"

namespace warpweave {

// Bytes of one 16-row panel of `k` columns.
size_t panel_size_bytes(DType dtype, int64_t k);

// Bytes from k = 0 to k = `k` inside a panel (k on a block border).
size_t panel_offset_bytes(DType dtype, int64_t k);

// Writes a zeroed panel from up to 16 rows; rows[i] is null for padding.
void pack_panel(DType dtype, std::span<const void* const, kPanelCols> rows, int64_t k,
                unsigned char* panel);

// Row `lane` (0..15) of a panel, widened.
void unpack_panel_row(DType dtype, const unsigned char* panel, int lane, int64_t k, float* out);

}  // namespace warpweave
