#include "attention/backends/intel_amx/tile.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

namespace warpweave::intel_amx {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

int round_up(int value, int step) { return (value + step - 1) / step * step; }

Element element_of(KvFormat format) {
  switch (format) {
    case KvFormat::bf16: return Element::bf16;
    case KvFormat::f16: return Element::f16;
    default: assert(format == KvFormat::f32); return Element::f32;
  }
}

void clear(RowState state, int rows, int v_dim) {
  std::fill_n(state.m, rows, kNegativeInfinity);
  std::fill_n(state.l, rows, 0.0f);
  std::fill_n(state.o, static_cast<size_t>(rows) * v_dim, 0.0f);
}

}  // namespace

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

void AlignedBuffer::reserve(size_t units) {
  if (units <= capacity_) return;
  std::free(data_);
  capacity_ = (units + 15) / 16 * 16;
  data_ = static_cast<uint32_t*>(std::aligned_alloc(64, capacity_ * 4));
  if (data_ == nullptr) throw std::bad_alloc();
  std::fill_n(data_, capacity_, 0u);
}

LayerShape::LayerShape(const KernelSet& set, const ForwardBatch& forward_batch,
                       const AttentionCall& attention_call)
    : kernels(&set), batch(&forward_batch), call(&attention_call) {
  assert(call->num_kv_heads > 0 && call->num_q_heads % call->num_kv_heads == 0);
  group = call->num_q_heads / call->num_kv_heads;
  pairs = kernels->bf16_pairs;
  padded_dim = round_up(call->head_dim, kHeadDimPadding);
  padded_v_dim = round_up(call->v_head_dim, kHeadDimPadding);
  depth = pairs ? padded_dim / 2 : padded_dim;
}

void TileRunner::reserve(const LayerShape& shape) {
  const int rows = std::max(kItemRows, padded_rows(shape.group));
  const size_t q = static_cast<size_t>(rows) * shape.depth;
  const size_t k = static_cast<size_t>(shape.depth) * kBlockTokens;
  const size_t v = static_cast<size_t>(kBlockTokens) * shape.padded_v_dim;
  const size_t s = static_cast<size_t>(rows) * kBlockTokens;
  const size_t o = static_cast<size_t>(rows) * shape.padded_v_dim;
  buffer_.reserve(q + k + v + 2 * s + 2 * o + 5 * static_cast<size_t>(rows));
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
  chunk_.m = take_floats(rows);
  chunk_.l = take_floats(rows);
  total_.m = take_floats(rows);
  total_.l = take_floats(rows);
  rescale_ = take_floats(rows);
  for (std::vector<int>* list : {&first_, &last_, &block_first_, &block_last_}) list->resize(rows);
}

RowState TileRunner::head_state(const LayerShape& shape, RowState all, int local_head) const {
  const size_t row = static_cast<size_t>(local_head) * row_stride_;
  return {all.m + row, all.l + row, all.o + row * shape.padded_v_dim};
}

void TileRunner::load_queries(const LayerShape& shape, const Tile& tile, HeadRange heads) {
  const AttentionCall& call = *shape.call;
  const int64_t token = shape.batch->q_indptr[tile.request] + tile.q_begin;
  for (int head = heads.begin; head < heads.end; ++head) {
    uint32_t* out = q_ + static_cast<size_t>(head - heads.begin) * row_stride_ * shape.depth;
    for (int i = 0; i < tile.q_count; ++i) {
      const float* src = call.q_f32() + (token + i) * call.q_token_stride +
                         int64_t{head} * shape.group * call.head_dim;
      for (int h = 0; h < shape.group; ++h, src += call.head_dim, out += shape.depth) {
        shape.kernels->pack_query({src, call.head_dim, shape.padded_dim, call.scale, out});
      }
    }
  }
}

void TileRunner::set_row_ranges(const LayerShape& shape, const Tile& tile) {
  rows_ = tile.q_count * shape.group;
  row_stride_ = padded_rows(rows_);
  for (int i = 0, row = 0; i < tile.q_count; ++i) {
    const int position = tile.kv_end - tile.q_count + i;
    const int window_left = shape.call->window_left;
    const int first = window_left < 0 ? 0 : std::max(0, position - window_left);
    for (int h = 0; h < shape.group; ++h, ++row) {
      first_[row] = first;
      last_[row] = position + 1;
    }
  }
}

void TileRunner::find_rows(const LayerShape& shape, int request, Range tokens, int slot) {
  const KvPoolView& k = shape.call->k;
  const KvPoolView& v = shape.call->v;
  const int page_size = shape.batch->page_size;
  const int32_t* pages = shape.batch->pages_of(request);
  const int64_t k_bytes = kv_format_bits(k.format) / 8, v_bytes = kv_format_bits(v.format) / 8;
  int page = tokens.first / page_size, offset = tokens.first % page_size;
  const int count = row_count_[slot] = std::max(0, tokens.last - tokens.first);
  for (int i = 0; i < count;) {
    const int run = std::min(count - i, page_size - offset);
    const char* k_row = static_cast<const char*>(k.data) +
                        (pages[page] * k.page_stride + offset * k.token_stride) * k_bytes;
    const char* v_row = static_cast<const char*>(v.data) +
                        (pages[page] * v.page_stride + offset * v.token_stride) * v_bytes;
    for (int t = 0; t < run; ++t, ++i) {
      k_rows_[slot][i] = k_row;
      v_rows_[slot][i] = v_row;
      k_row += k.token_stride * k_bytes;
      v_row += v.token_stride * v_bytes;
    }
    ++page;
    offset = 0;
  }
}

// One block and head: scores, softmax, weighted values into chunk_. `first`: o is not yet set.
void TileRunner::run_block(const LayerShape& shape, int block, int kv_head, int local_head,
                           bool first) {
  const KernelSet& kernels = *shape.kernels;
  const AttentionCall& call = *shape.call;
  const RowState state = head_state(shape, chunk_, local_head);
  const int slot = block & 1, next = slot ^ 1, count = row_count_[slot];
  const Element k_element = element_of(call.k.format), v_element = element_of(call.v.format);
  const int k_bytes = kv_format_bits(call.k.format) / 8;
  const int v_bytes = kv_format_bits(call.v.format) / 8;
  const int64_t k_head = kv_head * call.k.head_stride * k_bytes;
  const int64_t v_head = kv_head * call.v.head_stride * v_bytes;
  Prefetch prefetch = {{{k_rows_[next], k_head, call.head_dim * k_bytes},
                        {v_rows_[next], v_head, call.v_head_dim * v_bytes}},
                       row_count_[next], row_count_[next] > 0 ? 0 : 2, 0};
  const BlockRows k = {k_rows_[slot], k_head,    count, call.head_dim, shape.padded_dim,
                       k_element,     &prefetch};
  const BlockRows v = {v_rows_[slot], v_head,    count, call.v_head_dim, shape.padded_v_dim,
                       v_element,     &prefetch};
  const int cols = round_up(count, kTokenPadding);
  const uint32_t* q = q_ + static_cast<size_t>(local_head) * row_stride_ * shape.depth;
  const int depth = shape.pairs ? (call.head_dim + 1) / 2 : call.head_dim;
  kernels.pack_k(k, k_);
  kernels.gemm({q, shape.depth, k_, kBlockTokens, s_, kBlockTokens, rows_, cols,
                round_up(depth, kernels.depth_step), nullptr, &prefetch});
  kernels.softmax({s_, shape.pairs ? p_ : nullptr, rows_, cols, block_first_.data(),
                   block_last_.data(), call.logit_softcap, state.m, state.l, rescale_});
  const uint32_t* p = shape.pairs ? p_ : reinterpret_cast<const uint32_t*>(s_);
  const int tokens = shape.pairs ? (count + 1) / 2 : count;
  kernels.pack_v(v, v_);
  kernels.gemm({p, shape.pairs ? kBlockTokens / 2 : kBlockTokens, v_, shape.padded_v_dim, state.o,
                shape.padded_v_dim, rows_, shape.padded_v_dim,
                round_up(tokens, kernels.depth_step), first ? nullptr : rescale_,
                &prefetch});
}

// The blocks of one chunk that any row of the tile sees. While one block is computed, the rows of
// the next are prefetched.
void TileRunner::run_chunk(const LayerShape& shape, const Tile& tile, HeadRange heads, Range range) {
  const size_t rows = static_cast<size_t>(heads.end - heads.begin) * row_stride_;
  std::fill_n(chunk_.m, rows, kNegativeInfinity);
  std::fill_n(chunk_.l, rows, 0.0f);
  const int first_block = range.first / kBlockTokens;
  const int end_block = (range.last + kBlockTokens - 1) / kBlockTokens;
  auto tokens_of = [&](int block) {
    return Range{block * kBlockTokens, std::min(range.last, (block + 1) * kBlockTokens)};
  };
  find_rows(shape, tile.request, tokens_of(first_block), first_block & 1);
  for (int block = first_block; block < end_block; ++block) {
    const int next = block + 1;
    if (next < end_block) {
      find_rows(shape, tile.request, tokens_of(next), next & 1);
    } else {
      row_count_[next & 1] = 0;
    }
    const int begin = block * kBlockTokens, count = row_count_[block & 1];
    for (int row = 0; row < rows_; ++row) {
      block_first_[row] = std::clamp(first_[row] - begin, 0, count);
      block_last_[row] = std::clamp(last_[row] - begin, 0, count);
    }
    for (int head = heads.begin; head < heads.end; ++head) {
      run_block(shape, block, head, head - heads.begin, block == first_block);
    }
  }
}

void TileRunner::finish_chunk(const LayerShape& shape, const Tile& tile, HeadRange heads,
                              const Partials& partials) {
  for (int head = heads.begin; head < heads.end; ++head) {
    const RowState chunk = head_state(shape, chunk_, head - heads.begin);
    if (tile.chunk >= 0) {
      const RowState partial = partials.at(head, tile.partial_row);
      std::copy_n(chunk.m, rows_, partial.m);
      std::copy_n(chunk.l, rows_, partial.l);
      std::copy_n(chunk.o, static_cast<size_t>(rows_) * shape.padded_v_dim, partial.o);
    } else {
      const RowState total = head_state(shape, total_, head - heads.begin);
      shape.kernels->merge(
          {rows_, shape.padded_v_dim, total.m, total.l, total.o, chunk.m, chunk.l, chunk.o});
    }
  }
}

void TileRunner::run(const LayerShape& shape, const Tile& tile, HeadRange heads,
                     const Partials& partials) {
  set_row_ranges(shape, tile);
  const int kv_first = first_[0];  // rows are in position order: the first sees furthest back
  const bool cut = tile.chunk >= 0;
  const int first_chunk = cut ? tile.chunk : kv_first / kChunkTokens;
  const int end_chunk = cut ? tile.chunk + 1 : (tile.kv_end + kChunkTokens - 1) / kChunkTokens;
  if (cut && (tile.chunk + 1) * kChunkTokens <= kv_first) {
    for (int head = heads.begin; head < heads.end; ++head) {
      // Outside of the window: merge skips it.
      std::fill_n(partials.at(head, tile.partial_row).m, rows_, kNegativeInfinity);
    }
    return;
  }
  load_queries(shape, tile, heads);
  if (!cut) clear(total_, (heads.end - heads.begin) * row_stride_, shape.padded_v_dim);
  for (int chunk = first_chunk; chunk < end_chunk; ++chunk) {
    run_chunk(shape, tile, heads,
              {std::max(kv_first, chunk * kChunkTokens),
               std::min(tile.kv_end, (chunk + 1) * kChunkTokens)});
    finish_chunk(shape, tile, heads, partials);
  }
  for (int head = heads.begin; head < heads.end && !cut; ++head) {
    write_rows(shape, tile, head, head_state(shape, total_, head - heads.begin));
  }
}

void TileRunner::merge(const LayerShape& shape, const Merge& merge, int kv_head,
                       const Partials& partials) {
  rows_ = merge.q_count * shape.group;
  clear(total_, rows_, shape.padded_v_dim);
  for (int chunk = 0; chunk < merge.chunks; ++chunk) {
    const RowState part = partials.at(kv_head, merge.partial_row + chunk * rows_);
    shape.kernels->merge(
        {rows_, shape.padded_v_dim, total_.m, total_.l, total_.o, part.m, part.l, part.o});
  }
  write_rows(shape, {merge.request, merge.q_begin, merge.q_count, -1, 0, 0}, kv_head, total_);
}

// Normalises, with the head's sink in the denominator. The LSE is that of the whole denominator.
void TileRunner::write_rows(const LayerShape& shape, const Tile& tile, int kv_head,
                            RowState state) {
  const AttentionCall& call = *shape.call;
  const int64_t token = shape.batch->q_indptr[tile.request] + tile.q_begin;
  for (int row = 0; row < rows_; ++row) {
    const int64_t t = token + row / shape.group;
    const int head = kv_head * shape.group + row % shape.group;
    const float m = state.m[row];
    float sum = state.l[row], scale = 1 / sum, lse = m + std::log(sum);
    if (call.sinks != nullptr) {
      const float top = std::max(m, call.sinks[head]);
      const float shrink = std::exp(m - top);
      sum = sum * shrink + std::exp(call.sinks[head] - top);
      scale = shrink / sum;
      lse = top + std::log(sum);
    }
    shape.kernels->finish({state.o + static_cast<size_t>(row) * shape.padded_v_dim, scale,
                           call.v_head_dim,
                           call.out_f32() + t * call.out_token_stride + int64_t{head} * call.v_head_dim});
    if (call.lse != nullptr) call.lse[t * call.num_q_heads + head] = lse;
  }
}

}  // namespace warpweave::intel_amx
