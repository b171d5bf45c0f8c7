#include "attention/backends/intel_amx/rows.h"

#include <algorithm>

#include "kv/latent_token.h"

namespace warpweave::intel_amx {
namespace {

// Bits [first, last) of a word.
uint64_t bit_range(int first, int last) {
  first = std::clamp(first, 0, 64);
  last = std::clamp(last, 0, 64);
  if (first >= last) return 0;
  const uint64_t below = last == 64 ? ~uint64_t{0} : (uint64_t{1} << last) - 1;
  return below & ~((uint64_t{1} << first) - 1);
}

// 64 bits of a row of `bits` mask bits from bit `from` on, which may be negative.
uint64_t mask_bits(const uint32_t* words, int bits, int from) {
  uint64_t result = 0;
  const int first_word = std::max(0, from) / 32;
  for (int word = first_word; word * 32 < std::min(bits, from + 64); ++word) {
    const int shift = word * 32 - from;
    const uint64_t value = words[word];
    result |= shift >= 0 ? value << shift : value >> -shift;
  }
  return result & bit_range(-from, bits - from);
}

}  // namespace

void VisibleRows::reserve(int rows) { rows_.reserve(rows); }

void VisibleRows::set(const ForwardBatch& batch, const Tile& tile, const TileMember* members,
                      int group, Window window) {
  rows_.clear();
  for (int i = 0; i < tile.num_members; ++i) {
    const TileMember& member = members[i];
    const int kv_len = batch.kv_lens[member.request], base = kv_len - batch.q_len(member.request);
    for (int q = member.q_begin; q < member.q_begin + member.q_count; ++q) {
      Row row = {0, kv_len, nullptr, kv_len, kv_len};
      int position = base + q;
      if (!batch.tree_mask.empty()) {
        const int64_t token = int64_t{batch.q_indptr[member.request]} + q;
        row.tree = batch.tree_mask.data() + token * batch.tree_mask_words;
        row.last = row.tree_base = base;
        position = batch.positions[token];
      } else if (batch.causal) {
        row.last = position + 1;
      } else if (window.right >= 0) {
        row.last = std::min(kv_len, position + window.right + 1);
      }
      if (window.left >= 0) row.first = std::clamp(position - window.left, 0, row.last);
      rows_.insert(rows_.end(), group, row);
    }
  }
}

TokenRange VisibleRows::range(int begin, int end) const {
  TokenRange range = {rows_[begin].first, 0};
  for (int i = begin; i < end; ++i) {
    range.first = std::min(range.first, rows_[i].first);
    range.last = std::max(range.last, rows_[i].tree ? rows_[i].tree_end : rows_[i].last);
  }
  return range;
}

uint64_t VisibleRows::mask(const Row& row, int begin, int tokens) const {
  uint64_t bits = bit_range(row.first - begin, row.last - begin);
  if (row.tree && row.tree_base < begin + tokens) {
    bits |= mask_bits(row.tree, row.tree_end - row.tree_base, begin - row.tree_base);
  }
  return bits & bit_range(0, tokens);
}

BlockView VisibleRows::view(int begin, int end, int block, int tokens, uint64_t* masks) const {
  const int first_token = block * kBlockTokens;
  const bool all = std::all_of(rows_.begin() + begin, rows_.begin() + end, [&](const Row& row) {
    return row.first <= first_token && row.last >= first_token + tokens;
  });
  if (all) return {nullptr, tokens};
  for (int i = begin; i < end; ++i) masks[i - begin] = mask(rows_[i], first_token, tokens);
  return {masks, tokens};
}

void TokenAddresses::reserve(int tokens) {
  k.resize(tokens);
  v.resize(tokens);
  k_scales.resize(tokens);
  v_scales.resize(tokens);
}

void TokenAddresses::find(const ForwardBatch& batch, const AttentionCall& call, int request,
                          TokenRange range) {
  tokens = range;
  const KvPoolView &k_pool = call.k, &v_pool = call.v;
  const int bits = kv_format_bits(k_pool.format), page_size = batch.page_size;
  const bool scaled = k_pool.block_scales != nullptr;
  const int32_t* pages = batch.pages_of(request);
  int page = range.first / page_size, offset = range.first % page_size;
  for (int i = 0; i < count(); ++page, offset = 0) {
    const int run = std::min(count() - i, page_size - offset);
    int64_t k_index = pages[page] * k_pool.page_stride + offset * k_pool.token_stride;
    int64_t v_index = pages[page] * v_pool.page_stride + offset * v_pool.token_stride;
    for (const int end = i + run; i < end; ++i) {
      k[i] = static_cast<const char*>(k_pool.data) + k_index * bits / 8;
      v[i] = static_cast<const char*>(v_pool.data) + v_index * bits / 8;
      if (scaled) {
        k_scales[i] = k_pool.block_scales + k_index / kFp4BlockElements;
        v_scales[i] = v_pool.block_scales + v_index / kFp4BlockElements;
      }
      k_index += k_pool.token_stride;
      v_index += v_pool.token_stride;
    }
  }
  if (kv_format_is_packed(k_pool.format)) widen_packed(k_pool.format, call.head_dim);
}

// V of latent attention is the first part of K.
void TokenAddresses::widen_packed(KvFormat format, int dim) {
  wide.resize(std::max(wide.size(), k.size() * dim));
  for (int i = 0; i < count(); ++i) {
    uint16_t* const row = wide.data() + static_cast<size_t>(i) * dim;
    unpack_latent_token(format, reinterpret_cast<const std::byte*>(k[i]), dim, row);
    k[i] = v[i] = reinterpret_cast<const char*>(row);
  }
}

}  // namespace warpweave::intel_amx
