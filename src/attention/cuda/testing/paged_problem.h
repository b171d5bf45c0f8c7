// For tests that run attention kernels on the host (host_cta.h): a batch with paged K and V, and what attention over it
// is, in double precision. Memory that no request owns is NaN, pages stand in random order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/kv_fragment.h"
#include "attention/cuda/plan_input.h"
#include "base/float8.h"
#include "batch/forward_batch.h"

namespace warpweave::cuda::testing {

struct Request {
  int q_len, kv_len;
};

struct Case {
  std::string name;
  std::vector<Request> requests;
  int page_size = 16;
  int num_kv_heads = 2, group = 4;
  int decode_q_len = 1;  // the decode kernel's requests have up to so many rows, the prefill kernel's more
  int window_left = -1;
  float softcap = 0;
  bool sinks = false, head_scales = false, tree = false, causal = true;
  bool rising = false;  // scores grow with the position, by more than half precision holds
};

// Values of a pool as the kernel sees them, and as they are stored.
struct Pool {
  std::vector<float> values;
  std::vector<uint8_t> bytes, block_scales;
};

template <class Element, KvStorage kStorage, int kDim>
class PagedProblem {
 public:
  explicit PagedProblem(const Case& c) : c_(c), random_(static_cast<unsigned>(std::hash<std::string>()(c.name))) {
    for (const Request& r : c.requests) {
      q_indptr_.push_back(q_indptr_.back() + r.q_len);
      kv_lens_.push_back(r.kv_len);
    }
    make_pages();
    k_ = make_pool(c.rising);
    v_ = make_pool(false);
    q_.resize(static_cast<size_t>(tokens()) * num_q_heads() * kDim);
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = bits_of(c.rising && i % kDim == 0 ? 4 : normal_(random_));
    for (int h = 0; h < num_q_heads(); ++h) sinks_.push_back(normal_(random_));
    for (int h = 0; h < c.num_kv_heads; ++h) {
      k_scales_.push_back(c.head_scales ? 0.5f + 0.25f * static_cast<float>(h) : 1);
      v_scales_.push_back(c.head_scales ? 1.5f - 0.25f * static_cast<float>(h) : 1);
    }
    if (c.tree) make_tree();
    forget();
  }

  int tokens() const { return q_indptr_.back(); }
  int num_q_heads() const { return c_.num_kv_heads * c_.group; }

  // The output is as if nothing had been written.
  void forget() {
    out_.assign(q_.size(), kUnwritten);
    lse_.assign(static_cast<size_t>(tokens()) * num_q_heads(), std::numeric_limits<float>::quiet_NaN());
  }
  // Q, and K and V of the step's own tokens, which the kernel before attention writes, become NaN; gives what writes
  // them.
  std::function<void()> take_newest() {
    const auto writes = [this, q = q_, k = k_, v = v_] {
      std::copy(q.begin(), q.end(), q_.begin());
      for (const auto& [from, to] : {std::pair{&k, &k_}, std::pair{&v, &v_}}) {
        std::copy(from->bytes.begin(), from->bytes.end(), to->bytes.begin());
        std::copy(from->block_scales.begin(), from->block_scales.end(), to->block_scales.begin());
      }
    };
    std::fill(q_.begin(), q_.end(), kUnwritten);
    for (size_t r = 0; r < c_.requests.size(); ++r) {
      const auto [q_len, kv_len] = c_.requests[r];
      for (int t = kv_len - q_len; t < kv_len; ++t) {
        const int64_t first = element_of(static_cast<int>(r), t, 0), count = int64_t{c_.num_kv_heads} * kDim;
        for (Pool* const pool : {&k_, &v_}) {
          std::fill_n(pool->bytes.begin() + first * kBits / 8, count * kBits / 8, uint8_t{0xff});
          std::fill_n(pool->block_scales.begin() + first / 16, count / 16, uint8_t{0xff});
        }
      }
    }
    return writes;
  }

  // Bits of the output, then of the log-sum-exps.
  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> all(out_.begin(), out_.end());
    for (const float lse : lse_) all.push_back(std::bit_cast<uint32_t>(lse));
    return all;
  }

  AttentionParams params() {
    AttentionParams p;
    p.q = q_.data();
    p.out = out_.data();
    p.q_token_stride = p.out_token_stride = int64_t{num_q_heads()} * kDim;
    p.lse = lse_.data();
    p.k = k_.bytes.data();
    p.v = v_.bytes.data();
    p.head_stride = kDim;
    p.token_stride = int64_t{c_.num_kv_heads} * kDim;
    p.page_stride = p.token_stride * c_.page_size;
    if (c_.head_scales) p.k_head_scales = k_scales_.data(), p.v_head_scales = v_scales_.data();
    p.k_block_scales = k_.block_scales.data();
    p.v_block_scales = v_.block_scales.data();
    if (c_.sinks) p.sinks = sinks_.data();
    p.page_table = table_.data();
    p.page_table_stride = table_stride_;
    p.kv_lens = kv_lens_.data();
    p.q_indptr = q_indptr_.data();
    if (c_.tree) {
      p.positions = positions_.data();
      p.tree_mask = tree_.data();
      p.tree_mask_words = 1;
    }
    p.num_requests = static_cast<int>(c_.requests.size());
    p.num_tokens = tokens();
    p.num_q_heads = num_q_heads();
    p.num_kv_heads = c_.num_kv_heads;
    p.group = c_.group;
    p.page_size = c_.page_size;
    p.page_shift = page_shift_of(c_.page_size);
    p.window_left = c_.window_left;
    p.decode_q_len = c_.decode_q_len;
    p.causal = c_.causal;
    p.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    p.softcap = c_.softcap;
    return p;
  }

  PlanInput plan_input() const {
    PlanInput in;
    in.kv_lens = kv_lens_.data();
    in.q_indptr = q_indptr_.data();
    in.num_requests = static_cast<int>(c_.requests.size());
    in.num_kv_heads = c_.num_kv_heads;
    in.window_left = c_.window_left;
    in.decode_q_len = c_.decode_q_len;
    in.causal = c_.causal;
    return in;
  }

  // Rows of requests that are `taken` are right to `bound` (V's values are around 1), others were not written.
  void check(double bound, const std::function<bool(const Request&)>& taken) const {
    for (size_t r = 0; r < c_.requests.size(); ++r) {
      for (int i = 0; i < c_.requests[r].q_len; ++i) {
        for (int h = 0; h < num_q_heads(); ++h) {
          if (taken(c_.requests[r])) check_row(static_cast<int>(r), i, h, bound);
          else check_unwritten(static_cast<int>(r), i, h);
        }
      }
    }
  }

 private:
  static constexpr uint16_t kUnwritten = 0x7fff;  // a NaN
  static constexpr int kBits = kStorage == KvStorage::same16 ? 16 : kStorage == KvStorage::e2m1 ? 4 : 8;

  static uint16_t bits_of(float value) { return static_cast<uint16_t>(Element::pack(value, 0) & 0xffff); }
  int64_t slot_of(int request, int token) const {
    return int64_t{table_[static_cast<size_t>(request) * table_stride_ + token / c_.page_size]} * c_.page_size +
           token % c_.page_size;
  }
  int64_t element_of(int request, int token, int kv_head) const {
    return (slot_of(request, token) * c_.num_kv_heads + kv_head) * kDim;
  }

  void make_pages() {
    std::vector<int> pages_of;
    for (const Request& r : c_.requests) {
      pages_of.push_back((r.kv_len + c_.page_size - 1) / c_.page_size);
      table_stride_ = std::max(table_stride_, pages_of.back());
    }
    num_pages_ = std::accumulate(pages_of.begin(), pages_of.end(), 3);
    std::vector<int32_t> pages(num_pages_);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random_);
    table_.assign(table_stride_ * c_.requests.size(), -1);
    for (size_t r = 0, next = 0; r < c_.requests.size(); ++r) {
      for (int i = 0; i < pages_of[r]; ++i) table_[r * table_stride_ + i] = pages[next++];
    }
  }

  Pool make_pool(bool rising) {
    const int64_t elements = int64_t{num_pages_} * c_.page_size * c_.num_kv_heads * kDim;
    Pool pool;
    pool.values.assign(elements, std::numeric_limits<float>::quiet_NaN());
    pool.bytes.assign(elements * kBits / 8 + 64, 0xff);
    pool.block_scales.assign(elements / 16 + 64, 0xff);
    for (size_t r = 0; r < c_.requests.size(); ++r) {
      for (int t = 0; t < c_.requests[r].kv_len; ++t) {
        for (int h = 0; h < c_.num_kv_heads; ++h) {
          for (int d = 0; d < kDim; ++d) {
            store(pool, element_of(static_cast<int>(r), t, h) + d,
                  rising && d == 0 ? 0.1f * static_cast<float>(t) : normal_(random_));
          }
        }
      }
    }
    return pool;
  }

  void store(Pool& pool, int64_t at, float value) {
    if constexpr (kStorage == KvStorage::same16) {
      const uint16_t bits = bits_of(value);
      std::memcpy(&pool.bytes[at * 2], &bits, 2);
      pool.values[at] = Element::low(bits);
    } else if constexpr (kStorage == KvStorage::e2m1) {
      uint8_t& scale = pool.block_scales[at / 16];
      if (at % 16 == 0) scale = f32_to_e4m3(0.25f + 0.125f * static_cast<float>(random_() % 8));
      const uint8_t code = f32_to_e2m1(value / e4m3_to_f32(scale));
      uint8_t& both = pool.bytes[at / 2];
      both = at % 2 == 0 ? static_cast<uint8_t>((both & 0xf0) | code) : static_cast<uint8_t>((both & 0x0f) | code << 4);
      pool.values[at] = e2m1_to_f32(code) * e4m3_to_f32(scale);
    } else {
      const bool e4m3 = kStorage == KvStorage::e4m3;
      const uint8_t code = e4m3 ? f32_to_e4m3(value) : f32_to_e5m2(value);
      pool.bytes[at] = code;
      pool.values[at] = e4m3 ? e4m3_to_f32(code) : e5m2_to_f32(code);
    }
  }

  // A node sees itself and its random ancestors, and every earlier token.
  void make_tree() {
    positions_.resize(tokens());
    tree_.resize(tokens());
    for (size_t r = 0; r < c_.requests.size(); ++r) {
      const auto [q_len, kv_len] = c_.requests[r];
      for (int i = 0; i < q_len; ++i) {
        const int row = q_indptr_[r] + i, parent = i == 0 ? 0 : static_cast<int>(random_() % static_cast<unsigned>(i));
        tree_[row] = 1u << i | (i == 0 ? 0 : tree_[q_indptr_[r] + parent]);
        positions_[row] = i == 0 ? kv_len - q_len : positions_[q_indptr_[r] + parent] + 1;
      }
    }
  }

  bool sees(int request, int i, int token) const {
    const auto [q_len, kv_len] = c_.requests[request];
    int position = kv_len - q_len + i;
    if (c_.tree) {
      const int row = q_indptr_[request] + i, node = token - (kv_len - q_len);
      if (node >= 0) return tree_[row] >> node & 1;
      position = positions_[row];
    } else if (c_.causal && token > position) {
      return false;
    }
    return c_.window_left < 0 || token >= position - c_.window_left;
  }

  size_t row_of(int request, int i, int head) const {
    return static_cast<size_t>(q_indptr_[request] + i) * num_q_heads() + head;
  }

  void check_unwritten(int request, int i, int head) const {
    const size_t at = row_of(request, i, head) * kDim;
    for (int d = 0; d < kDim; ++d)
      ASSERT_EQ(out_[at + d], kUnwritten) << "another kernel's row was written: request " << request;
  }

  void check_row(int request, int i, int head, double bound) const {
    const int kv_head = head / c_.group;
    const size_t row = row_of(request, i, head), at = row * kDim;
    std::vector<double> out(kDim);
    double sum = 0;
    for (int t = 0; t < c_.requests[request].kv_len; ++t) {
      if (!sees(request, i, t)) continue;
      const int64_t kv = element_of(request, t, kv_head);
      double s = 0;
      for (int d = 0; d < kDim; ++d) s += double{Element::low(q_[at + d])} * k_.values[kv + d];
      s *= k_scales_[kv_head] / std::sqrt(kDim);
      if (c_.softcap > 0) s = c_.softcap * std::tanh(s / c_.softcap);
      const double probability = std::exp(s);
      sum += probability;
      for (int d = 0; d < kDim; ++d) out[d] += probability * v_.values[kv + d] * v_scales_[kv_head];
    }
    if (c_.sinks && sum > 0) sum += std::exp(double{sinks_[head]});
    const std::string where =
        "request " + std::to_string(request) + " row " + std::to_string(i) + " head " + std::to_string(head);
    ASSERT_NEAR(lse_[row], std::log(sum), 2e-3) << where;
    for (int d = 0; d < kDim; ++d) {
      const double got = Element::low(out_[at + d]);
      ASSERT_TRUE(std::abs(got - out[d] / sum) <= bound)
          << where << " dim " << d << ": " << got << ", wanted " << out[d] / sum;
    }
  }

  const Case& c_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::vector<int32_t> q_indptr_ = {0}, kv_lens_, table_, positions_;
  std::vector<uint32_t> tree_;
  int table_stride_ = 1, num_pages_ = 0;
  Pool k_, v_;
  std::vector<uint16_t> q_, out_;
  std::vector<float> lse_, sinks_, k_scales_, v_scales_;
};

}  // namespace warpweave::cuda::testing
