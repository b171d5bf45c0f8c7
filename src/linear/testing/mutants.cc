#include "linear/testing/mutants.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/float16.h"

namespace warpweave::testing_linear {
namespace {

using M = Mutation;
using Floats = std::vector<float>;

constexpr LinearAttnKernelCaps kCaps = {.name = "mutant", .gdn = true, .kda = true, .decode = true, .extend = true,
                                        .verify_chain = true, .verify_tree = true, .bf16_state = true};

float get(const void* data, DType dtype, int64_t at) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[at];
  const uint16_t bits = static_cast<const uint16_t*>(data)[at];
  return dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}
void put(void* data, DType dtype, int64_t at, float value) {
  if (dtype == DType::f32) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<uint16_t*>(data)[at] = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
}
float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

struct State {
  Floats recurrent;               // [v_heads, v_dim, k_dim]
  std::vector<Floats> window;     // [width - 1][channels]
  Floats chunk_decay;             // [v_heads, k_dim] since the chunk's start; of inverse_decays_in_chunk
};

class Mutant : public LinearAttnKernelBase {
 public:
  explicit Mutant(Mutation mutation) : mutation_(mutation) {}
  const LinearAttnKernelCaps& caps() const override { return kCaps; }
  size_t workspace_bytes(const LinearAttnShape&, const LinearAttnLimits&) const override { return 0; }

  void decode(const LinearAttnCall& call) override { run_all(call, &Mutant::run_sequence); }
  void extend(const LinearAttnCall& call) override { run_all(call, &Mutant::run_sequence); }
  void target_verify(const LinearAttnCall& call) override { run_all(call, &Mutant::run_verify); }
  void commit(const LinearAttnCall& call) override { run_all(call, &Mutant::run_commit); }

 private:
  bool is(M m) const { return mutation_ == m; }

  using RunFn = void (Mutant::*)(int, int64_t, int64_t);
  void run_all(const LinearAttnCall& call, RunFn run) {
    call_ = &call;
    shape_ = call.shape;
    batch_ = call.batch;
    for (int r = 0; r < batch_->num_requests; ++r) {
      const int64_t first = batch_->q_indptr != nullptr ? batch_->q_indptr[r] : r;
      const int64_t end = batch_->q_indptr != nullptr ? batch_->q_indptr[r + 1] : r + 1;
      if (batch_->slots[r] < 0 && !is(M::padded_row_computed)) {
        for (int64_t t = first; t < end && !is(M::padded_row_left) && run != &Mutant::run_commit; ++t) {
          store_row(t, Floats(shape_.v_heads * shape_.v_dim));
        }
        continue;
      }
      (this->*run)(r, first, end);
    }
  }

  void run_sequence(int r, int64_t first, int64_t end) {
    if (first == end && is(M::empty_request_not_carried)) return;
    State state = initial(r);
    int next = batch_->checkpoint_indptr != nullptr ? batch_->checkpoint_indptr[r] : 0;
    const int last = batch_->checkpoint_indptr != nullptr ? batch_->checkpoint_indptr[r + 1] : 0;
    const int shift = is(M::checkpoint_late) ? -1 : is(M::checkpoint_early) ? 1 : 0;
    for (int64_t t = first; t < end; ++t) {
      if (!(is(M::first_token_skipped) && t == first && end - first > 1)) step(state, t, t - first, t == end - 1);
      if (is(M::last_token_twice) && t == end - 1) step(state, t, t - first, true);
      if (next < last && batch_->checkpoint_tokens[next] == std::min(t - first + 1 + shift, end - first)) {
        if (!is(M::checkpoint_missing)) write(batch_->checkpoint_slots[next], state, true);
        ++next;
      }
    }
    write(batch_->slots[r], state, false);
    for (int i = last > 0 ? batch_->checkpoint_indptr[r] : 0; i < last; ++i) {
      if (is(M::checkpoint_of_end)) write(batch_->checkpoint_slots[i], state, true);
      if (is(M::conv_checkpoint_of_end)) write_window(batch_->checkpoint_slots[i], state);
    }
  }

  int parent(int64_t first, int node) const {
    if (batch_->parents == nullptr || is(M::tree_as_chain)) return node - 1;
    const int parent = batch_->parents[first + node];
    return is(M::tree_parent_off_by_one) && parent > 0 ? parent - 1 : parent;
  }

  void run_verify(int r, int64_t first, int64_t end) {
    const State start = initial(r);
    std::vector<State> after;
    for (int node = 0; first + node < end; ++node) {
      int before = parent(first, node);
      if (is(M::tree_from_first_root) && node > 0) before = std::max(before, 0);
      State state = before < 0 ? start : after[before];
      if (is(M::conv_ignores_tree) && node > 0) state.window = after.back().window;
      step(state, first + node, node, first + node == end - 1);
      after.push_back(std::move(state));
    }
    if (is(M::verify_writes_state)) write(batch_->slots[r], after.back(), false);
  }

  void run_commit(int r, int64_t first, int64_t end) {
    State state = initial(r);
    const auto before = state.window;
    std::vector<int> path;
    int last = is(M::commit_everything) ? static_cast<int>(end - first) - 1 : batch_->accepted[r];
    if (is(M::commit_one_less)) --last;
    for (int node = last; node >= 0; node = is(M::commit_by_index) ? node - 1 : parent(first, node)) path.push_back(node);
    std::reverse(path.begin(), path.end());
    for (int node : path) step(state, first + node, node, false, false);
    if (is(M::commit_without_conv)) state.window = before;
    write(batch_->slots[r], state, false);
  }

  int64_t state_at(int slot, int h, int row, int column) const {
    const int dv = shape_.v_dim, dk = shape_.k_dim;
    const int64_t head = is(M::head_stride_assumed) ? int64_t{dv} * dk : call_->state.head_stride;
    const int64_t slots = is(M::slot_stride_assumed) ? head * shape_.v_heads : call_->state.slot_stride;
    const int64_t in_head = is(M::state_transposed) ? int64_t{column} * dv + row : int64_t{row} * dk + column;
    return slot * slots + h * head + in_head;
  }

  State initial(int r) const {
    const int dv = shape_.v_dim, dk = shape_.k_dim;
    int slot = batch_->initial_slots != nullptr && !is(M::initial_slot_ignored) ? batch_->initial_slots[r] : batch_->slots[r];
    if (is(M::state_of_another_request)) slot = batch_->slots[0] < 0 ? slot : batch_->slots[0];
    const bool fresh = slot < 0;
    if (fresh) slot = std::max(0, batch_->slots[r]);
    State state;
    state.chunk_decay.assign(size_t(shape_.v_heads) * dk, 1);
    for (int h = 0; h < shape_.v_heads; ++h) {
      for (int i = 0; i < dv; ++i) {
        for (int c = 0; c < dk; ++c) {
          const bool zero = fresh && !is(M::fresh_request_reads_slot);
          state.recurrent.push_back(zero ? 0 : get(call_->state.data, call_->state.dtype, state_at(slot, h, i, c)));
        }
      }
    }
    if (call_->conv == nullptr) return state;
    const LinearAttnConv& conv = *call_->conv;
    for (int j = 0; j < conv.width - 1; ++j) {
      Floats row(shape_.conv_channels());
      for (int c = 0; c < shape_.conv_channels(); ++c) {
        const int column = is(M::conv_state_reversed) ? conv.width - 2 - j : j;
        const bool zero = fresh && !is(M::conv_fresh_reads_slot);
        row[c] = zero ? 0 : get(conv.state, conv.state_dtype, slot * conv.slot_stride + int64_t{c} * (conv.width - 1) + column);
      }
      state.window.push_back(std::move(row));
    }
    return state;
  }

  void write(int slot, const State& state, bool checkpoint) const {
    if (slot < 0) return;
    const int dv = shape_.v_dim, dk = shape_.k_dim;
    for (int h = 0; h < shape_.v_heads && !(is(M::state_not_written) && !checkpoint); ++h) {
      for (int i = 0; i < dv; ++i) {
        for (int c = 0; c < dk; ++c) {
          put(call_->state.data, call_->state.dtype, state_at(slot, h, i, c), state.recurrent[(size_t(h) * dv + i) * dk + c]);
        }
      }
    }
    if (!is(M::conv_state_not_written)) write_window(slot, state);
  }

  void write_window(int slot, const State& state) const {
    if (call_->conv == nullptr) return;
    const LinearAttnConv& conv = *call_->conv;
    for (int c = 0; c < shape_.conv_channels(); ++c) {
      for (int j = 0; j < conv.width - 1; ++j) {
        int column = is(M::conv_state_reversed) ? conv.width - 2 - j : j;
        if (is(M::conv_state_shifted)) column = std::max(0, column - 1);
        put(conv.state, conv.state_dtype, slot * conv.slot_stride + int64_t{c} * (conv.width - 1) + column, state.window[j][c]);
      }
    }
  }

  void store_row(int64_t token, const Floats& row) const {
    const int64_t stride = is(M::out_stride_assumed) ? shape_.v_heads * shape_.v_dim : call_->out_token_stride;
    for (size_t i = 0; i < row.size(); ++i) put(call_->out, call_->out_dtype, token * stride + i, row[i]);
  }

  Floats row_of(const LinearAttnRows& rows, int64_t token, int head, int dim, bool assume = false) const {
    Floats out(dim);
    const int64_t start = assume ? (token * shape_.k_heads + head) * dim : token * rows.token_stride + head * rows.head_stride;
    for (int i = 0; i < dim; ++i) out[i] = get(rows.data, rows.dtype, start + i);
    return out;
  }

  Floats convolve(State& state, int64_t token, bool first) const {
    const LinearAttnConv& conv = *call_->conv;
    Floats x = row_of(conv.x, token, 0, shape_.conv_channels());
    std::vector<Floats> window = state.window;
    if (is(M::conv_of_row_before) && first && token > 0) window.back() = row_of(conv.x, token - 1, 0, shape_.conv_channels());
    if (is(M::conv_state_of_call_only) && first) {
      for (Floats& row : window) std::fill(row.begin(), row.end(), 0.0f);
    }
    window.push_back(std::move(x));
    Floats out(shape_.conv_channels());
    const int v_channel = shape_.v_channel(), channels = shape_.conv_channels();
    Floats of_token;
    if (conv.v_weight.data != nullptr) {
      const int64_t from = is(M::conv_weight_of_token_before) && !first && token > 0 ? token - 1 : token;
      of_token = row_of(conv.v_weight, from, 0, (channels - v_channel) * conv.width);
    }
    for (int c = 0; c < channels; ++c) {
      const bool own = !of_token.empty() && c >= v_channel;
      const bool biased = conv.bias != nullptr && (!own || is(M::conv_bias_beside_token_weight));
      float sum = biased && !is(M::conv_bias_dropped) ? conv.bias[c] : 0;
      for (int j = 0; j < conv.width; ++j) {
        const int tap = is(M::conv_reversed) ? conv.width - 1 - j : is(M::conv_shifted) ? std::min(j + 1, conv.width - 1) : j;
        const float weight = own ? of_token[(c - v_channel) * conv.width + tap] : conv.weight[c * conv.width + tap];
        sum += weight * window[j][c];
      }
      out[c] = conv.silu && !is(M::conv_without_silu) ? sum * sigmoid(sum) : sum;
    }
    window.erase(window.begin());
    state.window = std::move(window);
    return out;
  }

  Floats decays(int64_t token, int h) const {
    const int dim = shape_.decay_dim(), decay_head = is(M::decay_of_k_head) ? h / shape_.heads_per_k() : h;
    Floats g = row_of(call_->gates != nullptr ? call_->gates->a : call_->g, token, decay_head, dim);
    for (int c = 0; c < dim; ++c) {
      if (call_->gates != nullptr) {
        const float* bias = is(M::dt_bias_dropped) ? nullptr : call_->gates->dt_bias;
        const int bias_head = is(M::dt_bias_of_first_head) ? 0 : h;
        const float x = g[c] + (bias != nullptr ? bias[bias_head * dim + c] : 0);
        const float soft = is(M::softplus_as_relu) ? std::max(x, 0.0f) : x > 20 ? x : std::log1p(std::exp(x));
        const float a_log = call_->gates->a_log[h];
        g[c] = -(is(M::a_log_not_exponentiated) ? std::abs(a_log) : std::exp(a_log)) * soft;
      }
      g[c] = is(M::decay_base_2) ? std::exp2(g[c]) : std::exp(g[c]);
      if (is(M::decay_twice)) g[c] *= g[c];
      if (is(M::decay_dropped)) g[c] = 1;
      if (is(M::decay_of_first_channel)) g[c] = g[0];
    }
    g.resize(shape_.k_dim, g[0]);
    return g;
  }

  float beta_of(int64_t token, int h) const {
    if (is(M::beta_dropped)) return 1;
    const int head = is(M::beta_of_k_head) ? h / shape_.heads_per_k() : h;
    if (call_->gates == nullptr) return row_of(call_->beta, token, head, 1)[0];
    const float b = row_of(call_->gates->b, token, head, 1)[0];
    return is(M::beta_without_sigmoid) ? b : sigmoid(b);
  }

  void normalize(Floats& x) const {
    if (!call_->l2norm && !is(M::l2norm_forced)) return;
    float sum = call_->l2norm_eps;
    for (float value : x) sum += value * value;
    if (is(M::norm_over_all_heads)) sum *= static_cast<float>(shape_.k_heads);
    for (float& value : x) value /= std::sqrt(sum);
  }

  void step(State& state, int64_t token, int64_t in_request, bool last, bool writes = true) {
    Floats channels;
    if (call_->conv != nullptr) channels = convolve(state, token, in_request == 0);
    Floats out;
    for (int h = 0; h < shape_.v_heads; ++h) {
      const Floats o = head(state, channels, {token, in_request, h, last});
      out.insert(out.end(), o.begin(), o.end());
    }
    if (writes) store_row(token, out);
  }

  struct Where { int64_t token, in_request; int h; bool last; };

  Floats head(State& state, const Floats& channels, const Where& at) const {
    const int dk = shape_.k_dim, dv = shape_.v_dim;
    const int k_head = is(M::head_map_modulo) ? at.h % shape_.k_heads : at.h / shape_.heads_per_k();
    Floats q, k, v;
    if (call_->conv != nullptr) {
      const auto part = [&](int begin, int dim) { return Floats(channels.begin() + begin, channels.begin() + begin + dim); };
      q = part(k_head * dk, dk);
      k = part((shape_.k_heads + k_head) * dk, dk);
      v = part(2 * shape_.k_heads * dk + at.h * dv, dv);
    } else {
      q = row_of(call_->q, at.token, k_head, dk, is(M::q_stride_assumed));
      k = row_of(call_->k, at.token, k_head, dk);
      v = row_of(call_->v, at.token, at.h, dv);
    }
    if (!is(M::q_not_normalized)) normalize(q);
    if (!is(M::k_not_normalized)) normalize(k);
    const bool edge = at.in_request > 0 && at.in_request % kLinearAttnChunkTokens == 0;
    Floats a = decays(is(M::decay_of_next_token) && !at.last ? at.token + 1 : at.token, at.h);
    if (is(M::decay_lost_at_chunk) && edge) std::fill(a.begin(), a.end(), 1.0f);
    float* decay = &state.chunk_decay[size_t(at.h) * dk];
    if (at.in_request % kLinearAttnChunkTokens == 0) std::fill(decay, decay + dk, 1.0f);
    const Floats before(decay, decay + dk);
    for (int c = 0; c < dk; ++c) decay[c] *= a[c];
    Floats out(dv);
    for (int turn = 0; turn < (is(M::token_twice_at_chunk) && edge ? 2 : 1); ++turn) {
      const bool skip = is(M::token_lost_at_chunk) && edge;
      for (int i = 0; i < dv; ++i) out[i] = row_step(&state.recurrent[(size_t(at.h) * dv + i) * dk], {q, k, a, before, decay}, v[i], skip ? 0 : beta_of(at.token, at.h));
    }
    if (call_->norm != nullptr) norm_and_gate(out, at);
    return out;
  }

  struct Vectors { const Floats &q, &k, &a, &before; const float* after; };

  float row_step(float* state, const Vectors& x, float v, float beta) const {
    const int dk = shape_.k_dim;
    float prediction = 0, before = 0, out = 0;
    for (int c = 0; c < dk; ++c) {
      float decayed = state[c] * (is(M::decay_after_update) ? 1 : x.a[c]);
      if (is(M::inverse_decays_in_chunk)) decayed = state[c] / x.before[c] * x.after[c];
      prediction += (is(M::prediction_before_decay) ? state[c] : decayed) * x.k[c];
      before += decayed * x.q[c];
      state[c] = decayed;
    }
    if (is(M::prediction_missing)) prediction = 0;
    const float change = is(M::beta_on_value_only) ? beta * v - prediction : beta * (v - prediction);
    for (int c = 0; c < dk; ++c) {
      state[c] += is(M::inverse_decays_in_chunk) ? change * (x.k[c] / x.after[c]) * x.after[c] : change * x.k[c];
      if (is(M::decay_after_update)) state[c] *= x.a[c];
      if (is(M::state_in_bf16)) state[c] = bf16_to_f32(f32_to_bf16(state[c]));
      out += state[c] * x.q[c];
    }
    if (is(M::output_before_update)) out = before;
    const float scale = is(M::scale_dropped) ? 1 : is(M::scale_of_v_dim) ? 1 / std::sqrt(float(shape_.v_dim)) : call_->scale;
    return scale * out;
  }

  void norm_and_gate(Floats& out, const Where& at) const {
    const LinearAttnNorm& norm = *call_->norm;
    Floats gate(shape_.v_dim, 1);
    if (norm.z.data != nullptr) {
      gate = row_of(norm.z, at.token, at.h, shape_.v_dim);
      const bool silu = (norm.gate == LinearAttnNormGate::silu) != is(M::gate_swapped);
      for (float& z : gate) z = silu ? z * sigmoid(z) : sigmoid(z);
    }
    float sum = 0;
    for (int i = 0; i < shape_.v_dim; ++i) {
      if (is(M::gate_before_norm)) out[i] *= gate[i];
      sum += out[i] * out[i];
    }
    const float length = std::sqrt((is(M::norm_by_sum) ? sum : sum / static_cast<float>(shape_.v_dim)) + norm.eps);
    for (int i = 0; i < shape_.v_dim; ++i) {
      out[i] = out[i] / length * (is(M::norm_weight_dropped) ? 1 : norm.weight[i]);
      if (!is(M::gate_before_norm)) out[i] *= gate[i];
    }
  }

  const Mutation mutation_;
  const LinearAttnCall* call_ = nullptr;
  LinearAttnShape shape_;
  const LinearAttnBatch* batch_ = nullptr;
};

}  // namespace

std::vector<Mutation> all_mutations() {
#define WW_LIST(name) Mutation::name,
  return {WW_LINEAR_MUTATIONS(WW_LIST)};
#undef WW_LIST
}

std::string_view mutation_name(Mutation mutation) {
  switch (mutation) {
#define WW_NAME(name) case Mutation::name: return #name;
    WW_LINEAR_MUTATIONS(WW_NAME)
#undef WW_NAME
  }
  return "?";
}

std::unique_ptr<LinearAttnKernelBase> make_mutant(Mutation mutation) { return std::make_unique<Mutant>(mutation); }

}  // namespace warpweave::testing_linear
