#include "server/api/request_cost.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/api/limits.h"

namespace warpweave::server {
namespace {

// A limit of the tokenizer that a text passes is the text's fault, not a full queue.
Status text_failure(const Status& status, const std::string& field) {
  if (status.code() == StatusCode::resource_exhausted ||
      status.code() == StatusCode::invalid_argument) {
    return Status::invalid_argument(fmt::format("{} cannot be tokenized: {}.", field, status.message()),
                                    field);
  }
  return status;
}

Status too_long(const EncodedUpTo& beginning, std::string_view text, int context_len,
                const std::string& field) {
  const double share = static_cast<double>(text.size()) / static_cast<double>(beginning.bytes);
  return Status::invalid_argument(
      fmt::format("{} of about {:.0f} tokens (the first {} of its {} bytes make {}) is longer than the model's context "
                  "length: the model's context holds {}; shorten the prompt.",
                  field, static_cast<double>(beginning.ids.size()) * share, beginning.bytes,
                  text.size(), beginning.ids.size(), context_len),
      field);
}

// A tokenizer may have got tokens that the model's embedding was not widened for.
Status check_vocabulary(std::span<const int32_t> ids, int vocab_size, const std::string& field) {
  const auto beyond = std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id >= vocab_size; });
  if (beyond == ids.end()) return {};
  return Status::invalid_argument(
      fmt::format("{} has text that the tokenizer makes token {} of, and the model has the tokens 0 to {} only: its "
                  "tokenizer does not fit it; leave that text out.",
                  field, *beyond, vocab_size - 1),
      field);
}

}  // namespace

Status check_sequences(const Api& api, size_t prompts, int n, std::string_view field) {
  const size_t sequences = prompts * static_cast<size_t>(n);
  if (sequences > kMaxSequences) {
    return Status::invalid_argument(
        fmt::format("{} prompts with n = {} make {} sequences, but at most {} are allowed.", prompts,
                    n, sequences, kMaxSequences),
        std::string(field));
  }
  const int queue = api.info().max_queued_requests;
  if (queue >= 0 && sequences > static_cast<size_t>(queue)) {
    return Status::invalid_argument(
        fmt::format("{} prompts with n = {} make {} sequences, but this server's queue holds {} "
                    "(--max-queued-requests); send several requests.",
                    prompts, n, sequences, queue),
        std::string(field));
  }
  return {};
}

Status PromptEncoder::count_text(size_t bytes, const std::string& field) {
  text_bytes_ += bytes;
  const size_t most = std::max(kMinRequestTextBytes, static_cast<size_t>(api_.context().args.max_body_bytes));
  if (text_bytes_ <= most) return {};
  return Status::invalid_argument(
      fmt::format(
          "The prompts up to {} have {} bytes of text, a text in many prompts counted in each, but at most {} are "
          "allowed in one request; send several requests.",
          field, text_bytes_, most),
      field);
}

Status PromptEncoder::count(size_t tokens, const std::string& field) {
  tokens_ += tokens * n_;
  const size_t most = std::max(kMaxRequestTokens, static_cast<size_t>(api_.info().context_len));
  if (tokens_ <= most) return {};
  return Status::invalid_argument(
      fmt::format("The prompts up to {} have {} tokens, each counted n times, but at most {} are "
                  "allowed in one request; send several requests.",
                  field, tokens_, most),
      field);
}

Result<std::vector<int32_t>> PromptEncoder::encode(std::string_view text, const std::string& field,
                                                   const EncodeOptions& options) {
  WW_RETURN_IF_ERROR(api_.require_tokenizer(field));
  if (text.empty()) {
    return Status::invalid_argument(fmt::format("{} is empty; send at least one token.", field), field);
  }
  WW_RETURN_IF_ERROR(count_text(text.size(), field));
  const int context_len = api_.info().context_len;
  const auto context = static_cast<size_t>(context_len);
  const size_t most = truncate_tokens_ ? context * kTruncatedContexts : context;
  Result<EncodedUpTo> encoded = api_.tokenizer()->encode_up_to(text, most, options);
  if (!encoded.ok()) return text_failure(encoded.status(), field);
  if (!encoded->whole) return too_long(*encoded, text, context_len, field);
  WW_RETURN_IF_ERROR(check_vocabulary(encoded->ids, api_.info().vocab_size, field));
  WW_RETURN_IF_ERROR(accept(&encoded->ids, field));
  return std::move(encoded->ids);
}

Status PromptEncoder::accept(std::vector<int32_t>* ids, const std::string& field) {
  if (!truncate_tokens_) return count(ids->size(), field);
  const size_t context = static_cast<size_t>(api_.info().context_len);
  const size_t most = std::max(kMaxRequestTokens, context * kTruncatedContexts);
  whole_tokens_ += ids->size();
  if (whole_tokens_ > most) {
    return Status::invalid_argument(
        fmt::format("The prompts up to {} have {} tokens before truncate_prompt_tokens cuts them, but at most {} are "
                    "allowed in one request; send several requests.", field, whole_tokens_, most),
        field);
  }
  if (ids->size() > static_cast<size_t>(*truncate_tokens_)) {
    if (kept_ == KeptEnd::beginning) ids->resize(static_cast<size_t>(*truncate_tokens_));
    else ids->erase(ids->begin(), ids->end() - *truncate_tokens_);
  }
  return count(ids->size(), field);
}

Result<std::vector<int32_t>> encode_text(const Api& api, std::string_view text,
                                         const std::string& field, const EncodeOptions& options) {
  const size_t most = std::max(kMinTokenizeTokens, static_cast<size_t>(api.info().context_len));
  Result<EncodedUpTo> encoded = api.tokenizer()->encode_up_to(text, most, options);
  if (!encoded.ok()) return text_failure(encoded.status(), field);
  if (!encoded->whole) {
    return Status::invalid_argument(
        fmt::format("The first {} of the {} bytes of {} make {} tokens, but at most {} are counted "
                    "in one text; send it in parts.",
                    encoded->bytes, text.size(), field, encoded->ids.size(), most),
        field);
  }
  return std::move(encoded->ids);
}

Status fit_to_logprob_limit(const Api& api, bool default_length,
                            std::vector<GenerateRequest>* requests) {
  int64_t prompt_values = 0;
  int64_t new_values = 0;      // with max_new_tokens as it is
  int64_t values_per_step = 0;
  const auto values_of = [](const GenerateRequest& request) {
    return 1 + int64_t{request.top_logprobs_num} +
           static_cast<int64_t>(request.token_ids_logprob.size());
  };
  for (const GenerateRequest& request : *requests) {
    if (!request.return_logprob) continue;
    const int64_t values = values_of(request);
    if (request.logprob_start_len >= 0) {
      prompt_values +=
          values * (static_cast<int64_t>(request.input_ids.size()) - request.logprob_start_len);
    }
    new_values += values * request.sampling.max_new_tokens;
    values_per_step += values;
  }
  const int64_t limit = api.context().args.max_logprob_values;
  if (prompt_values + new_values <= limit) return {};
  const int64_t room = (limit - prompt_values) / std::max<int64_t>(values_per_step, 1);
  int min_new_tokens = 1;
  for (const GenerateRequest& request : *requests) {
    min_new_tokens = std::max(min_new_tokens, request.sampling.min_new_tokens);
  }
  if (!default_length || room < min_new_tokens) {
    return Status::invalid_argument(
        fmt::format("This request may return {} log-probabilities ({} of prompts, {} of new tokens, "
                    "the chosen, top and listed ones of every position), but at most {} are allowed "
                    "(--max-logprob-values); ask for fewer per position, fewer tokens, or send "
                    "several requests.",
                    prompt_values + new_values, prompt_values, new_values, limit),
        "logprobs");
  }
  for (GenerateRequest& request : *requests) {
    if (!request.return_logprob) continue;
    request.sampling.max_new_tokens =
        static_cast<int>(std::min<int64_t>(request.sampling.max_new_tokens, room));
  }
  return {};
}

Status check_states(const Api& api, std::span<const GenerateRequest> requests) {
  int64_t tokens = 0;
  for (const GenerateRequest& request : requests) {
    if (request.states != StateWish::each) continue;
    tokens += static_cast<int64_t>(request.input_ids.size()) + request.sampling.max_new_tokens;
  }
  const int64_t most = kMaxStateValues / std::max(api.info().hidden_size, 1);
  if (tokens <= most) return {};
  return Status::invalid_argument(
      fmt::format("This request may return the hidden states of {} tokens, prompts and new ones, but at most {} are "
                  "allowed for states of {} values; ask for fewer tokens, or send several requests.",
                  tokens, most, api.info().hidden_size),
      "return_hidden_states");
}

std::string join_salts(std::string_view cache_salt, std::string_view extra_key) {
  if (cache_salt.empty() && extra_key.empty()) return {};
  return fmt::format("{}:{}{}", cache_salt.size(), cache_salt, extra_key);
}

}  // namespace warpweave::server
