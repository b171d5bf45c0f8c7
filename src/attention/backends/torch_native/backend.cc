// Per request and KV head: gather K and V into plain f32 arrays, then for each query row
// softmax(q K^T) V with the whole score row in memory. No blocks, no running maximum.
#include <atomic>
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "attention/backend.h"
#include "attention/backends/torch_native/caps.h"
#include "attention/batch_check.h"
#include "attention/registry.h"
#include "base/float16.h"
#include "base/threads.h"

namespace warpweave::torch_native {
namespace {

struct Scratch {
  std::vector<float> k, v, scores;
};

// The K or V of one request and head, [kv_len][dim].
void gather(const ForwardBatch& batch, const KvPoolView& pool, int request, int head, int dim,
            std::vector<float>& out) {
  const int kv_len = batch.kv_lens[request];
  out.resize(static_cast<size_t>(kv_len) * dim);
  for (int kv = 0; kv < kv_len; ++kv) {
    const int64_t page = batch.pages_of(request)[kv / batch.page_size];
    const int64_t index = page * pool.page_stride + kv % batch.page_size * pool.token_stride +
                          head * pool.head_stride;
    float* row = out.data() + static_cast<size_t>(kv) * dim;
    if (pool.format == KvFormat::f32) {
      std::copy_n(static_cast<const float*>(pool.data) + index, dim, row);
      continue;
    }
    const uint16_t* src = static_cast<const uint16_t*>(pool.data) + index;
    for (int i = 0; i < dim; ++i) {
      row[i] = pool.format == KvFormat::bf16 ? bf16_to_f32(src[i]) : f16_to_f32(src[i]);
    }
  }
}

float dot(const float* a, const float* b, int count) {
  constexpr int kLanes = 8;  // independent sums, which the compiler keeps in vector registers
  float sums[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) sums[j] += a[i + j] * b[i + j];
  }
  float total = 0;
  for (; i < count; ++i) total += a[i] * b[i];
  for (float sum : sums) total += sum;
  return total;
}

class TorchNativeBackend : public AttentionBackend {
 public:
  explicit TorchNativeBackend(const BackendContext& context)
      : team_(context.team), scratch_(team_->size()) {}

  const Caps& caps() const override { return kCaps; }
  Status init_forward_metadata(const ForwardBatch& batch) override { return check_batch(batch); }

  void forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    clear_empty_requests(batch, call);
    const int64_t items = int64_t{batch.num_reqs} * call.num_kv_heads;
    std::atomic<int64_t> next{0};
    team_->run([&](int member, int) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
        sequence(batch, call, static_cast<int>(i / call.num_kv_heads),
                 static_cast<int>(i % call.num_kv_heads), scratch_[member]);
      }
    });
  }
  void forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    forward_extend(batch, call);
  }

 private:
  static void sequence(const ForwardBatch& batch, const AttentionCall& call, int request,
                       int kv_head, Scratch& scratch);
  static void row(const AttentionCall& call, int64_t token, int head, int position,
                  Scratch& scratch);

  ThreadTeam* team_;
  std::vector<Scratch> scratch_;
};

void TorchNativeBackend::sequence(const ForwardBatch& batch, const AttentionCall& call, int request,
                                  int kv_head, Scratch& scratch) {
  const int kv_len = batch.kv_lens[request], q_len = batch.q_len(request);
  if (kv_len == 0 || q_len == 0) return;
  gather(batch, call.k, request, kv_head, call.head_dim, scratch.k);
  gather(batch, call.v, request, kv_head, call.v_head_dim, scratch.v);
  const int group = call.num_q_heads / call.num_kv_heads;
  for (int i = 0; i < q_len; ++i) {
    for (int h = 0; h < group; ++h) {
      row(call, batch.q_indptr[request] + i, kv_head * group + h, kv_len - q_len + i, scratch);
    }
  }
}

void TorchNativeBackend::row(const AttentionCall& call, int64_t token, int head, int position,
                             Scratch& scratch) {
  const int first = call.window_left < 0 ? 0 : std::max(0, position - call.window_left);
  const int count = position + 1 - first;
  const float* q = call.q_f32() + token * call.q_token_stride + int64_t{head} * call.head_dim;
  float* out = call.out_f32() + token * call.out_token_stride + int64_t{head} * call.v_head_dim;
  scratch.scores.resize(count);
  float* scores = scratch.scores.data();
  const float* k = scratch.k.data() + static_cast<size_t>(first) * call.head_dim;
  const float* v = scratch.v.data() + static_cast<size_t>(first) * call.v_head_dim;

  float top = call.sinks != nullptr ? call.sinks[head] : -std::numeric_limits<float>::infinity();
  for (int j = 0; j < count; ++j) {
    scores[j] = dot(q, k + static_cast<size_t>(j) * call.head_dim, call.head_dim) * call.scale;
    if (call.logit_softcap > 0) {
      scores[j] = call.logit_softcap * std::tanh(scores[j] / call.logit_softcap);
    }
    top = std::max(top, scores[j]);
  }
  double sum = call.sinks != nullptr ? std::exp(call.sinks[head] - top) : 0;
  std::fill_n(out, call.v_head_dim, 0.0f);
  for (int j = 0; j < count; ++j) {
    const float weight = std::exp(scores[j] - top);
    sum += weight;
    const float* value = v + static_cast<size_t>(j) * call.v_head_dim;
    for (int d = 0; d < call.v_head_dim; ++d) out[d] += weight * value[d];
  }
  const float scale = static_cast<float>(1 / sum);
  for (int d = 0; d < call.v_head_dim; ++d) out[d] *= scale;
  if (call.lse != nullptr) {
    call.lse[token * call.num_q_heads + head] = top + static_cast<float>(std::log(sum));
  }
}

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return std::make_unique<TorchNativeBackend>(context);
}

}  // namespace
}  // namespace warpweave::torch_native

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(torch_native, torch_native::kCaps, torch_native::create)
}
