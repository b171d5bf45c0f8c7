// The gated short convolution (linear/short_conv.h) as the convolution of rows.cuh between two gates.
//
// Grid: x = channels / kRowsThreads, y = blocks of up to 64 tokens of a request.
#pragma once

#include "linear/cuda/rows.cuh"
#include "linear/short_conv.h"

namespace warpweave::linear {

// Rows [B | C | x]: B multiplies what is convolved, C what comes of it.
struct RowGates {
  LinearAttnRows rows;
  int channels;

  WW_DEVICE float in(float x, int64_t row, int channel) const { return x * part(row, channel); }
  WW_DEVICE float out(float sum, int64_t row, int channel) const { return sum * part(row, channels + channel); }
  WW_DEVICE float part(int64_t row, int at) const { return load_one(rows.data, row * rows.token_stride + at, rows.dtype); }
};

WW_DEVICE void short_conv_rows(const RowsParams& p, const RowGates& gates) {
  Chunk rows;
  const int channel = blockIdx.x * kRowsThreads + threadIdx.x;
  if (channel >= p.channels || !find_rows(p.linear, blockIdx.y, rows)) return;
  if (p.linear.batch.slots[rows.request] < 0) {
    for (int i = 0; i < rows.tokens; ++i) {
      store_one(p.packed, int64_t{rows.first + i} * p.channels + channel, 0.0f, p.packed_dtype);
    }
    return;
  }
  ConvChannel(p, gates, rows.request, channel).run(rows);
}

}  // namespace warpweave::linear
