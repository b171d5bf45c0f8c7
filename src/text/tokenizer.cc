#include "text/tokenizer.h"

#include <utility>

#include "text/detokenizer.h"
#include "text/tokenizer_core.h"

namespace warpweave {

Tokenizer::Tokenizer(std::unique_ptr<TokenizerCore> core) : core_(std::move(core)) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               bool add_special_tokens) const {
  return core_->encode(text, add_special_tokens);
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
