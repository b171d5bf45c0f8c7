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
    : stop_(params.stop), stop_regex_(params.stop_regex), keep_stop_text_(params.no_stop_trim) {
  for (const StopRegex& regex : stop_regex_) regex_states_.push_back(regex.found->start());
  if (tokenizer != nullptr) {
    const size_t context = std::min(prompt_ids.size(), kContextTokens);
    detokenizer_.emplace(*tokenizer, params.skip_special_tokens, prompt_ids.last(context));
  }
}

TextStream::Piece TextStream::push(int32_t token_id) {
  if (!detokenizer_) return {};
  return release(detokenizer_->push(token_id));
}

// The first one that the text holds now.
const std::string* TextStream::find_regex(std::string_view fresh) {
  for (size_t i = 0; i < stop_regex_.size(); ++i) {
    const grammar::CharDfa& found = *stop_regex_[i].found;
    int& state = regex_states_[i];
    if (state >= 0) state = found.advance(state, fresh);
    if (state >= 0 && found.accepting(state)) return &stop_regex_[i].pattern;
  }
  return nullptr;
}

TextStream::Piece TextStream::release(std::string fresh) {
  const std::string* const regex = find_regex(fresh);
  if (stop_.empty()) return {std::move(fresh), regex != nullptr ? std::optional(*regex) : std::nullopt};
  pending_ += fresh;
  size_t match_at = std::string::npos;
  const std::string* matched = nullptr;
  for (const std::string& stop : stop_) {
    const size_t at = pending_.find(stop);
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
