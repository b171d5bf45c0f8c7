#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/float16.h"
#include "linear/testing/case.h"

namespace warpweave::testing_linear {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int64_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

void store(std::byte* memory, DType dtype, int64_t at, float value) {
  if (dtype == DType::f32) {
    std::memcpy(memory + at * 4, &value, 4);
    return;
  }
  const uint16_t bits = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
  std::memcpy(memory + at * 2, &bits, 2);
}

double load(const std::byte* memory, DType dtype, int64_t at) {
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, memory + at * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, memory + at * 2, 2);
  return dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

std::vector<std::byte> filled(int64_t elements, DType dtype, float value) {
  std::vector<std::byte> memory(elements * bytes_of(dtype));
  for (int64_t i = 0; i < elements; ++i) store(memory.data(), dtype, i, value);
  return memory;
}

}  // namespace

LinearAttnProblem::LinearAttnProblem(const LinearAttnCase& c) : case_(c), random_state_(c.seed * 0x9e3779b97f4a7c15u + 1) {
  call_.shape = c.shape;
  call_.batch = &batch_;
  make_batch();
  make_starts();
  if (c.checkpoints) make_checkpoints();
  if (c.phase == LinearAttnPhase::target_verify) make_tree();
  make_inputs();
  make_states();
}

double LinearAttnProblem::uniform() {  // splitmix64
  uint64_t z = random_state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
}
double LinearAttnProblem::normal() {
  return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
}
std::vector<float> LinearAttnProblem::randoms(size_t count, double scale) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(scale * normal());
  return values;
}

void LinearAttnProblem::make_batch() {
  const int gap = case_.strided ? 2 : 0;  // rows before the first request and after the last, of nobody
  indptr_.push_back(case_.phase == LinearAttnPhase::decode ? 0 : gap);
  for (int length : case_.lengths) {
    indptr_.push_back(indptr_.back() + std::abs(length));
    batch_.max_q_tokens = std::max(batch_.max_q_tokens, std::abs(length));
  }
  tokens_ = indptr_.back() + gap;
  batch_.num_requests = static_cast<int>(case_.lengths.size());
  batch_.num_tokens = tokens_;
  if (case_.phase != LinearAttnPhase::decode) batch_.q_indptr = indptr_.data();
}

// Slots in random order, among more than are needed.
void LinearAttnProblem::make_starts() {
  const int requests = batch_.num_requests;
  num_slots_ = 4 * requests + 3;
  std::vector<int32_t> order(num_slots_);
  std::iota(order.begin(), order.end(), 0);
  for (int i = num_slots_ - 1; i > 0; --i) std::swap(order[i], order[static_cast<int>(uniform() * (i + 1))]);
  for (int r = 0; r < requests; ++r) {
    const bool padded = case_.lengths[r] < 0;
    slots_.push_back(padded ? -1 : order[r]);
    const int kinds[] = {-1, order[r], order[requests], order[requests]};
    initial_.push_back(padded || case_.start == Start::fresh ? -1 : kinds[r % 4]);
  }
  checkpoint_slots_.assign(order.begin() + requests + 1, order.end());
  batch_.slots = slots_.data();
  if (case_.start != Start::own_slot) batch_.initial_slots = initial_.data();
}

// After the first token, in the middle and at the end, where a request has them; or after whole chunks and at the end.
void LinearAttnProblem::make_checkpoints() {
  checkpoint_indptr_.push_back(0);
  for (int length : case_.lengths) {
    std::vector<int> at;
    const int last_whole = length / kLinearAttnChunkTokens * kLinearAttnChunkTokens;
    const int first = case_.whole_chunks ? kLinearAttnChunkTokens : 1, middle = case_.whole_chunks ? last_whole : length / 2;
    for (int tokens : {first, middle, std::min(length, kLinearAttnChunkTokens), length}) {
      if (tokens >= 1 && tokens <= length) at.push_back(tokens);
    }
    std::sort(at.begin(), at.end());
    at.erase(std::unique(at.begin(), at.end()), at.end());
    if (at.size() > 2) at.erase(at.begin());
    if (at.size() > 2) at.pop_back();
    checkpoint_tokens_.insert(checkpoint_tokens_.end(), at.begin(), at.end());
    checkpoint_indptr_.push_back(static_cast<int32_t>(checkpoint_tokens_.size()));
  }
  batch_.checkpoint_indptr = checkpoint_indptr_.data();
  batch_.checkpoint_tokens = checkpoint_tokens_.data();
  batch_.checkpoint_slots = checkpoint_slots_.data();
  batch_.checkpoints_end_chunks = case_.whole_chunks;
}

void LinearAttnProblem::make_tree() {
  for (int i = 0; i < indptr_[0]; ++i) parents_.push_back(-1);
  for (size_t r = 0; r < case_.lengths.size(); ++r) {
    const int nodes = std::abs(case_.lengths[r]);
    for (int i = 0; i < nodes; ++i) {
      const int random = static_cast<int>(uniform() * (i + 1)) - 1;
      parents_.push_back(case_.tree == Tree::random ? random : case_.tree == Tree::star ? std::min(i, 1) - 1 : i - 1);
    }
    // Each request accepts something else: nothing, its last node, any node.
    const int any = static_cast<int>(uniform() * nodes);
    const int choices[] = {nodes - 1, any, -1};
    accepted_.push_back(choices[r % 3]);
  }
  parents_.resize(tokens_, -1);
  if (case_.tree != Tree::chain) batch_.parents = parents_.data();
  batch_.accepted = accepted_.data();
}

// [tokens, heads, dim] of values, with gaps of NaN; rows of padded requests and of nobody are NaN, too.
LinearAttnRows LinearAttnProblem::add_rows(int heads, int dim, DType dtype, const std::vector<float>& values) {
  LinearAttnRows rows;
  rows.dtype = dtype;
  rows.head_stride = dim + (case_.strided ? 3 : 0);
  rows.token_stride = heads * rows.head_stride + (case_.strided ? 5 : 0);
  inputs_.push_back(filled(std::max<int64_t>(1, tokens_ * rows.token_stride), dtype, kNan));
  std::byte* memory = inputs_.back().data();
  for (size_t r = 0; r < case_.lengths.size(); ++r) {
    for (int64_t t = indptr_[r]; case_.lengths[r] > 0 && t < indptr_[r + 1]; ++t) {
      for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < dim; ++i) {
          store(memory, dtype, t * rows.token_stride + h * rows.head_stride + i, values[(t * heads + h) * dim + i]);
        }
      }
    }
  }
  rows.data = memory;
  return rows;
}

std::vector<float> LinearAttnProblem::keys(int heads) {
  const int dim = case_.shape.k_dim;
  const std::vector<float> common = randoms(dim, 1);
  std::vector<float> values = randoms(tokens_ * heads * dim, 1);
  for (size_t row = 0; row < values.size() / dim; ++row) {
    double squares = 0;
    for (int i = 0; i < dim; ++i) {
      float& value = values[row * dim + i];
      if (case_.alike_keys) value = common[i] + 0.05f * value;
      squares += double{value} * value;
    }
    const double length = case_.l2norm ? 0.5 / (0.1 + uniform()) : 1 / std::sqrt(squares);
    for (int i = 0; i < dim; ++i) values[row * dim + i] *= static_cast<float>(length);
  }
  return values;
}

std::vector<float> LinearAttnProblem::log_decays() {
  std::vector<float> values(tokens_ * case_.shape.v_heads * case_.shape.decay_dim());
  for (float& value : values) {
    const double u = uniform();
    int kind = static_cast<int>(case_.decay);
    if (case_.decay == Decay::mixed) kind = static_cast<int>(uniform() * 4);
    value = static_cast<float>(kind == 0   ? -0.01 - 1.99 * u
                               : kind == 1 ? (u < 0.25 ? 0.0 : -1e-4 * u)
                               : kind == 2 ? -5 - 55 * u
                                           : -200.0);
  }
  return values;
}

void LinearAttnProblem::make_inputs() {
  const LinearAttnShape& s = case_.shape;
  inputs_.reserve(16);  // pointers into the elements stay
  const auto floats = [this](std::vector<float> values) {
    inputs_.emplace_back(values.size() * 4);
    std::memcpy(inputs_.back().data(), values.data(), values.size() * 4);
    return reinterpret_cast<const float*>(inputs_.back().data());
  };
  if (case_.conv) {
    conv_.x = add_rows(1, s.conv_channels(), case_.activation, randoms(tokens_ * s.conv_channels(), 1));
    conv_.width = case_.conv_width;
    conv_.weight = floats(randoms(s.conv_channels() * case_.conv_width, 0.5));
    if (case_.conv_bias) conv_.bias = floats(randoms(s.conv_channels(), 0.3));
    if (case_.v_weight) {
      const int taps = s.v_heads * s.v_dim * case_.conv_width;
      conv_.v_weight = add_rows(1, taps, case_.activation, randoms(tokens_ * taps, 0.5));
    }
    conv_.state_dtype = case_.state;
    call_.conv = &conv_;
  } else {
    call_.q = add_rows(s.k_heads, s.k_dim, case_.activation, randoms(tokens_ * s.k_heads * s.k_dim, 1));
    call_.k = add_rows(s.k_heads, s.k_dim, case_.activation, keys(s.k_heads));
    call_.v = add_rows(s.v_heads, s.v_dim, case_.activation, randoms(tokens_ * s.v_heads * s.v_dim, 1));
  }
  if (case_.gates) {
    gates_.a = add_rows(s.v_heads, s.decay_dim(), case_.activation, randoms(tokens_ * s.v_heads * s.decay_dim(), 3));
    gates_.b = add_rows(s.v_heads, 1, case_.activation, randoms(tokens_ * s.v_heads, 2));
    gates_.a_log = floats(randoms(s.v_heads, 1.5));
    gates_.dt_bias = floats(randoms(s.v_heads * s.decay_dim(), 2));
    call_.gates = &gates_;
  } else {
    std::vector<float> beta(tokens_ * s.v_heads);
    for (float& value : beta) value = static_cast<float>(std::clamp(1.2 * uniform() - 0.1, 0.0, 1.0));
    call_.g = add_rows(s.v_heads, s.decay_dim(), DType::f32, log_decays());
    call_.beta = add_rows(s.v_heads, 1, DType::f32, beta);
  }
  if (case_.norm) {
    norm_.z = add_rows(s.v_heads, s.v_dim, case_.activation, randoms(tokens_ * s.v_heads * s.v_dim, 1));
    norm_.weight = floats(randoms(s.v_dim, 1));
    norm_.gate = case_.norm_gate;
    call_.norm = &norm_;
  }
  call_.exact = case_.exact;
  call_.same_bits_drafted = case_.same_bits_drafted;
  call_.any_form = case_.any_form;
  call_.l2norm = case_.l2norm || case_.conv;
  call_.scale = 1 / std::sqrt(static_cast<float>(s.k_dim));
}

void LinearAttnProblem::make_states() {
  const LinearAttnShape& s = case_.shape;
  const int gap = case_.strided ? 16 : 0;
  call_.state.dtype = case_.state;
  call_.state.head_stride = int64_t{s.v_dim} * s.k_dim + gap;
  call_.state.slot_stride = s.v_heads * call_.state.head_stride + gap;
  state_ = filled(num_slots_ * call_.state.slot_stride, case_.state, kNan);
  conv_.slot_stride = int64_t{s.conv_channels()} * (conv_.width - 1) + gap;
  if (case_.conv) conv_state_ = filled(num_slots_ * conv_.slot_stride, case_.state, kNan);
  for (int r = 0; r < batch_.num_requests; ++r) {
    const int slot = batch_.initial_slots != nullptr ? initial_[r] : slots_[r];
    if (slot < 0) continue;
    for (int h = 0; h < s.v_heads; ++h) {
      for (int i = 0; i < s.v_dim * s.k_dim; ++i) {
        store(state_.data(), case_.state, slot * call_.state.slot_stride + h * call_.state.head_stride + i,
              static_cast<float>(0.3 * normal()));
      }
    }
    for (int i = 0; case_.conv && i < s.conv_channels() * (conv_.width - 1); ++i) {
      store(conv_state_.data(), case_.state, slot * conv_.slot_stride + i, static_cast<float>(normal()));
    }
  }
  call_.state.data = state_.data();
  conv_.state = conv_state_.data();
  call_.out_dtype = case_.out;
  call_.out_token_stride = s.v_heads * s.v_dim + (case_.strided ? 7 : 0);
  out_ = filled(std::max<int64_t>(1, tokens_ * call_.out_token_stride), case_.out, 1234.5f);
  call_.out = out_.data();
  out_before_ = out_;
  state_before_ = state_;
  conv_state_before_ = conv_state_;
}

double LinearAttnProblem::out_at(int64_t token, int64_t at) const {
  return load(out_.data(), case_.out, token * call_.out_token_stride + at);
}

std::vector<double> LinearAttnProblem::recurrent(int slot) const {
  const int dim = case_.shape.v_dim * case_.shape.k_dim;
  std::vector<double> values;
  for (int h = 0; h < case_.shape.v_heads; ++h) {
    for (int i = 0; i < dim; ++i) {
      values.push_back(load(state_.data(), case_.state, slot * call_.state.slot_stride + h * call_.state.head_stride + i));
    }
  }
  return values;
}

std::vector<double> LinearAttnProblem::conv_state(int slot) const {
  std::vector<double> values;
  for (int i = 0; case_.conv && i < case_.shape.conv_channels() * (conv_.width - 1); ++i) {
    values.push_back(load(conv_state_.data(), case_.state, slot * conv_.slot_stride + i));
  }
  return values;
}

std::string LinearAttnProblem::difference(const LinearAttnProblem& other) const {
  if (out_ != other.out_) return "the output";
  if (state_ != other.state_) return "the state";
  return conv_state_ != other.conv_state_ ? "the convolution's state" : "";
}

std::string LinearAttnProblem::overwritten(const std::map<int, LinearAttnSlotState>& written, bool out_too) const {
  const LinearAttnShape& s = case_.shape;
  const int64_t size = bytes_of(case_.state);
  for (int64_t byte = 0; byte < state_bytes(); ++byte) {
    if (state_[byte] == state_before_[byte]) continue;
    const int64_t at = byte / size, slot = at / call_.state.slot_stride, in_slot = at % call_.state.slot_stride;
    const int64_t head = in_slot / call_.state.head_stride, in_head = in_slot % call_.state.head_stride;
    if (written.count(static_cast<int>(slot)) == 0 || head >= s.v_heads || in_head >= s.v_dim * s.k_dim) {
      return fmt::format("state of slot {} was written (element {})", slot, in_slot);
    }
  }
  for (int64_t byte = 0; byte < conv_state_bytes(); ++byte) {
    if (conv_state_[byte] == conv_state_before_[byte]) continue;
    const int64_t at = byte / size, slot = at / conv_.slot_stride, in_slot = at % conv_.slot_stride;
    if (written.count(static_cast<int>(slot)) == 0 || in_slot >= s.conv_channels() * (conv_.width - 1)) {
      return fmt::format("convolution state of slot {} was written (element {})", slot, in_slot);
    }
  }
  const int64_t out_size = bytes_of(case_.out);
  for (int64_t byte = 0; byte < out_bytes(); ++byte) {
    if (out_[byte] == out_before_[byte]) continue;
    const int64_t row = byte / out_size / call_.out_token_stride, column = byte / out_size % call_.out_token_stride;
    if (!out_too || row < indptr_.front() || row >= indptr_.back() || column >= s.v_heads * s.v_dim) {
      return fmt::format("output row {}, column {} was written", row, column);
    }
  }
  return {};
}

}  // namespace warpweave::testing_linear
