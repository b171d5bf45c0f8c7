#include "server/api/openai_common.h"

#include <ctime>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/api/adapters.h"
#include "server/api/grammar_fields.h"
#include "server/api/json_write.h"
#include "server/api/limits.h"
#include "server/api/request_cost.h"

namespace warpweave::server {
namespace {

void read_stream_options(const Api& api, FieldReader* reader, OpenAiOptions* out) {
  const Json* options = reader->find("stream_options");
  if (!options) return;
  if (!options->is_object()) {
    return reader->fail(wrong_type("stream_options", "an object", *options));
  }
  FieldReader fields(*options, "stream_options.");
  fields.get("include_usage", &out->include_usage);
  fields.get("continuous_usage_stats", &out->continuous_usage_stats);
  // Obfuscation pads what a listener on the wire could measure; there is none to pad here.
  constexpr std::string_view kWithoutEffect[] = {"include_obfuscation"};
  if (!api.context().args.allow_unknown_fields) fields.refuse_unknown(kWithoutEffect);
  reader->fail(fields.status());
  reader->fail(require_stream(*options, out->stream));
}

// -1: as many tokens as the context leaves beside one of the answer.
void read_truncation(const Api& api, FieldReader* reader, OpenAiOptions* out) {
  const int most = api.info().context_len - 1;
  int tokens = 0;
  if (!reader->get("truncate_prompt_tokens", IntRange{-1, most, "-1 keeps what the context holds"},
                   &tokens)) {
    return;
  }
  if (tokens == 0) {
    return reader->fail(Status::invalid_argument(
        "truncate_prompt_tokens is 0, which leaves no prompt; ask for at least 1, or -1.",
        "truncate_prompt_tokens"));
  }
  out->truncate_prompt_tokens = tokens == -1 ? most : tokens;
}

}  // namespace

Status require_stream(const Json& stream_options, bool stream) {
  if (stream || stream_options.empty()) return {};
  return Status::invalid_argument(
      "stream_options says what a stream holds, but stream is not true; set it, or leave stream_options out.",
      "stream_options");
}

Status read_openai_options(const Api& api, FieldReader* reader, std::string_view id_prefix,
                           OpenAiOptions* out) {
  WW_ASSIGN_OR_RETURN(out->adapter, read_model(api, reader));
  out->sampling.params = api.context().default_sampling;
  out->weight_version = api.weight_version();
  SamplingBudget budget;
  read_sampling(reader, Dialect::openai, api.limits(), &budget, &out->sampling);
  reader->get("stream", &out->stream);
  read_stream_options(api, reader, out);
  read_grammar(api.grammar_context(), reader, Dialect::openai, &out->sampling.params);
  constexpr IntRange kPriority{std::numeric_limits<int>::min(), std::numeric_limits<int>::max()};
  reader->get("priority", kPriority, &out->priority);
  std::string cache_salt;
  reader->get("cache_salt", TextLimit{kMaxSaltBytes}, &cache_salt);
  std::string extra_key;
  reader->get("extra_key", TextLimit{kMaxSaltBytes}, &extra_key);
  out->cache_salt = join_salts(cache_salt, extra_key);
  reader->get("add_special_tokens", &out->add_special_tokens);
  reader->get("return_token_ids", &out->return_token_ids);
  reader->get("return_hidden_states", &out->return_hidden_states);
  read_truncation(api, reader, out);
  reader->get("rid", TextLimit{kMaxRidBytes}, &out->rid);
  if (out->rid.empty()) out->rid = random_id(id_prefix);
  return reader->status();
}

std::string answer_frame(std::string_view id, std::string_view object, std::string_view model) {
  std::string out = "\"id\":";
  append_json_string(id, &out);
  out += ",\"object\":";
  append_json_string(object, &out);
  out += ",\"created\":";
  append_json_int(std::time(nullptr), &out);
  out += ",\"model\":";
  append_json_string(model, &out);
  return out;
}

Status refuse_unknown_fields(const Api& api, FieldReader* reader) {
  if (!api.context().args.allow_unknown_fields) reader->refuse_unknown(kOpenAiFieldsWithoutEffect);
  return reader->status();
}

GenerateRequest make_request(const OpenAiOptions& options, const SamplingParams& params,
                             int choice) {
  GenerateRequest request;
  request.sampling = params;
  if (params.seed) request.sampling.seed = *params.seed + static_cast<uint64_t>(choice);
  request.priority = options.priority;
  request.cache_salt = options.cache_salt;
  request.adapter = options.adapter.weights;
  if (options.return_hidden_states) request.states = StateWish::last;
  return request;
}

void append_finish(const FinishReason* finish, std::string* out, std::string_view stop) {
  *out += "\"finish_reason\":";
  if (!finish) {
    *out += "null,\"matched_stop\":null";
    return;
  }
  switch (finish->type) {
    case FinishReason::Type::stop: append_json_string(stop, out); break;
    case FinishReason::Type::length: *out += "\"length\""; break;
    case FinishReason::Type::abort: *out += "\"abort\""; break;
  }
  *out += ",\"matched_stop\":";
  if (!finish->matched_string.empty()) {
    append_json_string(finish->matched_string, out);
  } else if (finish->matched_token >= 0) {
    append_json_int(finish->matched_token, out);
  } else {
    *out += "null";
  }
}

OpenAiBuilder::OpenAiBuilder(const OpenAiOptions& options, Frame frame)
    : frame_(answer_frame(options.rid, options.stream ? frame.chunk_object : frame.object, frame.model)),
      include_usage_(options.include_usage),
      continuous_usage_stats_(options.continuous_usage_stats),
      return_token_ids_(options.return_token_ids),
      weight_version_(options.weight_version),
      choices_per_prompt_(static_cast<size_t>(options.sampling.n)),
      prompt_ids_(std::move(frame.prompt_ids)),
      tokens_(frame.sequences),
      states_(frame.sequences) {}

void OpenAiBuilder::add(size_t index, const OutputDelta& delta, std::string* events) {
  tokens_[index] = {delta.prompt_tokens, delta.completion_tokens, delta.cached_tokens, delta.cached_kv_tokens};
  if (!delta.states.empty()) {
    states_[index] = ",\"hidden_states\":";
    append_json_floats(delta.states, &states_[index]);
  }
  if (events) {
    append_choice_events(index, delta, events);
  } else {
    collect(index, delta);
  }
}

void OpenAiBuilder::append_last_events(std::string* events) {
  if (!include_usage_) return;
  *events += "data: {";
  *events += frame_;
  *events += ",\"choices\":[],\"usage\":";
  append_usage(events);
  *events += "}\n\n";
}

std::string OpenAiBuilder::body() {
  std::string out = "{";
  out += frame_;
  out += ",\"choices\":[";
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (i > 0) out += ',';
    append_choice(i, &out);
  }
  out += "],\"usage\":";
  append_usage(&out);
  append_answer_members(&out);
  out += ",\"metadata\":{\"weight_version\":";
  append_json_string(weight_version_, &out);
  out += "}}";
  return out;
}

void OpenAiBuilder::append_ids(std::string_view name, std::string_view items, std::string* out) {
  *out += ",\"";
  *out += name;
  *out += "\":[";
  *out += items;
  *out += ']';
}

void OpenAiBuilder::begin_chunk(size_t index, std::string* out) const {
  *out += "data: {";
  *out += frame_;
  *out += ",\"choices\":[{\"index\":";
  append_json_int(static_cast<int64_t>(index), out);
  *out += ',';
}

void OpenAiBuilder::end_chunk(const FinishReason* finish, std::string* out, std::string_view stop) const {
  *out += ',';
  append_finish(finish, out, stop);
  *out += "}]";
  if (continuous_usage_stats_) {
    *out += ",\"usage\":";
    append_usage(out);
  } else if (include_usage_) {
    *out += ",\"usage\":null";
  }
  *out += "}\n\n";
}

// A prompt counts once, however many choices were made from it.
void OpenAiBuilder::append_usage(std::string* out) const {
  int64_t prompt = 0;
  int64_t completion = 0;
  int64_t cached = 0;
  std::optional<int64_t> cached_kv;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    completion += tokens_[i].completion;
    if (i % choices_per_prompt_ != 0) continue;
    prompt += tokens_[i].prompt;
    cached += tokens_[i].cached;
    if (tokens_[i].cached_kv) cached_kv = cached_kv.value_or(0) + *tokens_[i].cached_kv;
  }
  *out += "{\"prompt_tokens\":";
  append_json_int(prompt, out);
  *out += ",\"completion_tokens\":";
  append_json_int(completion, out);
  *out += ",\"total_tokens\":";
  append_json_int(prompt + completion, out);
  *out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
  append_json_int(cached, out);
  if (cached_kv) append_cached_by_layer(*cached_kv, cached, out);
  *out += "}}";
}

}  // namespace warpweave::server
