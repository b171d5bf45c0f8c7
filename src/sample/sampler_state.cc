#include "sample/sampler_state.h"

#include <algorithm>
#include <limits>

namespace warpweave {

SamplerState::SamplerState(const GenerateRequest& request, std::vector<int32_t> end_ids,
                           uint64_t fallback_seed)
    : seed_(request.sampling.seed.value_or(fallback_seed)),
      end_ids_(std::move(end_ids)),
      params_(request.sampling) {
  always_edits_ = tracks_counts() || !params_.logit_bias.empty() || !params_.allowed_token_ids.empty() ||
                  !params_.bad_words.empty();
  for (const std::vector<int32_t>& word : params_.bad_words) {
    tail_tokens_ = std::max(tail_tokens_, word.size() - 1);
  }
  // An id that is named twice has both biases, in one edit.
  auto& bias = params_.logit_bias;
  std::ranges::stable_sort(bias, {}, &std::pair<int32_t, float>::first);
  size_t kept = 0;
  for (size_t i = 0; i < bias.size(); ++i) {
    if (kept > 0 && bias[kept - 1].first == bias[i].first) {
      bias[kept - 1].second += bias[i].second;
    } else {
      bias[kept++] = bias[i];
    }
  }
  bias.resize(kept);
  if (params_.repetition_penalty != 1.0f && request.input_embeds == nullptr) {  // those have no tokens
    prompt_ids_ = request.input_ids;
    std::sort(prompt_ids_.begin(), prompt_ids_.end());
    prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
  }
}

template <typename Forbid>
void SamplerState::each_bad_word(int64_t vocab_size, const Forbid& forbid) const {
  for (const std::vector<int32_t>& word : params_.bad_words) {
    const size_t before = word.size() - 1;
    if (before > output_tail_.size()) continue;
    if (!std::equal(word.begin(), word.end() - 1,
                    output_tail_.end() - static_cast<std::ptrdiff_t>(before))) {
      continue;
    }
    if (word.back() >= 0 && word.back() < vocab_size) forbid(word.back());
  }
}

bool SamplerState::tracks_counts() const {
  return params_.frequency_penalty != 0 || params_.presence_penalty != 0 ||
         params_.repetition_penalty != 1.0f;
}

void SamplerState::reset_output(std::span<const int32_t> output_ids) {
  output_tokens_ = 0;
  output_counts_.clear();
  output_tail_.clear();
  for (int32_t id : output_ids) count_output(id);
  if (grammar_ != nullptr) grammar_->reset(output_ids);
}

void SamplerState::add_output(int32_t token_id) {
  count_output(token_id);
  if (grammar_ != nullptr) grammar_->accept(token_id);
}

void SamplerState::count_output(int32_t token_id) {
  ++output_tokens_;
  if (tracks_counts()) ++output_counts_[token_id];
  if (tail_tokens_ == 0) return;
  if (output_tail_.size() == tail_tokens_) output_tail_.erase(output_tail_.begin());
  output_tail_.push_back(token_id);
}

bool SamplerState::has_mask() const {
  return end_ids_masked() || grammar_ != nullptr || !params_.bad_words.empty() || !params_.allowed_token_ids.empty();
}

// A text that is complete ends, below the minimum as well. After the grammar's mask was asked for.
bool SamplerState::end_ids_forbidden() const {
  return end_ids_masked() && (grammar_ == nullptr || !grammar_->must_end());
}

void SamplerState::fill_mask(std::span<uint32_t> mask, int vocab_size) const {
  const auto in_vocab = [&](int32_t id) { return id >= 0 && id < vocab_size; };
  if (grammar_ != nullptr) {
    grammar_->copy_mask(mask);
  } else {
    std::fill(mask.begin(), mask.end(), ~0u);
  }
  if (vocab_size % 32 != 0) mask.back() &= (1u << (vocab_size % 32)) - 1;
  const auto forbid = [&](int32_t id) { mask[id / 32] &= ~(1u << (id % 32)); };
  if (end_ids_forbidden()) {
    for (const int32_t id : end_ids_) {
      if (in_vocab(id)) forbid(id);
    }
  }
  each_bad_word(vocab_size, forbid);
  if (params_.allowed_token_ids.empty()) return;
  std::vector<uint32_t> allowed(mask.size());
  for (const int32_t id : params_.allowed_token_ids) {
    if (in_vocab(id)) allowed[id / 32] |= 1u << (id % 32);
  }
  for (size_t i = 0; i < mask.size(); ++i) mask[i] &= allowed[i];
}

void SamplerState::collect_edits(int vocab_size, Edits& out) const {
  out.repetition.clear();
  out.minus.clear();
  out.plus.clear();
  const auto in_vocab = [&](int32_t id) { return id >= 0 && id < vocab_size; };
  if (params_.repetition_penalty != 1.0f) {
    for (const int32_t id : prompt_ids_) {
      if (in_vocab(id)) out.repetition.emplace_back(id, params_.repetition_penalty);
    }
    for (const auto& [id, count] : output_counts_) {
      const bool known = std::binary_search(prompt_ids_.begin(), prompt_ids_.end(), id);
      if (in_vocab(id) && !known) out.repetition.emplace_back(id, params_.repetition_penalty);
    }
  }
  if (params_.frequency_penalty != 0 || params_.presence_penalty != 0) {
    for (const auto& [id, count] : output_counts_) {
      if (!in_vocab(id)) continue;
      out.minus.emplace_back(id, params_.frequency_penalty * static_cast<float>(count) + params_.presence_penalty);
    }
  }
  for (const auto& [id, bias] : params_.logit_bias) {
    if (in_vocab(id)) out.plus.emplace_back(id, bias);
  }
}

void SamplerState::edit_logits(std::span<float> logits) const {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const auto vocab_size = static_cast<int>(logits.size());
  Edits edits;
  collect_edits(vocab_size, edits);
  for (const auto& [id, penalty] : edits.repetition) {
    float& logit = logits[id];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  for (const auto& [id, minus] : edits.minus) logits[id] -= minus;
  for (const auto& [id, plus] : edits.plus) logits[id] += plus;
  if (grammar_ != nullptr) grammar_->apply(logits);
  if (end_ids_forbidden()) {
    for (const int32_t id : end_ids_) {
      if (id >= 0 && id < vocab_size) logits[id] = kNever;
    }
  }
  each_bad_word(vocab_size, [&](int32_t id) { logits[id] = kNever; });
  if (params_.allowed_token_ids.empty()) return;
  auto allowed = params_.allowed_token_ids.begin();
  for (size_t id = 0; id < logits.size(); ++id) {
    while (allowed != params_.allowed_token_ids.end() && *allowed < static_cast<int64_t>(id)) ++allowed;
    const bool is_allowed =
        allowed != params_.allowed_token_ids.end() && *allowed == static_cast<int64_t>(id);
    if (!is_allowed) logits[id] = kNever;
  }
}

}  // namespace warpweave
