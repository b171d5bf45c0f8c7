#include "text/detokenizer.h"

#include "text/tokenizer_core.h"
#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer,
                                               bool skip_special_tokens,
                                               std::span<const int32_t> context)
    : core_(&tokenizer.core()),
      skip_special_tokens_(skip_special_tokens),
      strip_start_left_(core_->decode_rules().strip_start) {
  push(context);
}

std::string IncrementalDetokenizer::push(std::span<const int32_t> ids) {
  std::string out;
  for (int32_t id : ids) append_token(id, &out);
  return out;
}

std::string IncrementalDetokenizer::flush() {
  std::string out;
  if (core_->decode_rules().mode == DecodeMode::byte_level) {
    if (!pending_.empty()) emit(kReplacement, &out);
    pending_.clear();
  } else {
    end_byte_run(&out);
  }
  held_end_.clear();
  return out;
}

void IncrementalDetokenizer::append_token(int32_t id, std::string* out) {
  if (!core_->has_id(id) || (skip_special_tokens_ && core_->is_special(id))) return;
  const DecodeRules& rules = core_->decode_rules();
  const bool is_first = at_first_token_;
  at_first_token_ = false;
  if (rules.mode == DecodeMode::byte_level) return append_bytes(core_->piece(id), out);
  if (core_->is_byte_piece(id)) return append_byte_token(core_->piece(id)[0], out);
  end_byte_run(out);
  if (is_first) return emit(core_->first_piece(id), out);
  emit(core_->piece(id), out);
}

// Byte-level: whole characters go out, an unfinished one waits in pending_ (at most 3 bytes).
void IncrementalDetokenizer::append_bytes(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined += bytes;
    bytes = joined;
  }
  std::string text;
  while (!bytes.empty()) {
    size_t length = 0;
    const Utf8State state = first_utf8(bytes, &length);
    if (state == Utf8State::unfinished) break;
    text += state == Utf8State::whole ? bytes.substr(0, length) : kReplacement;
    bytes.remove_prefix(length);
  }
  pending_ = bytes;
  emit(text, out);
}

void IncrementalDetokenizer::append_byte_token(char byte, std::string* out) {
  if (run_is_broken_) return emit(kReplacement, out);
  pending_ += byte;
  size_t length = 0;
  const Utf8State state = first_utf8(std::string_view(pending_).substr(whole_bytes_), &length);
  if (state == Utf8State::whole) whole_bytes_ = pending_.size();
  if (state == Utf8State::broken) {
    run_is_broken_ = true;
    return replace_pending(out);
  }
  if (pending_.size() > kMaxHeldBytes && !hold_byte_runs_for_ever_) {
    emit(std::string_view(pending_).substr(0, whole_bytes_), out);
    pending_.erase(0, whole_bytes_);
    whole_bytes_ = 0;
  }
}

void IncrementalDetokenizer::end_byte_run(std::string* out) {
  run_is_broken_ = false;
  if (pending_.empty()) return;
  if (whole_bytes_ < pending_.size()) return replace_pending(out);
  emit(pending_, out);
  pending_.clear();
  whole_bytes_ = 0;
}

void IncrementalDetokenizer::replace_pending(std::string* out) {
  for (size_t i = 0; i < pending_.size(); ++i) emit(kReplacement, out);
  pending_.clear();
  whole_bytes_ = 0;
}

// The last step: what the decoder strips from the ends of the whole text.
void IncrementalDetokenizer::emit(std::string_view text, std::string* out) {
  const DecodeRules& rules = core_->decode_rules();
  while (strip_start_left_ > 0 && !text.empty()) {
    if (!text.starts_with(rules.strip_char)) {
      strip_start_left_ = 0;
      break;
    }
    text.remove_prefix(rules.strip_char.size());
    --strip_start_left_;
  }
  if (rules.strip_stop == 0) {
    *out += text;
    return;
  }
  held_end_ += text;
  size_t kept = held_end_.size();
  for (int i = 0; i < rules.strip_stop; ++i) {
    if (!std::string_view(held_end_).substr(0, kept).ends_with(rules.strip_char)) break;
    kept -= rules.strip_char.size();
  }
  out->append(held_end_, 0, kept);
  held_end_.erase(0, kept);
}

}  // namespace warpweave
