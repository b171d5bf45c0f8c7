#include "linear/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/float16.h"

namespace warpweave {
namespace {

double element(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::bf16: return bf16_to_f32(static_cast<const uint16_t*>(data)[at]);
    case DType::f16: return f16_to_f32(static_cast<const uint16_t*>(data)[at]);
    default: return static_cast<const float*>(data)[at];
  }
}

double rounded(double value, DType dtype) {
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::bf16: return bf16_to_f32(f32_to_bf16(narrow));
    case DType::f16: return f16_to_f32(f32_to_f16(narrow));
    default: return narrow;
  }
}

template <class Real>
std::vector<Real> row_of(const LinearAttnRows& rows, int64_t token, int head, int dim) {
  std::vector<Real> out(dim);
  for (int i = 0; i < dim; ++i) {
    out[i] = static_cast<Real>(element(rows.data, rows.dtype, token * rows.token_stride + head * rows.head_stride + i));
  }
  return out;
}

template <class Real>
Real dot(const std::vector<Real>& a, const std::vector<Real>& b) {
  Real sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <class Real>
Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }
template <class Real>
Real softplus(Real x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// What a request carries from token to token.
template <class Real>
struct Carried {
  std::vector<Real> recurrent;             // [v_heads, v_dim, k_dim]
  std::vector<std::vector<Real>> window;   // the last width - 1 rows of the convolution's input, oldest first
};

template <class Real>
class Recurrence {
 public:
  explicit Recurrence(const LinearAttnCall& call) : call_(call), shape_(call.shape) {}

  Carried<Real> initial(int slot) const {
    const int dim = shape_.v_dim * shape_.k_dim;
    Carried<Real> carried;
    carried.recurrent.resize(size_t(shape_.v_heads) * dim);
    for (int h = 0; slot >= 0 && h < shape_.v_heads; ++h) {
      for (int i = 0; i < dim; ++i) {
        carried.recurrent[size_t(h) * dim + i] = static_cast<Real>(element(
            call_.state.data, call_.state.dtype, slot * call_.state.slot_stride + h * call_.state.head_stride + i));
      }
    }
    if (call_.conv == nullptr) return carried;
    const LinearAttnConv& conv = *call_.conv;
    for (int row = 0; row < conv.width - 1; ++row) {
      std::vector<Real> x(shape_.conv_channels());
      for (int c = 0; slot >= 0 && c < shape_.conv_channels(); ++c) {
        x[c] = static_cast<Real>(
            element(conv.state, conv.state_dtype, slot * conv.slot_stride + int64_t{c} * (conv.width - 1) + row));
      }
      carried.window.push_back(std::move(x));
    }
    return carried;
  }

  // One token; returns its output [v_heads * v_dim], normed and gated.
  std::vector<Real> step(Carried<Real>& carried, int64_t token) const {
    std::vector<Real> channels;
    if (call_.conv != nullptr) channels = convolve(carried, token);
    std::vector<Real> out;
    for (int h = 0; h < shape_.v_heads; ++h) {
      const std::vector<Real> o = head(carried, channels, token, h);
      out.insert(out.end(), o.begin(), o.end());
    }
    return out;
  }

  LinearAttnSlotState stored(const Carried<Real>& carried) const {
    LinearAttnSlotState slot;
    for (Real value : carried.recurrent) slot.recurrent.push_back(round_stored(value, call_.state.dtype));
    if (call_.conv == nullptr) return slot;
    for (int c = 0; c < shape_.conv_channels(); ++c) {
      for (const auto& row : carried.window) slot.conv.push_back(rounded(row[c], call_.conv->state_dtype));
    }
    return slot;
  }

  double round_stored(Real value, DType dtype) const {
    return std::is_same_v<Real, double> ? static_cast<double>(value) : rounded(value, dtype);
  }

 private:
  std::vector<Real> convolve(Carried<Real>& carried, int64_t token) const {
    const LinearAttnConv& conv = *call_.conv;
    const int channels = shape_.conv_channels();
    carried.window.push_back(row_of<Real>(conv.x, token, 0, channels));
    std::vector<Real> out(channels);
    const bool dynamic = conv.v_weight.data != nullptr;
    std::vector<Real> taps;
    if (dynamic) taps = row_of<Real>(conv.v_weight, token, 0, (channels - shape_.v_channel()) * conv.width);
    for (int c = 0; c < channels; ++c) {
      if (dynamic && c >= shape_.v_channel()) {
        Real of_token = 0;
        for (int j = 0; j < conv.width; ++j) {
          of_token += taps[(c - shape_.v_channel()) * conv.width + j] * carried.window[j][c];
        }
        out[c] = conv.silu ? of_token * sigmoid(of_token) : of_token;
        continue;
      }
      Real sum = conv.bias != nullptr ? static_cast<Real>(conv.bias[c]) : Real(0);
      for (int j = 0; j < conv.width; ++j) {
        sum += static_cast<Real>(conv.weight[c * conv.width + j]) * carried.window[j][c];
      }
      out[c] = conv.silu ? sum * sigmoid(sum) : sum;
    }
    carried.window.erase(carried.window.begin());
    return out;
  }

  std::vector<Real> part(const std::vector<Real>& channels, int begin, int dim) const {
    return {channels.begin() + begin, channels.begin() + begin + dim};
  }

  void normalize(std::vector<Real>& x) const {
    if (!call_.l2norm) return;
    const Real length = std::sqrt(dot(x, x) + static_cast<Real>(call_.l2norm_eps));
    for (Real& value : x) value /= length;
  }

  // exp(g) per channel of k, and beta.
  std::vector<Real> decay(int64_t token, int h) const {
    std::vector<Real> g = row_of<Real>(call_.gates != nullptr ? call_.gates->a : call_.g, token, h, shape_.decay_dim());
    for (int c = 0; c < shape_.decay_dim(); ++c) {
      if (call_.gates != nullptr) {
        const float* bias = call_.gates->dt_bias;
        const Real x = g[c] + (bias != nullptr ? static_cast<Real>(bias[h * shape_.decay_dim() + c]) : Real(0));
        g[c] = -std::exp(static_cast<Real>(call_.gates->a_log[h])) * softplus(x);
      }
      g[c] = std::exp(g[c]);
    }
    g.resize(shape_.k_dim, g[0]);
    return g;
  }
  Real beta(int64_t token, int h) const {
    if (call_.gates == nullptr) return row_of<Real>(call_.beta, token, h, 1)[0];
    return sigmoid(row_of<Real>(call_.gates->b, token, h, 1)[0]);
  }

  std::vector<Real> head(Carried<Real>& carried, const std::vector<Real>& channels, int64_t token, int h) const {
    const int k_head = h / shape_.heads_per_k(), dk = shape_.k_dim, dv = shape_.v_dim;
    std::vector<Real> q, k, v;
    if (call_.conv != nullptr) {
      q = part(channels, k_head * dk, dk);
      k = part(channels, (shape_.k_heads + k_head) * dk, dk);
      v = part(channels, 2 * shape_.k_heads * dk + h * dv, dv);
    } else {
      q = row_of<Real>(call_.q, token, k_head, dk);
      k = row_of<Real>(call_.k, token, k_head, dk);
      v = row_of<Real>(call_.v, token, h, dv);
    }
    normalize(q);
    normalize(k);
    const std::vector<Real> a = decay(token, h);
    const Real b = beta(token, h);
    std::vector<Real> out(dv), row(dk);
    for (int i = 0; i < dv; ++i) {
      Real* state = &carried.recurrent[(size_t(h) * dv + i) * dk];
      for (int c = 0; c < dk; ++c) row[c] = state[c] * a[c];
      const Real change = b * (v[i] - dot(row, k));
      for (int c = 0; c < dk; ++c) row[c] += change * k[c];
      std::copy(row.begin(), row.end(), state);
      out[i] = static_cast<Real>(call_.scale) * dot(row, q);
    }
    if (call_.norm != nullptr) norm_and_gate(out, token, h);
    return out;
  }

  void norm_and_gate(std::vector<Real>& out, int64_t token, int h) const {
    const LinearAttnNorm& norm = *call_.norm;
    const Real mean = dot(out, out) / static_cast<Real>(shape_.v_dim);
    const Real length = std::sqrt(mean + static_cast<Real>(norm.eps));
    std::vector<Real> z;
    if (norm.z.data != nullptr) z = row_of<Real>(norm.z, token, h, shape_.v_dim);
    for (int i = 0; i < shape_.v_dim; ++i) {
      out[i] = out[i] / length * static_cast<Real>(norm.weight[i]);
      if (!z.empty()) out[i] *= norm.gate == LinearAttnNormGate::silu ? z[i] * sigmoid(z[i]) : sigmoid(z[i]);
    }
  }

  const LinearAttnCall& call_;
  const LinearAttnShape shape_;
};

template <class Real>
class Forward {
 public:
  Forward(const LinearAttnCall& call, LinearAttnPhase phase)
      : call_(call), batch_(*call.batch), phase_(phase), recurrence_(call) {
    row_size_ = size_t(call.shape.v_heads) * call.shape.v_dim;
    if (phase != LinearAttnPhase::commit) {
      truth_.out.assign(batch_.num_tokens * row_size_, std::numeric_limits<double>::quiet_NaN());
    }
  }

  LinearAttnTruth run() {
    for (int r = 0; r < batch_.num_requests; ++r) {
      const int64_t first = batch_.q_indptr != nullptr ? batch_.q_indptr[r] : r;
      const int64_t end = batch_.q_indptr != nullptr ? batch_.q_indptr[r + 1] : r + 1;
      if (batch_.slots[r] < 0) {
        if (!truth_.out.empty()) {
          std::fill(truth_.out.begin() + first * row_size_, truth_.out.begin() + end * row_size_, 0.0);
        }
        continue;
      }
      const Carried<Real> start =
          recurrence_.initial(batch_.initial_slots != nullptr ? batch_.initial_slots[r] : batch_.slots[r]);
      switch (phase_) {
        case LinearAttnPhase::target_verify: verify(start, first, end); break;
        case LinearAttnPhase::commit: commit(r, start, first); break;
        default: sequence(r, start, first, end);
      }
    }
    return std::move(truth_);
  }

 private:
  void store_row(int64_t token, const std::vector<Real>& out) {
    for (size_t i = 0; i < row_size_; ++i) {
      truth_.out[token * row_size_ + i] = recurrence_.round_stored(out[i], call_.out_dtype);
    }
  }

  void sequence(int r, Carried<Real> carried, int64_t first, int64_t end) {
    int next = batch_.checkpoint_indptr != nullptr ? batch_.checkpoint_indptr[r] : 0;
    const int last = batch_.checkpoint_indptr != nullptr ? batch_.checkpoint_indptr[r + 1] : 0;
    for (int64_t token = first; token < end; ++token) {
      store_row(token, recurrence_.step(carried, token));
      if (next < last && batch_.checkpoint_tokens[next] == token - first + 1) {
        truth_.slots[batch_.checkpoint_slots[next++]] = recurrence_.stored(carried);
      }
    }
    truth_.slots[batch_.slots[r]] = recurrence_.stored(carried);
  }

  int parent(int64_t first, int64_t node) const {
    return batch_.parents != nullptr ? batch_.parents[first + node] : static_cast<int>(node) - 1;
  }

  void verify(const Carried<Real>& start, int64_t first, int64_t end) {
    std::vector<Carried<Real>> after;
    for (int64_t node = 0; first + node < end; ++node) {
      const int before = parent(first, node);
      after.push_back(before < 0 ? start : after[before]);
      store_row(first + node, recurrence_.step(after.back(), first + node));
    }
  }

  void commit(int r, Carried<Real> carried, int64_t first) {
    std::vector<int> path;
    for (int node = batch_.accepted[r]; node >= 0; node = parent(first, node)) path.push_back(node);
    for (auto node = path.rbegin(); node != path.rend(); ++node) recurrence_.step(carried, first + *node);
    truth_.slots[batch_.slots[r]] = recurrence_.stored(carried);
  }

  const LinearAttnCall& call_;
  const LinearAttnBatch& batch_;
  const LinearAttnPhase phase_;
  const Recurrence<Real> recurrence_;
  size_t row_size_ = 0;
  LinearAttnTruth truth_;
};

}  // namespace

LinearAttnTruth linear_attn_reference(const LinearAttnCall& call, LinearAttnPhase phase) {
  return Forward<double>(call, phase).run();
}
LinearAttnTruth linear_attn_same_precision(const LinearAttnCall& call, LinearAttnPhase phase) {
  return Forward<float>(call, phase).run();
}

}  // namespace warpweave
