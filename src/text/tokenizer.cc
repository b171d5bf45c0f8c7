#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/detokenizer.h"
#include "text/tokenizer_core.h"

namespace warpweave {
namespace {

// Ordinary text has about four bytes a token: most texts that fit are encoded once.
constexpr size_t kFirstBytesPerToken = 8;
constexpr size_t kFirstBytes = 1024;

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<TokenizerCore> core) : core_(std::move(core)) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               bool add_special_tokens) const {
  return core_->encode(text, {.add_special_tokens = add_special_tokens});
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  return core_->encode(text, options);
}

Result<EncodedUpTo> Tokenizer::encode_up_to(std::string_view text, size_t max_tokens,
                                            const EncodeOptions& options) const {
  // Beginnings, each twice as long as the one before, so that a text of few tokens for its length
  // costs no more than twice its own.
  for (size_t bytes = max_tokens * kFirstBytesPerToken + kFirstBytes;
       bytes < text.size() / 2; bytes *= 2) {
    while (bytes > 0 && (text[bytes] & 0xC0) == 0x80) --bytes;  // a character's border
    EncodeOptions of_beginning = options;
    of_beginning.literal_at = options.literal_at.first(static_cast<size_t>(
        std::upper_bound(options.literal_at.begin(), options.literal_at.end(), bytes) -
        options.literal_at.begin()));
    WW_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                        core_->encode(text.substr(0, bytes), of_beginning));
    // What follows changes the last tokens of a beginning, never half of them.
    if (ids.size() > 2 * max_tokens + kFirstBytes) return EncodedUpTo{std::move(ids), bytes, false};
  }
  WW_ASSIGN_OR_RETURN(std::vector<int32_t> ids, core_->encode(text, options));
  return EncodedUpTo{std::move(ids), text.size(), true};
}

std::vector<int32_t> Tokenizer::with_special_tokens(std::span<const int32_t> ids) const {
  std::vector<int32_t> out = core_->ids_before();
  out.insert(out.end(), ids.begin(), ids.end());
  out.insert(out.end(), core_->ids_after().begin(), core_->ids_after().end());
  return out;
}

Result<EncodedPair> Tokenizer::join_pair(std::span<const int32_t> first, std::span<const int32_t> second) const {
  if (core_->pair().empty()) {
    return Status::unsupported("the post_processor of tokenizer.json does not say how two texts are joined",
                               "post_processor");
  }
  EncodedPair out;
  int types_of_first = 0;
  for (const PairPart& part : core_->pair()) {
    const std::span<const int32_t> ids = part.text == PairPart::Text::none    ? std::span<const int32_t>(part.ids)
                                         : part.text == PairPart::Text::first ? first
                                                                              : second;
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    if (!part.of_second) types_of_first = static_cast<int>(out.ids.size());
  }
  out.second_text_at = types_of_first;
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  IncrementalDetokenizer detokenizer(*this, skip_special_tokens);
  detokenizer.hold_byte_runs_for_ever_ = true;
  std::string text = detokenizer.push(ids);
  text += detokenizer.flush();
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return core_->has_id(id) ? core_->piece(id) : std::string_view();
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  return core_->token_to_id(token);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  const std::optional<std::string_view> token = core_->token_text(id);
  if (!token) return std::nullopt;
  return std::string(*token);
}

int Tokenizer::vocab_size() const { return core_->vocab_size(); }
bool Tokenizer::is_special(int32_t id) const { return core_->is_special(id); }
std::optional<int32_t> Tokenizer::bos_id() const { return core_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return core_->eos_id; }
std::optional<int32_t> Tokenizer::pad_id() const { return core_->pad_id; }
std::optional<int32_t> Tokenizer::unk_id() const { return core_->unk_id; }

}  // namespace warpweave
