#include "server/api/sampling_fields.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/api/limits.h"

namespace warpweave::server {
namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

struct NumberField {
  std::string_view name;
  float SamplingParams::*member;
  NumberRange range;
};

constexpr NumberField kNumberFields[] = {
    {"temperature", &SamplingParams::temperature, {0, 100, false, "0 is greedy decoding"}},
    {"top_p", &SamplingParams::top_p, {0, 1, true, "1 keeps every token"}},
    {"min_p", &SamplingParams::min_p, {0, 1, false, "0 turns it off"}},
    {"frequency_penalty", &SamplingParams::frequency_penalty, {-2, 2, false, "0 turns it off"}},
    {"presence_penalty", &SamplingParams::presence_penalty, {-2, 2, false, "0 turns it off"}},
    {"repetition_penalty", &SamplingParams::repetition_penalty, {0, 2, true, "1 turns it off"}},
};

struct BoolField {
  std::string_view name;
  bool SamplingParams::*member;
};

constexpr BoolField kBoolFields[] = {
    {"ignore_eos", &SamplingParams::ignore_eos},
    {"skip_special_tokens", &SamplingParams::skip_special_tokens},
    {"no_stop_trim", &SamplingParams::no_stop_trim},
    {"include_stop_str_in_output", &SamplingParams::no_stop_trim},  // the same by another name
};

struct UnsupportedField {
  std::string_view name;
  std::string_view advice;
};

constexpr std::string_view kTextOnly = "this server takes text; leave it out";
constexpr std::string_view kNoLora =
    "adapters are for requests that generate text, which name one by lora_path or model; leave it out";

constexpr std::string_view kWebSearch = "web_search_options";  // {} asks for a search, too

constexpr UnsupportedField kUnsupportedFields[] = {
    {"lora_path", kNoLora},
    {"lora_id", kNoLora},
    {"session_params", "sessions are of /generate; equal prefixes are cached by themselves"},
    {"image_data", kTextOnly},
    {"video_data", kTextOnly},
    {"audio_data", kTextOnly},
    {"audio", kTextOnly},
    {"return_routed_experts", "leave it out"},
    {"custom_logit_processor", "use logit_bias"},
    {"custom_params", "it only serves custom_logit_processor; leave it out"},
    {"bootstrap_host", "prefill and decode run in one process here; leave it out"},
    {"use_beam_search", "use sampling with n"},
    {"prompt_logprobs", "use /generate with logprob_start_len, or echo with logprobs in /v1/completions"},
    {"chat_template", "a request brings no program; start the server with --chat-template FILE"},
    {"documents", "put them into a message"},
    {"logits_processors", "use logit_bias, allowed_token_ids or bad_words"},
    {"repetition_detection", "use repetition_penalty or frequency_penalty"},
    {"priority_boost", "use priority"},
    {"kv_transfer_params", "prefill and decode run in one process here; leave it out"},
    {"mm_processor_kwargs", kTextOnly},
    {"prediction", "leave it out"},
    {"functions", "use tools"},
    {"function_call", "use tools and tool_choice"},
    {kWebSearch, "this server searches nothing; leave it out"},
    {"background", "keep the connection open, or stream"},
    {"return_bytes", "text is answered in JSON; leave it out"},
    {"return_entropy", "compute it from top_logprobs_num; leave it out"},
};

// Values that ask for nothing: clients fill in such defaults.
bool asks_nothing(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean: return !value.get<bool>();
    case Json::value_t::string: return value.get_ref<const std::string&>().empty();
    case Json::value_t::array:
    case Json::value_t::object: return value.empty();
    default: return value.is_null();
  }
}

void read_token_limits(FieldReader* reader, Dialect dialect, SamplingFields* out) {
  const IntRange range{0, kMaxInt};
  int tokens = 0;
  if (dialect == Dialect::native) {
    if (reader->get("max_new_tokens", range, &tokens)) out->max_new_tokens = tokens;
    reader->get("min_new_tokens", range, &out->params.min_new_tokens);
    return;
  }
  if (reader->get("max_tokens", range, &tokens)) out->max_new_tokens = tokens;
  if (reader->get("max_completion_tokens", range, &tokens)) out->max_new_tokens = tokens;
  reader->get("min_tokens", range, &out->params.min_new_tokens);
}

void read_top_k(FieldReader* reader, SamplingParams* params) {
  const IntRange range{-1, kMaxInt, "use -1 to keep every token"};
  int top_k = 0;
  if (!reader->get("top_k", range, &top_k)) return;
  params->top_k = top_k == 0 ? -1 : top_k;  // 0 keeps all elsewhere too
}

void read_seed(FieldReader* reader, Dialect dialect, SamplingParams* params) {
  // Negative seeds are seeds as well: any 64 bits will do.
  const IntRange range{std::numeric_limits<int64_t>::min(), kMaxInt64};
  int64_t seed = 0;
  const auto name = dialect == Dialect::native ? "sampling_seed" : "seed";
  if (reader->get(name, range, &seed)) params->seed = static_cast<uint64_t>(seed);
}

void read_stop_regex(FieldReader* reader, const ModelLimits& limits, SamplingBudget* budget, SamplingParams* params) {
  std::vector<std::string> patterns;
  if (!reader->get_filled("stop_regex", TextLimit{kMaxStopBytes, kMaxStopRegexes}, &patterns)) return;
  const std::string field = reader->path("stop_regex");
  for (const std::string& pattern : patterns) {
    if (limits.tokenizer == nullptr) {
      return reader->fail(Status::unsupported(
          field + " needs the tokenizer, and the server runs with --skip-tokenizer-init; use stop_token_ids.", field));
    }
    Result<StopRegex> regex = budget->compile(pattern);
    if (!regex.ok()) {
      return reader->fail(Status::invalid_argument(
          fmt::format("{} cannot be used: {}.", field, regex.status().message()), field));
    }
    params->stop_regex.push_back(std::move(regex).value());
  }
}

void read_stops(FieldReader* reader, const ModelLimits& limits, SamplingBudget* budget, SamplingParams* params) {
  reader->get_filled("stop", TextLimit{kMaxStopBytes, kMaxStopStrings}, &params->stop);
  if (!params->stop.empty() && limits.tokenizer == nullptr) {
    reader->fail(Status::unsupported(
        "stop needs the tokenizer, and the server runs with --skip-tokenizer-init; use "
        "stop_token_ids.",
        reader->path("stop")));
  }
  read_stop_regex(reader, limits, budget, params);
  reader->get_token_ids("stop_token_ids", limits.vocab_size, kMaxStopTokenIds,
                        &params->stop_token_ids);
}

Status parse_token_key(std::string_view key, const std::string& field, int vocab_size, int* id) {
  int64_t number = 0;
  bool valid = !key.empty() && key.size() <= 10;
  for (char c : key) {
    valid = valid && c >= '0' && c <= '9';
    if (valid) number = number * 10 + (c - '0');
  }
  if (!valid || number >= vocab_size) {
    return Status::invalid_argument(
        fmt::format("{} has the key \"{}\", but keys must be token ids between 0 and {}.", field,
                    key.substr(0, 40), vocab_size - 1),
        field);
  }
  *id = static_cast<int>(number);
  return {};
}

void read_allowed_ids(FieldReader* reader, const ModelLimits& limits, SamplingParams* params) {
  std::vector<int32_t>& ids = params->allowed_token_ids;
  if (!reader->get_token_ids("allowed_token_ids", limits.vocab_size,
                             static_cast<size_t>(limits.vocab_size), &ids)) {
    return;
  }
  if (ids.empty()) {
    const std::string field = reader->path("allowed_token_ids");
    return reader->fail(Status::invalid_argument(
        field + " is empty, so that no token could be sampled; list at least one, or leave it out.",
        field));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

// A word counts as it begins a text and as it stands after a blank, as its tokens spell it: the last
// token of the sequence is not sampled where the ones before it stand.
void read_bad_words(FieldReader* reader, const ModelLimits& limits, SamplingParams* params) {
  std::vector<std::string> words;
  if (!reader->get_filled("bad_words", TextLimit{kMaxStopBytes, kMaxBadWords}, &words)) return;
  const std::string field = reader->path("bad_words");
  if (limits.tokenizer == nullptr) {
    return reader->fail(Status::unsupported(
        field + " needs the tokenizer, and the server runs with --skip-tokenizer-init; use "
                "logit_bias.",
        field));
  }
  params->bad_words.clear();
  for (const std::string& word : words) {
    for (const char* before : {"", " "}) {
      Result<std::vector<int32_t>> ids = limits.tokenizer->encode(before + word, false);
      if (!ids.ok()) {
        return reader->fail(Status::invalid_argument(
            fmt::format("{} cannot be tokenized: {}.", field, ids.status().message()), field));
      }
      if (!ids->empty() && (params->bad_words.empty() || params->bad_words.back() != *ids)) {
        params->bad_words.push_back(std::move(ids).value());
      }
    }
  }
}

void read_logit_bias(FieldReader* reader, const ModelLimits& limits, SamplingParams* params) {
  const Json* object = reader->find("logit_bias");
  if (!object) return;
  const std::string field = reader->path("logit_bias");
  if (!object->is_object()) {
    return reader->fail(wrong_type(field, "an object from token ids to numbers", *object));
  }
  params->logit_bias.clear();
  for (const auto& [key, value] : object->get_ref<const Json::object_t&>()) {
    int id = 0;
    Status status = parse_token_key(key, field, limits.vocab_size, &id);
    float bias = 0;
    if (status.ok()) {
      status = read_number(value, fmt::format("{}.{}", field, key), {-100, 100}, &bias);
    }
    if (!status.ok()) return reader->fail(std::move(status));
    params->logit_bias.emplace_back(id, bias);
  }
}

}  // namespace

void read_sampling(FieldReader* reader, Dialect dialect, const ModelLimits& limits, SamplingBudget* budget,
                   SamplingFields* out) {
  for (const auto& field : kNumberFields) {
    reader->get(field.name, field.range, &(out->params.*field.member));
  }
  for (const auto& field : kBoolFields) reader->get(field.name, &(out->params.*field.member));
  bool spaces = false;  // tokenizers that could put them are not served
  reader->get("spaces_between_special_tokens", &spaces);
  read_token_limits(reader, dialect, out);
  read_top_k(reader, &out->params);
  read_seed(reader, dialect, &out->params);
  read_stops(reader, limits, budget, &out->params);
  read_logit_bias(reader, limits, &out->params);
  read_allowed_ids(reader, limits, &out->params);
  read_bad_words(reader, limits, &out->params);
  reader->get("n", IntRange{1, kMaxChoices, "send several requests for more"}, &out->n);
  if (dialect == Dialect::openai) return refuse_unsupported(reader, {"lora_path"});
  refuse_unsupported(reader);
}

void refuse_unsupported(FieldReader* reader, std::initializer_list<std::string_view> own) {
  for (const auto& field : kUnsupportedFields) {
    if (std::ranges::find(own, field.name) != own.end()) continue;
    const Json* value = reader->find(field.name);
    if (!value || (asks_nothing(*value) && !(field.name == kWebSearch && value->is_object()))) continue;
    const std::string path = reader->path(field.name);
    reader->fail(
        Status::unsupported(fmt::format("{} is not supported: {}.", path, field.advice), path));
  }
}

Result<SamplingParams> fit_to_context(const SamplingFields& fields, size_t prompt_tokens,
                                      int context_len, Dialect dialect) {
  const bool native = dialect == Dialect::native;
  if (prompt_tokens == 0) {
    return Status::invalid_argument("The prompt is empty; it needs at least one token.", "prompt");
  }
  if (prompt_tokens >= static_cast<size_t>(context_len)) {
    return Status::invalid_argument(
        fmt::format("The prompt of {} tokens is longer than the model's context length: the model's context holds {}, "
                    "one of them for the answer; shorten the prompt.",
                    prompt_tokens, context_len),
        "prompt");
  }
  const int room = context_len - static_cast<int>(prompt_tokens);
  if (fields.max_new_tokens && *fields.max_new_tokens > room) {
    // Clients know a full context by these words of other servers.
    return Status::invalid_argument(
        fmt::format(
            "{} is too large. Requested token count exceeds the model's maximum context length: the prompt's "
            "{} tokens and {} new ones make {}, but the model's context holds {}; ask for at most {} new tokens "
            "or shorten the prompt.",
            native ? "max_new_tokens" : "max_tokens or max_completion_tokens", prompt_tokens, *fields.max_new_tokens,
            static_cast<int64_t>(prompt_tokens) + *fields.max_new_tokens, context_len, room),
        native ? "max_new_tokens" : "max_tokens");
  }
  SamplingParams params = fields.params;
  params.max_new_tokens =
      fields.max_new_tokens.value_or(std::min(fields.default_new_tokens, room));
  if (params.min_new_tokens > params.max_new_tokens) {
    return Status::invalid_argument(
        fmt::format("At least {} new tokens are asked for, but at most {} are allowed; lower the "
                    "minimum or raise the maximum.",
                    params.min_new_tokens, params.max_new_tokens),
        native ? "min_new_tokens" : "min_tokens");
  }
  return params;
}

}  // namespace warpweave::server
