#include "engine/text_stream.h"

#include <algorithm>

#include "grammar/char_dfa.h"

namespace warpweave {
namespace {

// How much of a prompt the detokenizer needs to know whether a leading space belongs to the text.
constexpr size_t kContextTokens = 8;

}  // namespace

TextStream::TextStream(const Tokenizer* tokenizer, const SamplingParams& params,
                       std::span<const int32_t> prompt_ids)
    : stop_(params.stop), stop_regex_(params.stop_regex), keep_stop_text_(params.no_stop_trim),
      tokens_before_stop_(params.min_new_tokens) {
  for (const StopRegex& regex : stop_regex_) regex_states_.push_back(regex.found->start());
  if (tokenizer != nullptr) {
    const size_t context = std::min(prompt_ids.size(), kContextTokens);
    detokenizer_.emplace(*tokenizer, params.skip_special_tokens, prompt_ids.last(context));
  }
}

TextStream::Piece TextStream::push(int32_t token_id) {
  if (!detokenizer_) return {};
  const bool may_stop = tokens_before_stop_ <= 0;
  if (!may_stop) --tokens_before_stop_;
  return release(detokenizer_->push(token_id), may_stop);
}

// The first one that the text holds now. One that it holds too early is looked for anew in the text behind.
const std::string* TextStream::find_regex(std::string_view fresh, bool may_stop) {
  for (size_t i = 0; i < stop_regex_.size(); ++i) {
    const grammar::CharDfa& found = *stop_regex_[i].found;
    int& state = regex_states_[i];
    if (state >= 0) state = found.advance(state, fresh);
    if (state < 0 || !found.accepting(state)) continue;
    if (may_stop) return &stop_regex_[i].pattern;
    state = found.start();
  }
  return nullptr;
}

TextStream::Piece TextStream::release(std::string fresh, bool may_stop) {
  const std::string* const regex = find_regex(fresh, may_stop);
  if (stop_.empty()) return {std::move(fresh), regex != nullptr ? std::optional(*regex) : std::nullopt};
  const size_t known = pending_.size();
  pending_ += fresh;
  size_t match_at = std::string::npos;
  const std::string* matched = nullptr;
  for (const std::string& stop : stop_) {
    if (!may_stop) break;
    const size_t at = pending_.find(stop, known - std::min(known, stop.size() - 1));  // ends in what is fresh
    if (at < match_at) {
      match_at = at;
      matched = &stop;
    }
  }
  Piece piece;
  if (matched != nullptr) {
    piece.text = pending_.substr(0, match_at + (keep_stop_text_ ? matched->size() : 0));
    piece.matched_stop = *matched;
    pending_.clear();
    return piece;
  }
  if (regex != nullptr) {
    piece.text = std::move(pending_);
    piece.matched_stop = *regex;
    pending_.clear();
    return piece;
  }
  const size_t held = held_suffix_bytes();
  piece.text = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, pending_.size() - held);
  return piece;
}

size_t TextStream::held_suffix_bytes() const {
  size_t held = 0;
  for (const std::string& stop : stop_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) {
        held = n;
        break;
      }
    }
  }
  return held;
}

std::string TextStream::flush() {
  std::string rest = std::move(pending_);
  pending_.clear();
  if (detokenizer_) rest += detokenizer_->flush();
  return rest;
}

}  // namespace warpweave
