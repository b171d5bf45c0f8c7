#include "naive.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float16.h"

namespace warpweave::conformance {
namespace {

// fp8 and fp4 values are exact in bf16, in which kernels compute with them.
float round_to(KvFormat format, float value) {
  if (format == KvFormat::f32) return value;
  if (format == KvFormat::f16) return f16_to_f32(f32_to_f16(value));
  return bf16_to_f32(f32_to_bf16(value));
}

// K and V of one request and head, gathered.
struct Gathered {
  std::vector<float> k, v;
  Gathered(const Problem& problem, int request, int head) {
    const Case& c = problem.shape();
    const size_t kv_len = c.requests[request].kv_len;
    k.resize(kv_len * c.head_dim);
    v.resize(kv_len * c.v_head_dim);
    for (size_t kv = 0; kv < kv_len; ++kv) {
      problem.read_k(request, static_cast<int>(kv), head, k.data() + kv * c.head_dim);
      problem.read_v(request, static_cast<int>(kv), head, v.data() + kv * c.v_head_dim);
    }
  }
};

struct RowOf {
  int request, index, head;
};

void row(const Problem& problem, const Gathered& kv, RowOf of, Output& output) {
  const auto [request, index, head] = of;
  const Case& c = problem.shape();
  const float* form = nullptr;
  std::vector<float> q(c.head_dim);  // `form`, rounded
  std::vector<float> scores;
  std::vector<int> visible;
  float top = -std::numeric_limits<float>::infinity();
  for (int j = 0; j < c.requests[request].kv_len; ++j) {
    if (!problem.sees(request, index, j)) continue;
    if (const float* wanted = problem.query_for(request, index, head, j); wanted != form) {
      form = wanted;
      for (int i = 0; i < c.head_dim; ++i) q[i] = round_to(problem.kv_format(), form[i]);
    }
    float score = 0;
    for (int i = 0; i < c.head_dim; ++i) score += q[i] * kv.k[static_cast<size_t>(j) * c.head_dim + i];
    score *= problem.scale();
    if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
    scores.push_back(score);
    visible.push_back(j);
    top = std::max(top, score);
  }
  if (scores.empty()) {
    output.out.insert(output.out.end(), c.v_head_dim, 0.0f);
    output.lse.push_back(top);
    return;
  }
  const float* sinks = problem.sinks();
  if (sinks) top = std::max(top, sinks[head]);
  float sum = sinks ? std::exp(sinks[head] - top) : 0;
  std::vector<float> value(c.v_head_dim, 0.0f);
  for (size_t j = 0; j < scores.size(); ++j) {
    const float weight = std::exp(scores[j] - top);
    sum += weight;
    const float rounded = round_to(problem.kv_format(), weight);
    const float* v = kv.v.data() + static_cast<size_t>(visible[j]) * c.v_head_dim;
    for (int d = 0; d < c.v_head_dim; ++d) value[d] += rounded * v[d];
  }
  for (const float component : value) output.out.push_back(component / sum);
  output.lse.push_back(top + std::log(sum));
}

}  // namespace

Output naive_attention(const Problem& problem) {
  const Case& c = problem.shape();
  Output output;
  const int group = c.q_heads / c.kv_heads;
  for (size_t r = 0; r < c.requests.size(); ++r) {
    std::vector<Gathered> heads;
    for (int h = 0; h < c.kv_heads; ++h) heads.emplace_back(problem, static_cast<int>(r), h);
    for (int i = 0; i < c.requests[r].q_len; ++i) {
      for (int h = 0; h < c.q_heads; ++h) {
        row(problem, heads[h / group], {static_cast<int>(r), i, h}, output);
      }
    }
  }
  return output;
}

}  // namespace warpweave::conformance
