// What the tests of flex_attention share: modifiers, and a small paged batch with its attention
// computed cell by cell in f64 with the evaluator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "attention/backend.h"
#include "attention/mods/evaluate.h"
#include "attention/mods/parse.h"
#include "base/float16.h"

namespace warpweave::flex_attention {

inline mods::Modifiers modifiers(std::string_view score, std::string_view mask) {
  auto parsed = mods::parse_modifiers({.score = score, .mask = mask, .parameters = "slope=0.05"});
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return std::move(parsed).value();
}

// A small paged batch of bf16 keys and values with shuffled pages.
class Batch {
 public:
  struct Request { int q_len, kv_len; };
  static constexpr int kPage = 5, kHeads = 6;
  // Where V has fewer values than K, it is the first part of K.
  struct Dims { int kv_heads, k, v; };
  static constexpr Dims kOrdinary = {2, 32, 32}, kLatent = {1, 32, 24}, kWideLatent = {1, 576, 512};

  explicit Batch(std::vector<Request> requests, const Dims& dims = kOrdinary, uint32_t seed = 1)
      : requests_(std::move(requests)), dims_(dims) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    int pages = 0, stride = 1;
    for (const Request& r : requests_) {
      pages += (r.kv_len + kPage - 1) / kPage;
      stride = std::max(stride, (r.kv_len + kPage - 1) / kPage);
    }
    std::vector<int32_t> ids(pages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    pages_.assign(requests_.size() * stride, 0);
    size_t next = 0;
    for (size_t r = 0; r < requests_.size(); ++r) {
      q_indptr_.push_back(q_indptr_.back() + requests_[r].q_len);
      kv_lens_.push_back(requests_[r].kv_len);
      batch.max_q_len = std::max(batch.max_q_len, requests_[r].q_len);
      for (int p = 0; p * kPage < requests_[r].kv_len; ++p) pages_[r * stride + p] = ids[next++];
    }
    const auto fill = [&](std::vector<uint16_t>& pool) {
      for (int i = 0; i < pages * kPage * dims_.kv_heads * dims_.k; ++i) pool.push_back(f32_to_bf16(normal(random)));
    };
    fill(k_);
    fill(v_);
    for (int i = 0; i < q_indptr_.back() * kHeads * dims_.k; ++i) {
      q_.push_back(bf16_to_f32(f32_to_bf16(normal(random))));
    }
    batch.mode = ForwardMode::extend;
    batch.num_reqs = static_cast<int>(requests_.size());
    batch.num_tokens = q_indptr_.back();
    batch.page_size = kPage;
    batch.q_indptr = q_indptr_;
    batch.kv_lens = kv_lens_;
    batch.page_table = pages_;
    batch.page_table_stride = stride;
    out_.resize(static_cast<size_t>(q_indptr_.back()) * kHeads * dims_.v);
    lse_.resize(q_indptr_.back() * kHeads);
    call.num_q_heads = kHeads;
    call.num_kv_heads = dims_.kv_heads;
    call.head_dim = dims_.k;
    call.v_head_dim = dims_.v;
    call.scale = 1 / std::sqrt(static_cast<float>(dims_.k));
    call.q = q_.data();
    call.q_token_stride = kHeads * dims_.k;
    call.out_token_stride = kHeads * dims_.v;
    call.k = {.data = k_.data(),
              .format = KvFormat::bf16,
              .page_stride = kPage * dims_.kv_heads * dims_.k,
              .token_stride = dims_.kv_heads * dims_.k,
              .head_stride = dims_.k,
              .block_scales = nullptr,
              .head_scales = nullptr};
    call.v = call.k;
    if (dims_.v < dims_.k) {
      v_ = k_;
    } else {
      call.v.data = v_.data();
    }
    call.out = out_.data();
    call.lse = lse_.data();
  }

  // The largest difference from the f64 result, out and lse.
  double error(const mods::Modifiers& modifiers) const {
    double worst = 0;
    for (int r = 0; r < batch.num_reqs; ++r) {
      for (int i = 0; i < requests_[r].q_len; ++i) {
        for (int h = 0; h < kHeads; ++h) worst = std::max(worst, row_error(modifiers, r, i, h));
      }
    }
    return worst;
  }

  size_t pool_values() const { return k_.size(); }
  size_t out_values() const { return out_.size(); }
  size_t rows_and_heads() const { return lse_.size(); }

  ForwardBatch batch;
  AttentionCall call;

 private:
  float at(const std::vector<uint16_t>& pool, int request, int token, int kv_head, int i) const {
    const int page = batch.pages_of(request)[token / kPage];
    return bf16_to_f32(pool[((page * kPage + token % kPage) * dims_.kv_heads + kv_head) * dims_.k + i]);
  }

  double row_error(const mods::Modifiers& modifiers, int r, int i, int h) const {
    const auto [q_len, kv_len] = requests_[r];
    const int row = q_indptr_[r] + i, kv_head = h / (kHeads / dims_.kv_heads);
    mods::Cell cell = {.q_idx = kv_len - q_len + i, .request = r, .head = h, .q_len = q_len,
                       .kv_len = kv_len, .num_heads = kHeads, .head_dim = dims_.k};
    std::vector<double> weights(kv_len, 0), want(dims_.v, 0);
    double sum = 0;
    for (int t = 0; t < kv_len; ++t) {
      cell.kv_idx = t;
      const bool visible = modifiers.mask.empty() ? t <= cell.q_idx
                                                  : mods::evaluate(modifiers.mask, cell).integer != 0;
      if (!visible) continue;
      double score = 0;
      for (int d = 0; d < dims_.k; ++d)
        score += q_[(row * kHeads + h) * dims_.k + d] * static_cast<double>(at(k_, r, t, kv_head, d));
      cell.score = score * call.scale;
      if (!modifiers.score.empty()) cell.score = mods::evaluate(modifiers.score, cell).real;
      sum += weights[t] = std::exp(cell.score);
    }
    for (int t = 0; t < kv_len && sum > 0; ++t) {
      for (int d = 0; d < dims_.v; ++d) want[d] += weights[t] / sum * at(v_, r, t, kv_head, d);
    }
    const float lse = lse_[row * kHeads + h];
    if (sum == 0 && lse != -std::numeric_limits<float>::infinity()) return 1e30;
    double worst = sum == 0 ? 0 : std::fabs(lse - std::log(sum)) / std::max(1.0, std::fabs(std::log(sum)));
    for (int d = 0; d < dims_.v; ++d) {
      const double difference = std::fabs(out_[(row * kHeads + h) * dims_.v + d] - want[d]);
      if (!(difference <= worst)) worst = difference;
    }
    return worst;
  }

  std::vector<Request> requests_;
  Dims dims_;
  std::vector<uint16_t> k_, v_;
  std::vector<float> q_, out_, lse_;
  std::vector<int32_t> q_indptr_ = {0}, kv_lens_, pages_;
};

struct Mods { const char *score, *mask; };

inline const Mods kModifierCases[] = {
    Mods{"", ""}, Mods{"", "causal"}, Mods{"", "window(17)"}, Mods{"", "chunked(48)"},
    Mods{"", "prefix_lm(70)"}, Mods{"", "causal && document(20, 64, 130)"}, Mods{"", "true"},
    Mods{"", "false"}, Mods{"", "kv_idx < 64 || q_idx - kv_idx < 5 && causal"},
    Mods{"", "causal && (q_idx - kv_idx) % 3 == 0"}, Mods{"", "causal && kv_idx % 7 < 4"},
    Mods{"", "causal && (h < 2 || q_idx - kv_idx < 30)"}, Mods{"", "b == 3 ? causal : window(9)"},
    Mods{"", "kv_idx >= kv_len - q_len"}, Mods{"alibi", ""}, Mods{"softcap(2)", ""},
    Mods{"softcap(1.5, alibi)", "window(50)"}, Mods{"score - slope * abs(q_idx - kv_idx)", "true"},
    Mods{"score + log(1 + float(kv_idx)) - exp(score * 0.1)", "causal"},
    Mods{"h % 2 == 0 ? score : score * 0.5 + kv_idx % 3", ""}, Mods{"kv_idx * 0.01", ""},
    Mods{"1", "causal"}, Mods{"q_idx", "window(3)"},
    Mods{"max(score, tanh(score) * 3, -sqrt(1 + score * score))", ""}};

}  // namespace warpweave::flex_attention
