#include "ops/moe.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "ops/aligned_buffer.h"
#include "ops/router.h"

namespace warpweave {
namespace {

// Grow-only memory of the calling thread: a decode step allocates nothing.
struct Scratch {
  std::vector<float> logits, weights, gathered, results;
  std::vector<int32_t> chosen, first_of_expert, slot_of;
  std::vector<std::byte> hidden;
};

template <typename T>
T* at_least(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
  return v.data();
}

// Sorts the (row, choice) pairs by expert: slot_of[pair] is the pair's row in expert order.
void group_by_expert(const int32_t* chosen, int64_t pairs, int experts, Scratch& s) {
  s.first_of_expert.assign(experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++s.first_of_expert[chosen[i] + 1];
  for (int e = 0; e < experts; ++e) s.first_of_expert[e + 1] += s.first_of_expert[e];
  std::vector<int32_t>& next = s.first_of_expert;
  int32_t* slot = at_least(s.slot_of, pairs);
  for (int64_t i = 0; i < pairs; ++i) slot[i] = next[chosen[i]]++;
  // Each entry has moved on to the next expert's first slot: shift back.
  for (int e = experts; e > 0; --e) next[e] = next[e - 1];
  next[0] = 0;
}

// 16 sums side by side, so that the compiler may keep them in one register.
float dot(const float* a, const float* b, int64_t n) {
  float sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const float part : sums) sum += part;
  return sum;
}

// y += the shared experts' result, gated where they have a gate.
void add_shared(const MoeCall& call, Scratch& s, ThreadTeam& team) {
  const int64_t hidden = call.shared_down->out_features(), ffn = call.shared_down->in_features();
  const DType middle = call.shared_down->preferred_input();
  std::byte* const inner = at_least(s.hidden, call.rows * ffn * dtype_info(middle).block_bytes);
  float* const results = at_least(s.results, call.rows * hidden);
  call.shared_gate_up->forward({.data = call.x, .rows = call.rows, .row_stride = call.x_stride},
                               {.data = inner, .dtype = middle, .row_stride = ffn}, team);
  call.shared_down->forward({.data = inner, .dtype = middle, .rows = call.rows, .row_stride = ffn},
                            {.data = results, .row_stride = hidden}, team);
  for (int64_t r = 0; r < call.rows; ++r) {
    const float gate = call.shared_gate == nullptr
                           ? 1.0f
                           : 1.0f / (1.0f + std::exp(-dot(call.x + r * call.x_stride, call.shared_gate, hidden)));
    add_scaled_inplace(call.y + r * call.y_stride, results + r * hidden, gate, hidden);
  }
}

}  // namespace

void moe_forward(const MoeCall& call, ThreadTeam& team) {
  thread_local Scratch s;
  const int experts = static_cast<int>(call.experts.size());
  assert(call.router->out_features() == experts);
  if (call.rows == 0) return;
  const int64_t hidden = call.router->in_features();
  const int64_t ffn = call.experts[0].gate_up.out_features();
  const int k = call.rule.k;
  const int64_t pairs = call.rows * k;

  float* const logits = at_least(s.logits, call.rows * experts);
  call.router->forward({.data = call.x, .rows = call.rows, .row_stride = call.x_stride},
                       {.data = logits, .row_stride = experts}, team);
  int32_t* const chosen = at_least(s.chosen, pairs);
  float* const weights = at_least(s.weights, pairs);
  choose_experts({.logits = logits, .rows = call.rows, .rule = call.rule, .correction = call.correction,
                  .experts_out = chosen, .weights_out = weights});
  group_by_expert(chosen, pairs, experts, s);

  float* const gathered = at_least(s.gathered, pairs * hidden);
  for (int64_t i = 0; i < pairs; ++i) {
    std::memcpy(gathered + s.slot_of[i] * hidden,
                call.x + i / k * call.x_stride, hidden * sizeof(float));
  }
  float* const results = at_least(s.results, pairs * hidden);
  for (int e = 0; e < experts; ++e) {
    const int64_t first = s.first_of_expert[e], count = s.first_of_expert[e + 1] - first;
    if (count == 0) continue;
    const MoeExpert& expert = call.experts[e];
    const DType middle = expert.down.preferred_input();
    std::byte* const inner = at_least(s.hidden, count * ffn * dtype_info(middle).block_bytes);
    expert.gate_up.forward(
        {.data = gathered + first * hidden, .rows = count, .row_stride = hidden},
        {.data = inner, .dtype = middle, .row_stride = ffn}, team);
    expert.down.forward({.data = inner, .dtype = middle, .rows = count, .row_stride = ffn},
                        {.data = results + first * hidden, .row_stride = hidden}, team);
  }
  for (int64_t i = 0; i < pairs; ++i) {
    add_scaled_inplace(call.y + i / k * call.y_stride, results + s.slot_of[i] * hidden, weights[i], hidden);
  }
  if (call.shared_down != nullptr) add_shared(call, s, team);
}

}  // namespace warpweave
