#include "naive.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float16.h"

namespace warpweave::conformance {
namespace {

float round_to(KvFormat format, float value) {
  if (format == KvFormat::bf16) return bf16_to_f32(f32_to_bf16(value));
  if (format == KvFormat::f16) return f16_to_f32(f32_to_f16(value));
  return value;
}

// K and V of one request and head, gathered.
struct Gathered {
  std::vector<float> k, v;
  Gathered(const Problem& problem, int request, int head) {
    const Case& c = problem.shape();
    for (int kv = 0; kv < c.requests[request].kv_len; ++kv) {
      for (int i = 0; i < c.head_dim; ++i) k.push_back(problem.k_value(request, kv, head, i));
      for (int i = 0; i < c.v_head_dim; ++i) v.push_back(problem.v_value(request, kv, head, i));
    }
  }
};

void row(const Problem& problem, const Gathered& kv, int request, int index, int head, Output& output) {
  const Case& c = problem.shape();
  const auto [q_len, kv_len] = c.requests[request];
  const int position = kv_len == 0 ? -1 : kv_len - q_len + index;
  const int first = c.window < 0 ? 0 : std::max(0, position - c.window);
  const float* q = problem.query(request, index, head);
  std::vector<float> scores;
  float top = -std::numeric_limits<float>::infinity();
  for (int j = first; j <= position; ++j) {
    float score = 0;
    for (int i = 0; i < c.head_dim; ++i) {
      score += round_to(problem.kv_format(), q[i]) * kv.k[static_cast<size_t>(j) * c.head_dim + i];
    }
    score *= problem.scale();
    if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
    scores.push_back(score);
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
  for (float& score : scores) sum += score = std::exp(score - top);
  for (int d = 0; d < c.v_head_dim; ++d) {
    float value = 0;
    for (size_t j = 0; j < scores.size(); ++j) {
      value += round_to(problem.kv_format(), scores[j]) * kv.v[(first + j) * c.v_head_dim + d];
    }
    output.out.push_back(value / sum);
  }
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
        row(problem, heads[h / group], static_cast<int>(r), i, h, output);
      }
    }
  }
  return output;
}

}  // namespace warpweave::conformance
