// What one request may ask for: caps that keep any single request from costing the server much.
#pragma once

#include <cstddef>
#include <cstdint>

namespace warpweave::server {

inline constexpr int kMaxChoices = 128;               // n
inline constexpr size_t kMaxSequences = 4096;         // prompts x n of one request
inline constexpr size_t kMaxRequestTokens = size_t{1} << 22;  // prompt tokens of all its sequences
// Of the texts of all prompts; --max-body-bytes counts if larger.
inline constexpr size_t kMinRequestTextBytes = size_t{4} << 20;
inline constexpr size_t kTruncatedContexts = 16;      // what truncate_prompt_tokens may cut from
inline constexpr size_t kMinTokenizeTokens = size_t{1} << 18;  // /tokenize; a longer context counts
inline constexpr size_t kMaxTemplateKwargs = 256;
inline constexpr size_t kMaxBadWords = 1024;
inline constexpr size_t kMaxMessages = 16384;         // of a chat
inline constexpr size_t kMaxContentParts = 16384;     // of one message
inline constexpr size_t kMaxTools = 1024;
inline constexpr size_t kMaxStopStrings = 64;
inline constexpr size_t kMaxStopBytes = 1024;         // of one stop string
inline constexpr size_t kMaxStopRegexes = 16;
inline constexpr size_t kMaxStopRegexStates = 2000;   // of one of them
inline constexpr size_t kMaxStopRegexCells = size_t{1} << 18;  // states x character classes, of a whole body: 1 MiB
inline constexpr size_t kMaxStopRegexWork = size_t{1} << 24;   // steps to compile all of a body
inline constexpr int64_t kMaxGrammarMs = 4000;        // to compile all grammars of a body
inline constexpr size_t kMaxSamplingBytes = size_t{64} << 20;  // of the sampling parameters of all sequences of a body
inline constexpr size_t kMaxStopTokenIds = 1024;
inline constexpr size_t kMaxStoredResponses = 256;    // of one key; see response_store.h for bytes
inline constexpr size_t kMaxRidBytes = 256;
inline constexpr size_t kMaxSaltBytes = 1024;
inline constexpr int kMaxChatTopLogprobs = 20;        // OpenAI's bound
inline constexpr int kMaxTopLogprobs = 128;           // /generate and /v1/completions
inline constexpr int64_t kMaxStateValues = int64_t{1} << 23;  // of hidden states, some 90 MB of text
inline constexpr double kMaxEmbedsValue = 1e6;        // of a number of input_embeds; none is near it
inline constexpr size_t kMaxTokenIdsLogprob = 1024;
inline constexpr size_t kMaxTextBytes = size_t{1} << 30;  // texts are bounded by the body's limit

}  // namespace warpweave::server
