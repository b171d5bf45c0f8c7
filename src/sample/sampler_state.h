// What sampling needs to remember about one request between steps.
//
// Created by the engine when a request arrives; from then on only the device thread touches it,
// so that the counts are right even when the next step was prepared before this token was known.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "sample/grammar_mask.h"
#include "warpweave/engine.h"

namespace warpweave {

class SamplerState {
 public:
  // `end_ids`: every id that would end the request (eos unless ignored, stop_token_ids); masked
  // until min_new_tokens are out. `fallback_seed` serves a request without a seed.
  SamplerState(const GenerateRequest& request, std::vector<int32_t> end_ids, uint64_t fallback_seed);

  // Constrains the output to a grammar.
  void set_grammar(std::unique_ptr<GrammarMask> grammar) { grammar_ = std::move(grammar); }

  // Forgets the output so far and takes `output_ids` instead: at the end of every (re-)prefill.
  void reset_output(std::span<const int32_t> output_ids);
  void add_output(int32_t token_id);

  const SamplingParams& params() const { return params_; }
  bool needs_logit_edit() const;
  // Whether edit_logits() forbids tokens and does nothing else; bad words and lists of allowed ids are not counted here.
  bool only_masks() const;
  // The ids that are allowed next, a bit each, where only_masks(); bits past vocab_size are 0. `mask`: (vocab_size + 31) / 32.
  void fill_mask(std::span<uint32_t> mask, int vocab_size) const;
  bool end_ids_masked() const { return output_tokens_ < params_.min_new_tokens; }
  std::span<const int32_t> end_ids() const { return end_ids_; }
  uint64_t seed() const { return seed_; }

  // Applies penalties, bias and the masks (ids not allowed, bad words, end ids) to a row of raw
  // logits, in place.
  void edit_logits(std::span<float> logits) const;

 private:
  bool tracks_counts() const;
  void count_output(int32_t token_id);
  void mask_bad_words(std::span<float> logits) const;

  SamplingParams params_;
  std::vector<int32_t> end_ids_;
  uint64_t seed_;
  int output_tokens_ = 0;
  std::vector<int32_t> prompt_ids_;  // distinct, only when the repetition penalty needs them
  std::unordered_map<int32_t, int> output_counts_;
  std::unique_ptr<GrammarMask> grammar_;
  std::vector<int32_t> output_tail_;  // the last tokens, as many as the longest bad word needs
  size_t tail_tokens_ = 0;
};

}  // namespace warpweave
