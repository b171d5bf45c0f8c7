#include "attention/cpu_tiles/tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "attention/cpu_tiles/element_of.h"
#include "kv/latent_token.h"

namespace warpweave::cpu_tiles {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

int round_up(int value, int step) { return (value + step - 1) / step * step; }

bool fits_bf16(KvFormat format) { return format != KvFormat::f32 && format != KvFormat::f16; }

struct Heads {
  int request, kv_head;
};

// Where their tokens of `range` stand in a pool.
void find_rows(const ForwardBatch& batch, const KvPoolView& pool, Heads of, BlockRange range, BlockRows& rows) {
  const auto [request, kv_head] = of;
  const int64_t bits = kv_format_bits(pool.format);
  const int start = range.start(), page_size = batch.page_size;
  const int32_t* pages = batch.pages_of(request);
  rows.first = range.first - start;
  rows.end = range.end - start;
  rows.element = element_of(pool.format);
  int page = range.first / page_size, offset = range.first % page_size;
  for (int i = rows.first; i < rows.end; ++i) {
    const int64_t index = pages[page] * pool.page_stride + offset * pool.token_stride +
                          kv_head * pool.head_stride;
    rows.rows[i] = static_cast<const char*>(pool.data) + index * bits / 8;
    if (pool.block_scales != nullptr) rows.block_scales[i] = pool.block_scales + index / kFp4BlockElements;
    if (++offset == page_size) offset = 0, ++page;
  }
}

float head_scale(const KvPoolView& pool, int kv_head) {
  return pool.head_scales != nullptr ? pool.head_scales[kv_head] : 1.0f;
}

}  // namespace

const Kernels& kernels_for(CpuTier tier, KvFormat k, KvFormat v) {
#if defined(__x86_64__)
  switch (tier) {
    case CpuTier::amx_bf16:
    case CpuTier::avx512_bf16:
      return fits_bf16(k) && fits_bf16(v) ? kAvx512PairKernels : kAvx512Kernels;
    case CpuTier::avx512: return kAvx512Kernels;
    case CpuTier::avx2: return kAvx2Kernels;
    case CpuTier::scalar: break;
  }
#endif
  return kScalarKernels;
}

TileShape::TileShape(CpuTier tier, const ForwardBatch& forward_batch,
                     const AttentionCall& attention_call)
    : kernels(&kernels_for(tier, attention_call.k.format, attention_call.v.format)),
      batch(&forward_batch), call(&attention_call) {
  group = call->num_q_heads / call->num_kv_heads;
  padded_dim = round_up(call->head_dim, kDimPadding);
  padded_v_dim = round_up(call->v_head_dim, kDimPadding);
  depth = kernels->pairs ? padded_dim / 2 : padded_dim;
}

void Tile::reserve(const TileShape& shape, int rows, int variants) {
  const size_t r = static_cast<size_t>(rows);
  const size_t q = r * shape.depth * variants;
  const size_t k = static_cast<size_t>(shape.padded_dim) * kBlockTokens;
  const size_t v = static_cast<size_t>(shape.padded_v_dim) * kBlockTokens;
  const size_t s = r * kBlockTokens, o = r * shape.padded_v_dim, m = round_up(rows, 16);
  const size_t units = q + k + v + s / 2 + std::max(k, v) + s + o + 3 * m;
  if (units > capacity_) {
    const size_t rounded = (units + 15) / 16 * 16;
    capacity_ = 0;
    buffer_.reset(static_cast<uint32_t*>(std::aligned_alloc(64, rounded * sizeof(uint32_t))));
    if (buffer_ == nullptr) throw std::bad_alloc();
    capacity_ = rounded;
  }
  uint32_t* next = buffer_.get();
  const auto take = [&next](size_t count) { return std::exchange(next, next + count); };
  const auto take_floats = [&take](size_t count) { return reinterpret_cast<float*>(take(count)); };
  k_ = take(k);
  v_ = take(v);
  scratch_ = take_floats(std::max(k, v));
  s_ = take_floats(s);
  p_ = take(s / 2);
  o_ = take_floats(o);
  m_ = take_floats(m);
  l_ = take_floats(m);
  rescale_ = take_floats(m);
  q_ = take(q);
}

void Tile::start(const TileShape& shape, int rows, int request, int kv_head, int variants) {
  reserve(shape, rows, variants);
  rows_ = rows;
  request_ = request;
  kv_head_ = kv_head;
  first_block_ = true;
  std::fill_n(m_, rows, kNegativeInfinity);
  std::fill_n(l_, rows, 0.0f);
}

void Tile::set_queries(const TileShape& shape, int variant, int row, const float* q) {
  const AttentionCall& call = *shape.call;
  uint32_t* out = q_ + (static_cast<size_t>(variant) * rows_ + row) * shape.depth;
  for (int h = 0; h < shape.group; ++h, q += call.head_dim, out += shape.depth) {
    shape.kernels->pack_q(q, call.head_dim, shape.padded_dim, out);
  }
}

void Tile::load(const TileShape& shape, BlockRange range) {
  k_rows_.dim = shape.call->head_dim;
  k_rows_.padded_dim = shape.padded_dim;
  v_rows_.dim = shape.call->v_head_dim;
  v_rows_.padded_dim = shape.padded_v_dim;
  find_rows(*shape.batch, shape.call->k, {request_, kv_head_}, range, k_rows_);
  find_rows(*shape.batch, shape.call->v, {request_, kv_head_}, range, v_rows_);
  if (kv_format_is_packed(shape.call->k.format)) widen_packed(shape);
}

// V of latent attention is the first part of K.
void Tile::widen_packed(const TileShape& shape) {
  const int dim = shape.call->head_dim;
  wide_.resize(static_cast<size_t>(kBlockTokens) * dim);
  for (int i = k_rows_.first; i < k_rows_.end; ++i) {
    uint16_t* const row = wide_.data() + static_cast<size_t>(i) * dim;
    unpack_latent_token(shape.call->k.format, reinterpret_cast<const std::byte*>(k_rows_.rows[i]), dim, row);
    k_rows_.rows[i] = v_rows_.rows[i] = reinterpret_cast<const char*>(row);
  }
}

void Tile::score(const TileShape& shape, int variant) {
  shape.kernels->pack_k(k_rows_, scratch_, k_);
  const uint32_t* q = q_ + static_cast<size_t>(variant) * rows_ * shape.depth;
  shape.kernels->gemm({q, shape.depth, k_, kBlockTokens, s_, kBlockTokens, rows_, kBlockTokens,
                       shape.depth, nullptr});
  // Here and not in the query, so that only the query itself is rounded to bf16.
  shape.kernels->scale(s_, rows_ * kBlockTokens, shape.call->scale * head_scale(shape.call->k, kv_head_));
  if (shape.call->logit_softcap > 0) {
    shape.kernels->softcap(s_, rows_ * kBlockTokens, shape.call->logit_softcap);
  }
}

void Tile::show(int row, int first, int end) {
  float* s = s_ + static_cast<size_t>(row) * kBlockTokens;
  first = std::clamp(first, 0, kBlockTokens);
  end = std::clamp(end, first, kBlockTokens);
  std::fill(s, s + first, kNegativeInfinity);
  std::fill(s + end, s + kBlockTokens, kNegativeInfinity);
}

void Tile::accumulate(const TileShape& shape) {
  const bool pairs = shape.kernels->pairs;
  shape.kernels->softmax({s_, pairs ? p_ : nullptr, rows_, m_, l_, rescale_});
  shape.kernels->pack_v(v_rows_, scratch_, v_);
  const uint32_t* p = pairs ? p_ : reinterpret_cast<const uint32_t*>(s_);
  const int units = pairs ? kBlockTokens / 2 : kBlockTokens;
  shape.kernels->gemm({p, units, v_, shape.padded_v_dim, o_, shape.padded_v_dim, rows_,
                       shape.padded_v_dim, units, first_block_ ? nullptr : rescale_});
  first_block_ = false;
}

void Tile::finish_row(const TileShape& shape, int row, const RowOutput& to) {
  const int dim = shape.call->v_head_dim;
  float m = m_[row], sum = l_[row], shrink = 1;
  if (m == kNegativeInfinity) {
    std::fill_n(to.out, dim, 0.0f);
    if (to.lse != nullptr) *to.lse = kNegativeInfinity;
    return;
  }
  if (to.sink != nullptr) {
    const float top = std::max(m, *to.sink);
    shrink = std::exp(m - top);
    sum = sum * shrink + std::exp(*to.sink - top);
    m = top;
  }
  const float scale = shrink / sum * head_scale(shape.call->v, kv_head_);
  const float* o = o_ + static_cast<size_t>(row) * shape.padded_v_dim;
  for (int i = 0; i < dim; ++i) to.out[i] = o[i] * scale;
  if (to.lse != nullptr) *to.lse = m + std::log(sum);
}

}  // namespace warpweave::cpu_tiles
