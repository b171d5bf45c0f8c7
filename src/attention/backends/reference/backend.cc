// Attention as its definition reads, in fp64, one row and one head at a time. It shares no code with
// the other backends, not even the conversions of the KV formats, so that a mistake there shows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "attention/backend.h"
#include "attention/backends/reference/caps.h"
#include "attention/registry.h"
#include "kv/latent_token.h"

namespace warpweave::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A float of few bits by the definition of its format; the sign is the bit above the exponent.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;

  int exponent(unsigned code) const { return code >> mantissa_bits & ((1 << exponent_bits) - 1); }
  int mantissa(unsigned code) const { return code & ((1 << mantissa_bits) - 1); }
  double sign(unsigned code) const { return code >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1; }

  double finite(unsigned code) const {
    const int e = exponent(code), m = mantissa(code);
    const double magnitude = e == 0 ? std::ldexp(m, 1 - bias - mantissa_bits)
                                    : std::ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits);
    return sign(code) * magnitude;
  }
  // With infinities and NaNs under the largest exponent.
  double ieee(unsigned code) const {
    if (exponent(code) != (1 << exponent_bits) - 1) return finite(code);
    return mantissa(code) ? kNaN : sign(code) * kInfinity;
  }
};

constexpr SmallFloat kHalf = {5, 10, 15}, kE5m2 = {5, 2, 15}, kE4m3 = {4, 3, 7}, kE2m1 = {2, 1, 1};

double e4m3(unsigned code) { return (code & 127) == 127 ? kNaN : kE4m3.finite(code); }

double element(const KvPoolView& pool, int head, int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(pool.data);
  const double scale = pool.head_scales == nullptr ? 1.0 : pool.head_scales[head];
  switch (pool.format) {
    case KvFormat::f32: return static_cast<const float*>(pool.data)[index];
    case KvFormat::bf16: {
      const uint32_t wide = static_cast<uint32_t>(static_cast<const uint16_t*>(pool.data)[index]) << 16;
      float value;
      std::memcpy(&value, &wide, 4);
      return value;
    }
    case KvFormat::f16: return kHalf.ieee(static_cast<const uint16_t*>(pool.data)[index]);
    case KvFormat::fp8_e4m3: return e4m3(bytes[index]) * scale;
    case KvFormat::fp8_e5m2: return kE5m2.ieee(bytes[index]) * scale;
    case KvFormat::fp8_ds_mla:
    case KvFormat::fp4_mla: break;  // packed_element()
    case KvFormat::fp4_e2m1: {
      const unsigned code = index % 2 == 0 ? bytes[index / 2] % 16 : bytes[index / 2] / 16;
      return kE2m1.finite(code) * e4m3(pool.block_scales[index / 16]) * scale;
    }
  }
  return kNaN;
}

// Value i of a packed token of latent attention (kv/latent_token.h).
double packed_element(KvFormat format, const unsigned char* token, int i) {
  const bool fp8 = format == KvFormat::fp8_ds_mla;
  if (i >= kPackedLatentDim) {
    const unsigned char* at = token + (fp8 ? kDsMlaRopeAt : kFp4MlaRopeAt) + 2 * (i - kPackedLatentDim);
    const uint32_t wide = static_cast<uint32_t>(at[0] | at[1] << 8) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  if (fp8) {
    float scale;
    std::memcpy(&scale, token + kDsMlaScaleAt + i / kDsMlaScaleDim * 4, 4);
    return e4m3(token[i]) * scale;
  }
  const unsigned code = i % 2 == 0 ? token[i / 2] % 16 : token[i / 2] / 16;
  return kE2m1.finite(code) * e4m3(token[kFp4MlaScaleAt + i / 16]);
}

class ReferenceBackend : public AttentionBackend {
 public:
  const Caps& caps() const override { return kCaps; }

  Status init_forward_metadata(const ForwardBatch& batch) override {
    for (int r = 0; r < batch.num_reqs; ++r) {
      if (batch.causal && batch.kv_lens[r] > 0 && batch.q_len(r) > batch.kv_lens[r]) {
        return Status::invalid_argument("a request has more query rows than visible tokens");
      }
    }
    return {};
  }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    for (int r = 0; r < batch.num_reqs; ++r) {
      for (int kv_head = 0; kv_head < call.num_kv_heads; ++kv_head) {
        gather(batch, call.k, {r, kv_head, call.head_dim}, k_);
        gather(batch, call.v, {r, kv_head, call.v_head_dim}, v_);
        const int group = call.num_q_heads / call.num_kv_heads;
        for (int i = 0; i < batch.q_len(r); ++i) {
          look(batch, call, r, i);
          for (int h = 0; h < group; ++h) row(call, batch.q_indptr[r] + i, kv_head * group + h);
        }
      }
    }
    return {};
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward_extend(batch, call);
  }

 private:
  struct Head { int request, kv_head, dim; };

  static void gather(const ForwardBatch& batch, const KvPoolView& pool, const Head& head,
                     std::vector<double>& out);
  void look(const ForwardBatch& batch, const AttentionCall& call, int request, int index);
  const float* query(const AttentionCall& call, int64_t token, int head, int kv) const;
  void row(const AttentionCall& call, int64_t token, int head);

  std::vector<double> k_, v_;   // of one request and KV head, [kv_len, dim]
  std::vector<int> visible_;    // KV positions that one row sees
  int position_ = 0;            // of that row
  std::vector<double> weights_;
};

void ReferenceBackend::gather(const ForwardBatch& batch, const KvPoolView& pool, const Head& head,
                              std::vector<double>& out) {
  out.clear();
  for (int kv = 0; kv < batch.kv_lens[head.request]; ++kv) {
    const int64_t page = batch.pages_of(head.request)[kv / batch.page_size];
    const int64_t at =
        page * pool.page_stride + kv % batch.page_size * pool.token_stride + head.kv_head * pool.head_stride;
    const bool packed = kv_format_is_packed(pool.format);
    for (int i = 0; i < head.dim; ++i) {
      out.push_back(packed ? packed_element(pool.format, static_cast<const unsigned char*>(pool.data) + at, i)
                           : element(pool, head.kv_head, at + i));
    }
  }
}

// Which KV positions row `index` of a request sees.
void ReferenceBackend::look(const ForwardBatch& batch, const AttentionCall& call, int request,
                            int index) {
  visible_.clear();
  const int kv_len = batch.kv_lens[request], prefix = kv_len - batch.q_len(request);
  if (kv_len == 0) return;
  const int64_t token = batch.q_indptr[request] + index;
  const bool tree = !batch.tree_mask.empty();
  const int position = position_ = tree ? batch.positions[token] : prefix + index;
  for (int kv = 0; kv < kv_len; ++kv) {
    const bool in_window = call.window_left < 0 || kv >= position - call.window_left;
    bool sees;
    if (tree && kv >= prefix) {
      const uint32_t word = batch.tree_mask[token * batch.tree_mask_words + (kv - prefix) / 32];
      sees = word >> (kv - prefix) % 32 & 1;
    } else {
      const bool before_end = call.window_right < 0 || kv <= position + call.window_right;
      sees = in_window && (batch.causal ? kv <= position : before_end);
    }
    if (sees) visible_.push_back(kv);
  }
}

// The form of the query that meets the key at `kv`: one, or by chunk.
const float* ReferenceBackend::query(const AttentionCall& call, int64_t token, int head, int kv) const {
  const int64_t offset = int64_t{head} * call.head_dim;
  const DualChunkQueries* dual = call.dual_chunk;
  const int apart = dual == nullptr ? 0 : position_ / dual->chunk_len - kv / dual->chunk_len;
  if (apart == 0) return call.q_f32() + token * call.q_token_stride + offset;
  const void* form = apart == 1 ? dual->q_succ : dual->q_inter;
  return static_cast<const float*>(form) + token * dual->token_stride + offset;
}

void ReferenceBackend::row(const AttentionCall& call, int64_t token, int head) {
  float* out = call.out_f32() + token * call.out_token_stride + int64_t{head} * call.v_head_dim;
  double top = -kInfinity;
  weights_.clear();
  for (const int kv : visible_) {
    const float* q = query(call, token, head, kv);
    double score = 0;
    for (int i = 0; i < call.head_dim; ++i) score += q[i] * k_[int64_t{kv} * call.head_dim + i];
    score *= call.scale;
    if (call.logit_softcap > 0) {
      score = call.logit_softcap * std::tanh(score / call.logit_softcap);
    }
    weights_.push_back(score);
    top = std::max(top, score);
  }
  const bool empty = visible_.empty();
  if (!empty && call.sinks != nullptr) top = std::max<double>(top, call.sinks[head]);
  double sum = 0;
  for (double& weight : weights_) sum += weight = std::exp(weight - top);
  if (!empty && call.sinks != nullptr) sum += std::exp(call.sinks[head] - top);
  for (int d = 0; d < call.v_head_dim; ++d) {
    double value = 0;
    for (size_t i = 0; i < visible_.size(); ++i) {
      value += weights_[i] * v_[int64_t{visible_[i]} * call.v_head_dim + d];
    }
    out[d] = static_cast<float>(empty ? 0 : value / sum);
  }
  if (call.lse != nullptr) {
    call.lse[token * call.num_q_heads + head] =
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
