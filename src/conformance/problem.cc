#include "problem.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kv/kv_codec.h"

namespace warpweave::conformance {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kNowhere = 0x3fffffff;  // a page id that must not be followed
constexpr int64_t kFarPageStride = int64_t{1} << 31;

// How a pool of K or V lies in memory.
KvPoolView pool_shape(const Case& c, KvFormat format, int page_size, int dim) {
  // Blocks of fp4 values must not cross heads; packed tokens begin at 16 bytes.
  const int gap = format == KvFormat::fp4_e2m1 || kv_format_is_packed(format) ? (c.gap + 15) / 16 * 16 : c.gap;
  KvPoolView view;
  view.format = format;
  view.head_stride = kv_stored_dim(format, dim) + gap;
  view.token_stride = c.kv_heads * view.head_stride + gap;
  view.page_stride = c.far ? kFarPageStride : page_size * view.token_stride + gap;
  return view;
}

int64_t used_per_page(const Case& c, int page_size, const KvPoolView& view) {
  return (page_size - 1) * view.token_stride + c.kv_heads * view.head_stride;
}

}  // namespace

SparseMemory::SparseMemory(size_t bytes) : bytes_(std::max<size_t>(bytes, 1)) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  data_ = static_cast<char*>(memory);
}

SparseMemory::~SparseMemory() { munmap(data_, bytes_); }

Problem::Problem(const Case& c, KvFormat kv_format, uint64_t seed, int page_size)
    : case_(c), kv_format_(kv_format), page_size_(page_size),
      scale_(1 / std::sqrt(static_cast<float>(c.head_dim))) {
  static std::atomic<uint64_t> problems = 0;
  id_ = ++problems;
  place_pages(seed);
  k_ = make_pool(c.head_dim, seed ^ 0x5ca1e);
  if (!c.latent) v_ = make_pool(c.v_head_dim, seed ^ 0x5ca1f);
  fill(seed);
  if (c.tree != Tree::none) plant_trees(seed);
  if (c.dual_chunk_len > 0) make_query_forms(seed);
}

// Pages in random order, with a free page after every used one on average, or in order.
void Problem::place_pages(uint64_t seed) {
  std::vector<int> pages_of;
  for (const Case::Request& r : case_.requests) {
    pages_of.push_back((r.kv_len + page_size_ - 1) / page_size_);
    page_table_stride_ = std::max(page_table_stride_, pages_of.back() + 2);
  }
  const int used = std::accumulate(pages_of.begin(), pages_of.end(), 0);
  num_pages_ = case_.far ? used + 1 : 2 * used + 1;
  std::vector<int32_t> ids(num_pages_);
  std::iota(ids.begin(), ids.end(), 0);
  if (case_.in_order > 0) {
    const auto step = static_cast<size_t>(case_.in_order);
    for (size_t i = step; i < ids.size(); i += step) std::swap(ids[i - 1], ids[i]);
  } else {
    std::shuffle(ids.begin(), ids.end(), std::mt19937_64(seed ^ 0x9a9e));
  }
  page_table_.assign(case_.requests.size() * page_table_stride_, kNowhere);
  size_t next = 0;
  for (size_t r = 0; r < pages_of.size(); ++r) {
    const int shared = std::min(case_.shared, case_.requests[r].kv_len) / page_size_;
    for (int p = 0; p < pages_of[r]; ++p) {
      page_table_[r * page_table_stride_ + p] = r > 0 && p < shared ? page_table_[p] : ids[next++];
    }
  }
}

Problem::Pool Problem::make_pool(int dim, uint64_t seed) const {
  Pool pool;
  KvPoolView& view = pool.view;
  view = pool_shape(case_, kv_format_, page_size_, dim);
  const int64_t elements = view.page_stride * (num_pages_ - 1) +
                           used_per_page(case_, page_size_, view) + 64;
  pool.memory = std::make_unique<SparseMemory>(elements * kv_format_bits(kv_format_) / 8);
  view.data = pool.memory->data();
  if (kv_format_ == KvFormat::fp4_e2m1) {
    pool.block_scales = std::make_unique<SparseMemory>(elements / kFp4BlockElements);
    view.block_scales = reinterpret_cast<const uint8_t*>(pool.block_scales->data());
  }
  if (kv_format_is_scaled(kv_format_) && case_.head_scales) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> exponent(-2, 2);
    for (int h = 0; h < case_.kv_heads; ++h) pool.head_scales.push_back(std::exp2(exponent(random)));
    view.head_scales = pool.head_scales.data();
  }
  poison(pool);
  return pool;
}

// Makes every value NaN. All-ones bytes are NaN in every format but fp4, where the scale is.
void Problem::poison(Pool& pool) const {
  const int64_t per_page = used_per_page(case_, page_size_, pool.view);
  const int bits = kv_format_bits(kv_format_);
  for (int64_t page = 0; page < num_pages_; ++page) {
    const int64_t first = page * pool.view.page_stride;
    std::memset(pool.memory->data() + first * bits / 8, 0xff, per_page * bits / 8);
    if (pool.block_scales) {
      std::memset(pool.block_scales->data() + first / kFp4BlockElements, 0x7f,
                  per_page / kFp4BlockElements);
    }
  }
}

// Stores one token's K or V, all heads.
Problem::Rounding Problem::fill_pool(const Pool& pool, int dim, const std::vector<float>& values,
                                     Token token) {
  Rounding rounding;
  std::vector<float> stored(dim);
  for (int h = 0; h < case_.kv_heads; ++h) {
    const int64_t at = offset_of(pool.view, token.request, token.kv, h);
    const float* value = values.data() + int64_t{h} * dim;
    kv_encode_run(pool.view, h, at, dim, value);
    kv_decode_run(pool.view, h, at, dim, stored.data());
    for (int i = 0; i < dim; ++i) {
      const double difference = static_cast<double>(value[i]) - stored[i];
      rounding.error += difference * difference;
      rounding.square += static_cast<double>(value[i]) * value[i];
    }
  }
  return rounding;
}

void Problem::fill(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int h = 0; h < case_.q_heads; ++h) sinks_.push_back(normal(random));
  const int k_row = case_.kv_heads * case_.head_dim, v_row = case_.kv_heads * case_.v_head_dim;
  const bool plain = case_.data == Data::normal || case_.data == Data::biased;
  std::vector<std::vector<float>> shared_k, shared_v;  // of the first request
  Rounding rounding;
  for (size_t r = 0; r < case_.requests.size(); ++r) {
    const int request = static_cast<int>(r);
    const auto [q_len, kv_len] = case_.requests[r];
    std::vector<float>& q = queries_.emplace_back();
    for (int64_t i = 0; i < int64_t{q_len} * case_.q_heads * case_.head_dim; ++i) {
      q.push_back(plain ? normal(random) : 1 + 0.01f * normal(random));
    }
    for (int kv = 0; kv < kv_len; ++kv) {
      // Logits move by about 4 per token, so by more than 100 from block to block.
      const float slope = 4.0f / std::sqrt(static_cast<float>(case_.head_dim));
      const float level = case_.data == Data::descending ? slope * (kv_len - kv)
                          : case_.data == Data::ascending ? slope * kv
                                                          : 0.5f;
      std::vector<float> k(k_row), v(v_row);
      for (float& value : k) value = plain ? normal(random) : level;
      for (float& value : v) value = normal(random) + (case_.data == Data::biased ? 2 : 0);
      if (kv < case_.shared) {
        if (r == 0) {
          shared_k.push_back(k);
          shared_v.push_back(v);
        }
        k = shared_k[kv];
        v = shared_v[kv];
      }
      rounding.add(fill_pool(k_, case_.head_dim, k, {request, kv}));
      if (!case_.latent) rounding.add(fill_pool(v_, case_.v_head_dim, v, {request, kv}));
    }
  }
  quantisation_error_ = rounding.square > 0 ? std::sqrt(rounding.error / rounding.square) : 0;
}

void Problem::round_queries(void (*round)(std::span<float> row)) {
  const bool mixed =
      !case_.decode && trees_.empty() &&
      std::any_of(case_.requests.begin(), case_.requests.end(), [](const auto& r) { return r.q_len > 1; });
  for (auto* forms : {&queries_, &succ_queries_, &inter_queries_}) {
    for (size_t r = 0; r < forms->size(); ++r) {
      if (mixed && case_.requests[r].q_len == 1) continue;  // decodes
      std::vector<float>& request = (*forms)[r];
      for (size_t at = 0; at < request.size(); at += case_.head_dim) {
        round(std::span(request).subspan(at, case_.head_dim));
      }
    }
  }
}

// Independent of the plain query, so that meeting a key with the wrong form shows.
void Problem::make_query_forms(uint64_t seed) {
  std::mt19937_64 random(seed ^ 0xd0a1);
  std::normal_distribution<float> normal;
  for (auto* forms : {&succ_queries_, &inter_queries_}) {
    *forms = queries_;
    for (std::vector<float>& request : *forms) {
      for (float& value : request) value = normal(random);
    }
  }
}

void Problem::plant_trees(uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x73ee);
  int longest = 0;
  for (const Case::Request& request : case_.requests) {
    DraftTree& tree = trees_.emplace_back();
    longest = std::max(longest, request.q_len);
    for (int i = 0; i < request.q_len; ++i) {
      const int parent = case_.tree == Tree::random ? static_cast<int>(random() % (i + 1)) - 1 : i - 1;
      std::vector<bool> row(request.q_len, case_.tree == Tree::full);
      if (parent >= 0 && case_.tree != Tree::full) row = tree.sees[parent];
      row[i] = true;
      tree.sees.push_back(row);
      tree.depth.push_back(parent < 0 ? 0 : tree.depth[parent] + 1);
    }
  }
  tree_mask_words_ = (longest + 31) / 32 + 1;  // more than needed: a stride of its own
}

int Problem::position_of(int request, int row) const {
  const auto [q_len, kv_len] = case_.requests[request];
  if (kv_len == 0) return 0;
  return kv_len - q_len + (trees_.empty() ? row : trees_[request].depth[row]);
}

bool Problem::sees(int request, int row, int kv) const {
  const auto [q_len, kv_len] = case_.requests[request];
  const int prefix = kv_len - q_len;
  if (!trees_.empty() && kv >= prefix) return trees_[request].sees[row][kv - prefix];
  const int position = kv_len - q_len + (trees_.empty() ? row : trees_[request].depth[row]);
  if (case_.window_right >= 0 && kv > position + case_.window_right) return false;
  return (case_.window < 0 || kv >= position - case_.window) && (!case_.causal || kv <= position);
}

void Problem::append_mask(int request, int row, std::vector<uint32_t>& mask) const {
  const int q_len = case_.requests[request].q_len;
  for (int word = 0; word < tree_mask_words_; ++word) {
    uint32_t bits = 0;
    for (int bit = 0; bit < 32; ++bit) {
      const int other = word * 32 + bit;
      if (other >= q_len || trees_[request].sees[row][other]) bits |= 1u << bit;
    }
    mask.push_back(bits);
  }
}

int64_t Problem::offset_of(const KvPoolView& view, int request, int kv, int head) const {
  const int64_t page = page_table_[request * page_table_stride_ + kv / page_size_];
  return page * view.page_stride + kv % page_size_ * view.token_stride + head * view.head_stride;
}

const float* Problem::query(int request, int row, int head) const {
  return queries_[request].data() + (int64_t{row} * case_.q_heads + head) * case_.head_dim;
}
const float* Problem::query_for(int request, int row, int head, int kv) const {
  if (case_.dual_chunk_len == 0) return query(request, row, head);
  const int apart = position_of(request, row) / case_.dual_chunk_len - kv / case_.dual_chunk_len;
  const auto& forms = apart == 0 ? queries_ : apart == 1 ? succ_queries_ : inter_queries_;
  return forms[request].data() + (int64_t{row} * case_.q_heads + head) * case_.head_dim;
}
void Problem::read_k(int request, int kv, int head, float* out) const {
  kv_decode_run(k_.view, head, offset_of(k_.view, request, kv, head), case_.head_dim, out);
}
void Problem::read_v(int request, int kv, int head, float* out) const {
  kv_decode_run(v_view(), head, offset_of(v_view(), request, kv, head), case_.v_head_dim, out);
}

std::vector<Slice> Problem::all() const {
  std::vector<Slice> slices;
  for (size_t r = 0; r < case_.requests.size(); ++r) {
    slices.push_back({static_cast<int>(r), 0, case_.requests[r].q_len});
  }
  return slices;
}

Output Problem::run(AttentionBackend& backend) const { return run(backend, all(), case_.decode); }

Output Problem::run(AttentionBackend& backend, const std::vector<Slice>& slices, bool decode) const {
  const Forward forward = prepare(slices, decode);
  const Status status = backend.init_forward_metadata(forward.batch);
  if (!status.ok()) return {{}, {}, "init_forward_metadata: " + status.message()};
  const Status ran = decode ? backend.forward_decode(forward.batch, forward.call)
                            : backend.forward_extend(forward.batch, forward.call);
  if (!ran.ok()) return {{}, {}, (decode ? "forward_decode: " : "forward_extend: ") + ran.message()};
  return collect(forward);
}

Forward Problem::prepare(const std::vector<Slice>& slices, bool decode) const {
  Forward forward;
  forward.q_indptr = {0};
  const int64_t q_row = int64_t{case_.q_heads} * case_.head_dim;
  ForwardBatch& batch = forward.batch;
  for (const Slice& slice : slices) {
    const Case::Request& request = case_.requests[slice.request];
    const int rows = slice.q_end - slice.q_begin;
    forward.q_indptr.push_back(forward.q_indptr.back() + rows);
    // A row of a tree may see later rows, so trees are not cut.
    assert(trees_.empty() || (slice.q_begin == 0 && slice.q_end == request.q_len));
    const int kv_len = request.kv_len == 0 ? 0
                       : case_.causal      ? request.kv_len - request.q_len + slice.q_end
                                           : request.kv_len;
    forward.kv_lens.push_back(kv_len);
    const int32_t* table = page_table_.data() + slice.request * page_table_stride_;
    const int used = (kv_len + page_size_ - 1) / page_size_;
    for (int p = 0; p < page_table_stride_; ++p) {
      forward.page_table.push_back(p < used ? table[p] : kNowhere);
    }
    for (int row = slice.q_begin; row < slice.q_end; ++row) {
      const float* q = query(slice.request, row, 0);
      forward.q.insert(forward.q.end(), q, q + q_row);
      forward.q.insert(forward.q.end(), case_.gap, kNaN);
      if (case_.dual_chunk_len > 0) {
        const int64_t at = row * q_row;
        const auto succ = succ_queries_[slice.request].begin() + at;
        const auto inter = inter_queries_[slice.request].begin() + at;
        forward.q_succ.insert(forward.q_succ.end(), succ, succ + q_row);
        forward.q_inter.insert(forward.q_inter.end(), inter, inter + q_row);
      }
      forward.kv_slots.push_back(request.kv_len == 0 ? -1 : 0);
      forward.positions.push_back(position_of(slice.request, row));
      if (!trees_.empty()) append_mask(slice.request, row, forward.tree_mask);
    }
    batch.max_q_len = std::max(batch.max_q_len, rows);
    batch.max_kv_len = std::max(batch.max_kv_len, kv_len);
  }
  const bool decodes_too = batch.max_q_len > 1 && std::any_of(slices.begin(), slices.end(), [](const Slice& slice) {
    return slice.q_end - slice.q_begin == 1;
  });
  batch.mode = !trees_.empty() ? ForwardMode::target_verify
               : decode        ? ForwardMode::decode
               : decodes_too   ? ForwardMode::mixed
                               : ForwardMode::extend;
  batch.causal = case_.causal;
  batch.positions = forward.positions;
  batch.tree_mask = forward.tree_mask;
  batch.tree_mask_words = trees_.empty() ? 0 : tree_mask_words_;
  batch.num_reqs = static_cast<int>(slices.size());
  batch.num_tokens = forward.q_indptr.back();
  batch.page_size = page_size_;
  batch.q_indptr = forward.q_indptr;
  batch.kv_lens = forward.kv_lens;
  batch.kv_slots = forward.kv_slots;
  batch.page_table = forward.page_table;
  batch.page_table_stride = page_table_stride_;
  fill_call(forward);
  return forward;
}

AttentionCall call_shape(const Case& c, KvFormat kv_format, int page_size) {
  AttentionCall call;
  call.num_q_heads = c.q_heads;
  call.num_kv_heads = c.kv_heads;
  call.head_dim = c.head_dim;
  call.v_head_dim = c.v_head_dim;
  call.scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  call.window_left = c.window;
  call.window_right = c.window_right;
  call.logit_softcap = c.softcap;
  call.q_token_stride = int64_t{c.q_heads} * c.head_dim + c.gap;
  call.out_token_stride = int64_t{c.q_heads} * c.v_head_dim + c.gap;
  call.k = pool_shape(c, kv_format, page_size, c.head_dim);
  call.v = c.latent ? call.k : pool_shape(c, kv_format, page_size, c.v_head_dim);
  return call;
}

void Problem::fill_call(Forward& forward) const {
  AttentionCall& call = forward.call;
  call = call_shape(case_, kv_format_, page_size_);
  forward.out.assign(forward.batch.num_tokens * call.out_token_stride, kNaN);
  forward.lse.assign(static_cast<size_t>(forward.batch.num_tokens) * case_.q_heads, kNaN);
  const Pool& v = case_.latent ? k_ : v_;
  const auto bytes_of = [](const Pool& pool) {
    return Forward::PoolBytes{pool.memory->bytes(), pool.block_scales ? pool.block_scales->bytes() : 0};
  };
  forward.k_bytes = bytes_of(k_);
  forward.v_bytes = bytes_of(v);
  call.sinks = sinks();
  call.q = forward.q.data();
  call.k = k_.view;
  call.v = v_view();
  call.out = forward.out.data();
  call.lse = forward.lse.data();
  if (case_.dual_chunk_len > 0) {
    const int64_t stride = int64_t{case_.q_heads} * case_.head_dim;
    forward.dual_chunk = std::make_unique<DualChunkQueries>(
        DualChunkQueries{forward.q_succ.data(), forward.q_inter.data(), stride, case_.dual_chunk_len});
    call.dual_chunk = forward.dual_chunk.get();
  }
}

Output Problem::collect(const Forward& forward) const {
  Output output;
  output.lse = forward.lse;
  const int64_t out_row = int64_t{case_.q_heads} * case_.v_head_dim, out_stride = out_row + case_.gap;
  for (int t = 0; t < forward.batch.num_tokens; ++t) {
    const float* row = forward.out.data() + t * out_stride;
    output.out.insert(output.out.end(), row, row + out_row);
    for (int64_t i = out_row; i < out_stride; ++i) {
      if (!std::isnan(row[i])) output.error = "wrote into the gap after row " + std::to_string(t);
    }
  }
  return output;
}

}  // namespace warpweave::conformance
