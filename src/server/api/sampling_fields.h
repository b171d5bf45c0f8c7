// The sampling fields of request bodies: one table of names, types and ranges for both dialects,
// and one of the fields that would change the answer but are not supported here.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>

#include "server/api/field_reader.h"
#include "server/api/sampling_budget.h"
#include "text/tokenizer.h"
#include "warpweave/engine.h"

namespace warpweave::server {

enum class Dialect {
  native,  // sampling_params of /generate: max_new_tokens, min_new_tokens, sampling_seed
  openai,  // max_tokens or max_completion_tokens, min_tokens, seed
};

struct SamplingFields {
  SamplingParams params;
  std::optional<int> max_new_tokens;  // as asked; see fit_to_context
  int default_new_tokens = 128;       // when nothing is asked; shrinks to the context
  int n = 1;
};

// What the model and server bring to the checks.
struct ModelLimits {
  int vocab_size = 0;
  int context_len = 0;
  const Tokenizer* tokenizer = nullptr;  // stop strings and bad words need it
};

// Reads into `out`, which holds the defaults. Failures are in reader->status(). `budget`: of the body.
void read_sampling(FieldReader* reader, Dialect dialect, const ModelLimits& limits, SamplingBudget* budget,
                   SamplingFields* out);

// Fields that by their meaning change no answer: bookkeeping of clients and of other servers. They
// pass; docs/use.md lists them.
inline constexpr std::string_view kOpenAiFieldsWithoutEffect[] = {
    "metadata", "prompt_cache_key", "prompt_cache_retention",
    "request_id", "safety_identifier", "service_tier", "store", "user", "verbosity"};
inline constexpr std::string_view kNativeFieldsWithoutEffect[] = {"log_metrics", "metadata",
                                                                  "no_logs", "user"};

// Refuses fields that mean something elsewhere and would be ignored here. `own`: those that this endpoint has.
void refuse_unsupported(FieldReader* reader, std::initializer_list<std::string_view> own = {});

// Sets max_new_tokens in fields.params for a prompt: what was asked, or the default, cut to the
// room the context leaves. A request that cannot fit is refused with both numbers.
Result<SamplingParams> fit_to_context(const SamplingFields& fields, size_t prompt_tokens,
                                      int context_len, Dialect dialect);

}  // namespace warpweave::server
