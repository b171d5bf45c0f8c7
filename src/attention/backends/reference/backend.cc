// Attention as its definition reads, in fp64, one row and one head at a time. It shares no code with
// the other backends, not even the conversion of bf16 and f16, so that a mistake there shows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "attention/backend.h"
#include "attention/backends/reference/caps.h"
#include "attention/registry.h"

namespace warpweave::reference {
namespace {

double half_to_double(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == 31) {
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

double pool_element(const KvPoolView& pool, int64_t index) {
  if (pool.format == KvFormat::f32) return static_cast<const float*>(pool.data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(pool.data)[index];
  if (pool.format == KvFormat::f16) return half_to_double(bits);
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

class ReferenceBackend : public AttentionBackend {
 public:
  const Caps& caps() const override { return kCaps; }

  Status init_forward_metadata(const ForwardBatch& batch) override {
    for (int r = 0; r < batch.num_reqs; ++r) {
      if (batch.kv_lens[r] > 0 && batch.q_len(r) > batch.kv_lens[r]) {
        return Status::invalid_argument("a request has more query rows than visible tokens");
      }
    }
    return {};
  }
  void forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    for (int r = 0; r < batch.num_reqs; ++r) {
      for (int i = 0; i < batch.q_len(r); ++i) {
        const int position = batch.kv_lens[r] == 0 ? -1 : batch.kv_lens[r] - batch.q_len(r) + i;
        for (int head = 0; head < call.num_q_heads; ++head) row(batch, call, {r, i, position, head});
      }
    }
  }
  void forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    forward_extend(batch, call);
  }

 private:
  struct Row { int request, index, position, head; };

  void row(const ForwardBatch& batch, const AttentionCall& call, const Row& row);
  std::vector<double> scores_;
};

void ReferenceBackend::row(const ForwardBatch& batch, const AttentionCall& call, const Row& row) {
  const int64_t token = batch.q_indptr[row.request] + row.index;
  const int kv_head = row.head / (call.num_q_heads / call.num_kv_heads);
  const float* q = call.q_f32() + token * call.q_token_stride + int64_t{row.head} * call.head_dim;
  float* out = call.out_f32() + token * call.out_token_stride + int64_t{row.head} * call.v_head_dim;
  const int first = call.window_left < 0 ? 0 : std::max(0, row.position - call.window_left);
  auto element = [&](const KvPoolView& pool, int kv, int i) {
    const int64_t page = batch.pages_of(row.request)[kv / batch.page_size];
    return pool_element(pool, page * pool.page_stride + kv % batch.page_size * pool.token_stride +
                                  kv_head * pool.head_stride + i);
  };

  double top = -std::numeric_limits<double>::infinity();
  scores_.clear();
  for (int kv = first; kv <= row.position; ++kv) {
    double score = 0;
    for (int i = 0; i < call.head_dim; ++i) score += static_cast<double>(q[i]) * element(call.k, kv, i);
    score *= call.scale;
    if (call.logit_softcap > 0) {
      score = call.logit_softcap * std::tanh(score / call.logit_softcap);
    }
    scores_.push_back(score);
    top = std::max(top, score);
  }
  const bool empty = scores_.empty();
  if (!empty && call.sinks != nullptr) top = std::max<double>(top, call.sinks[row.head]);
  double sum = 0;
  for (double& score : scores_) sum += score = std::exp(score - top);
  if (!empty && call.sinks != nullptr) sum += std::exp(call.sinks[row.head] - top);
  for (int d = 0; d < call.v_head_dim; ++d) {
    double value = 0;
    for (size_t i = 0; i < scores_.size(); ++i) {
      value += scores_[i] * element(call.v, first + static_cast<int>(i), d);
    }
    out[d] = static_cast<float>(empty ? 0 : value / sum);
  }
  if (call.lse != nullptr) {
    call.lse[token * call.num_q_heads + row.head] =
        empty ? -std::numeric_limits<float>::infinity() : static_cast<float>(top + std::log(sum));
  }
}

std::unique_ptr<AttentionBackend> create(const BackendContext&) {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace
}  // namespace warpweave::reference

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(reference, reference::kCaps, reference::create)
}
