#include "attention/cuda/mixed_order.h"

#include <algorithm>
#include <cstdint>

#include "attention/cuda/attention_params.h"

namespace warpweave::cuda {
namespace {

// A tile until the next CTA is at work in its place, a tile's token, the decode kernel's start, and what an SM reads.
constexpr double kTileUs = 15, kTileTokenUs = 0.011, kDecodeUs = 5, kSmBytesPerUs = 30'000;
constexpr double kLeastLateShare = 0.3;
// What it costs decode to begin under the tiles rather than under the kernel before both.
constexpr double kLateStartUs = 25;

struct Amounts {
  int64_t tiles = 0;
  int longest_tokens = 0;  // that a tile sees
  double decode_bytes = 0;
};

Amounts amounts_of(const ForwardBatch& batch, const MixedWork& work) {
  Amounts out;
  int64_t decode_tokens = 0;
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int q_len = batch.q_len(r);
    const int seen = batch.kv_lens[r] - first_visible(batch.kv_lens[r], q_len, work.window_left);
    if (q_len <= work.decode_q_len) {
      decode_tokens += seen;
      continue;
    }
    const int64_t rows = int64_t{q_len} * work.rows_per_token;
    out.tiles += (rows + work.tile_rows - 1) / work.tile_rows * (work.num_q_heads / work.rows_per_token);
    out.longest_tokens = std::max(out.longest_tokens, seen);
  }
  out.decode_bytes = static_cast<double>(decode_tokens) * work.num_kv_heads * work.head_token_bytes;
  return out;
}

}  // namespace

DecodePlace place_decode(const ForwardBatch& batch, const MixedWork& work) {
  const MixedOrder decode_first = work.decode_may_be_first ? MixedOrder::decode_first : MixedOrder::tiles_first;
  DecodePlace out = {.order = decode_first, .sms = work.num_sms, .early_sms = work.num_sms};
  const Amounts amounts = amounts_of(batch, work);
  if (amounts.tiles >= work.num_sms) return out;
  const auto tiles = static_cast<int>(amounts.tiles);
  const double tile_us = kTileUs + kTileTokenUs * amounts.longest_tokens * work.head_dim / 128;
  const double decode_us = kDecodeUs + amounts.decode_bytes / kSmBytesPerUs / work.num_sms;
  const double all_us = decode_us + tiles * tile_us / work.num_sms;
  if (work.decode_may_be_first && decode_us + tile_us < std::max(tile_us, all_us) + kLateStartUs) return out;
  out.order = MixedOrder::tiles_first;
  out.early_sms = work.num_sms - tiles;
  out.late_share = std::max(1 - tile_us / all_us, kLeastLateShare);
  if (out.late_share == kLeastLateShare && tiles <= work.num_sms / 2) out.sms = out.early_sms;
  return out;
}

}  // namespace warpweave::cuda
