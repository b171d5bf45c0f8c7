// Rows of a weight matrix, converted, as they are sent to a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear.h"

namespace warpweave {

// Rows that a part has.
int64_t rows_of(const LinearPart& part);

// Where rows go, and as what.
struct RowsOut {
  std::byte* data;
  size_t row_bytes;  // from one to the next
  DType dtype;
};

// Writes rows [begin, end) of `part`. What lies past the part's own rows or columns is filled with zeros. The part has
// data.
void write_rows(const LinearPart& part, int64_t begin, int64_t end, RowsOut to);

}  // namespace warpweave
