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
#include "base/threads.h"
#include "kv/kv_codec.h"

namespace warpweave::torch_native {
namespace {

struct Scratch {
  std::vector<float> k, v, scores;
};

struct Heads {
  int request, kv_head;
};

// Their K or V, [kv_len][dim].
void gather(const ForwardBatch& batch, const KvPoolView& pool, Heads of, int dim, std::vector<float>& out) {
  const auto [request, head] = of;
  const int kv_len = batch.kv_lens[request];
  out.resize(static_cast<size_t>(kv_len) * dim);
  for (int kv = 0; kv < kv_len; ++kv) {
    const int64_t page = batch.pages_of(request)[kv / batch.page_size];
    const int64_t index = page * pool.page_stride + kv % batch.page_size * pool.token_stride +
                          head * pool.head_stride;
    kv_decode_run(pool, head, index, dim, out.data() + static_cast<size_t>(kv) * dim);
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
  TorchNativeBackend(const BackendContext& context, const Caps& caps)
      : caps_(caps), team_(context.team), scratch_(team_->size()) {}

  const Caps& caps() const override { return caps_; }
  Status init_forward_metadata(const ForwardBatch& batch) override { return check_batch(batch); }

  Status reserve(const ForwardBatch& batch, const AttentionCall& shape) override {
    const size_t tokens = batch.max_kv_len;
    for (Scratch& scratch : scratch_) {
      scratch.k.reserve(tokens * shape.head_dim);
      scratch.v.reserve(tokens * shape.v_head_dim);
      scratch.scores.reserve(tokens);
    }
    return {};
  }

  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    clear_empty_requests(batch, call);
    const int64_t items = int64_t{batch.num_reqs} * call.num_kv_heads;
    std::atomic<int64_t> next{0};
    team_->run([&](int member, int) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
        sequence(batch, call, static_cast<int>(i / call.num_kv_heads),
                 static_cast<int>(i % call.num_kv_heads), scratch_[member]);
      }
    });
    return {};
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward_extend(batch, call);
  }

 private:
  static void sequence(const ForwardBatch& batch, const AttentionCall& call, int request,
                       int kv_head, Scratch& scratch);
  // The KV positions of a row: [first, first + count), but of those from tree_first on only the ones
  // whose bit is set in `tree`, if there is one.
  struct Visible {
    int first = 0, count = 0;
    const uint32_t* tree = nullptr;
    int tree_first = 0;

    bool sees(int kv) const {
      const int bit = kv - tree_first;
      return tree == nullptr || bit < 0 || tree[bit / 32] >> bit % 32 & 1;
    }
  };
  static Visible visible_to(const ForwardBatch& batch, const AttentionCall& call, int request, int row);
  static void row(const AttentionCall& call, int64_t token, int head, Visible visible,
                  Scratch& scratch);

  const Caps& caps_;
  ThreadTeam* team_;
  std::vector<Scratch> scratch_;
};

void TorchNativeBackend::sequence(const ForwardBatch& batch, const AttentionCall& call, int request,
                                  int kv_head, Scratch& scratch) {
  const int kv_len = batch.kv_lens[request], q_len = batch.q_len(request);
  if (kv_len == 0 || q_len == 0) return;
  gather(batch, call.k, {request, kv_head}, call.head_dim, scratch.k);
  gather(batch, call.v, {request, kv_head}, call.v_head_dim, scratch.v);
  const int group = call.num_q_heads / call.num_kv_heads;
  for (int i = 0; i < q_len; ++i) {
    const Visible visible = visible_to(batch, call, request, i);
    for (int h = 0; h < group; ++h) {
      row(call, batch.q_indptr[request] + i, kv_head * group + h, visible, scratch);
    }
  }
}

TorchNativeBackend::Visible TorchNativeBackend::visible_to(const ForwardBatch& batch,
                                                           const AttentionCall& call, int request,
                                                           int row) {
  const int kv_len = batch.kv_lens[request], prefix = kv_len - batch.q_len(request);
  const int64_t token = batch.q_indptr[request] + row;
  const bool tree = !batch.tree_mask.empty();
  const int position = tree ? batch.positions[token] : prefix + row;
  Visible visible;
  visible.first = call.window_left < 0 ? 0 : std::max(0, position - call.window_left);
  int end = batch.causal ? position + 1 : kv_len;
  if (!batch.causal && call.window_right >= 0) end = std::min(end, position + call.window_right + 1);
  if (tree) {
    visible.tree = batch.tree_mask.data() + token * batch.tree_mask_words;
    visible.tree_first = prefix;
    visible.first = std::min(visible.first, prefix);
    end = kv_len;
  }
  visible.count = end - visible.first;
  return visible;
}

void TorchNativeBackend::row(const AttentionCall& call, int64_t token, int head, Visible visible,
                             Scratch& scratch) {
  const int first = visible.first, count = visible.count;
  const float* q = call.q_f32() + token * call.q_token_stride + int64_t{head} * call.head_dim;
  float* out = call.out_f32() + token * call.out_token_stride + int64_t{head} * call.v_head_dim;
  scratch.scores.resize(count);
  float* scores = scratch.scores.data();
  const float* k = scratch.k.data() + static_cast<size_t>(first) * call.head_dim;
  const float* v = scratch.v.data() + static_cast<size_t>(first) * call.v_head_dim;

  float top = call.sinks != nullptr ? call.sinks[head] : -std::numeric_limits<float>::infinity();
  for (int j = 0; j < count; ++j) {
    if (!visible.sees(first + j)) {
      scores[j] = -std::numeric_limits<float>::infinity();
      continue;
    }
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
  return std::make_unique<TorchNativeBackend>(context, kCaps);
}
std::unique_ptr<AttentionBackend> create_mla(const BackendContext& context) {
  return std::make_unique<TorchNativeBackend>(context, kMlaCaps);
}

}  // namespace
}  // namespace warpweave::torch_native

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(torch_native, torch_native::kCaps, torch_native::create)
WW_REGISTER_ATTENTION_BACKEND(torch_native_mla, torch_native::kMlaCaps, torch_native::create_mla)
}
