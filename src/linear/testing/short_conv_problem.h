// A random call of the gated short convolution with its tensors in host memory, and what must come of it, in f64, token by
// token. For every device's test.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "linear/short_conv.h"

namespace warpweave::testing_linear {

struct ShortConvCase {
  std::string name;
  LinearAttnPhase phase = LinearAttnPhase::extend;
  int channels = 48;
  int width = 3;
  std::vector<int> lengths;      // tokens of each request; -1: a padded row
  bool bias = false;
  bool tree = false;             // parents by dice
  bool fresh = false;            // the first request begins from nothing
  std::vector<std::vector<int>> checkpoints = {};  // of each request, after so many tokens
};

inline std::vector<ShortConvCase> short_conv_cases() {
  using enum LinearAttnPhase;
  return {{.name = "prompts", .lengths = {1, 2, 3, 64, 65, 0, 130}},
          {.name = "wide, with a bias", .channels = 304, .width = 8, .lengths = {5, 9, 70}, .bias = true},
          {.name = "a new request", .width = 4, .lengths = {7, 2}, .fresh = true},
          {.name = "checkpoints", .width = 4, .lengths = {200, 3, -1, 70}, .fresh = true,
           .checkpoints = {{1, 64, 65, 66, 128, 190, 200}, {2}, {}, {63, 70}}},
          {.name = "decode", .phase = decode, .channels = 272, .lengths = {1, 1, -1, 1}},
          {.name = "shortest", .phase = decode, .width = 2, .lengths = {1, 1}, .fresh = true},
          {.name = "a chain of drafts", .phase = target_verify, .lengths = {4, 1, 64}},
          {.name = "a tree of drafts", .phase = target_verify, .width = 5, .lengths = {9, 2, 33}, .bias = true, .tree = true},
          {.name = "commit a chain", .phase = commit, .width = 4, .lengths = {4, 6, 1, 2}, .fresh = true},
          {.name = "commit a tree", .phase = commit, .width = 6, .lengths = {9, 20, 3}, .tree = true}};
}

class ShortConvProblem {
 public:
  explicit ShortConvProblem(ShortConvCase c) : case_(std::move(c)), dice_(case_.channels * 31 + case_.width) {
    int tokens = 0;
    for (const int length : case_.lengths) {
      indptr_.push_back(tokens);
      const int rows = length < 0 ? 1 : length;
      slots_.push_back(length < 0 ? -1 : kSlots - 1 - static_cast<int>(slots_.size()));
      initial_.push_back(case_.fresh && slots_.size() == 1 ? -1 : slots_.back());
      accepted_.push_back(static_cast<int>(dice_() % (rows + 1)) - 1);
      for (int i = 0; i < rows; ++i) parents_.push_back(static_cast<int>(dice_() % (i + 1)) - 1);
      tokens += rows;
    }
    indptr_.push_back(tokens);
    checkpoint_indptr_.push_back(0);
    for (const std::vector<int>& of_request : case_.checkpoints) {
      for (const int after : of_request) {
        checkpoint_tokens_.push_back(after);
        checkpoint_slots_.push_back(kSlots + static_cast<int>(checkpoint_slots_.size()));
      }
      checkpoint_indptr_.push_back(static_cast<int32_t>(checkpoint_slots_.size()));
    }
    rows_ = values(int64_t{tokens} * 3 * case_.channels);
    weight_ = values(int64_t{case_.channels} * case_.width);
    bias_ = values(case_.channels);
    state_ = values((kSlots + static_cast<int64_t>(checkpoint_slots_.size())) * slot());
    before_ = state_;
    out_.assign(int64_t{tokens} * case_.channels, 1e9f);
  }

  ShortConvCall call() {
    batch_.num_requests = static_cast<int>(case_.lengths.size());
    batch_.num_tokens = indptr_.back();
    batch_.max_q_tokens = 200;
    if (drafts()) batch_.max_q_tokens = kLinearAttnMaxVerifyNodes;
    if (case_.phase != LinearAttnPhase::decode) batch_.q_indptr = indptr_.data();
    batch_.slots = slots_.data();
    batch_.initial_slots = initial_.data();
    if (!case_.checkpoints.empty()) {
      batch_.checkpoint_indptr = checkpoint_indptr_.data();
      batch_.checkpoint_tokens = checkpoint_tokens_.data();
      batch_.checkpoint_slots = checkpoint_slots_.data();
    }
    if (case_.tree) batch_.parents = parents_.data();
    if (case_.phase == LinearAttnPhase::commit) batch_.accepted = accepted_.data();
    ShortConvCall call{.phase = case_.phase, .batch = &batch_, .channels = case_.channels, .conv = {}, .out = out_.data()};
    call.conv = {.x = {rows_.data(), DType::f32, int64_t{3} * case_.channels, 0}, .weight = weight_.data(),
                 .bias = case_.bias ? bias_.data() : nullptr, .width = case_.width, .silu = false, .state = state_.data(),
                 .slot_stride = slot()};
    return call;
  }

  // The largest distance of outputs and states from what they must be.
  double error() const {
    double worst = 0;
    std::vector<float> state = before_;
    for (size_t r = 0; r < case_.lengths.size(); ++r) {
      for (int c = 0; c < case_.channels; ++c) worst = std::max(worst, channel_error(static_cast<int>(r), c, state));
    }
    for (size_t i = 0; i < state.size(); ++i) worst = std::max(worst, std::abs(double{state[i]} - state_[i]));
    return worst;
  }

 private:
  static constexpr int kSlots = 9;

  bool drafts() const { return case_.phase == LinearAttnPhase::target_verify || case_.phase == LinearAttnPhase::commit; }
  int64_t slot() const { return int64_t{case_.channels} * (case_.width - 1); }
  std::vector<float> values(int64_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> out(count);
    for (float& x : out) x = uniform(dice_);
    return out;
  }
  double part(int request, int token, int which, int channel) const {
    return rows_[((int64_t{indptr_[request]} + token) * 3 + which) * case_.channels + channel];
  }
  int parent(int request, int token) const { return case_.tree ? parents_[indptr_[request] + token] : token - 1; }
  // u of the node `back` tokens before `token`; -1: the state's newest.
  double input(int request, int token, int back, int channel) const {
    while (back > 0 && token >= 0) {
      token = parent(request, token);
      --back;
    }
    if (token >= 0) return part(request, token, 0, channel) * part(request, token, 2, channel);
    const int tap = case_.width - 2 - back;
    return initial_[request] < 0 ? 0 : before_[initial_[request] * slot() + int64_t{channel} * (case_.width - 1) + tap];
  }

  double channel_error(int request, int channel, std::vector<float>& state) const {
    const int tokens = indptr_[request + 1] - indptr_[request];
    double worst = 0;
    for (int t = 0; t < tokens && case_.phase != LinearAttnPhase::commit; ++t) {
      double sum = case_.bias ? bias_[channel] : 0;
      for (int back = 0; back < case_.width; ++back) {
        sum += weight_[int64_t{channel} * case_.width + case_.width - 1 - back] * input(request, t, back, channel);
      }
      const double expected = slots_[request] < 0 ? 0 : sum * part(request, t, 1, channel);
      worst = std::max(worst, std::abs(expected - out_[(int64_t{indptr_[request]} + t) * case_.channels + channel]));
    }
    if (slots_[request] < 0 || case_.phase == LinearAttnPhase::target_verify) return worst;
    const int last = case_.phase == LinearAttnPhase::commit ? accepted_[request] : tokens - 1;
    leave(request, slots_[request], last, channel, state);
    for (int i = 0; !case_.checkpoints.empty() && i < static_cast<int>(case_.checkpoints[request].size()); ++i) {
      const int at = checkpoint_indptr_[request] + i;
      leave(request, checkpoint_slots_[at], checkpoint_tokens_[at] - 1, channel, state);
    }
    return worst;
  }
  // What a slot holds after node `last`.
  void leave(int request, int to, int last, int channel, std::vector<float>& state) const {
    for (int back = 0; back < case_.width - 1; ++back) {
      const int64_t at = to * slot() + int64_t{channel} * (case_.width - 1) + case_.width - 2 - back;
      state[at] = static_cast<float>(last >= 0 ? input(request, last, back, channel) : input(request, -1, back, channel));
    }
  }

  ShortConvCase case_;
  std::mt19937 dice_;
  LinearAttnBatch batch_;
  std::vector<int32_t> indptr_, slots_, initial_, accepted_, parents_;
  std::vector<int32_t> checkpoint_indptr_, checkpoint_tokens_, checkpoint_slots_;
  std::vector<float> rows_, weight_, bias_, state_, before_, out_;
};

}  // namespace warpweave::testing_linear
