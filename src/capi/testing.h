// What tests of the C interface share: tensors that own their memory, and attention in plain loops.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "warpweave/c.h"

namespace warpweave::capi::testing {

inline constexpr ww_dtype kF32 = {WW_DTYPE_FLOAT, 32, 1};
inline constexpr ww_dtype kF16 = {WW_DTYPE_FLOAT, 16, 1};
inline constexpr ww_dtype kBf16 = {WW_DTYPE_BFLOAT, 16, 1};
inline constexpr ww_dtype kU8 = {WW_DTYPE_UINT, 8, 1};

// Compact unless strides are set; all bytes 0.
class Array {
 public:
  Array(std::vector<int64_t> shape, ww_dtype dtype = kF32)
      : shape_(std::move(shape)), dtype_(dtype) {
    int64_t count = 1;
    for (int64_t size : shape_) count *= size;
    bytes_.resize(count * dtype.bits / 8 + 64);
  }
  Array& fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < size(); ++i) floats()[i] = normal(random);
    return *this;
  }
  size_t size() const { return (bytes_.size() - 64) * 8 / dtype_.bits; }
  float* floats() { return reinterpret_cast<float*>(bytes_.data()); }
  uint16_t* halves() { return reinterpret_cast<uint16_t*>(bytes_.data()); }
  uint8_t* bytes() { return bytes_.data(); }
  float operator[](size_t i) { return floats()[i]; }

  // Views of it, valid while it lives and until the next view.
  const ww_tensor* tensor() { return view({}, shape_); }
  const ww_tensor* view(std::vector<int64_t> strides, std::vector<int64_t> shape,
                        int64_t first = 0) {
    strides_ = std::move(strides);
    view_shape_ = std::move(shape);
    tensor_ = {bytes_.data(), {WW_DEVICE_CPU, 0}, static_cast<int32_t>(view_shape_.size()), dtype_,
               view_shape_.data(), strides_.empty() ? nullptr : strides_.data(),
               static_cast<uint64_t>(first) * dtype_.bits / 8};
    return &tensor_;
  }

 private:
  std::vector<int64_t> shape_, strides_, view_shape_;
  ww_dtype dtype_;
  std::vector<uint8_t> bytes_;
  ww_tensor tensor_{};
};

// One row and head: out[dim] and its lse over the tokens that `sees` allows.
struct PlainRow {
  std::vector<double> out;
  double lse;
};
struct PlainRules {
  double scale = 1, softcap = 0;
  const float* sink = nullptr;
};
// Element i of token t's key and value, and whether the row sees it.
template <typename Key, typename Value, typename Sees>
struct PlainTokens {
  int count;
  Key key;
  Value value;
  Sees sees;
};
template <typename Key, typename Value, typename Sees>
PlainRow plain_row(std::span<const float> q, const PlainTokens<Key, Value, Sees>& of, PlainRules rules) {
  const auto& [tokens, key, value, sees] = of;
  const auto dim = static_cast<int>(q.size());
  std::vector<double> scores(tokens);
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  bool any = false;
  for (int t = 0; t < tokens; ++t) {
    if (!sees(t)) continue;
    any = true;
    for (int i = 0; i < dim; ++i) scores[t] += double{q[i]} * key(t, i);
    scores[t] *= rules.scale;
    if (rules.softcap > 0) scores[t] = rules.softcap * std::tanh(scores[t] / rules.softcap);
    top = std::max(top, scores[t]);
  }
  PlainRow row = {std::vector<double>(dim), -std::numeric_limits<double>::infinity()};
  if (!any) return row;
  if (rules.sink != nullptr) top = std::max(top, double{*rules.sink});
  if (rules.sink != nullptr) sum += std::exp(*rules.sink - top);
  for (int t = 0; t < tokens; ++t) {
    if (!sees(t)) continue;
    const double weight = std::exp(scores[t] - top);
    sum += weight;
    for (int i = 0; i < dim; ++i) row.out[i] += weight * value(t, i);
  }
  for (double& x : row.out) x /= sum;
  row.lse = top + std::log(sum);
  return row;
}

}  // namespace warpweave::capi::testing
