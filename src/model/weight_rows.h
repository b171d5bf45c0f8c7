// Rows of a weight matrix, converted, as they are sent to a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear.h"

namespace warpweave {

// Rows that a part has.
int64_t rows_of(const LinearPart& part);

// Writes rows [begin, end) of `part` in dtype `to`, row_bytes apart. What lies past the part's own rows or columns is
// filled with zeros. The part has data.
void write_rows(const LinearPart& part, DType to, int64_t begin, int64_t end, std::byte* out, size_t row_bytes);

}  // namespace warpweave
