#include "server/api/pooled.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/api/errors.h"
#include "server/api/json_write.h"
#include "server/api/limits.h"

namespace warpweave::server {

Status read_pooled_options(const Api& api, FieldReader* reader, std::string_view id_prefix, PooledOptions* out) {
  WW_RETURN_IF_ERROR(api.check_model(reader));
  out->model = api.info().served_model_name;
  reader->get("rid", TextLimit{kMaxRidBytes}, &out->rid);
  if (out->rid.empty()) out->rid = random_id(id_prefix);
  constexpr IntRange kPriority{std::numeric_limits<int>::min(), std::numeric_limits<int>::max()};
  reader->get("priority", kPriority, &out->priority);
  std::string cache_salt, extra_key;
  reader->get("cache_salt", TextLimit{kMaxSaltBytes}, &cache_salt);
  reader->get("extra_key", TextLimit{kMaxSaltBytes}, &extra_key);
  out->cache_salt = join_salts(cache_salt, extra_key);
  reader->get("add_special_tokens", &out->add_special_tokens);
  int tokens = 0;
  const int most = out->max_tokens = api.info().context_len;
  if (reader->get("truncate_prompt_tokens", IntRange{-1, most, "-1 keeps what the context holds"}, &tokens)) {
    if (tokens == 0) {
      reader->fail(Status::invalid_argument(
          "truncate_prompt_tokens is 0, which leaves nothing; ask for at least 1, or -1.", "truncate_prompt_tokens"));
    }
    out->truncate_prompt_tokens = tokens;
  }
  return reader->status();
}

Status require_embeddings(const Api& api) {
  const EngineInfo& info = api.info();
  if (!info.labels.empty()) {
    return Status::unsupported("this model gives labels, not embeddings; use /classify.", "model");
  }
  if (info.pools) return {};
  return Status::unsupported(info.gives_states
                                 ? "this server gives no embeddings; start it with --is-embedding."
                                 : "this server gives no embeddings; start it with --is-embedding --device cpu.",
                             "model");
}

namespace {

// Tokens of a prompt that are kept; unset: all.
std::optional<int> kept_tokens(const PooledOptions& options) {
  return options.truncate_prompt_tokens == -1 ? options.max_tokens : options.truncate_prompt_tokens;
}

}  // namespace

PooledEncoder::PooledEncoder(const Api& api, const PooledOptions& options)
    : api_(api), encode_{.add_special_tokens = options.add_special_tokens},
      max_tokens_(static_cast<size_t>(options.max_tokens)), kept_tokens_(kept_tokens(options)),
      encoder_(api, 1, kept_tokens_, api.info().reads_pairs ? KeptEnd::beginning : KeptEnd::end) {}

Result<std::vector<int32_t>> PooledEncoder::encode(std::string_view text, const std::string& field) {
  if (api_.info().reads_pairs) {
    WW_ASSIGN_OR_RETURN(Prompt prompt, encode_whole({text}, field));
    return std::move(prompt.ids);
  }
  WW_ASSIGN_OR_RETURN(std::vector<int32_t> ids, encoder_.encode(text, field, encode_));
  WW_RETURN_IF_ERROR(check_length(ids.size(), field));
  return ids;
}

Result<PooledEncoder::Prompt> PooledEncoder::encode_pair(std::string_view first, std::string_view second,
                                                         const std::string& field) {
  return encode_whole({first, second}, field);
}

// What the tokenizer puts around one text or two is never cut: the texts are, the longer one first.
Result<PooledEncoder::Prompt> PooledEncoder::encode_whole(std::vector<std::string_view> texts,
                                                          const std::string& field) {
  WW_RETURN_IF_ERROR(api_.require_tokenizer(field));
  std::vector<std::vector<int32_t>> ids(texts.size());
  WW_ASSIGN_OR_RETURN(const Prompt empty, join(ids));
  std::optional<int> room = kept_tokens_;
  if (room) *room -= static_cast<int>(empty.ids.size());
  if (room && *room < 1) {
    return Status::invalid_argument(
        fmt::format("truncate_prompt_tokens is {}, but this model's tokenizer puts {} tokens around "
                    "its texts; ask for more.",
                    *kept_tokens_, empty.ids.size()),
        "truncate_prompt_tokens");
  }
  if (!texts_) texts_.emplace(api_, 1, room, KeptEnd::beginning);
  for (size_t i = 0; i < texts.size(); ++i) {
    WW_ASSIGN_OR_RETURN(ids[i], texts_->encode(texts[i], field, {}));
  }
  while (room && texts.size() == 2 && ids[0].size() + ids[1].size() > static_cast<size_t>(*room)) {
    ids[ids[0].size() > ids[1].size() ? 0 : 1].pop_back();
  }
  WW_ASSIGN_OR_RETURN(Prompt out, join(ids));
  WW_RETURN_IF_ERROR(encoder_.accept(&out.ids, field));
  WW_RETURN_IF_ERROR(check_length(out.ids.size(), field));
  return out;
}

Result<PooledEncoder::Prompt> PooledEncoder::join(const std::vector<std::vector<int32_t>>& texts) const {
  const Tokenizer& tokenizer = *api_.tokenizer();
  if (texts.size() == 1) return Prompt{encode_.add_special_tokens ? tokenizer.with_special_tokens(texts[0]) : texts[0]};
  if (encode_.add_special_tokens) {
    WW_ASSIGN_OR_RETURN(EncodedPair pair, tokenizer.join_pair(texts[0], texts[1]));
    return Prompt{std::move(pair.ids), pair.second_text_at};
  }
  Prompt out{texts[0], static_cast<int>(texts[0].size())};
  out.ids.insert(out.ids.end(), texts[1].begin(), texts[1].end());
  return out;
}

Status PooledEncoder::accept(std::vector<int32_t>* ids, const std::string& field) {
  WW_RETURN_IF_ERROR(encoder_.accept(ids, field));
  return check_length(ids->size(), field);
}

Status PooledEncoder::check_length(size_t tokens, const std::string& field) const {
  if (tokens == 0) {
    return Status::invalid_argument(fmt::format("{} has no tokens; it needs at least one.", field), field);
  }
  if (tokens <= max_tokens_) return {};
  return Status::invalid_argument(
      fmt::format("{} has {} tokens, but {} {}; shorten it, or send truncate_prompt_tokens.", field, tokens,
                  kContextPhrase, max_tokens_),
      field);
}

Result<PooledInputs> read_pooled_inputs(const Api& api, const FieldReader& reader, std::string_view name,
                                        const PooledOptions& options) {
  const std::string whole(name);
  const Json* value = reader.find(name);
  WW_RETURN_IF_ERROR(reader.status());
  if (value == nullptr) {
    return Status::invalid_argument(fmt::format("{} is missing; send a string, a list of strings, or token ids.", name),
                                    whole);
  }
  if (value->is_array() && value->empty()) {
    return Status::invalid_argument(fmt::format("{} is empty; it needs at least one item.", name), whole);
  }
  PooledInputs out;
  out.is_batch = value->is_array() && !value->front().is_number();
  WW_RETURN_IF_ERROR(check_sequences(api, out.is_batch ? value->size() : 1, 1, name));
  PooledEncoder encoder(api, options);
  const auto read_one = [&](const Json& item, const std::string& field) -> Status {
    std::vector<int32_t>& ids = out.ids.emplace_back();
    if (item.is_string()) {
      WW_ASSIGN_OR_RETURN(ids, encoder.encode(item.get_ref<const std::string&>(), field));
      return {};
    }
    if (!item.is_array()) return wrong_type(field, "a string or a list of token ids", item);
    WW_RETURN_IF_ERROR(read_token_ids(item, field, api.info().vocab_size, item.size(), &ids));
    return encoder.accept(&ids, field);
  };
  if (!out.is_batch) {
    WW_RETURN_IF_ERROR(read_one(*value, whole));
    return out;
  }
  for (const Json& item : *value) WW_RETURN_IF_ERROR(read_one(item, fmt::format("{}[{}]", name, out.ids.size())));
  return out;
}

Result<std::vector<std::string>> read_texts(const FieldReader& reader, std::string_view name, bool* is_list) {
  const Json* value = reader.find(name);
  WW_RETURN_IF_ERROR(reader.status());
  if (value == nullptr || (value->is_array() && value->empty())) {
    return Status::invalid_argument(fmt::format("{} is missing or empty; send a text or a list of texts.", name),
                                    std::string(name));
  }
  std::vector<std::string> out;
  const auto read_one = [&](const Json& item, const std::string& field) -> Status {
    if (!item.is_object()) return read_string(item, field, kMaxTextBytes, &out.emplace_back());
    FieldReader document = reader.inside(item, field + ".");
    const bool found = document.get("text", TextLimit{kMaxTextBytes}, &out.emplace_back());
    document.refuse_unknown();
    WW_RETURN_IF_ERROR(document.status());
    return found ? Status() : wrong_type(field, "a text, or an object with a text", item);
  };
  if (is_list != nullptr) *is_list = value->is_array();
  if (!value->is_array()) {
    WW_RETURN_IF_ERROR(read_one(*value, std::string(name)));
    return out;
  }
  for (const Json& item : *value) WW_RETURN_IF_ERROR(read_one(item, fmt::format("{}[{}]", name, out.size())));
  return out;
}

GenerationJob make_pooled_job(const PooledOptions& options, std::vector<std::vector<int32_t>> ids,
                              std::unique_ptr<ResponseBuilder> builder, std::span<const int> second_texts) {
  GenerationJob job;
  job.group_rid = options.rid;
  for (size_t i = 0; i < ids.size(); ++i) {
    GenerateRequest& request = job.requests.emplace_back();
    request.rid = sequence_rid(options.rid, i, ids.size());
    request.input_ids = std::move(ids[i]);
    request.states = StateWish::pooled;
    if (!second_texts.empty()) request.second_text_at = second_texts[i];
    request.stream = false;
    request.priority = options.priority;
    request.cache_salt = options.cache_salt;
  }
  job.builder = std::move(builder);
  return job;
}

std::string PooledBuilder::usage() const {
  int64_t tokens = 0;
  for (const OutputDelta& delta : last_) tokens += delta.prompt_tokens;
  return fmt::format("\"usage\":{{\"prompt_tokens\":{0},\"total_tokens\":{0},\"completion_tokens\":0}}", tokens);
}

void append_meta_info(const OutputDelta& delta, std::string_view weight_version, std::string* out) {
  *out += "\"meta_info\":{\"id\":";
  append_json_string(delta.rid, out);
  *out += ",\"weight_version\":";
  append_json_string(weight_version, out);
  *out += fmt::format(
      ",\"finish_reason\":{{\"type\":\"length\",\"length\":0}},\"prompt_tokens\":{},\"cached_tokens\":{},"
      "\"e2e_latency\":{}}}",
      delta.prompt_tokens, delta.cached_tokens, delta.e2e_latency_s);
}

std::vector<float> label_probabilities(std::span<const float> logits) {
  if (logits.size() == 1) return {1 / (1 + std::exp(-logits[0]))};
  const float most = *std::max_element(logits.begin(), logits.end());
  std::vector<float> out;
  float sum = 0;
  for (const float logit : logits) sum += out.emplace_back(std::exp(logit - most));
  for (float& value : out) value /= sum;
  return out;
}

}  // namespace warpweave::server
