#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/api/json_write.h"
#include "server/api/limits.h"
#include "server/api/openai_common.h"
#include "server/api/openai_logprobs.h"
#include "server/api/request_cost.h"
#include "server/api/requests.h"

namespace warpweave::server {
namespace {

constexpr int kDefaultMaxTokens = 16;  // OpenAI's

struct Prompt {
  std::string text;  // for echo
  std::vector<int32_t> ids;
};

struct CompletionOptions : OpenAiOptions {
  bool echo = false;
  std::string suffix;  // empty: none
  std::optional<int> logprobs;
};

class CompletionBuilder final : public OpenAiBuilder {
 public:
  // `echoes`: the text that goes before each sequence's own, or empty.
  CompletionBuilder(const Api& api, const CompletionOptions& options,
                    std::vector<std::string> echoes, std::vector<std::string> prompt_ids)
      : OpenAiBuilder(options, {"text_completion", "text_completion", options.model_name(api),
                                echoes.size(), std::move(prompt_ids)}),
        tokenizer_(*api.tokenizer()),
        with_logprobs_(options.logprobs.has_value()),
        choices_(echoes.size()) {
    for (size_t i = 0; i < echoes.size(); ++i) choices_[i].text = std::move(echoes[i]);
  }

 private:
  struct Choice {
    std::string text;  // stream: only what has yet to go out
    std::string token_ids;
    bool opened = false;  // stream: the chunk with the prompt's ids is out
    CompletionLogprobs logprobs;
    std::optional<FinishReason> finish;
  };

  void collect(size_t index, const OutputDelta& delta) override {
    Choice& choice = choices_[index];
    choice.text += delta.text;
    if (return_token_ids()) append_json_items(delta.token_ids, &choice.token_ids);
    if (with_logprobs_) {
      choice.logprobs.add(delta.input_logprobs, tokenizer_);
      choice.logprobs.add(delta.output_logprobs, tokenizer_);
    }
    if (delta.finish) choice.finish = delta.finish;
  }

  void append_choice_events(size_t index, const OutputDelta& delta, std::string* events) override {
    Choice& choice = choices_[index];
    collect(index, delta);
    if (choice.text.empty() && choice.token_ids.empty() && !with_logprobs_ && !choice.finish) return;
    begin_chunk(index, events);
    append_members(choice, events);
    append_token_ids(choice, index, !choice.opened, events);
    append_states(index, events);
    end_chunk(choice.finish ? &*choice.finish : nullptr, events);
    choice.opened = true;
    choice.text.clear();
    choice.token_ids.clear();
    choice.logprobs.clear();
  }

  void append_choice(size_t index, std::string* out) override {
    const Choice& choice = choices_[index];
    *out += "{\"index\":";
    append_json_int(static_cast<int64_t>(index), out);
    *out += ',';
    append_members(choice, out);
    append_token_ids(choice, index, /*with_prompt=*/true, out);
    append_states(index, out);
    *out += ',';
    append_finish(choice.finish ? &*choice.finish : nullptr, out);
    *out += '}';
  }

  void append_token_ids(const Choice& choice, size_t index, bool with_prompt,
                        std::string* out) const {
    if (!return_token_ids()) return;
    if (with_prompt) append_ids("prompt_token_ids", prompt_ids(index), out);
    append_ids("token_ids", choice.token_ids, out);
  }

  void append_members(const Choice& choice, std::string* out) const {
    *out += "\"text\":";
    append_json_string(choice.text, out);
    *out += ",\"logprobs\":";
    if (with_logprobs_) {
      choice.logprobs.append_json(out);
    } else {
      *out += "null";
    }
  }

  const Tokenizer& tokenizer_;
  const bool with_logprobs_;
  std::vector<Choice> choices_;
};

// Whether the gap before `suffix` can be filled in.
Status check_suffix(const Api& api) {
  const std::optional<CompletionTemplate>& markers = api.context().completion_template;
  if (!markers) {
    return Status::unsupported(
        "suffix needs a model that was trained to fill in the middle and its markers: start the server with "
        "--completion-template, or leave it out.",
        "suffix");
  }
  const std::string_view missing = markers->missing_from(*api.tokenizer());
  if (missing.empty()) return {};
  return Status::unsupported(
      fmt::format("suffix needs the marker {} of --completion-template, which this model's tokenizer lacks.", missing),
      "suffix");
}

// prompt: "text", ["text", ...], [1, 2, ...] or [[1, 2], ...].
Result<std::vector<Prompt>> read_prompts(const Api& api, const FieldReader& reader,
                                         const CompletionOptions& options) {
  const Json* value = reader.find("prompt");
  if (!value) {
    return Status::invalid_argument("prompt is missing; send a string or a list of token ids.",
                                    "prompt");
  }
  const bool is_batch = value->is_array() && !value->empty() &&
                        (value->front().is_string() || value->front().is_array());
  const size_t count = is_batch ? value->size() : 1;
  WW_RETURN_IF_ERROR(check_sequences(api, count, options.sampling.n, "n"));
  WW_RETURN_IF_ERROR(
      SamplingBudget().copy(options.sampling.params, count * static_cast<size_t>(options.sampling.n), "n"));
  PromptEncoder encoder(api, options.sampling.n, options.truncate_prompt_tokens);
  const auto read_ids = [&](const Json& item, const std::string& field,
                            std::vector<int32_t>* ids) -> Status {
    if (!item.is_array()) return wrong_type(field, "a string or a list of token ids", item);
    WW_RETURN_IF_ERROR(read_token_ids(item, field, api.info().vocab_size, item.size(), ids));
    return encoder.accept(ids, field);
  };
  const auto read_one = [&](const Json& item, const std::string& field) -> Result<Prompt> {
    Prompt prompt;
    if (item.is_string()) {
      const auto& text = item.get_ref<const std::string&>();
      const bool fills = !options.suffix.empty();
      const std::string filled = fills ? api.context().completion_template->fill(text, options.suffix) : std::string();
      WW_ASSIGN_OR_RETURN(prompt.ids, encoder.encode(fills ? std::string_view(filled) : text, field,
                                                     {.add_special_tokens = options.add_special_tokens}));
      if (options.echo && !options.truncate_prompt_tokens) prompt.text = text;
      if (!options.truncate_prompt_tokens) return prompt;
    } else {
      if (!options.suffix.empty()) {
        return Status::invalid_argument(
            "suffix is put around a prompt's text, but " + field + " holds token ids; send text.", "suffix");
      }
      WW_RETURN_IF_ERROR(read_ids(item, field, &prompt.ids));
    }
    if (options.echo) {
      prompt.text = api.tokenizer()->decode(prompt.ids, /*skip_special_tokens=*/true);
    }
    return prompt;
  };
  std::vector<Prompt> prompts;
  if (!is_batch) {
    WW_ASSIGN_OR_RETURN(prompts.emplace_back(), read_one(*value, "prompt"));
    return prompts;
  }
  for (const Json& item : *value) {
    WW_ASSIGN_OR_RETURN(prompts.emplace_back(),
                        read_one(item, fmt::format("prompt[{}]", prompts.size())));
  }
  return prompts;
}

Status read_options(const Api& api, FieldReader* reader, CompletionOptions* out) {
  WW_RETURN_IF_ERROR(read_openai_options(api, reader, "cmpl-", out));
  out->sampling.default_new_tokens = kDefaultMaxTokens;
  reader->get("echo", &out->echo);
  if (reader->get("suffix", TextLimit{kMaxTextBytes}, &out->suffix) && !out->suffix.empty()) {
    reader->fail(check_suffix(api));
    if (out->truncate_prompt_tokens) {
      reader->fail(Status::invalid_argument(
          "truncate_prompt_tokens would cut the markers around prompt and suffix; leave it out.",
          "truncate_prompt_tokens"));
    }
  }
  int logprobs = 0;
  if (reader->get("logprobs", IntRange{0, kMaxTopLogprobs}, &logprobs)) out->logprobs = logprobs;
  int best_of = out->sampling.n;
  reader->get("best_of", IntRange{1, kMaxChoices}, &best_of);
  if (best_of != out->sampling.n) {
    reader->fail(Status::unsupported(
        fmt::format("best_of is {} and n is {}, but they must be equal: choices are not ranked "
                    "here; leave best_of out.",
                    best_of, out->sampling.n),
        "best_of"));
  }
  return reader->status();
}

}  // namespace

Result<GenerationJob> parse_completion(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  const Json& json = owned.value;
  WW_RETURN_IF_ERROR(api.require_tokenizer("/v1/completions"));
  FieldReader reader(json);
  CompletionOptions options;
  WW_RETURN_IF_ERROR(read_options(api, &reader, &options));
  reader.find("prompt");
  WW_RETURN_IF_ERROR(refuse_unknown_fields(api, &reader));
  WW_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, read_prompts(api, reader, options));

  const int n = options.sampling.n;
  const size_t sequences = prompts.size() * static_cast<size_t>(n);
  GenerationJob job;
  std::vector<std::string> echoes;
  std::vector<std::string> prompt_ids;
  for (const Prompt& prompt : prompts) {
    if (options.return_token_ids) append_json_items(prompt.ids, &prompt_ids.emplace_back());
    WW_ASSIGN_OR_RETURN(const SamplingParams params,
                        fit_to_context(options.sampling, prompt.ids.size(), api.info().context_len,
                                       Dialect::openai));
    for (int choice = 0; choice < n; ++choice) {
      GenerateRequest request = make_request(options, params, choice);
      request.rid = sequence_rid(options.rid, job.requests.size(), sequences);
      request.input_ids = prompt.ids;
      request.return_logprob = options.logprobs.has_value();
      request.top_logprobs_num = options.logprobs.value_or(0);
      if (options.echo) request.logprob_start_len = 0;
      job.requests.push_back(std::move(request));
      echoes.push_back(options.echo ? prompt.text : std::string());
    }
  }
  job.stream = options.stream;
  job.group_rid = options.rid;
  WW_RETURN_IF_ERROR(fit_to_logprob_limit(api, !options.sampling.max_new_tokens, &job.requests));
  job.builder = std::make_unique<CompletionBuilder>(api, options, std::move(echoes),
                                                    std::move(prompt_ids));
  return job;
}

}  // namespace warpweave::server
