#include "attention/backends/intel_amx/tile.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <numbers>
#include <utility>

#include "attention/cpu_tiles/element_of.h"

namespace warpweave::intel_amx {
namespace {

constexpr float kLog2e = std::numbers::log2e_v<float>;
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;
// Prefetch steps of a block's kernels per 64 bytes of a row, at least.
constexpr int kPackStepsPerLine = 4, kFewRowsStepsPerLine = 16;

// Two groups of few rows read a block twice from L1, which takes less time than to pack it for one group.
constexpr int kUnpackedRows = 2 * kFewRows;

int round_up(int value, int step) { return (value + step - 1) / step * step; }

float head_scale(const KvPoolView& pool, int kv_head) {
  return pool.head_scales == nullptr ? 1.0f : pool.head_scales[kv_head];
}

}  // namespace

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

void AlignedBuffer::reserve(size_t units) {
  if (units <= capacity_) return;
  std::free(std::exchange(data_, nullptr));
  capacity_ = 0;
  const size_t rounded = (units + 15) / 16 * 16;
  data_ = static_cast<uint32_t*>(std::aligned_alloc(64, rounded * 4));
  if (data_ == nullptr) throw std::bad_alloc();
  capacity_ = rounded;
  std::fill_n(data_, capacity_, 0u);
}

LayerShape::LayerShape(const KernelSet& set, const ForwardBatch& forward_batch,
                       const AttentionCall& attention_call)
    : kernels(&set), batch(&forward_batch), call(&attention_call), element(cpu_tiles::element_of(call->k.format)) {
  assert(call->num_kv_heads > 0 && call->num_q_heads % call->num_kv_heads == 0);
  assert(call->k.format == call->v.format);
  group = call->num_q_heads / call->num_kv_heads;
  padded_dim = round_up(call->head_dim, kHeadDimPadding);
  // Columns of fp8 are widened 64 at a time.
  const bool wide = kernels->bf16_pairs && (element == Element::fp8_e4m3 || element == Element::fp8_e5m2);
  padded_v_dim = round_up(call->v_head_dim, wide ? 2 * kHeadDimPadding : kHeadDimPadding);
  depth = kernels->bf16_pairs ? padded_dim / 2 : padded_dim;
  v_block = padded_v_dim * (kernels->bf16_pairs ? kBlockTokens / 2 : kBlockTokens);
}

int LayerShape::padded_rows(int rows) const {
  return rows <= kernels->row_padding ? kernels->row_padding : round_up(rows, 2 * kernels->row_padding);
}

void TileRunner::reserve(const LayerShape& shape) {
  const KernelSet& kernels = *shape.kernels;
  const int rows = shape.padded_rows(std::max({kItemRows, kernels.tile_rows, shape.group}));
  const int group_rows = std::max(kernels.group_rows, kFewRows);
  const size_t q = static_cast<size_t>(rows) * shape.depth;
  const size_t k = static_cast<size_t>(shape.depth) * kBlockTokens * kChunkBlocks;
  const size_t v = static_cast<size_t>(shape.v_block) * kChunkBlocks;
  const size_t s = 2 * static_cast<size_t>(group_rows) * kBlockTokens;
  const size_t o = static_cast<size_t>(rows) * shape.padded_v_dim;
  const size_t lanes = static_cast<size_t>(rows) * kMaxLanes;
  buffer_.reserve(q + k + v + 2 * s + 2 * o + lanes + 4 * static_cast<size_t>(rows) + 2 * group_rows);
  uint32_t* next = buffer_.data();
  auto take = [&next](size_t units) { return std::exchange(next, next + units); };
  auto take_floats = [&take](size_t units) { return reinterpret_cast<float*>(take(units)); };
  q_ = take(q);
  k_ = take(k);
  v_ = take(v);
  p_ = take(s);
  s_ = take_floats(s);
  chunk_.o = take_floats(o);
  total_.o = take_floats(o);
  chunk_.l = take_floats(lanes);
  chunk_.m = take_floats(rows);
  total_.m = take_floats(rows);
  total_.l = take_floats(rows);
  sums_ = take_floats(rows);
  rescale_ = take_floats(2 * group_rows);
  masks_.resize(static_cast<size_t>(kChunkBlocks) * group_rows);
  views_.reserve(kChunkBlocks);
  visible_.reserve(rows);
  stripe_.reserve(kChunkTokens);
  next_.reserve(kChunkTokens);
}

void TileRunner::load_queries(const LayerShape& shape) {
  const AttentionCall& call = *shape.call;
  for (int head = item_.head_begin; head < item_.head_end; ++head) {
    uint32_t* out = q_ + static_cast<size_t>(local_row(head)) * shape.depth;
    for (int i = 0; i < tile_.num_members; ++i) {
      const int64_t token = int64_t{shape.batch->q_indptr[members_[i].request]} + members_[i].q_begin;
      for (int q = 0; q < members_[i].q_count; ++q) {
        const float* src = call.q_f32() + (token + q) * call.q_token_stride +
                           int64_t{head} * shape.group * call.head_dim;
        for (int h = 0; h < shape.group; ++h, src += call.head_dim, out += shape.depth) {
          shape.kernels->pack_query({src, call.head_dim, shape.padded_dim, out});
        }
      }
    }
  }
}

BlockRows TileRunner::block_rows(const LayerShape& shape, int kv_head, int block, bool values) const {
  const AttentionCall& call = *shape.call;
  const KvPoolView& pool = values ? call.v : call.k;
  const int first = block * kBlockTokens - stripe_.tokens.first;
  const int count = std::min(kBlockTokens, stripe_.count() - first);
  const int64_t head = kv_head * pool.head_stride;  // 0 of packed tokens
  return {(values ? stripe_.v : stripe_.k).data() + first,
          head * kv_format_bits(pool.format) / 8,
          (values ? stripe_.v_scales : stripe_.k_scales).data() + first,
          head / kFp4BlockElements,
          count,
          values ? call.v_head_dim : call.head_dim,
          values ? shape.padded_v_dim : shape.padded_dim,
          shape.element};
}

bool TileRunner::packs(const LayerShape& shape) const {
  return shape.kernels->few_rows == nullptr || rows_ > kUnpackedRows;
}

int TileRunner::stripe_blocks(const LayerShape& shape) const {
  return rows_ > shape.kernels->group_rows ? kChunkBlocks : 1;
}

// Every kernel called during this stripe fetches a part of the next one.
void TileRunner::start_prefetch(const LayerShape& shape) {
  const AttentionCall& call = *shape.call;
  prefetch_ = {};
  prefetch_.count = next_.count();
  if (prefetch_.count == 0) {
    prefetch_.list = 2;
    return;
  }
  const KvFormat format = kv_format_is_packed(call.k.format) ? KvFormat::bf16 : call.k.format;
  const int bits = kv_format_bits(format), heads = item_.head_end - item_.head_begin;
  const int steps_per_line = packs(shape) ? kPackStepsPerLine : kFewRowsStepsPerLine;
  int lines = 0, steps = 0;
  for (bool values : {false, true}) {
    const KvPoolView& pool = values ? call.v : call.k;
    const int dim = values ? call.v_head_dim : call.head_dim;
    prefetch_.tokens[values] = (values ? next_.v : next_.k).data();
    prefetch_.offset[values] = item_.head_begin * pool.head_stride * bits / 8;
    prefetch_.bytes[values] = static_cast<int>(((heads - 1) * pool.head_stride + dim) * bits / 8);
    lines += prefetch_.count * ((prefetch_.bytes[values] + 63) / 64);
    steps += heads * steps_per_line * ((dim * bits / 8 + 63) / 64);
  }
  steps *= (stripe_.count() + kBlockTokens - 1) / kBlockTokens;
  prefetch_.lines_per_step = (lines + steps - 1) / steps;
}

void TileRunner::pack_block(const LayerShape& shape, int kv_head, int block) {
  const int local = block - stripe_.tokens.first / kBlockTokens;
  shape.kernels->pack_k(block_rows(shape, kv_head, block, false),
                        k_ + static_cast<size_t>(local) * shape.depth * kBlockTokens, prefetch_);
  shape.kernels->pack_v(block_rows(shape, kv_head, block, true),
                        v_ + static_cast<size_t>(local) * shape.v_block, prefetch_);
}

// Rows [begin, end) of one head against what they see of the stripe.
void TileRunner::attend_group(const LayerShape& shape, int kv_head, int begin, int end) {
  const size_t row = local_row(kv_head) + begin;
  const RowStates state = {chunk_.m + row, chunk_.l + row * kMaxLanes,
                           chunk_.o + row * shape.padded_v_dim};
  const bool whole_chunk = rows_ > shape.kernels->group_rows;
  if (whole_chunk) std::fill_n(state.o, static_cast<size_t>(end - begin) * shape.padded_v_dim, 0.0f);
  const TokenRange seen = visible_.range(begin, end);
  const int stripe_block = stripe_.tokens.first / kBlockTokens;
  const int first = std::max(seen.first, stripe_.tokens.first) / kBlockTokens;
  const int last = (std::min(seen.last, stripe_.tokens.last) + kBlockTokens - 1) / kBlockTokens;
  if (first >= last) return;
  views_.clear();
  for (int block = first; block < last; ++block) {
    const int count = std::min(kBlockTokens, stripe_.tokens.last - block * kBlockTokens);
    views_.push_back(visible_.view(begin, end, block, count,
                                   masks_.data() + views_.size() * (end - begin)));
  }
  const AttentionCall& call = *shape.call;
  AttendArgs attend = {q_ + row * shape.depth,
                       end - begin,
                       shape.depth,
                       k_ + static_cast<size_t>(first - stripe_block) * shape.depth * kBlockTokens,
                       v_ + static_cast<size_t>(first - stripe_block) * shape.v_block,
                       shape.v_block,
                       shape.padded_v_dim,
                       views_.data(),
                       last - first,
                       // A head scale of 0 must not turn the -inf of masked scores into NaN.
                       std::max(call.scale * head_scale(call.k, kv_head) * kLog2e, 1e-30f),
                       call.logit_softcap * kLog2e,
                       state,
                       s_,
                       p_,
                       rescale_,
                       &prefetch_};
  if (packs(shape)) {
    shape.kernels->attend(attend);
  } else {
    shape.kernels->few_rows({&attend, block_rows(shape, kv_head, first, false),
                             block_rows(shape, kv_head, first, true)});
  }
  // While the group's values are in L1.
  if (whole_chunk && !tile_.cut) merge_rows(shape, row, end - begin);
}

void TileRunner::run_head(const LayerShape& shape, int kv_head) {
  if (packs(shape)) {
    const int end = (stripe_.tokens.last + kBlockTokens - 1) / kBlockTokens;
    for (int block = stripe_.tokens.first / kBlockTokens; block < end; ++block) {
      pack_block(shape, kv_head, block);
    }
  }
  int step = shape.kernels->group_rows;
  if (!packs(shape)) {  // groups of equal size
    const int groups = (rows_ + kFewRows - 1) / kFewRows;
    step = (rows_ + groups - 1) / groups;
  }
  for (int row = 0; row < rows_; row += step) {
    attend_group(shape, kv_head, row, std::min(rows_, row + step));
  }
}

// The part of a chunk that any row of the tile sees, stripe by stripe; the first is in next_ already
// unless the tile begins here.
void TileRunner::run_chunk(const LayerShape& shape, int chunk) {
  const TokenRange seen = visible_.range(0, rows_);
  auto stripes_from = [&](int token) -> TokenRange {
    const int end = std::min({seen.last, tile_.kv_end, tile_.chunk_end * kChunkTokens});
    const int chunk_end = (token / kChunkTokens + 1) * kChunkTokens;
    return {token, std::min({end, chunk_end, token + stripe_blocks(shape) * kBlockTokens})};
  };
  const int request = members_[0].request;
  int token = std::max(seen.first / kBlockTokens * kBlockTokens, chunk * kChunkTokens);
  const int end = std::min({seen.last, tile_.kv_end, (chunk + 1) * kChunkTokens});
  while (token < end) {
    if (next_.tokens.first != token || next_.count() <= 0) {
      next_.find(*shape.batch, *shape.call, request, stripes_from(token));
    }
    std::swap(stripe_, next_);
    token = stripe_.tokens.last;
    TokenRange following = stripes_from(token);
    following.last = std::max(following.last, following.first);
    next_.find(*shape.batch, *shape.call, request, following);
    start_prefetch(shape);
    for (int head = item_.head_begin; head < item_.head_end; ++head) run_head(shape, head);
  }
}

void TileRunner::write_partial(const LayerShape& shape, int kv_head, int chunk,
                               const Partials& partials) {
  const size_t first = local_row(kv_head);
  for (int i = 0, row = 0; i < tile_.num_members; ++i) {
    const int count = members_[i].q_count * shape.group;
    const RowState partial = partials.at(kv_head, members_[i].partial_row + chunk * count);
    std::copy_n(chunk_.m + first + row, count, partial.m);
    std::copy_n(sums_ + first + row, count, partial.l);
    std::copy_n(chunk_.o + (first + row) * shape.padded_v_dim,
                static_cast<size_t>(count) * shape.padded_v_dim, partial.o);
    row += count;
  }
}

void TileRunner::merge_rows(const LayerShape& shape, size_t row, int rows) {
  const size_t o = row * shape.padded_v_dim;
  shape.kernels->sum_lanes(chunk_.l + row * kMaxLanes, rows, sums_ + row);
  shape.kernels->merge({rows, shape.padded_v_dim, total_.m + row, total_.l + row, total_.o + o,
                        chunk_.m + row, sums_ + row, chunk_.o + o});
}

// Groups that share a packed chunk have merged themselves.
void TileRunner::finish_chunk(const LayerShape& shape, int chunk, const Partials& partials) {
  for (int head = item_.head_begin; head < item_.head_end; ++head) {
    const size_t row = local_row(head);
    if (tile_.cut) {
      shape.kernels->sum_lanes(chunk_.l + row * kMaxLanes, rows_, sums_ + row);
      write_partial(shape, head, chunk, partials);
    } else if (rows_ <= shape.kernels->group_rows) {
      merge_rows(shape, row, rows_);
    }
  }
}

void TileRunner::run(const LayerShape& shape, const Plan& plan, const Item& item,
                     const Partials& partials) {
  item_ = item;
  tile_ = plan.tiles()[item.tile];
  members_ = plan.members().data() + tile_.first_member;
  rows_ = tile_.rows;
  row_stride_ = shape.padded_rows(rows_);
  visible_.set(*shape.batch, tile_, members_, shape.group,
               {.left = shape.call->window_left, .right = shape.call->window_right});
  next_.tokens = {0, 0};
  load_queries(shape);
  const size_t rows = static_cast<size_t>(item_.head_end - item_.head_begin) * row_stride_;
  if (!tile_.cut) {
    std::fill_n(total_.m, rows, kNegativeInfinity);
    std::fill_n(total_.l, rows, 0.0f);
    std::fill_n(total_.o, rows * shape.padded_v_dim, 0.0f);
  }
  for (int chunk = tile_.chunk_begin; chunk < tile_.chunk_end; ++chunk) {
    std::fill_n(chunk_.m, rows, kNegativeInfinity);
    std::fill_n(chunk_.l, rows * kMaxLanes, 0.0f);
    if (rows_ <= shape.kernels->group_rows) {
      std::fill_n(chunk_.o, rows * shape.padded_v_dim, 0.0f);
    }
    run_chunk(shape, chunk);
    finish_chunk(shape, chunk, partials);
  }
  for (int head = item_.head_begin; head < item_.head_end && !tile_.cut; ++head) {
    const size_t row = local_row(head);
    write_member(shape, members_[0], head,
                 {total_.m + row, total_.l + row, total_.o + row * shape.padded_v_dim});
  }
}

void TileRunner::merge(const LayerShape& shape, const Merge& merge, int kv_head,
                       const Partials& partials) {
  const int rows = merge.q_count * shape.group;
  std::fill_n(total_.m, rows, kNegativeInfinity);
  std::fill_n(total_.l, rows, 0.0f);
  std::fill_n(total_.o, static_cast<size_t>(rows) * shape.padded_v_dim, 0.0f);
  for (int chunk = 0; chunk < merge.chunks; ++chunk) {
    const RowState part = partials.at(kv_head, merge.partial_row + chunk * rows);
    shape.kernels->merge(
        {rows, shape.padded_v_dim, total_.m, total_.l, total_.o, part.m, part.l, part.o});
  }
  write_member(shape, {merge.request, merge.q_begin, merge.q_count, 0}, kv_head, total_);
}

// Normalises, with the head's sink in the denominator. The LSE is that of the whole denominator.
void TileRunner::write_member(const LayerShape& shape, const TileMember& member, int kv_head,
                              RowState state) {
  const AttentionCall& call = *shape.call;
  const int64_t token = int64_t{shape.batch->q_indptr[member.request]} + member.q_begin;
  const float v_scale = head_scale(call.v, kv_head);
  for (int row = 0; row < member.q_count * shape.group; ++row) {
    const int64_t t = token + row / shape.group;
    const int head = kv_head * shape.group + row % shape.group;
    const float m = state.m[row];
    float sum = state.l[row], scale = v_scale / sum, top = m;
    if (call.sinks != nullptr) {
      const float sink = call.sinks[head] * kLog2e;
      top = std::max(m, sink);
      const float shrink = std::exp2(m - top);
      sum = sum * shrink + std::exp2(sink - top);
      scale = v_scale * shrink / sum;
    }
    shape.kernels->finish({state.o + static_cast<size_t>(row) * shape.padded_v_dim, scale,
                           call.v_head_dim,
                           call.out_f32() + t * call.out_token_stride + int64_t{head} * call.v_head_dim});
    if (call.lse != nullptr) {
      call.lse[t * call.num_q_heads + head] =
          static_cast<float>((top + std::log2(double{sum})) * std::numbers::ln2);
    }
  }
}

}  // namespace warpweave::intel_amx
