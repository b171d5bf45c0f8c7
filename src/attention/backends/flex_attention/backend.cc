#include "attention/backends/flex_attention/backend.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "attention/backends/flex_attention/caps.h"
#include "attention/backends/flex_attention/plan.h"
#include "attention/backends/flex_attention/program.h"
#include "attention/batch_check.h"
#include "attention/cpu_tiles/tile.h"
#include "attention/registry.h"
#include "attention/tree_texts.h"
#include "base/threads.h"

namespace warpweave::flex_attention {
namespace {

using cpu_tiles::BlockRange;
using cpu_tiles::kBlockTokens;
using cpu_tiles::Tile;
using cpu_tiles::TileShape;

const Strips& strips_for(CpuTier tier) {
#if defined(__x86_64__)
  if (tier >= CpuTier::avx512) return kAvx512Strips;
  if (tier >= CpuTier::avx2) return kAvx2Strips;
#endif
  return kScalarStrips;
}

struct Programs {
  Program score;
  Program mask;
  const Strips* strips;
};

// One thread's scratch and the walk over one tile's blocks.
class TileWorker {
 public:
  void run(const TileShape& shape, const Programs& programs, const Plan& plan,
           const PlannedTile& tile, int kv_head);

 private:
  struct Visible { int first, end; };  // tokens, before the mask

  void start(const TileShape& shape, const Programs& programs, const PlannedTile& tile, int kv_head);
  Visible range_of(const TileShape& shape, const PlannedTile& tile, int row, bool masked) const;
  bool apply_mask(const TileShape& shape, const Programs& programs, const PlannedTile& tile,
                  BlockRange range);
  BlockRange range_of_block(const TileShape& shape, const PlannedTile& tile, int block) const;
  void block(const TileShape& shape, const Programs& programs, const PlannedTile& tile,
             PlannedBlock block);
  void show_tree(const TileShape& shape, const PlannedTile& tile, BlockRange range);

  Tile tile_;
  ProgramRun score_run_, mask_run_;
  std::vector<mods::Cell> cells_;    // [rows]
  std::vector<Visible> visible_;     // [q_count]
  StripOperand mask_{};
  bool masked_ = false;              // mask_ holds for the current block
};

// What rows see but for the mask: with a user's mask, everything in the window.
TileWorker::Visible TileWorker::range_of(const TileShape& shape, const PlannedTile& tile, int row,
                                         bool masked) const {
  const ForwardBatch& batch = *shape.batch;
  const int position = row_position(batch, tile.request, row);
  const int window = shape.call->window_left, kv_len = batch.kv_lens[tile.request];
  const int first = window < 0 ? 0 : std::max(0, position - window);
  const bool all = masked || !batch.causal || !batch.tree_mask.empty();
  const int right = shape.call->window_right;
  const bool bounded = right >= 0 && !batch.causal && batch.tree_mask.empty();
  const int last = bounded ? std::min(kv_len, position + right + 1) : kv_len;
  return {first, all ? last : position + 1};
}

void TileWorker::start(const TileShape& shape, const Programs& programs, const PlannedTile& tile,
                       int kv_head) {
  const ForwardBatch& batch = *shape.batch;
  const AttentionCall& call = *shape.call;
  const int rows = tile.q_count * shape.group;
  const int64_t token = batch.q_indptr[tile.request] + tile.q_begin;
  tile_.start(shape, rows, tile.request, kv_head);
  visible_.clear();
  cells_.clear();
  for (int i = 0; i < tile.q_count; ++i) {
    tile_.set_queries(shape, 0, i * shape.group,
                      call.q_f32() + (token + i) * call.q_token_stride +
                          int64_t{kv_head} * shape.group * call.head_dim);
    visible_.push_back(range_of(shape, tile, tile.q_begin + i, !programs.mask.empty()));
    for (int h = 0; h < shape.group; ++h) {
      cells_.push_back({.q_idx = row_position(batch, tile.request, tile.q_begin + i),
                        .request = tile.request,
                        .head = kv_head * shape.group + h,
                        .q_len = batch.q_len(tile.request),
                        .kv_len = batch.kv_lens[tile.request],
                        .num_heads = call.num_q_heads,
                        .head_dim = call.head_dim});
    }
  }
  if (!programs.score.empty()) score_run_.start_tile(programs.score, cells_);
  if (!programs.mask.empty()) mask_run_.start_tile(programs.mask, cells_);
}

// False: no row sees any token of the block.
bool TileWorker::apply_mask(const TileShape& shape, const Programs& programs,
                            const PlannedTile& tile, BlockRange range) {
  const ForwardBatch& batch = *shape.batch;
  const int prefix = batch.kv_lens[tile.request] - batch.q_len(tile.request);
  const int start = range.start();
  mask_ = mask_run_.mask(programs.mask, *programs.strips);
  masked_ = true;
  if (!batch.tree_mask.empty() && range.end > prefix) return true;
  return programs.strips->any(mask_, static_cast<int>(cells_.size()), range.first - start,
                              range.end - start);
}

// Within a draft tree its mask alone decides.
void TileWorker::show_tree(const TileShape& shape, const PlannedTile& tile, BlockRange range) {
  const ForwardBatch& batch = *shape.batch;
  const int prefix = batch.kv_lens[tile.request] - batch.q_len(tile.request);
  const int start = range.start();
  for (int i = 0; i < tile.q_count; ++i) {
    const int64_t token = batch.q_indptr[tile.request] + tile.q_begin + i;
    const uint32_t* bits = batch.tree_mask.data() + token * batch.tree_mask_words;
    for (int h = 0; h < shape.group; ++h) {
      float* s = tile_.scores() + static_cast<int64_t>(i * shape.group + h) * kBlockTokens;
      for (int t = std::max(prefix, range.first); t < range.end; ++t) {
        const int node = t - prefix;
        if (!(bits[node / 32] >> (node % 32) & 1)) s[t - start] = -__builtin_huge_valf();
      }
    }
  }
}

// The tokens of a block that any row may see, the mask aside.
BlockRange TileWorker::range_of_block(const TileShape& shape, const PlannedTile& tile, int block) const {
  const ForwardBatch& batch = *shape.batch;
  const int start = block * kBlockTokens;
  const int kv_len = batch.kv_lens[tile.request], prefix = kv_len - batch.q_len(tile.request);
  int first = kv_len, end = 0;
  for (const Visible& row : visible_) {
    first = std::min(first, row.first);
    end = std::max(end, row.end);
  }
  // In a tree the window bounds the prefix only.
  if (!batch.tree_mask.empty() && start + kBlockTokens > prefix) first = 0;
  return {std::max(start, first), std::min({start + kBlockTokens, end, kv_len})};
}

void TileWorker::block(const TileShape& shape, const Programs& programs, const PlannedTile& tile,
                       PlannedBlock planned) {
  const ForwardBatch& batch = *shape.batch;
  const int start = planned.index * kBlockTokens;
  const int kv_len = batch.kv_lens[tile.request], prefix = kv_len - batch.q_len(tile.request);
  const bool tree = !batch.tree_mask.empty();
  const BlockRange range = range_of_block(shape, tile, planned.index);
  if (range.empty()) return;

  int32_t kv_idx[kBlockTokens];
  for (int i = 0; i < kBlockTokens; ++i) {
    const int token = start + i;
    kv_idx[i] = token < kv_len ? token_position(batch, tile.request, token) : token;
  }
  masked_ = false;
  if (!programs.mask.empty() && !planned.full) {
    mask_run_.start_block(programs.mask, *programs.strips, kv_idx);
    if (!apply_mask(shape, programs, tile, range)) return;
  }
  tile_.load(shape, range);
  tile_.score(shape);
  if (!programs.score.empty()) {
    score_run_.start_block(programs.score, *programs.strips, kv_idx);
    score_run_.change_scores(programs.score, *programs.strips, tile_.scores());
  }
  const int rows = static_cast<int>(cells_.size());
  if (masked_) {
    // Columns of the tree are hidden by its mask, not by the user's.
    programs.strips->hide(tile_.scores(), rows, mask_,
                          tree ? std::min(prefix - start, kBlockTokens) : kBlockTokens);
  }
  const int tree_column = tree ? std::max(0, prefix - start) : kBlockTokens;
  for (int row = 0; row < rows; ++row) {
    const Visible& see = visible_[row / shape.group];
    const int column = see.first - start;
    tile_.show(row, std::min(column, tree_column), std::min(see.end, range.end) - start);
  }
  if (tree && range.end > prefix) show_tree(shape, tile, range);
  tile_.accumulate(shape);
}

void TileWorker::run(const TileShape& shape, const Programs& programs, const Plan& plan,
                     const PlannedTile& tile, int kv_head) {
  const ForwardBatch& batch = *shape.batch;
  const AttentionCall& call = *shape.call;
  start(shape, programs, tile, kv_head);
  for (const PlannedBlock& planned : plan.blocks(tile)) block(shape, programs, tile, planned);
  for (int row = 0; row < tile.q_count * shape.group; ++row) {
    const int64_t token = batch.q_indptr[tile.request] + tile.q_begin + row / shape.group;
    const int head = kv_head * shape.group + row % shape.group;
    tile_.finish_row(shape, row,
                     {.sink = call.sinks != nullptr ? call.sinks + head : nullptr,
                      .out = call.out_f32() + token * call.out_token_stride + int64_t{head} * call.v_head_dim,
                      .lse = call.lse != nullptr ? call.lse + token * call.num_q_heads + head : nullptr});
  }
}

class FlexAttentionBackend : public AttentionBackend {
 public:
  FlexAttentionBackend(const BackendContext& context, CpuTier tier, const mods::Modifiers& modifiers, const Caps& caps)
      : caps_(caps), team_(context.team), tier_(tier),
        programs_{Program(modifiers.score), Program(modifiers.mask), &strips_for(tier)},
        workers_(team_->size()) {
    if (!programs_.mask.empty()) bounds_.emplace(programs_.mask.expression());
  }

  const Caps& caps() const override { return caps_; }

  Status init_forward_metadata(const ForwardBatch& batch) override {
    WW_RETURN_IF_ERROR(check_batch(batch));
    plan_.clear();  // made by the first layer's call, which knows the heads
    return {};
  }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override;
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward_extend(batch, call);
  }

 private:
  const Caps& caps_;
  ThreadTeam* team_;
  CpuTier tier_;
  Programs programs_;
  std::optional<mods::MaskBounds> bounds_;
  Plan plan_;
  std::vector<TileWorker> workers_;
};

Status FlexAttentionBackend::forward_extend(const ForwardBatch& batch, const AttentionCall& call) {
  const TileShape shape(tier_, batch, call);
  const PlanShape wanted = {shape.group, call.num_q_heads, call.head_dim};
  if (plan_.shape() != wanted) plan_.init(batch, wanted, bounds_ ? &*bounds_ : nullptr);
  clear_empty_requests(batch, call);
  const int kv_heads = call.num_kv_heads;
  const int64_t items = static_cast<int64_t>(plan_.tiles().size()) * kv_heads;
  std::atomic<int64_t> next{0};
  team_->run([&](int member, int) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
      workers_[member].run(shape, programs_, plan_, plan_.tiles()[i / kv_heads],
                           static_cast<int>(i % kv_heads));
    }
  });
  return {};
}

}  // namespace

std::unique_ptr<AttentionBackend> create_for_tier(const BackendContext& context, CpuTier tier,
                                                  const mods::Modifiers& modifiers, AttentionKind kind) {
  const Caps& caps = kind == AttentionKind::mla ? kMlaCaps : kCaps;
  return with_trees_as_texts(std::make_unique<FlexAttentionBackend>(context, tier, modifiers, caps), context);
}

namespace {

std::unique_ptr<AttentionBackend> create_with_modifiers(const BackendContext& context, AttentionKind kind) {
  return create_for_tier(context, cpu_info().tier,
                         context.modifiers != nullptr ? *context.modifiers : mods::Modifiers{}, kind);
}

}  // namespace

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return create_with_modifiers(context, AttentionKind::mha);
}
std::unique_ptr<AttentionBackend> create_mla(const BackendContext& context) {
  return create_with_modifiers(context, AttentionKind::mla);
}

}  // namespace warpweave::flex_attention

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(flex_attention, flex_attention::kCaps, flex_attention::create)
WW_REGISTER_ATTENTION_BACKEND(flex_attention_mla, flex_attention::kMlaCaps, flex_attention::create_mla)
}
