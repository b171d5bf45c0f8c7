#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "server/api/adapters.h"
#include "server/api/grammar_fields.h"
#include "server/api/limits.h"
#include "server/api/native_builder.h"
#include "server/api/native_session.h"
#include "server/api/request_cost.h"
#include "server/api/requests.h"

namespace warpweave::server {
namespace {

// A field that holds one value for all prompts of a batch, or a list with one for each.
class PerPrompt {
 public:
  // `value_is_list`: the values themselves are lists, so a list of lists is needed to differ.
  PerPrompt(FieldReader* reader, std::string_view name, size_t prompts, bool value_is_list = false)
      : field_(name), value_(reader->find(name)) {
    if (!value_ || !value_->is_array()) return;
    is_list_ = !value_is_list || (!value_->empty() && value_->front().is_array());
    if (is_list_ && value_->size() != prompts) {
      reader->fail(Status::invalid_argument(
          fmt::format("{} has {} items, but the request has {} prompts; send one for each.", name,
                      value_->size(), prompts),
          field_));
      value_ = nullptr;
    }
  }

  // Null when there is none.
  const Json* at(size_t prompt) const {
    if (!value_) return nullptr;
    const Json* value = is_list_ ? &(*value_)[prompt] : value_;
    return value->is_null() ? nullptr : value;
  }
  std::string path(size_t prompt) const {
    return is_list_ ? fmt::format("{}[{}]", field_, prompt) : field_;
  }

 private:
  std::string field_;
  const Json* value_;
  bool is_list_ = false;
};

using Embeds = std::shared_ptr<const std::vector<float>>;

struct Prompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<Embeds> embeds;  // of input_embeds: one for each of `ids`, which only holds places; else empty
  bool is_batch = false;
};

// Of input_embeds: a list of prompts, each a list of rows.
bool holds_prompts(const Json& embeds) {
  return embeds.is_array() && !embeds.empty() && embeds.front().is_array() && !embeds.front().empty() &&
         embeds.front().front().is_array();
}

Result<Prompts> read_texts(PromptEncoder& encoder, const Json& value) {
  constexpr EncodeOptions kWithSpecial{.add_special_tokens = true};
  Prompts prompts;
  prompts.is_batch = value.is_array();
  if (!prompts.is_batch) {
    if (!value.is_string()) return wrong_type("text", "a string or a list of strings", value);
    WW_ASSIGN_OR_RETURN(
        prompts.ids.emplace_back(),
        encoder.encode(value.get_ref<const std::string&>(), "text", kWithSpecial));
    return prompts;
  }
  for (const Json& item : value) {
    const std::string field = fmt::format("text[{}]", prompts.ids.size());
    if (!item.is_string()) return wrong_type(field, "a string", item);
    WW_ASSIGN_OR_RETURN(prompts.ids.emplace_back(),
                        encoder.encode(item.get_ref<const std::string&>(), field, kWithSpecial));
  }
  return prompts;
}

Status empty_prompt(const std::string& field) {
  return Status::invalid_argument(fmt::format("{} is empty; it needs at least one token.", field), field);
}

Result<Prompts> read_input_ids(const Api& api, PromptEncoder& encoder, const Json& value) {
  Prompts prompts;
  prompts.is_batch = value.is_array() && !value.empty() && value.front().is_array();
  const auto read_one = [&](const Json& item, const std::string& field) -> Status {
    std::vector<int32_t>& ids = prompts.ids.emplace_back();
    WW_RETURN_IF_ERROR(read_token_ids(item, field, api.info().vocab_size,
                                      std::numeric_limits<int32_t>::max(), &ids));
    if (ids.empty()) return empty_prompt(field);
    return encoder.accept(&ids, field);
  };
  if (!prompts.is_batch) {
    WW_RETURN_IF_ERROR(read_one(value, "input_ids"));
    return prompts;
  }
  for (const Json& item : value) {
    WW_RETURN_IF_ERROR(read_one(item, fmt::format("input_ids[{}]", prompts.ids.size())));
  }
  return prompts;
}

Status read_embeds_row(const Json& row, const std::string& field, size_t hidden, std::vector<float>* out) {
  if (!row.is_array()) return wrong_type(field, "a list of numbers", row);
  if (row.size() != hidden) {
    return Status::invalid_argument(
        fmt::format("{} has {} numbers, but the model's hidden size is {}.", field, row.size(), hidden), field);
  }
  for (const Json& item : row.get_ref<const Json::array_t&>()) {
    const double value = item.is_number() ? item.get<double>() : std::numeric_limits<double>::infinity();
    if (!(std::abs(value) <= kMaxEmbedsValue)) {
      return Status::invalid_argument(fmt::format("{} holds something else than numbers between -{:g} and {:g}.", field,
                                                  kMaxEmbedsValue, kMaxEmbedsValue),
                                      field);
    }
    out->push_back(static_cast<float>(value));
  }
  return {};
}

Result<Prompts> read_input_embeds(const Api& api, PromptEncoder& encoder, const Json& value) {
  Prompts prompts;
  const auto hidden = static_cast<size_t>(api.info().hidden_size);
  const auto read_one = [&](const Json& rows, const std::string& field) -> Status {
    if (!rows.is_array()) return wrong_type(field, "a list of rows", rows);
    if (rows.empty()) return empty_prompt(field);
    std::vector<int32_t>& ids = prompts.ids.emplace_back(rows.size(), 0);
    WW_RETURN_IF_ERROR(encoder.accept(&ids, field));
    std::vector<float> values;
    for (size_t i = 0; i < rows.size(); ++i) {
      WW_RETURN_IF_ERROR(read_embeds_row(rows[i], fmt::format("{}[{}]", field, i), hidden, &values));
    }
    prompts.embeds.push_back(std::make_shared<const std::vector<float>>(std::move(values)));
    return {};
  };
  prompts.is_batch = holds_prompts(value);
  if (!prompts.is_batch) {
    WW_RETURN_IF_ERROR(read_one(value, "input_embeds"));
    return prompts;
  }
  for (size_t i = 0; i < value.size(); ++i) WW_RETURN_IF_ERROR(read_one(value[i], fmt::format("input_embeds[{}]", i)));
  return prompts;
}

// Where the rows of a prompt stand: lists of time, height and width, a number for each token.
Result<std::vector<int32_t>> read_position_ids(const Json& value, const std::string& field, size_t tokens) {
  const Status wrong = Status::invalid_argument(
      fmt::format("{} must be three lists (time, height, width) of {} whole numbers each.", field, tokens),
      "position_ids");
  if (!value.is_array() || value.size() != 3) return wrong;
  std::vector<int32_t> places;
  for (const Json& axis : value) {
    if (!axis.is_array() || axis.size() != tokens) return wrong;
    for (const Json& item : axis) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > std::numeric_limits<int32_t>::max()) return wrong;
      places.push_back(static_cast<int32_t>(item.get<uint64_t>()));
    }
  }
  return places;
}

// The field that holds the prompts and how many there are; they are read when the rest is known to
// be in order.
struct PromptField {
  std::string_view name;
  const Json* value = nullptr;
  size_t count = 1;
};

Result<PromptField> find_prompts(FieldReader* reader) {
  PromptField field;
  for (const std::string_view name : {"text", "input_ids", "input_embeds"}) {
    const Json* value = reader->find(name);
    if (!value) continue;
    if (field.value) {
      return Status::invalid_argument(fmt::format("{} and {} are both given; send one of them.", field.name, name),
                                      std::string(field.name));
    }
    field = {name, value};
  }
  if (!field.value) {
    return Status::invalid_argument("The prompt is missing; send text, input_ids or input_embeds.", "text");
  }
  if (!field.value->is_array()) return field;
  if (field.value->empty()) {
    return Status::invalid_argument(
        fmt::format("{} is empty; it needs at least one item.", field.name),
        std::string(field.name));
  }
  const bool is_batch = field.name == "input_embeds" ? holds_prompts(*field.value) : !field.value->front().is_number();
  if (is_batch) field.count = field.value->size();
  return field;
}

// Reads a native request; one instance for one body.
class NativeParser {
 public:
  NativeParser(const Api& api, const Json& body, std::string_view owner) : api_(api), reader_(body), owner_(owner) {}

  Result<GenerationJob> parse() {
    WW_ASSIGN_OR_RETURN(const PromptField field, find_prompts(&reader_));
    refuse_unsupported(&reader_, {"lora_path", "session_params"});
    refuse_misplaced_grammar(&reader_);
    session_ = read_session(api_, &reader_);
    WW_RETURN_IF_ERROR(check_sequences(api_, field.count, 1, field.name));
    WW_RETURN_IF_ERROR(read_sampling_params(field.count));
    // n is one number for the whole batch: the replies of a prompt stand side by side.
    n_ = sampling_[0].n;
    for (const SamplingFields& sampling : sampling_) {
      if (sampling.n != n_) {
        return Status::invalid_argument("sampling_params.n must be the same for all prompts.",
                                        "sampling_params");
      }
    }
    WW_RETURN_IF_ERROR(check_sequences(api_, field.count, n_, "sampling_params.n"));
    WW_RETURN_IF_ERROR(read_remaining_fields());
    PromptEncoder encoder(api_, n_);
    WW_ASSIGN_OR_RETURN(Prompts prompts, read_prompts(encoder, field));
    if (session_) WW_RETURN_IF_ERROR(go_on_in_session(&prompts));
    WW_RETURN_IF_ERROR(read_request_fields(std::move(prompts.ids)));
    if (!prompts.embeds.empty()) WW_RETURN_IF_ERROR(bring_embeds(prompts.embeds));
    WW_RETURN_IF_ERROR(place_rows(prompts));
    return finish(prompts.is_batch);
  }

 private:
  Result<Prompts> read_prompts(PromptEncoder& encoder, const PromptField& field) const {
    if (field.name == "text") return read_texts(encoder, *field.value);
    if (field.name == "input_ids") return read_input_ids(api_, encoder, *field.value);
    return read_input_embeds(api_, encoder, *field.value);
  }

  // Puts before the prompt what the session has read and written.
  Status go_on_in_session(Prompts* prompts) {
    if (prompts->is_batch || n_ != 1 || !prompts->embeds.empty()) {
      return Status::invalid_argument("A request of a session has one prompt of text or input_ids, and n is 1.",
                                      "session_params");
    }
    WW_ASSIGN_OR_RETURN(std::vector<int32_t> before, api_.sessions().prefix(owner_, *session_));
    if (before.empty()) return {};
    std::vector<int32_t>& ids = prompts->ids[0];
    const bool begins_anew = api_.tokenizer() != nullptr && !ids.empty() && api_.tokenizer()->bos_id() == ids[0];
    before.insert(before.end(), ids.begin() + (begins_anew ? 1 : 0), ids.end());
    ids = std::move(before);
    return {};
  }

  // Last of all, so that what is refused here leaves the session as it was. Where the engine refuses then, for a full
  // queue, the request is not kept, but what it was to replace is forgotten.
  Status begin_turn(GenerationJob* job) {
    const GenerateRequest& request = job->requests[0];
    WW_ASSIGN_OR_RETURN(SessionStore::Begun begun,
                        api_.sessions().begin(owner_, *session_, request.rid, request.input_ids));
    job->turn = std::move(begun.turn);
    for (const std::string& rid : begun.to_abort) api_.engine().abort(rid);
    return {};
  }

  Status bring_embeds(const std::vector<Embeds>& embeds) {
    for (size_t i = 0; i < embeds.size(); ++i) {
      GenerateRequest& request = requests_[i];
      if (request.return_logprob && request.logprob_start_len >= 0) {
        return Status::invalid_argument(
            "logprob_start_len asks for log-probabilities of the prompt, and input_embeds has no "
            "tokens; leave it out.",
            "logprob_start_len");
      }
      request.input_embeds = embeds[i];
    }
    return {};
  }

  // position_ids: of one prompt, or a list for each.
  Status place_rows(const Prompts& prompts) {
    const Json* value = reader_.find("position_ids");
    if (value == nullptr) return {};
    if (prompts.is_batch && (!value->is_array() || value->size() != requests_.size())) {
      return Status::invalid_argument("position_ids must be a list for each prompt.", "position_ids");
    }
    for (size_t i = 0; i < requests_.size(); ++i) {
      const std::string field = prompts.is_batch ? fmt::format("position_ids[{}]", i) : "position_ids";
      WW_ASSIGN_OR_RETURN(std::vector<int32_t> places, read_position_ids(prompts.is_batch ? (*value)[i] : *value, field,
                                                                         requests_[i].input_ids.size()));
      requests_[i].position_ids = std::make_shared<const std::vector<int32_t>>(std::move(places));
    }
    return {};
  }

  Status read_sampling_params(size_t count) {
    const PerPrompt params(&reader_, "sampling_params", count);
    WW_RETURN_IF_ERROR(reader_.status());
    sampling_.resize(count);
    GrammarContext grammars = api_.grammar_context();
    grammars.budget = &budget_;
    for (size_t i = 0; i < count; ++i) {
      const Json* object = params.at(i);
      if (!object) continue;
      if (i > 0 && object == params.at(0)) {  // one object for all of them
        sampling_[i] = sampling_[0];
        continue;
      }
      if (!object->is_object()) return wrong_type(params.path(i), "an object", *object);
      FieldReader reader(*object, params.path(i) + ".");
      read_sampling(&reader, Dialect::native, api_.limits(), &budget_, &sampling_[i]);
      read_grammar(grammars, &reader, Dialect::native, &sampling_[i].params);
      if (!api_.context().args.allow_unknown_fields) reader.refuse_unknown();
      WW_RETURN_IF_ERROR(reader.status());
      const bool for_all = i + 1 < count && object == params.at(i + 1);
      const size_t sequences = static_cast<size_t>(sampling_[i].n) * (for_all ? count : 1);
      WW_RETURN_IF_ERROR(budget_.copy(sampling_[i].params, sequences, params.path(i)));
    }
    return {};
  }

  Status read_request_fields(std::vector<std::vector<int32_t>> prompts) {
    const size_t count = prompts.size();
    const PerPrompt return_logprob(&reader_, "return_logprob", count);
    const PerPrompt start_len(&reader_, "logprob_start_len", count);
    const PerPrompt top_num(&reader_, "top_logprobs_num", count);
    const PerPrompt token_ids(&reader_, "token_ids_logprob", count, /*value_is_list=*/true);
    const PerPrompt rid(&reader_, "rid", count);
    const PerPrompt priority(&reader_, "priority", count);
    const PerPrompt cache_salt(&reader_, "cache_salt", count);
    const PerPrompt extra_key(&reader_, "extra_key", count);
    const PerPrompt lora_path(&reader_, "lora_path", count);
    const PerPrompt hidden_states(&reader_, "return_hidden_states", count);
    WW_RETURN_IF_ERROR(reader_.status());
    const std::string group_rid = random_id("");
    for (size_t i = 0; i < count; ++i) {
      GenerateRequest request;
      WW_ASSIGN_OR_RETURN(request.sampling,
                          fit_to_context(sampling_[i], prompts[i].size(), api_.info().context_len,
                                         Dialect::native));
      request.input_ids = std::move(prompts[i]);
      request.rid = sequence_rid(group_rid, i, count);
      if (const Json* value = rid.at(i)) {
        WW_RETURN_IF_ERROR(read_string(*value, rid.path(i), kMaxRidBytes, &request.rid));
        if (request.rid.empty()) request.rid = sequence_rid(group_rid, i, count);
        else if (count > 1 && rid.path(i) == "rid") request.rid += fmt::format("-{}", i);
      }
      WW_RETURN_IF_ERROR(read_salts(cache_salt, extra_key, i, &request));
      WW_RETURN_IF_ERROR(read_adapter(lora_path, i, &request));
      if (const Json* value = priority.at(i)) {
        const IntRange range{std::numeric_limits<int>::min(), std::numeric_limits<int>::max()};
        int64_t number = 0;
        WW_RETURN_IF_ERROR(read_int(*value, priority.path(i), range, &number));
        request.priority = static_cast<int>(number);
      }
      if (const Json* value = return_logprob.at(i)) {
        WW_RETURN_IF_ERROR(read_bool(*value, return_logprob.path(i), &request.return_logprob));
      }
      if (const Json* value = hidden_states.at(i)) {
        bool wanted = false;
        WW_RETURN_IF_ERROR(read_bool(*value, hidden_states.path(i), &wanted));
        if (wanted) request.states = StateWish::each;
      }
      const IntRange starts{-1, static_cast<int64_t>(request.input_ids.size()) - 1,
                            "-1 leaves the prompt out"};
      WW_RETURN_IF_ERROR(read_logprob_int(start_len, i, starts, &request.logprob_start_len));
      WW_RETURN_IF_ERROR(
          read_logprob_int(top_num, i, {0, kMaxTopLogprobs}, &request.top_logprobs_num));
      if (const Json* value = token_ids.at(i)) {
        WW_RETURN_IF_ERROR(read_token_ids(*value, token_ids.path(i), api_.info().vocab_size,
                                          kMaxTokenIdsLogprob, &request.token_ids_logprob));
      }
      const bool lists = !request.token_ids_logprob.empty();
      if (!request.return_logprob && (lists || request.top_logprobs_num > 0)) {
        const std::string field = (lists ? token_ids : top_num).path(i);
        return Status::invalid_argument(field + " needs return_logprob to be true.", field);
      }
      requests_.push_back(std::move(request));
    }
    return {};
  }

  static Status read_salts(const PerPrompt& cache_salt, const PerPrompt& extra_key, size_t prompt,
                           GenerateRequest* request) {
    std::string salt;
    std::string key;
    for (const auto& [field, text] : {std::pair(&cache_salt, &salt), {&extra_key, &key}}) {
      const Json* value = field->at(prompt);
      if (!value) continue;
      WW_RETURN_IF_ERROR(read_string(*value, field->path(prompt), kMaxSaltBytes, text));
    }
    request->cache_salt = join_salts(salt, key);
    return {};
  }

  Status read_adapter(const PerPrompt& lora_path, size_t prompt, GenerateRequest* request) const {
    const Json* value = lora_path.at(prompt);
    std::string name;
    if (value) WW_RETURN_IF_ERROR(read_string(*value, lora_path.path(prompt), kMaxRidBytes, &name));
    if (name.empty()) return {};
    WW_ASSIGN_OR_RETURN(const AdapterInfo adapter, find_adapter(api_, name, lora_path.path(prompt)));
    request->adapter = adapter.weights;
    return {};
  }

  static Status read_logprob_int(const PerPrompt& field, size_t prompt, const IntRange& range,
                                 int* out) {
    const Json* value = field.at(prompt);
    if (!value) return {};
    int64_t number = 0;
    WW_RETURN_IF_ERROR(read_int(*value, field.path(prompt), range, &number));
    *out = static_cast<int>(number);
    return {};
  }

  // Fields that are read once the prompts are there, so that unknown ones are refused before.
  Status read_remaining_fields() {
    reply_.only_new = api_.context().args.stream_output;
    reader_.get("return_text_in_logprobs", &reply_.return_text_in_logprobs);
    reader_.get("stream", &stream_);
    for (const std::string_view name :
         {"return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob", "rid",
          "priority", "cache_salt", "extra_key", "lora_path", "return_hidden_states"}) {
      reader_.find(name);
    }
    if (!api_.context().args.allow_unknown_fields) reader_.refuse_unknown(kNativeFieldsWithoutEffect);
    return reader_.status();
  }

  Result<GenerationJob> finish(bool is_batch) {
    GenerationJob job;
    reply_.as_list = is_batch || n_ > 1;
    job.stream = stream_;
    job.group_rid = requests_.size() == 1 ? requests_[0].rid : random_id("");
    if (const Json* rid = reader_.find("rid"); rid && rid->is_string()) job.group_rid = *rid;
    if (job.group_rid.empty()) job.group_rid = random_id("");
    for (const GenerateRequest& request : requests_) {
      for (int choice = 0; choice < n_; ++choice) {
        GenerateRequest& copy = job.requests.emplace_back(request);
        copy.rid = sequence_rid(request.rid, static_cast<size_t>(choice), static_cast<size_t>(n_));
        if (copy.sampling.seed) *copy.sampling.seed += static_cast<uint64_t>(choice);
      }
    }
    const bool default_length = std::none_of(
        sampling_.begin(), sampling_.end(),
        [](const SamplingFields& sampling) { return sampling.max_new_tokens.has_value(); });
    WW_RETURN_IF_ERROR(fit_to_logprob_limit(api_, default_length, &job.requests));
    WW_RETURN_IF_ERROR(check_states(api_, job.requests));
    job.builder = make_native_builder(api_, reply_, job.requests);
    if (session_) WW_RETURN_IF_ERROR(begin_turn(&job));
    return job;
  }

  const Api& api_;
  FieldReader reader_;
  const std::string owner_;
  std::optional<SessionWish> session_;
  SamplingBudget budget_;
  std::vector<SamplingFields> sampling_;  // of each prompt
  std::vector<GenerateRequest> requests_; // of each prompt
  NativeReplyOptions reply_;
  bool stream_ = false;
  int n_ = 1;
};

}  // namespace

Result<GenerationJob> parse_native_generate(const Api& api, std::string_view body, std::string_view owner) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  const Json& json = owned.value;
  return NativeParser(api, json, owner).parse();
}

}  // namespace warpweave::server
