// The kernel of mla_slices.h; for its test, too, which runs it on the host.
#pragma once

#include "attention/cuda/mla/mla_requests.h"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

// The slice that request r begins at; so that no sums over requests are needed, up to one a request stays empty.
WW_DEVICE int mla_first_slice(const MlaParams& p, int r, int slice_tokens) { return p.q_indptr[r] / slice_tokens + r; }

// A thread a slice, and one for the end of the last.
WW_DEVICE void mla_cut(const MlaParams& p, const MlaSlices& slices, int count, int slice) {
  const int tokens = slices.slice_tokens;
  if (slice > count) return;
  int low = 0, high = p.num_requests - 1;  // the last request that begins at the slice or before it
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (mla_first_slice(p, middle, tokens) <= slice) low = middle; else high = middle - 1;
  }
  const int request_end = p.q_indptr[low + 1];
  const int begin = min(p.q_indptr[low] + (slice - mla_first_slice(p, low, tokens)) * tokens, request_end);
  slices.q_indptr[slice] = begin;
  if (slice == count) return;
  const int end = min(begin + tokens, request_end);
  slices.kv_lens[slice] = begin < end ? max(0, p.kv_lens[low] - (request_end - end)) : 0;
  slices.page_rows[slice] = low;
}

}  // namespace warpweave::cuda
