#include "attention/cuda/mla/testing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "base/float16.h"
#include "base/float8.h"
#include "kv/latent_token.h"

namespace warpweave::cuda::testing {
namespace {

constexpr int kScales = kMlaLatentDim / kMlaScaleDim;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "CUDA: {}\n", cudaGetErrorString(error));
  std::abort();
}

template <class T>
DeviceBuffer to_device(const std::vector<T>& values) {
  DeviceBuffer out = DeviceBuffer::allocate(std::max<size_t>(values.size() * sizeof(T), 256), "a test").value();
  check(cudaMemcpy(out.as<char>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return out;
}

template <class T>
std::vector<T> from_device(const DeviceBuffer& memory, size_t count) {
  std::vector<T> out(count);
  check(cudaMemcpy(out.data(), memory.as<char>(), count * sizeof(T), cudaMemcpyDeviceToHost));
  return out;
}

// A sum of exponentials with values.
struct Sum {
  double maximum = kMinusInfinity, weight = 0;
  std::vector<double> values = std::vector<double>(kMlaLatentDim);

  void add(double score, const double* value) {
    if (score > maximum) {
      const double factor = std::exp(maximum - score);
      weight *= factor;
      for (double& x : values) x *= factor;
      maximum = score;
    }
    const double p = std::exp(score - maximum);
    weight += p;
    for (int d = 0; d < kMlaLatentDim; ++d) values[d] += p * value[d];
  }
};

}  // namespace

std::string MlaCase::text() const {
  std::string lengths;
  for (const MlaRequest& r : requests) lengths += fmt::format(" {}/{}", r.q_len, r.kv_len);
  return fmt::format("seed {} heads {} page {} {} format {}{}{}{} q/kv{}", seed, num_heads, page_size,
                     element == MlaElement::bf16 ? "bf16" : "f16", static_cast<int>(format), causal ? " causal" : "",
                     tree ? " tree" : "", descending ? " descending" : "", lengths);
}

MlaProblem::MlaProblem(const MlaCase& c) : case_(c), q_indptr_{0}, scale_(1 / std::sqrt(192.0f) / c.query_factor) {
  if (c.format == MlaFormat::e4m3) kv_scale_ = 0.375f;
  for (const MlaRequest& r : c.requests) {
    q_indptr_.push_back(q_indptr_.back() + r.q_len);
    kv_lens_.push_back(r.kv_len);
  }
  make_pages();
  make_pool();
  std::mt19937 random(c.seed + 1);
  std::normal_distribution<float> normal;
  q_.resize(static_cast<size_t>(num_rows()) * kMlaDim);
  for (size_t i = 0; i < q_.size(); ++i) {
    q_[i] = bits_of(c.query_factor * (c.descending && i % kMlaDim == 0 ? 8.0f : normal(random)));
  }
  if (c.tree) make_tree();
}

uint16_t MlaProblem::bits_of(float value) const {
  return case_.element == MlaElement::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
}
float MlaProblem::value_of(uint16_t bits) const {
  return case_.element == MlaElement::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// Every request's pages are strewn over the pool, in random order; entries past them are bad.
void MlaProblem::make_pages() {
  std::vector<int> counts;
  for (const MlaRequest& r : case_.requests) {
    counts.push_back((r.kv_len + case_.page_size - 1) / case_.page_size);
    table_stride_ = std::max(table_stride_, counts.back() + 1);
  }
  num_pages_ = std::accumulate(counts.begin(), counts.end(), 3);
  std::vector<int32_t> pages(num_pages_);
  std::iota(pages.begin(), pages.end(), 0);
  std::mt19937 random(case_.seed);
  std::shuffle(pages.begin(), pages.end(), random);
  table_.assign(table_stride_ * counts.size(), 1 << 27);
  int next = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    for (int i = 0; i < counts[r]; ++i) table_[r * table_stride_ + i] = pages[next++];
  }
}

int64_t MlaProblem::slot_of(int request, int token) const {
  return int64_t{table_[static_cast<size_t>(request) * table_stride_ + token / case_.page_size]} * case_.page_size +
         token % case_.page_size;
}

void MlaProblem::make_pool() {
  pool_.assign(static_cast<size_t>(num_pages_) * case_.page_size * mla_token_bytes(case_.format), 0xff);
  std::mt19937 random(case_.seed + 2);
  std::normal_distribution<float> normal;
  std::vector<float> values(kMlaDim);
  for (size_t r = 0; r < case_.requests.size(); ++r) {
    for (int t = 0; t < case_.requests[r].kv_len; ++t) {
      for (float& x : values) x = normal(random);
      // 8 * scale * step > 100 a tile
      if (case_.descending) values[0] = -180.0f * static_cast<float>(t / kDecodeTileTokens);
      store_token(slot_of(static_cast<int>(r), t), values);
    }
  }
}

void MlaProblem::store_token(int64_t slot, const std::vector<float>& values) {
  uint8_t* to = pool_.data() + slot * mla_token_bytes(case_.format);
  if (case_.format == MlaFormat::same16) {
    for (int d = 0; d < kMlaDim; ++d) {
      const uint16_t bits = bits_of(values[d]);
      std::memcpy(to + d * 2, &bits, 2);
    }
    return;
  }
  if (case_.format == MlaFormat::e4m3) {
    for (int d = 0; d < kMlaDim; ++d) to[d] = f32_to_e4m3(values[d] / kv_scale_);
    return;
  }
  if (case_.format == MlaFormat::fp4) {
    std::vector<float> scaled = values;
    for (int d = 0; d < kMlaLatentDim; ++d) {
      scaled[d] *= std::ldexp(1.0f, static_cast<int>((slot + d / kFp4BlockElements) % 3) - 1);
    }
    return pack_latent_token(KvFormat::fp4_mla, scaled.data(), reinterpret_cast<std::byte*>(to));
  }
  for (int b = 0; b < kScales; ++b) {
    // Scales differ from block to block, and from token to token.
    const float scale = std::ldexp(1.0f, b - 3 + static_cast<int>(slot % 3));
    std::memcpy(to + kMlaLatentDim + b * 4, &scale, 4);
    for (int d = b * kMlaScaleDim; d < (b + 1) * kMlaScaleDim; ++d) to[d] = f32_to_e4m3(values[d] / scale);
  }
  for (int d = 0; d < kMlaRopeDim; ++d) {
    const uint16_t bits = f32_to_bf16(values[kMlaLatentDim + d]);
    std::memcpy(to + kDsMlaRopeAt + d * 2, &bits, 2);
  }
}

std::vector<double> MlaProblem::token(int64_t slot, MlaFault fault) const {
  const uint8_t* from = pool_.data() + slot * mla_token_bytes(case_.format);
  std::vector<double> out(kMlaDim);
  for (int d = 0; d < kMlaDim; ++d) {
    uint16_t bits;
    if (case_.format == MlaFormat::same16) {
      std::memcpy(&bits, from + d * 2, 2);
      out[d] = value_of(bits);
    } else if (case_.format == MlaFormat::e4m3) {
      out[d] = double{e4m3_to_f32(from[d])} * kv_scale_;
    } else if (d < kMlaLatentDim && case_.format == MlaFormat::fp4) {
      const int block = d / kFp4BlockElements ^ (fault == MlaFault::neighbours_scale ? 1 : 0);
      out[d] = double{e2m1_to_f32(static_cast<uint8_t>(from[d / 2] >> d % 2 * 4))} *
               e4m3_to_f32(from[kFp4MlaScaleAt + block]);
    } else if (d < kMlaLatentDim) {
      float scale;
      const int block = d / kMlaScaleDim ^ (fault == MlaFault::neighbours_scale ? 1 : 0);
      std::memcpy(&scale, from + kMlaLatentDim + block * 4, 4);
      out[d] = double{e4m3_to_f32(from[d])} * scale;
    } else {
      // A stale tail: the last 16 bytes are another token's.
      const bool stale = fault == MlaFault::stale_tail && d >= kMlaDim - 8 && slot > 0;
      const int rope_at = mla_rope_at(case_.format) - (stale ? mla_token_bytes(case_.format) : 0);
      std::memcpy(&bits, from + rope_at + (d - kMlaLatentDim) * 2, 2);
      out[d] = bf16_to_f32(bits);
      if (std::isnan(out[d])) out[d] = 0;
    }
  }
  if (fault == MlaFault::rope_swapped) {
    std::rotate(out.begin() + kMlaLatentDim, out.begin() + kMlaLatentDim + kMlaRopeDim / 2, out.end());
  }
  return out;
}

// A node sees itself and its random ancestors, and every earlier token.
void MlaProblem::make_tree() {
  std::mt19937 random(case_.seed + 3);
  int longest = 1;
  for (const MlaRequest& r : case_.requests) longest = std::max(longest, r.q_len);
  const int words = (longest + 31) / 32;
  tree_.assign(static_cast<size_t>(q_indptr_.back()) * words, 0);
  for (size_t r = 0; r < case_.requests.size(); ++r) {
    for (int i = 0; i < case_.requests[r].q_len; ++i) {
      uint32_t* row = &tree_[static_cast<size_t>(q_indptr_[r] + i) * words];
      if (i > 0) {
        const int parent = static_cast<int>(random() % static_cast<unsigned>(i));
        std::copy_n(&tree_[static_cast<size_t>(q_indptr_[r] + parent) * words], words, row);
      }
      row[i / 32] |= 1u << i % 32;
    }
  }
}

bool MlaProblem::sees(int request, int query, int token) const {
  const auto [q_len, kv_len] = case_.requests[request];
  const int node = token - (kv_len - q_len);
  if (case_.tree) {
    const size_t words = tree_.size() / q_indptr_.back();
    return node < 0 || (tree_[(q_indptr_[request] + query) * words + node / 32] >> node % 32 & 1) != 0;
  }
  return !case_.causal || node <= query;
}

MlaParams MlaProblem::params() {
  memory_.clear();
  const auto keep = [&](const auto& values) { return memory_.emplace_back(to_device(values)).template as<char>(); };
  MlaParams p;
  p.q = keep(q_);
  p.kv = keep(pool_);
  p.page_table = reinterpret_cast<const int32_t*>(keep(table_));
  p.kv_lens = reinterpret_cast<const int32_t*>(keep(kv_lens_));
  p.q_indptr = reinterpret_cast<const int32_t*>(keep(q_indptr_));
  if (case_.tree) {
    p.tree_mask = reinterpret_cast<const uint32_t*>(keep(tree_));
    p.tree_mask_words = static_cast<int>(tree_.size() / q_indptr_.back());
  }
  out_ = to_device(std::vector<uint16_t>(static_cast<size_t>(num_rows()) * kMlaLatentDim, 0xffff));
  lse_ = to_device(std::vector<float>(num_rows(), std::numeric_limits<float>::quiet_NaN()));
  p.out = out_.as<char>();
  p.lse = lse_.as<float>();
  p.q_token_stride = int64_t{case_.num_heads} * kMlaDim;
  p.out_token_stride = int64_t{case_.num_heads} * kMlaLatentDim;
  p.token_stride_bytes = mla_token_bytes(case_.format);
  p.page_stride_bytes = p.token_stride_bytes * case_.page_size;
  p.page_table_stride = table_stride_;
  p.num_requests = static_cast<int>(case_.requests.size());
  p.num_heads = case_.num_heads;
  for (const MlaRequest& r : case_.requests) p.max_q_len = std::max(p.max_q_len, r.q_len);
  p.page_size = case_.page_size;
  p.page_shift = -1;
  for (int shift = 0; shift < 20; ++shift) {
    if (1 << shift == case_.page_size) p.page_shift = shift;
  }
  p.causal = case_.causal;
  p.scale = scale_;
  p.kv_scale = reinterpret_cast<const float*>(keep(std::vector<float>{kv_scale_}));
  return p;
}

void MlaProblem::attend(int request, MlaFault fault, MlaRows& rows) const {
  const auto [q_len, kv_len] = case_.requests[request];
  std::vector<double> tokens(static_cast<size_t>(kv_len) * kMlaDim);
  for (int t = 0; t < kv_len; ++t) {
    const std::vector<double> x = token(slot_of(request, t), fault);
    std::copy(x.begin(), x.end(), &tokens[static_cast<size_t>(t) * kMlaDim]);
  }
  const int value_at = fault == MlaFault::wrong_slice ? kMlaRopeDim : 0;
  for (int i = 0; i < q_len * case_.num_heads; ++i) {
    const size_t row = static_cast<size_t>(q_indptr_[request]) * case_.num_heads + i;
    std::vector<double> q(kMlaDim);
    for (int d = 0; d < kMlaDim; ++d) q[d] = value_of(q_[row * kMlaDim + d]);
    Sum parts[2];
    for (int t = 0; t < kv_len; ++t) {
      if (!sees(request, i / case_.num_heads, t)) continue;
      const double* k = &tokens[static_cast<size_t>(t) * kMlaDim];
      const double score = std::inner_product(q.begin(), q.end(), k, 0.0) * scale_;
      parts[fault == MlaFault::merge_without_rescale && t >= kv_len / 2 ? 1 : 0].add(score, k + value_at);
    }
    const double weight = parts[0].weight + parts[1].weight;
    for (int d = 0; d < kMlaLatentDim; ++d) {
      rows.out[row * kMlaLatentDim + d] = weight > 0 ? (parts[0].values[d] + parts[1].values[d]) / weight : 0;
    }
    rows.lse[row] = weight > 0 ? parts[0].maximum + std::log(weight) : kMinusInfinity;
  }
}

MlaRows MlaProblem::expected(MlaFault fault) const {
  MlaRows rows = {std::vector<double>(static_cast<size_t>(num_rows()) * kMlaLatentDim),
                  std::vector<double>(num_rows())};
  std::vector<std::thread> threads;
  const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int first = 0; first < count; ++first) {
    threads.emplace_back([&, first] {
      for (size_t r = first; r < case_.requests.size(); r += count) attend(static_cast<int>(r), fault, rows);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return rows;
}

MlaRows MlaProblem::result() const {
  check(cudaDeviceSynchronize());
  MlaRows rows;
  for (const uint16_t bits : from_device<uint16_t>(out_, static_cast<size_t>(num_rows()) * kMlaLatentDim)) {
    rows.out.push_back(value_of(bits));
  }
  for (const float lse : from_device<float>(lse_, num_rows())) rows.lse.push_back(lse);
  return rows;
}

std::vector<uint32_t> MlaProblem::result_bits() const {
  check(cudaDeviceSynchronize());
  std::vector<uint32_t> bits;
  for (const uint16_t x : from_device<uint16_t>(out_, static_cast<size_t>(num_rows()) * kMlaLatentDim))
    bits.push_back(x);
  for (const uint32_t x : from_device<uint32_t>(lse_, num_rows())) bits.push_back(x);
  return bits;
}

double cosine_difference(const std::vector<double>& x, const std::vector<double>& y) {
  double both = 0, product = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    both += x[i] * x[i] + y[i] * y[i];
    product += x[i] * y[i];
  }
  return both == 0 ? 0 : 1 - 2 * product / both;
}

}  // namespace warpweave::cuda::testing
