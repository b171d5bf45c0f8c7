// The rows of PackedLinear's input as its kernels want them, and the memory that they are written to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/threads.h"
#include "ops/linear.h"

namespace warpweave {

// The running thread's own grow-only memory, so that nothing is allocated in a steady decode loop: at least `bytes`,
// whose contents last until the same `use` is asked for again. Throws std::bad_alloc.
enum class LinearScratch { input, sums, weights, best };
std::byte* thread_scratch(LinearScratch use, size_t bytes);

struct RowsWanted {
  int64_t width;         // read
  int64_t padded_width;  // written: of bf16, zeros past `width`
  bool want_bf16;        // else f32
};

// Writes all rows, dense, to `out`. Not from f32 to f32.
void convert_rows(const LinearInput& x, const RowsWanted& wanted, std::byte* out, ThreadTeam& team);

// The rows where they are if that is how they are wanted, else converted in LinearScratch::input; `stride` in elements.
const void* prepare_input(const LinearInput& x, const RowsWanted& wanted, int64_t* stride, ThreadTeam& team);

}  // namespace warpweave
