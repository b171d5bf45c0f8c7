// What one request may cost, checked before the work is begun: sequences, prompt tokens,
// log-probabilities. Failures are invalid_argument and name the limit and what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_state.h"

namespace warpweave::server {

// `prompts` x `n` sequences: at most kMaxSequences, and no more than the queue ever takes.
Status check_sequences(const Api& api, size_t prompts, int n, std::string_view field);

// Which tokens of a prompt stay where it is cut: the last ones for who goes on writing, the first ones for who reads
// all.
enum class KeptEnd { end, beginning };

// The prompts of one request to token ids. A text is tokenised only as far as it takes to know that
// it does not fit the context, and all prompts together are bounded, by their bytes and their tokens. Not thread-safe.
class PromptEncoder {
 public:
  // `truncate_tokens`: keep so many tokens of each prompt.
  PromptEncoder(const Api& api, int n, std::optional<int> truncate_tokens = std::nullopt, KeptEnd kept = KeptEnd::end)
      : api_(api), n_(static_cast<size_t>(n)), truncate_tokens_(truncate_tokens), kept_(kept) {}

  Result<std::vector<int32_t>> encode(std::string_view text, const std::string& field,
                                      const EncodeOptions& options);
  // Ids that the client sent.
  Status accept(std::vector<int32_t>* ids, const std::string& field);

 private:
  Status count_text(size_t bytes, const std::string& field);
  Status count(size_t tokens, const std::string& field);

  const Api& api_;
  const size_t n_;
  const std::optional<int> truncate_tokens_;
  const KeptEnd kept_;
  size_t text_bytes_ = 0;    // of all prompts: one text may stand in many, and may have few tokens for its bytes
  size_t tokens_ = 0;        // of all sequences
  size_t whole_tokens_ = 0;  // of all prompts, before they are truncated: one text may stand in many prompts
};

// A text to ids, for an endpoint where it may be longer than the context.
Result<std::vector<int32_t>> encode_text(const Api& api, std::string_view text,
                                         const std::string& field, const EncodeOptions& options);

// Holds the log-probabilities that `requests` may make to --max-logprob-values: lowers
// max_new_tokens where that is a default of ours (`default_length`), else refuses.
Status fit_to_logprob_limit(const Api& api, bool default_length,
                            std::vector<GenerateRequest>* requests);

// Holds the values of hidden states that `requests` may return to kMaxStateValues.
Status check_states(const Api& api, std::span<const GenerateRequest> requests);

// The one string that two fields separate prefixes by; no two pairs give the same.
std::string join_salts(std::string_view cache_salt, std::string_view extra_key);

}  // namespace warpweave::server
