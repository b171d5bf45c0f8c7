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
  void set_grammar(std::unique_ptr<GrammarMask> grammar) {
    grammar_ = std::move(grammar);
    always_edits_ |= grammar_ != nullptr;
  }

  // Forgets the output so far and takes `output_ids` instead: at the end of every (re-)prefill.
  void reset_output(std::span<const int32_t> output_ids);
  void add_output(int32_t token_id);

  const SamplingParams& params() const { return params_; }
  bool needs_logit_edit() const { return always_edits_ || end_ids_masked(); }
  // Whether edit_logits() forbids tokens.
  bool has_mask() const;
  // The ids that are allowed next, a bit each; bits past vocab_size are 0. `mask`: (vocab_size + 31) / 32 words.
  void fill_mask(std::span<uint32_t> mask, int vocab_size) const;
  // What edit_logits() does before it forbids, in this order: each id at most once in each list.
  struct Edits {
    using List = std::vector<std::pair<int32_t, float>>;
    List repetition;  // a logit above 0 is divided by it, another one multiplied
    List minus, plus;
  };
  void collect_edits(int vocab_size, Edits& out) const;
  bool end_ids_masked() const { return output_tokens_ < params_.min_new_tokens; }
  std::span<const int32_t> end_ids() const { return end_ids_; }
  uint64_t seed() const { return seed_; }

  // What a step reads of a request whose rows are not edited, to have it near.
  static constexpr size_t kUsualBytes = 96;

  // Applies penalties, bias and the masks (ids not allowed, bad words, end ids) to a row of raw
  // logits, in place.
  void edit_logits(std::span<float> logits) const;

 private:
  bool tracks_counts() const;
  void count_output(int32_t token_id);
  bool end_ids_forbidden() const;
  // Calls forbid(id) for every last token of a bad word whose others stand at the end, inside the vocabulary.
  template <typename Forbid>
  void each_bad_word(int64_t vocab_size, const Forbid& forbid) const;

  // The first kUsualBytes.
  bool always_edits_ = false;  // whatever the number of tokens
  int output_tokens_ = 0;
  uint64_t seed_;
  size_t tail_tokens_ = 0;
  std::vector<int32_t> end_ids_;
  SamplingParams params_;

  std::vector<int32_t> prompt_ids_;  // distinct, only when the repetition penalty needs them
  std::unordered_map<int32_t, int> output_counts_;
  std::unique_ptr<GrammarMask> grammar_;
  std::vector<int32_t> output_tail_;  // the last tail_tokens_ tokens, as many as the longest bad word needs
};

}  // namespace warpweave
