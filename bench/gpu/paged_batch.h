// A batch of requests over pages in random order, or in that of their tokens, on the host and on the GPU, for benchmarks of whole backends.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "batch/forward_batch.h"
#include "cuda_bench.h"

namespace warpweave::bench {

struct PagedBatchShape {
  int requests = 1, q_len = 1, kv_len = 1, page_tokens = 64;
  std::vector<int32_t> kv_lens{};  // of requests of unlike lengths up to kv_len; empty: all are as long
  bool in_order = false;           // pages follow each other as tokens do
};

// What GPU memory of a benchmark is kept in.
using Owner = std::vector<DeviceBuffer>;

template <typename T>
T* upload(const std::vector<T>& values, Owner& owner) {
  owner.push_back(take(DeviceBuffer::allocate(values.size() * sizeof(T), "the benchmark")));
  check(cudaMemcpy(owner.back().as<void>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return owner.back().as<T>();
}

class PagedBatch {
 public:
  PagedBatch(const PagedBatchShape& s, cudaStream_t stream) {
    const int per_request = (s.kv_len + s.page_tokens - 1) / s.page_tokens;
    pages_.resize(static_cast<size_t>(s.requests) * per_request);
    std::iota(pages_.begin(), pages_.end(), 0);
    if (!s.in_order) std::shuffle(pages_.begin(), pages_.end(), std::mt19937(2));
    for (int r = 0; r <= s.requests; ++r) q_indptr_.push_back(r * s.q_len);
    kv_lens_ = s.kv_lens;
    if (kv_lens_.empty()) kv_lens_.assign(s.requests, s.kv_len);
    for (int t = 0; t < s.requests * s.q_len; ++t) {
      positions_.push_back(kv_lens_[t / s.q_len] - s.q_len + t % s.q_len);
    }
    batch_.mode = s.q_len == 1 ? ForwardMode::decode : ForwardMode::extend;
    batch_.num_reqs = s.requests;
    batch_.num_tokens = s.requests * s.q_len;
    batch_.max_q_len = s.q_len;
    batch_.max_kv_len = s.kv_len;
    batch_.page_size = s.page_tokens;
    batch_.page_table_stride = per_request;
    batch_.q_indptr = q_indptr_;
    batch_.kv_lens = kv_lens_;
    batch_.page_table = pages_;
    batch_.positions = positions_;
    batch_.device.stream = stream;
    batch_.device.q_indptr = upload(q_indptr_, owner_);
    batch_.device.kv_lens = upload(kv_lens_, owner_);
    batch_.device.page_table = upload(pages_, owner_);
    batch_.device.positions = upload(positions_, owner_);
  }
  PagedBatch(const PagedBatch&) = delete;  // the batch points into it
  // `mask`: [tokens, words of a request's tokens], as ForwardBatch has it.
  void set_tree_mask(std::vector<uint32_t> mask) {
    mask_ = std::move(mask);
    batch_.tree_mask = mask_;
    batch_.tree_mask_words = (batch_.max_q_len + 31) / 32;
    batch_.device.tree_mask = upload(mask_, owner_);
  }

  const ForwardBatch& get() const { return batch_; }
  size_t pool_tokens() const { return pages_.size() * batch_.page_size; }

 private:
  Owner owner_;
  std::vector<int32_t> q_indptr_, kv_lens_, pages_, positions_;
  std::vector<uint32_t> mask_;
  ForwardBatch batch_;
};

}  // namespace warpweave::bench
