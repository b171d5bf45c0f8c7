#include "ops/moe.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "ops/aligned_buffer.h"

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

}  // namespace

void moe_forward(const MoeCall& call, ThreadTeam& team) {
  thread_local Scratch s;
  const int experts = static_cast<int>(call.experts.size());
  assert(call.router->out_features() == experts);
  if (call.rows == 0) return;
  const int64_t hidden = call.router->in_features();
  const int64_t ffn = call.experts[0].gate_up.out_features();
  const int64_t pairs = call.rows * call.experts_per_token;

  float* const logits = at_least(s.logits, call.rows * experts);
  call.router->forward({.data = call.x, .rows = call.rows, .row_stride = call.x_stride},
                       {.data = logits, .row_stride = experts}, team);
  TopkCall topk;
  topk.logits = logits;
  topk.rows = call.rows;
  topk.experts = experts;
  topk.k = call.experts_per_token;
  topk.norm = call.norm;
  topk.experts_out = at_least(s.chosen, pairs);
  topk.weights_out = at_least(s.weights, pairs);
  softmax_topk(topk);
  group_by_expert(topk.experts_out, pairs, experts, s);

  float* const gathered = at_least(s.gathered, pairs * hidden);
  for (int64_t i = 0; i < pairs; ++i) {
    std::memcpy(gathered + s.slot_of[i] * hidden,
                call.x + i / call.experts_per_token * call.x_stride, hidden * sizeof(float));
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
    add_scaled_inplace(call.y + i / call.experts_per_token * call.y_stride,
                       results + s.slot_of[i] * hidden, topk.weights_out[i], hidden);
  }
}

}  // namespace warpweave
