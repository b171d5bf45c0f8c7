#include "server/api/openai_logprobs.h"

#include <algorithm>

#include "server/api/json_write.h"

namespace warpweave::server {
namespace {

void comma(std::string* list) {
  if (!list->empty()) *list += ',';
}

size_t count_characters(std::string_view bytes) {
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// {"token":...,"logprob":...,"bytes":[...] without the end.
void append_chat_token(const TokenLogprob& token, const Tokenizer& tokenizer, std::string* out) {
  const std::string_view bytes = tokenizer.token_bytes(token.token_id);
  *out += "{\"token\":";
  append_json_string(bytes, out);
  *out += ",\"logprob\":";
  append_json_logprob(token.logprob, out);
  *out += ",\"bytes\":";
  append_json_bytes(bytes, out);
}

}  // namespace

void CompletionLogprobs::add(std::span<const PositionLogprobs> positions,
                             const Tokenizer& tokenizer) {
  for (const PositionLogprobs& position : positions) {
    const std::string_view bytes = tokenizer.token_bytes(position.chosen.token_id);
    comma(&tokens_);
    append_json_string(bytes, &tokens_);
    comma(&token_logprobs_);
    append_json_logprob(position.chosen.logprob, &token_logprobs_);
    comma(&text_offsets_);
    append_json_int(static_cast<int64_t>(offset_), &text_offsets_);
    offset_ += count_characters(bytes);
    comma(&top_logprobs_);
    if (position.top.empty()) {
      top_logprobs_ += "null";
      continue;
    }
    top_logprobs_ += '{';
    for (size_t i = 0; i < position.top.size(); ++i) {
      if (i > 0) top_logprobs_ += ',';
      append_json_string(tokenizer.token_bytes(position.top[i].token_id), &top_logprobs_);
      top_logprobs_ += ':';
      append_json_logprob(position.top[i].logprob, &top_logprobs_);
    }
    top_logprobs_ += '}';
  }
}

void CompletionLogprobs::append_json(std::string* out) const {
  *out += "{\"tokens\":[" + tokens_ + "],\"token_logprobs\":[" + token_logprobs_ +
          "],\"top_logprobs\":[" + top_logprobs_ + "],\"text_offset\":[" + text_offsets_ + "]}";
}

void CompletionLogprobs::clear() {
  tokens_.clear();
  token_logprobs_.clear();
  top_logprobs_.clear();
  text_offsets_.clear();
}

void ChatLogprobs::add(std::span<const PositionLogprobs> positions, const Tokenizer& tokenizer) {
  for (const PositionLogprobs& position : positions) {
    comma(&entries_);
    append_chat_token(position.chosen, tokenizer, &entries_);
    entries_ += ",\"top_logprobs\":[";
    for (size_t i = 0; i < position.top.size(); ++i) {
      if (i > 0) entries_ += ',';
      append_chat_token(position.top[i], tokenizer, &entries_);
      entries_ += '}';
    }
    entries_ += "]}";
  }
}

void ChatLogprobs::append_json(std::string* out) const {
  *out += "{\"content\":[" + entries_ + "],\"refusal\":null}";
}

}  // namespace warpweave::server
