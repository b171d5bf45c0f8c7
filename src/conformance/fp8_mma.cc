#include "conformance/fp8_mma.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/float16.h"
#include "base/float8.h"

namespace warpweave::conformance {
namespace {

constexpr int kStep = 32;             // products that an instruction adds to a sum
constexpr double kRelative = 1.0 / 17;  // half a unit of e4m3's last place, against the value
constexpr int kSmallestLog2 = -10;    // half of e4m3's smallest step

// A token that a row sees.
struct Seen {
  int kv = 0;
  double logit = 0;
  double logit_error = 0;   // by short sums
  double weight = 0;        // exp(logit - largest logit)
  std::vector<float> v;
};

// One row of one head.
class Row {
 public:
  Row(const Problem& problem, const Fp8Mma& mma, int request, int index, int head)
      : problem_(problem), mma_(mma), request_(request), index_(index), head_(head),
        unit_(std::exp2(1.0 - mma.sum_bits)) {
    const Case& c = problem.shape();
    for (int kv = 0; kv < c.requests[request].kv_len; ++kv) {
      if (problem.sees(request, index, kv)) add(kv);
    }
    double top = -std::numeric_limits<double>::infinity();
    for (const Seen& token : seen_) top = std::max(top, token.logit);
    for (Seen& token : seen_) total_ += token.weight = std::exp(token.logit - top);
    if (!seen_.empty() && problem.sinks() != nullptr) total_ += std::exp(problem.sinks()[head] - top);
  }

  // Every weight is off by a factor within exp(+-largest logit error), so that a first-order bound holds
  // times its square.
  double lse() const {
    double moved = 0;
    for (const Seen& token : seen_) moved += token.weight * token.logit_error;
    return seen_.empty() ? 0 : spread() * moved / total_;
  }

  double out(int dim) const {
    if (seen_.empty()) return 0;
    double sum = 0, rounded = 0, moved = 0;
    for (const Seen& token : seen_) {
      const double v = std::fabs(token.v[dim]);
      sum += token.weight * token.v[dim];
      rounded += rounding(token.weight) * v;
      moved += token.weight * token.logit_error * v;
    }
    const double mean = std::fabs(sum) / total_;
    moved = spread() * (moved + mean * lse() / spread() * total_);
    return (spread() * rounded + moved + short_sums(dim)) / total_;
  }

 private:
  // Of a probability, relative to the largest of the row, by e4m3: no more than its own size.
  double rounding(double weight) const {
    return std::min(weight, std::max(weight * kRelative, std::exp2(kSmallestLog2 - mma_.p_scale_log2)));
  }

  double spread() const {
    double largest = 0;
    for (const Seen& token : seen_) largest = std::max(largest, token.logit_error);
    return std::exp(2 * largest);
  }

  void add(int kv) {
    const Case& c = problem_.shape();
    const int kv_head = head_ / (c.q_heads / c.kv_heads);
    std::vector<float> k(c.head_dim);
    problem_.read_k(request_, kv, kv_head, k.data());
    const float* q = problem_.query_for(request_, index_, head_, kv);
    double sum = 0, largest = 0;
    for (int i = 0; i < c.head_dim; ++i) {
      const double product = static_cast<double>(q[i]) * k[i];
      sum += product;
      largest = std::max({largest, std::fabs(product), i % kStep == kStep - 1 ? std::fabs(sum) : 0.0});
    }
    largest = std::max(largest, std::fabs(sum));
    const int steps = (c.head_dim + kStep - 1) / kStep;
    Seen& token = seen_.emplace_back();
    token.kv = kv;
    token.logit = sum * problem_.scale();
    token.logit_error = (c.head_dim + 2 * steps) * unit_ * largest * problem_.scale();
    if (c.softcap > 0) {
      const double cap = c.softcap;
      const double steepest = std::tanh(std::max(0.0, std::fabs(token.logit) - token.logit_error) / cap);
      token.logit_error *= 1 - steepest * steepest;
      token.logit = cap * std::tanh(token.logit / cap);
    }
    token.v.resize(c.v_head_dim);
    problem_.read_v(request_, kv, kv_head, token.v.data());
  }

  // What sums over tokens lose.
  double short_sums(int dim) const {
    const int length = mma_.sum_tokens > 0 ? mma_.sum_tokens : std::numeric_limits<int>::max();
    double lost = 0;
    for (size_t begin = 0, end = 0; begin < seen_.size(); begin = end) {
      while (end < seen_.size() && seen_[end].kv / length == seen_[begin].kv / length) ++end;
      lost += lost_by(std::span(seen_).subspan(begin, end - begin), dim);
    }
    return lost;
  }

  // A unit of the largest magnitude that the sum passes, whichever end it starts from, or that it adds, for
  // each addition.
  double lost_by(std::span<const Seen> tokens, int dim) const {
    double all = 0;
    for (const Seen& token : tokens) all += token.weight * token.v[dim];
    double sum = 0, largest = std::fabs(all), rounded = 0;
    for (const Seen& token : tokens) {
      const double term = token.weight * token.v[dim];
      sum += term;
      rounded += rounding(token.weight) * std::fabs(token.v[dim]);
      largest = std::max({largest, std::fabs(term), std::fabs(sum), std::fabs(all - sum)});
    }
    return (static_cast<double>(tokens.size()) * (1 + 2.0 / kStep) + 4) * unit_ * (largest + rounded);
  }

  const Problem& problem_;
  const Fp8Mma& mma_;
  const int request_, index_, head_;
  const double unit_;  // what a term may lose, against the largest one
  std::vector<Seen> seen_;
  double total_ = 0;
};

}  // namespace

void round_query_to_e4m3(std::span<float> row) {
  float top = 0;
  for (float& value : row) {
    value = bf16_to_f32(f32_to_bf16(value));
    top = std::max(top, std::fabs(value));
  }
  // The exponent of the smallest power of two at or above top / 448, within what has an inverse.
  const uint32_t bits = std::bit_cast<uint32_t>(top * (1.0f / kE4m3Max)) + 0x7fffffu;
  const uint32_t exponent = std::clamp<uint32_t>(bits >> 23, 27, 227);
  const float scale = std::bit_cast<float>(exponent << 23), inverse = std::bit_cast<float>((254 - exponent) << 23);
  for (float& value : row) value = e4m3_to_f32(f32_to_e4m3(value * inverse)) * scale;
}

float add_short(float sum, std::span<const float> terms, int bits) {
  float largest = std::fabs(sum);
  for (float term : terms) largest = std::max(largest, std::fabs(term));
  if (!(largest > 0) || !std::isfinite(largest)) return largest == 0 ? 0 : std::numeric_limits<float>::quiet_NaN();
  const double unit = std::ldexp(1.0, std::ilogb(largest) + 1 - bits);
  double kept = std::trunc(sum / unit);
  for (float term : terms) kept += std::trunc(term / unit);
  if (kept == 0) return 0;
  const double last = std::ldexp(1.0, std::max(0, std::ilogb(kept) + 1 - bits));
  return static_cast<float>(std::trunc(kept / last) * last * unit);
}

Fp8Allowance fp8_allowance(const Problem& problem, const Fp8Mma& mma) {
  const Case& c = problem.shape();
  Fp8Allowance allowance;
  for (int r = 0; r < static_cast<int>(c.requests.size()); ++r) {
    for (int i = 0; i < c.requests[r].q_len; ++i) {
      for (int h = 0; h < c.q_heads; ++h) {
        const Row row(problem, mma, r, i, h);
        for (int d = 0; d < c.v_head_dim; ++d) allowance.out.push_back(row.out(d));
        allowance.lse.push_back(row.lse());
      }
    }
  }
  return allowance;
}

}  // namespace warpweave::conformance
