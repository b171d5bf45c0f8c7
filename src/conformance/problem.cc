#include "problem.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "base/float16.h"

namespace warpweave::conformance {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kNowhere = 0x3fffffff;  // a page id that must not be followed
constexpr int64_t kFarPageStride = int64_t{1} << 31;

void put(void* data, KvFormat format, int64_t index, float value) {
  if (format == KvFormat::f32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] =
        format == KvFormat::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
}

float get(const void* data, KvFormat format, int64_t index) {
  if (format == KvFormat::f32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return format == KvFormat::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
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
  place_pages(seed);
  k_ = make_pool(c.head_dim);
  v_ = make_pool(c.v_head_dim);
  fill(seed);
}

// Pages in random order, with a free page after every used one on average.
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
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(seed ^ 0x9a9e));
  page_table_.assign(case_.requests.size() * page_table_stride_, kNowhere);
  size_t next = 0;
  for (size_t r = 0; r < pages_of.size(); ++r) {
    for (int p = 0; p < pages_of[r]; ++p) page_table_[r * page_table_stride_ + p] = ids[next++];
  }
}

Problem::Pool Problem::make_pool(int dim) const {
  Pool pool;
  KvPoolView& view = pool.view;
  view.format = kv_format_;
  view.head_stride = dim + case_.gap;
  view.token_stride = case_.kv_heads * view.head_stride + case_.gap;
  view.page_stride = case_.far ? kFarPageStride : page_size_ * view.token_stride + case_.gap;
  const int64_t per_page = used_per_page(case_, page_size_, view);
  const int bytes = kv_format_bits(kv_format_) / 8;
  pool.memory = std::make_unique<SparseMemory>(
      (view.page_stride * (num_pages_ - 1) + per_page + 64) * bytes);
  view.data = pool.memory->data();
  for (int page = 0; page < num_pages_; ++page) {
    for (int64_t i = 0; i < per_page; ++i) {
      put(pool.memory->data(), kv_format_, page * view.page_stride + i, kNaN);
    }
  }
  return pool;
}

void Problem::fill(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int h = 0; h < case_.q_heads; ++h) sinks_.push_back(normal(random));
  for (size_t r = 0; r < case_.requests.size(); ++r) {
    const auto [q_len, kv_len] = case_.requests[r];
    std::vector<float>& q = queries_.emplace_back();
    for (int64_t i = 0; i < int64_t{q_len} * case_.q_heads * case_.head_dim; ++i) {
      q.push_back(case_.data == Data::normal ? normal(random) : 1 + 0.01f * normal(random));
    }
    for (int kv = 0; kv < kv_len; ++kv) {
      // Logits move by about 4 per token, so by more than 100 from block to block.
      const float slope = 4.0f / std::sqrt(static_cast<float>(case_.head_dim));
      const float level = case_.data == Data::descending ? slope * (kv_len - kv)
                          : case_.data == Data::ascending ? slope * kv
                                                          : 0.5f;
      for (int h = 0; h < case_.kv_heads; ++h) {
        const int64_t k = offset_of(k_.view, static_cast<int>(r), kv, h);
        const int64_t v = offset_of(v_.view, static_cast<int>(r), kv, h);
        for (int i = 0; i < case_.head_dim; ++i) {
          put(k_.memory->data(), kv_format_, k + i, case_.data == Data::normal ? normal(random) : level);
        }
        for (int i = 0; i < case_.v_head_dim; ++i) {
          put(v_.memory->data(), kv_format_, v + i, normal(random));
        }
      }
    }
  }
}

int64_t Problem::offset_of(const KvPoolView& view, int request, int kv, int head) const {
  const int64_t page = page_table_[request * page_table_stride_ + kv / page_size_];
  return page * view.page_stride + kv % page_size_ * view.token_stride + head * view.head_stride;
}

const float* Problem::query(int request, int row, int head) const {
  return queries_[request].data() + (int64_t{row} * case_.q_heads + head) * case_.head_dim;
}
float Problem::k_value(int request, int kv, int head, int i) const {
  return get(k_.view.data, kv_format_, offset_of(k_.view, request, kv, head) + i);
}
float Problem::v_value(int request, int kv, int head, int i) const {
  return get(v_.view.data, kv_format_, offset_of(v_.view, request, kv, head) + i);
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
  std::vector<int32_t> q_indptr = {0}, kv_lens, pages, slots;
  const int64_t q_row = int64_t{case_.q_heads} * case_.head_dim, q_stride = q_row + case_.gap;
  std::vector<float> q;
  ForwardBatch batch;
  for (const Slice& slice : slices) {
    const Case::Request& request = case_.requests[slice.request];
    const int rows = slice.q_end - slice.q_begin;
    q_indptr.push_back(q_indptr.back() + rows);
    kv_lens.push_back(request.kv_len == 0 ? 0 : request.kv_len - request.q_len + slice.q_end);
    const int32_t* table = page_table_.data() + slice.request * page_table_stride_;
    const int used = (kv_lens.back() + page_size_ - 1) / page_size_;
    for (int p = 0; p < page_table_stride_; ++p) pages.push_back(p < used ? table[p] : kNowhere);
    for (int row = slice.q_begin; row < slice.q_end; ++row) {
      q.insert(q.end(), query(slice.request, row, 0), query(slice.request, row, 0) + q_row);
      q.insert(q.end(), case_.gap, kNaN);
      slots.push_back(request.kv_len == 0 ? -1 : 0);
    }
    batch.max_q_len = std::max(batch.max_q_len, rows);
    batch.max_kv_len = std::max(batch.max_kv_len, kv_lens.back());
  }
  batch.mode = decode ? ForwardMode::decode : ForwardMode::extend;
  batch.num_reqs = static_cast<int>(slices.size());
  batch.num_tokens = q_indptr.back();
  batch.page_size = page_size_;
  batch.q_indptr = q_indptr;
  batch.kv_lens = kv_lens;
  batch.kv_slots = slots;
  batch.page_table = pages;
  batch.page_table_stride = page_table_stride_;

  const int64_t out_row = int64_t{case_.q_heads} * case_.v_head_dim, out_stride = out_row + case_.gap;
  std::vector<float> out(batch.num_tokens * out_stride, kNaN);
  Output output;
  output.lse.assign(static_cast<size_t>(batch.num_tokens) * case_.q_heads, kNaN);
  AttentionCall call;
  call.num_q_heads = case_.q_heads;
  call.num_kv_heads = case_.kv_heads;
  call.head_dim = case_.head_dim;
  call.v_head_dim = case_.v_head_dim;
  call.scale = scale_;
  call.window_left = case_.window;
  call.logit_softcap = case_.softcap;
  call.sinks = sinks();
  call.q = q.data();
  call.q_token_stride = q_stride;
  call.k = k_.view;
  call.v = v_.view;
  call.out = out.data();
  call.out_token_stride = out_stride;
  call.lse = output.lse.data();
  const Status status = backend.init_forward_metadata(batch);
  EXPECT_TRUE(status.ok()) << status.message();
  if (decode) {
    backend.forward_decode(batch, call);
  } else {
    backend.forward_extend(batch, call);
  }
  for (int t = 0; t < batch.num_tokens; ++t) {
    const float* row = out.data() + t * out_stride;
    output.out.insert(output.out.end(), row, row + out_row);
    for (int64_t i = out_row; i < out_stride; ++i) {
      EXPECT_TRUE(std::isnan(row[i])) << "wrote into the gap after row " << t;
    }
  }
  return output;
}

}  // namespace warpweave::conformance
