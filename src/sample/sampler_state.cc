#include "sample/sampler_state.h"

#include <algorithm>
#include <limits>

namespace warpweave {

SamplerState::SamplerState(const GenerateRequest& request, std::vector<int32_t> end_ids,
                           uint64_t fallback_seed)
    : params_(request.sampling),
      end_ids_(std::move(end_ids)),
      seed_(request.sampling.seed.value_or(fallback_seed)) {
  for (const std::vector<int32_t>& word : params_.bad_words) {
    tail_tokens_ = std::max(tail_tokens_, word.size() - 1);
  }
  if (params_.repetition_penalty != 1.0f && request.input_embeds == nullptr) {  // those have no tokens
    prompt_ids_ = request.input_ids;
    std::sort(prompt_ids_.begin(), prompt_ids_.end());
    prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
  }
}

void SamplerState::mask_bad_words(std::span<float> logits) const {
  for (const std::vector<int32_t>& word : params_.bad_words) {
    const size_t before = word.size() - 1;
    if (before > output_tail_.size()) continue;
    if (!std::equal(word.begin(), word.end() - 1,
                    output_tail_.end() - static_cast<std::ptrdiff_t>(before))) {
      continue;
    }
    if (word.back() >= 0 && word.back() < static_cast<int64_t>(logits.size())) {
      logits[word.back()] = -std::numeric_limits<float>::infinity();
    }
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

bool SamplerState::needs_logit_edit() const {
  return tracks_counts() || !params_.logit_bias.empty() || !params_.allowed_token_ids.empty() ||
         !params_.bad_words.empty() || end_ids_masked() || grammar_ != nullptr;
}

bool SamplerState::only_masks() const {
  return (end_ids_masked() || grammar_ != nullptr) && !tracks_counts() && params_.logit_bias.empty() &&
         params_.allowed_token_ids.empty() && params_.bad_words.empty();
}

void SamplerState::fill_mask(std::span<uint32_t> mask, int vocab_size) const {
  if (grammar_ != nullptr) {
    grammar_->copy_mask(mask);
  } else {
    std::fill(mask.begin(), mask.end(), ~0u);
  }
  if (vocab_size % 32 != 0) mask.back() &= (1u << (vocab_size % 32)) - 1;
  if (!end_ids_masked() || (grammar_ != nullptr && grammar_->must_end())) return;
  for (const int32_t id : end_ids_) {
    if (id >= 0 && id < vocab_size) mask[id / 32] &= ~(1u << (id % 32));
  }
}

void SamplerState::edit_logits(std::span<float> logits) const {
  const auto in_vocab = [&](int32_t id) { return id >= 0 && id < static_cast<int64_t>(logits.size()); };
  if (params_.repetition_penalty != 1.0f) {
    const auto repeat = [&](int32_t id) {
      if (!in_vocab(id)) return;
      float& logit = logits[id];
      logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    };
    for (int32_t id : prompt_ids_) repeat(id);
    for (const auto& [id, count] : output_counts_) {
      if (!std::binary_search(prompt_ids_.begin(), prompt_ids_.end(), id)) repeat(id);
    }
  }
  for (const auto& [id, count] : output_counts_) {
    if (in_vocab(id)) {
      logits[id] -= params_.frequency_penalty * static_cast<float>(count) + params_.presence_penalty;
    }
  }
  for (const auto& [id, bias] : params_.logit_bias) {
    if (in_vocab(id)) logits[id] += bias;
  }
  if (grammar_ != nullptr) grammar_->apply(logits);
  // A text that is complete ends, below the minimum as well.
  if (end_ids_masked() && (grammar_ == nullptr || !grammar_->must_end())) {
    for (int32_t id : end_ids_) {
      if (in_vocab(id)) logits[id] = -std::numeric_limits<float>::infinity();
    }
  }
  mask_bad_words(logits);
  if (params_.allowed_token_ids.empty()) return;
  auto allowed = params_.allowed_token_ids.begin();
  for (size_t id = 0; id < logits.size(); ++id) {
    while (allowed != params_.allowed_token_ids.end() && *allowed < static_cast<int64_t>(id)) ++allowed;
    const bool is_allowed =
        allowed != params_.allowed_token_ids.end() && *allowed == static_cast<int64_t>(id);
    if (!is_allowed) logits[id] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace warpweave
