// One pass over the keys of a tile, in order of position: the older chunks with the "inter" form of
// the query, the chunk before with "succ", the tile's own with the plain one, all in one online
// softmax. A tile's rows lie in one chunk, so that each block meets one form.
#include "attention/backends/dual_chunk_flash_attn/backend.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <vector>

#include "attention/backends/dual_chunk_flash_attn/caps.h"
#include "attention/batch_check.h"
#include "attention/cpu_tiles/tile.h"
#include "attention/registry.h"
#include "base/threads.h"

namespace warpweave::dual_chunk_flash_attn {
namespace {

using cpu_tiles::BlockRange;
using cpu_tiles::kBlockTokens;
using cpu_tiles::Tile;
using cpu_tiles::TileShape;

enum Variant { intra = 0, succ = 1, inter = 2 };

struct PlannedTile {
  int32_t request;
  int32_t q_begin;   // first row within the request
  int32_t q_count;
  int32_t position;  // of the first row
};

struct PlanShape {
  int group = 0;
  int chunk_len = 0;
  bool operator==(const PlanShape&) const = default;
};

// Tiles that no chunk border cuts, those with most keys first.
std::vector<PlannedTile> plan_tiles(const ForwardBatch& batch, const PlanShape& shape) {
  std::vector<PlannedTile> tiles;
  const int tile_tokens = std::max(1, cpu_tiles::kTileRows / shape.group);
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int q_len = batch.q_len(r), prefix = batch.kv_lens[r] - q_len;
    if (batch.kv_lens[r] == 0) continue;
    for (int q = 0; q < q_len;) {
      const int position = prefix + q;
      const int to_border = shape.chunk_len - position % shape.chunk_len;
      const int count = std::min({tile_tokens, q_len - q, to_border});
      tiles.push_back({r, q, count, position});
      q += count;
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(), [](const PlannedTile& a, const PlannedTile& b) {
    return a.position + a.q_count > b.position + b.q_count;
  });
  return tiles;
}

// One thread's scratch.
class TileWorker {
 public:
  void run(const TileShape& shape, const PlannedTile& planned, int chunk_len, int kv_head);

 private:
  void set_queries(const TileShape& shape, const PlannedTile& planned, int kv_head, int variants);
  void segment(const TileShape& shape, const PlannedTile& planned, Variant variant, BlockRange tokens);

  Tile tile_;
};

void TileWorker::set_queries(const TileShape& shape, const PlannedTile& planned, int kv_head,
                             int variants) {
  const AttentionCall& call = *shape.call;
  const int64_t token = shape.batch->q_indptr[planned.request] + planned.q_begin;
  const void* forms[] = {call.q, call.dual_chunk ? call.dual_chunk->q_succ : nullptr,
                         call.dual_chunk ? call.dual_chunk->q_inter : nullptr};
  for (int variant = 0; variant < variants; ++variant) {
    const int64_t stride = variant == intra ? call.q_token_stride : call.dual_chunk->token_stride;
    for (int i = 0; i < planned.q_count; ++i) {
      tile_.set_queries(shape, variant, i * shape.group,
                        static_cast<const float*>(forms[variant]) + (token + i) * stride +
                            int64_t{kv_head} * shape.group * call.head_dim);
    }
  }
}

void TileWorker::segment(const TileShape& shape, const PlannedTile& planned, Variant variant,
                         BlockRange tokens) {
  const int rows = planned.q_count * shape.group;
  for (int first = tokens.first; first < tokens.end;) {
    const int start = first / kBlockTokens * kBlockTokens;
    const BlockRange range = {first, std::min(tokens.end, start + kBlockTokens)};
    tile_.load(shape, range);
    tile_.score(shape, variant);
    for (int row = 0; row < rows; ++row) {
      const int seen = std::min(range.end, planned.position + row / shape.group + 1);
      tile_.show(row, range.first - start, seen - start);
    }
    tile_.accumulate(shape);
    first = range.end;
  }
}

void TileWorker::run(const TileShape& shape, const PlannedTile& planned, int chunk_len, int kv_head) {
  const AttentionCall& call = *shape.call;
  const int chunk = planned.position / chunk_len;
  const int own = chunk * chunk_len, before = own - std::min(own, chunk_len);
  const int rows = planned.q_count * shape.group;
  const int variants = 1 + std::min(chunk, 2);
  tile_.start(shape, rows, planned.request, kv_head, variants);
  set_queries(shape, planned, kv_head, variants);
  segment(shape, planned, inter, {0, before});
  segment(shape, planned, succ, {before, own});
  segment(shape, planned, intra, {own, planned.position + planned.q_count});
  for (int row = 0; row < rows; ++row) {
    const int64_t token = shape.batch->q_indptr[planned.request] + planned.q_begin + row / shape.group;
    const int head = kv_head * shape.group + row % shape.group;
    tile_.finish_row(shape, row,
                     {.sink = nullptr,
                      .out = call.out_f32() + token * call.out_token_stride + int64_t{head} * call.v_head_dim,
                      .lse = call.lse != nullptr ? call.lse + token * call.num_q_heads + head : nullptr});
  }
}

class DualChunkBackend : public AttentionBackend {
 public:
  DualChunkBackend(const BackendContext& context, CpuTier tier)
      : team_(context.team), tier_(tier), workers_(team_->size()) {}

  const Caps& caps() const override { return kCaps; }

  Status init_forward_metadata(const ForwardBatch& batch) override {
    WW_RETURN_IF_ERROR(check_batch(batch));
    planned_ = {};  // made by the first layer's call, which knows the heads and the chunks
    return {};
  }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override;
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward_extend(batch, call);
  }

 private:
  ThreadTeam* team_;
  CpuTier tier_;
  PlanShape planned_;
  std::vector<PlannedTile> tiles_;
  std::vector<TileWorker> workers_;
};

Status DualChunkBackend::forward_extend(const ForwardBatch& batch, const AttentionCall& call) {
  const TileShape shape(tier_, batch, call);
  const PlanShape wanted = {shape.group, call.dual_chunk ? call.dual_chunk->chunk_len : INT_MAX};
  if (planned_ != wanted) {
    tiles_ = plan_tiles(batch, wanted);
    planned_ = wanted;
  }
  clear_empty_requests(batch, call);
  const int kv_heads = call.num_kv_heads;
  const int64_t items = static_cast<int64_t>(tiles_.size()) * kv_heads;
  std::atomic<int64_t> next{0};
  team_->run([&](int member, int) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
      workers_[member].run(shape, tiles_[i / kv_heads], wanted.chunk_len, static_cast<int>(i % kv_heads));
    }
  });
  return {};
}

}  // namespace

std::unique_ptr<AttentionBackend> create_for_tier(const BackendContext& context, CpuTier tier) {
  return std::make_unique<DualChunkBackend>(context, tier);
}

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return create_for_tier(context, cpu_info().tier);
}

}  // namespace warpweave::dual_chunk_flash_attn

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(dual_chunk_flash_attn, dual_chunk_flash_attn::kCaps,
                              dual_chunk_flash_attn::create)
}
