#include "attention/tile/tile_call.h"

#include <algorithm>
#include <cstdint>

namespace warpweave::tile {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kPartialMultiple = 32;  // PARTIAL_STRIDE of kernels/dialect.cl

tile_address address(const void* pointer) { return reinterpret_cast<tile_address>(pointer); }

bool view_is_aligned(const KvPoolView& view) {
  return (view.page_stride | view.token_stride | view.head_stride) % 8 == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

bool is_aligned(const void* data, int64_t stride) {
  return stride % 8 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

void set_dual_chunk(const DualChunkQueries& forms, TileArgs& args) {
  args.q_succ = address(forms.q_succ);
  args.q_inter = address(forms.q_inter);
  args.q_form_token_stride = forms.token_stride;
  args.chunk_len = forms.chunk_len;
}

}  // namespace

TileShape shape_of(const AttentionCall& call) {
  TileShape shape;
  shape.head_dim = call.head_dim;
  shape.v_head_dim = call.v_head_dim;
  shape.kv_format = call.k.format;
  shape.q_dtype = call.q_dtype;
  shape.out_dtype = call.out_dtype;
  shape.dual_chunk = call.dual_chunk != nullptr;
  return shape;
}

TileArgs make_args(const ForwardBatch& batch, const AttentionCall& call) {
  TileArgs args = {};
  args.q = address(call.q);
  args.k = address(call.k.data);
  args.v = address(call.v.data);
  args.out = address(call.out);
  args.lse = address(call.lse);
  args.sinks = address(call.sinks);
  args.k_block_scales = address(call.k.block_scales);
  args.v_block_scales = address(call.v.block_scales);
  args.k_head_scales = address(call.k.head_scales);
  args.v_head_scales = address(call.v.head_scales);
  args.q_indptr = address(batch.q_indptr.data());
  args.kv_lens = address(batch.kv_lens.data());
  args.page_table = address(batch.page_table.data());
  args.positions = address(batch.positions.data());
  args.tree_mask = batch.tree_mask.empty() ? 0 : address(batch.tree_mask.data());
  args.q_token_stride = call.q_token_stride;
  args.out_token_stride = call.out_token_stride;
  args.k_page_stride = call.k.page_stride;
  args.k_token_stride = call.k.token_stride;
  args.k_head_stride = call.k.head_stride;
  args.v_page_stride = call.v.page_stride;
  args.v_token_stride = call.v.token_stride;
  args.v_head_stride = call.v.head_stride;
  args.num_reqs = batch.num_reqs;
  args.num_tokens = batch.num_tokens;
  args.num_q_heads = call.num_q_heads;
  args.num_kv_heads = call.num_kv_heads;
  args.group = call.num_q_heads / call.num_kv_heads;
  args.page_size = batch.page_size;
  args.page_shift = page_shift_of(batch.page_size);
  args.page_table_stride = batch.page_table_stride;
  args.tree_mask_words = batch.tree_mask_words;
  args.window_left = call.window_left;
  args.window_right = call.window_right;
  if (call.dual_chunk != nullptr) set_dual_chunk(*call.dual_chunk, args);
  args.causal = batch.causal;
  if (call.logit_softcap > 0) {
    args.scale_log2 = call.scale / call.logit_softcap;
    args.softcap_log2 = call.logit_softcap * kLog2E;
  } else {
    args.scale_log2 = call.scale * kLog2E;
  }
  return args;
}

TileArgs make_device_args(const ForwardBatch& batch, const AttentionCall& call) {
  TileArgs args = make_args(batch, call);
  args.q_indptr = address(batch.device.q_indptr);
  args.kv_lens = address(batch.device.kv_lens);
  args.page_table = address(batch.device.page_table);
  args.positions = address(batch.device.positions);
  args.tree_mask = batch.tree_mask_words > 0 ? address(batch.device.tree_mask) : 0;
  return args;
}

bool rows_are_aligned(const AttentionCall& call) {
  const bool forms = call.dual_chunk == nullptr ||
                     (is_aligned(call.dual_chunk->q_succ, call.dual_chunk->token_stride) &&
                      is_aligned(call.dual_chunk->q_inter, call.dual_chunk->token_stride));
  return view_is_aligned(call.k) && view_is_aligned(call.v) && call.head_dim % 8 == 0 &&
         call.v_head_dim % 8 == 0 &&
         is_aligned(call.q, call.q_token_stride) && forms;
}

TileGrid plan_grid(const TileSpec& spec, int uniform_rows, TileArgs& args) {
  TileGrid grid;
  grid.kv_heads = args.num_kv_heads;
  if (uniform_rows > 0) {
    args.tiles_per_request = (uniform_rows * args.group + spec.tile_m - 1) / spec.tile_m;
    grid.tiles = args.num_reqs * args.tiles_per_request;
  } else {
    args.tiles_per_request = 0;
    grid.tiles = static_cast<int>(int64_t{args.num_tokens} * args.group / spec.tile_m) +
                 args.num_reqs;
  }
  args.num_tiles = grid.tiles;
  return grid;
}

int even_split_count(const TileGrid& grid, int work_groups, int most) {
  const int groups = grid.tiles * grid.kv_heads;
  return groups == 0 ? 1 : std::clamp((work_groups + groups - 1) / groups, 1, std::max(1, most));
}

int split_count(const TileSpec& spec, int max_kv_len) {
  return std::max(1, (max_kv_len + spec.split_tokens - 1) / spec.split_tokens);
}

size_t partial_out_bytes(const TileSpec& spec, const TileArgs& args, int splits) {
  const size_t stride =
      (spec.shape.v_head_dim + kPartialMultiple - 1) / kPartialMultiple * kPartialMultiple;
  return sizeof(float) * splits * args.num_tokens * args.num_q_heads * stride;
}

size_t partial_stats_bytes(const TileArgs& args, int splits) {
  return 2 * sizeof(float) * static_cast<size_t>(splits) * args.num_tokens * args.num_q_heads;
}

}  // namespace warpweave::tile
