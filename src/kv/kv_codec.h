// Reading and writing runs of elements of a pool in any format, one head of one token at a time:
// what the formats mean, in scalar code. Kernels that write (ops/rope.h) or read (the backends) have
// their own vector forms and are tested against these. See kv_pool_view.h for the fields.
//
// `index` is that of the run's first element, a multiple of 16 under fp4_e2m1, where `count` is one,
// too. The run lies within one head. In packed formats it begins where a token does: written is the whole one, read its
// first `count` values, a multiple of 16. Thread-safe where runs do not overlap.
#pragma once

#include <cstdint>

#include "kv/kv_pool_view.h"

namespace warpweave {

// Values of [index, index + count), scales applied: stored * (block scale * head scale), in f32.
void kv_decode_run(const KvPoolView& view, int head, int64_t index, int count, float* out);

// Stores `values`, rounded to nearest even and saturated; all arithmetic in f32:
//   fp8   round(value * (1 / head scale))
//   fp4   block scale = e4m3(amax * (1/6f * (1 / head scale))) over the 16 values, at least the
//         smallest e4m3 above 0; then round(value * (1 / (block scale * head scale))).
//         A NaN makes its block scale NaN, and with it all 16 values.
void kv_encode_run(const KvPoolView& view, int head, int64_t index, int count, const float* values);

}  // namespace warpweave
