#include "attention/cuda/mixed_order.h"

#include <algorithm>
#include <cstdint>

#include "attention/cuda/attention_params.h"

namespace warpweave::cuda {
namespace {

// Time until the first tile is at work; of a tile of 128 rows, apart from its tokens; of each of its tokens, at head
// dim 128.
constexpr double kTilesStartUs = 9, kTileUs = 2.5, kTileTokenUs = 0.0113;
// Time until the first K arrives, and how much later it arrives beside tiles; bandwidth of the memory; of one SM.
constexpr double kDecodeStartUs = 5, kDecodeBesideUs = 5, kMemoryBytesPerUs = 4.35e6, kSmBytesPerUs = 65e3;
// The speed of tiles while decode uses the whole memory bandwidth, relative to tiles alone: this, and the share of
// the SMs that they have.
constexpr double kTileSpeedBeside = 0.2;
// Side by side must save this share of the time to be chosen: in a server of 64 or 256 requests, at its power limit,
// savings of 4 to 14 % (layers alone) gave 0.6 % fewer tokens, not more.
constexpr double kLeastSaving = 0.25;
// SMs go in such steps, so that decode workers can take eight kv heads side by side (lockstep_heads).
constexpr int kSmStep = 4;

struct Amounts {
  int64_t tiles = 0;
  double mean_us = 0, longest_us = 0;  // a tile
  double decode_bytes = 0;
};

Amounts amounts_of(const ForwardBatch& batch, const MixedWork& work) {
  Amounts out;
  int64_t decode_tokens = 0;
  double tiles_us = 0;
  const double token_us = kTileTokenUs * work.head_dim / 128;
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int q_len = batch.q_len(r), kv_len = batch.kv_lens[r];
    if (q_len <= work.decode_q_len) {
      decode_tokens += kv_len - first_visible(kv_len, q_len, work.window_left);
      continue;
    }
    const int64_t rows = int64_t{q_len} * work.rows_per_token;
    const int64_t tiles = (rows + work.tile_rows - 1) / work.tile_rows * (work.num_q_heads / work.rows_per_token);
    const double most = work.window_left < 0 ? kv_len : std::min(kv_len, work.window_left + work.tile_rows);
    out.tiles += tiles;
    tiles_us += static_cast<double>(tiles) * (kTileUs + token_us * std::min(kv_len - q_len / 2.0, most));
    out.longest_us = std::max(out.longest_us, kTileUs + token_us * most);
  }
  out.mean_us = tiles_us / static_cast<double>(std::max<int64_t>(out.tiles, 1));
  out.decode_bytes = static_cast<double>(decode_tokens) * work.num_kv_heads * work.head_token_bytes;
  return out;
}

double decode_first_us(const Amounts& amounts, const MixedWork& work) {
  const double tiles_us = static_cast<double>(amounts.tiles) * amounts.mean_us / work.num_sms;
  return kDecodeStartUs + amounts.decode_bytes / kMemoryBytesPerUs + std::max(amounts.longest_us, tiles_us);
}

double side_by_side_us(const Amounts& amounts, const MixedWork& work, int tile_sms) {
  const double asked = kSmBytesPerUs * (work.num_sms - tile_sms), speed = std::min(kMemoryBytesPerUs, asked);
  const double decode_us = kDecodeStartUs + kDecodeBesideUs + amounts.decode_bytes / speed;
  const auto rounds = static_cast<double>((amounts.tiles + tile_sms - 1) / tile_sms);
  const double tiles_us = kTilesStartUs + std::max(amounts.longest_us, rounds * amounts.mean_us);
  const double slowed = 1 - kTileSpeedBeside - static_cast<double>(tile_sms) / work.num_sms;
  const double tile_speed = 1 - std::max(0.0, slowed) * speed / kMemoryBytesPerUs;
  return decode_us + std::max(0.0, tiles_us - tile_speed * decode_us);
}

}  // namespace

SmShares share_sms(const ForwardBatch& batch, const MixedWork& work) {
  const Amounts amounts = amounts_of(batch, work);
  const MixedOrder otherwise = work.decode_may_be_first ? MixedOrder::decode_first : MixedOrder::apart;
  SmShares best = {otherwise, work.num_sms, work.num_sms};
  const double first_us = decode_first_us(amounts, work);
  double best_us = otherwise == MixedOrder::apart ? first_us + kTilesStartUs : first_us * (1 - kLeastSaving);
  for (int sms = kSmStep; sms < work.num_sms; sms += kSmStep) {
    const double us = side_by_side_us(amounts, work, sms);
    if (us >= best_us) continue;
    best = {MixedOrder::side_by_side, sms, work.num_sms - sms};
    best_us = us;
  }
  return best;
}

}  // namespace warpweave::cuda
