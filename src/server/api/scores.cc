// /v1/score and the rerank endpoints: how well texts go together.
//
// Where the model has one label it reads both texts of a pair and the score is the label's sigmoid; where it gives
// embeddings each text is read alone and the score is the cosine of the two; where it generates, /v1/score compares
// what the model thinks of listed tokens as the next one (SGLang's shape).
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "server/api/json_write.h"
#include "server/api/limits.h"
#include "server/api/openai_common.h"
#include "server/api/pooled.h"

namespace warpweave::server {
namespace {

// Pairs to score, and the prompts by which that is done.
struct Pairs {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::pair<size_t, size_t>> sides;  // of each pair among `ids`; the same twice: one prompt holds both
  std::vector<int> second_texts;  // where the second text begins in each of `ids`, for an encoder; or empty
};

float cosine(std::span<const float> a, std::span<const float> b) {
  const auto dot = [](auto x, auto y) { return std::inner_product(x.begin(), x.end(), y.begin(), 0.0); };
  const double lengths = std::sqrt(dot(a, a) * dot(b, b));
  return lengths == 0 ? 0.0f : static_cast<float>(dot(a, b) / lengths);
}

class PairBuilder : public PooledBuilder {
 public:
  explicit PairBuilder(const Pairs& pairs) : PooledBuilder(pairs.ids.size()), sides_(pairs.sides) {}

 protected:
  size_t pairs() const { return sides_.size(); }
  float score(size_t pair) const {
    const auto [a, b] = sides_[pair];
    return a == b ? label_probabilities(last()[a].pooled)[0] : cosine(last()[a].pooled, last()[b].pooled);
  }
  // The reading that is the pair's own.
  const OutputDelta& reading(size_t pair) const { return last()[sides_[pair].second]; }

 private:
  const std::vector<std::pair<size_t, size_t>> sides_;
};

// vLLM's answer of /score.
class ScoreBuilder final : public PairBuilder {
 public:
  ScoreBuilder(const PooledOptions& options, const Pairs& pairs)
      : PairBuilder(pairs), frame_(answer_frame(options.rid, "list", options.model)) {}

  std::string body() override {
    std::string out = "{" + frame_ + ",\"data\":[";
    for (size_t i = 0; i < pairs(); ++i) {
      out += fmt::format("{}{{\"index\":{},\"object\":\"score\",\"score\":{}}}", i > 0 ? "," : "", i, score(i));
    }
    return out + "]," + usage() + "}";
  }

 private:
  const std::string frame_;
};

struct RerankOptions : PooledOptions {
  int top_n = 0;  // 0: all
  bool return_documents = true;
  bool native = false;
  std::string weight_version;  // for the answer
};

class RerankBuilder final : public PairBuilder {
 public:
  RerankBuilder(const RerankOptions& options, const Pairs& pairs, std::vector<std::string> documents)
      : PairBuilder(pairs), options_(options), documents_(std::move(documents)) {}

  std::string body() override {
    std::vector<size_t> order(pairs());
    std::iota(order.begin(), order.end(), size_t{0});
    std::vector<float> scores;
    for (const size_t i : order) scores.push_back(score(i));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    if (options_.top_n > 0 && static_cast<size_t>(options_.top_n) < order.size()) order.resize(options_.top_n);
    std::string out = "[";
    for (const size_t i : order) {
      if (out.size() > 1) out += ',';
      options_.native ? append_native(i, scores[i], &out) : append_result(i, scores[i], &out);
    }
    out += ']';
    if (options_.native) return out;
    std::string frame = "{\"id\":";
    append_json_string(options_.rid, &frame);
    frame += ",\"model\":";
    append_json_string(options_.model, &frame);
    return frame + "," + usage() + ",\"results\":" + out + "}";
  }

 private:
  void append_native(size_t index, float score, std::string* out) const {
    *out += fmt::format("{{\"score\":{},\"document\":", score);
    if (options_.return_documents) {
      append_json_string(documents_[index], out);
    } else {
      *out += "null";
    }
    *out += fmt::format(",\"index\":{},", index);
    append_meta_info(reading(index), options_.weight_version, out);
    *out += '}';
  }
  void append_result(size_t index, float score, std::string* out) const {
    *out += fmt::format("{{\"index\":{},", index);
    if (options_.return_documents) {
      *out += "\"document\":{\"text\":";
      append_json_string(documents_[index], out);
      *out += "},";
    }
    *out += fmt::format("\"relevance_score\":{}}}", score);
  }

  const RerankOptions options_;
  const std::vector<std::string> documents_;
};

// SGLang's answer of /v1/score: for each item a number for each listed token.
class TokenScoreBuilder final : public PooledBuilder {
 public:
  TokenScoreBuilder(const Api& api, size_t sequences, bool softmax)
      : PooledBuilder(sequences), model_(api.info().served_model_name), softmax_(softmax) {}

  std::string body() override {
    std::string out = "{\"object\":\"scoring\",\"scores\":[";
    for (size_t i = 0; i < last().size(); ++i) {
      std::vector<float> scores;
      for (const auto& position : last()[i].output_logprobs) {
        for (const TokenLogprob& token : position.token_ids) scores.push_back(token.logprob);
      }
      if (softmax_) {
        if (scores.size() == 1) scores[0] = 1;
        else scores = label_probabilities(scores);
      } else {
        for (float& score : scores) score = std::exp(score);
      }
      if (i > 0) out += ',';
      append_json_floats(scores, &out);
    }
    out += "],\"model\":";
    append_json_string(model_, &out);
    return out + "," + usage() + "}";
  }

 private:
  const std::string model_;
  const bool softmax_;
};

// The texts of a field that holds one or a list.
struct FieldTexts {
  std::string name;
  std::vector<std::string> texts;
  bool is_list = false;

  size_t size() const { return texts.size(); }
  std::string field(size_t i) const { return is_list ? fmt::format("{}[{}]", name, i) : name; }
};

Result<FieldTexts> field_texts(const FieldReader& reader, std::string_view name) {
  FieldTexts out{.name = std::string(name), .texts = {}};
  WW_ASSIGN_OR_RETURN(out.texts, read_texts(reader, name, &out.is_list));
  return out;
}

// The prompts by which this model scores text i of `left` (or its only one) beside text i of `right`.
Result<Pairs> make_pairs(const Api& api, const PooledOptions& options, const FieldTexts& left,
                         const FieldTexts& right) {
  const EngineInfo& info = api.info();
  const bool together = !info.labels.empty();
  if (together && info.labels.size() != 1) {
    return Status::unsupported(
        fmt::format("this model has {} labels, and a score needs one with a single label; use /classify.",
                    info.labels.size()),
        "model");
  }
  if (!together) WW_RETURN_IF_ERROR(require_embeddings(api));
  WW_RETURN_IF_ERROR(check_sequences(api, left.size() + right.size(), 1, right.name));
  WW_RETURN_IF_ERROR(api.require_tokenizer(right.name));
  PooledEncoder encoder(api, options);
  Pairs out;
  const auto side = [&](size_t i) -> const std::string& { return left.texts[left.size() == 1 ? 0 : i]; };
  for (size_t i = 0; i < left.size() && !together; ++i) {
    WW_ASSIGN_OR_RETURN(out.ids.emplace_back(), encoder.encode(left.texts[i], left.field(i)));
  }
  for (size_t i = 0; i < right.size(); ++i) {
    const std::string field = right.field(i);
    if (!together) {
      out.sides.emplace_back(left.size() == 1 ? 0 : i, out.ids.size());
      WW_ASSIGN_OR_RETURN(out.ids.emplace_back(), encoder.encode(right.texts[i], field));
      continue;
    }
    out.sides.emplace_back(out.ids.size(), out.ids.size());
    if (info.reads_pairs) {
      WW_ASSIGN_OR_RETURN(PooledEncoder::Prompt prompt, encoder.encode_pair(side(i), right.texts[i], field));
      out.ids.push_back(std::move(prompt.ids));
      out.second_texts.push_back(prompt.second_text_at);
      continue;
    }
    // As transformers' tokenizers of decoders write a pair: one text behind the other.
    WW_ASSIGN_OR_RETURN(out.ids.emplace_back(), encoder.encode(side(i) + right.texts[i], field));
  }
  return out;
}

// What vLLM's versions call the texts of a score.
struct ScoreSides {
  const char* left;
  const char* right;
};
constexpr ScoreSides kScoreSides[] = {{"text_1", "text_2"}, {"queries", "documents"}, {"data_1", "data_2"}};

Result<GenerationJob> parse_text_score(const Api& api, FieldReader& reader, PooledOptions options) {
  refuse_unsupported(&reader, {"documents"});
  const auto given = std::ranges::find_if(
      kScoreSides, [&](const ScoreSides& s) { return reader.find(s.left) || reader.find(s.right); });
  const ScoreSides sides = given == std::end(kScoreSides) ? kScoreSides[0] : *given;
  for (const ScoreSides& other : kScoreSides) {
    if (other.left == sides.left || (!reader.find(other.left) && !reader.find(other.right))) continue;
    return Status::invalid_argument(fmt::format("{} and {} say the same as {} and {}; send the fields of one of them.",
                                                other.left, other.right, sides.left, sides.right),
                                    other.left);
  }
  reader.find(sides.left);
  reader.find(sides.right);
  WW_RETURN_IF_ERROR(refuse_unknown_fields(api, &reader));
  WW_ASSIGN_OR_RETURN(const FieldTexts left, field_texts(reader, sides.left));
  WW_ASSIGN_OR_RETURN(const FieldTexts right, field_texts(reader, sides.right));
  if (left.size() != 1 && left.size() != right.size()) {
    return Status::invalid_argument(fmt::format("{} has {} texts and {} has {}; send one, or as many as in {}.",
                                                sides.left, left.size(), sides.right, right.size(), sides.right),
                                    sides.left);
  }
  WW_ASSIGN_OR_RETURN(Pairs pairs, make_pairs(api, options, left, right));
  auto builder = std::make_unique<ScoreBuilder>(options, pairs);
  return make_pooled_job(options, std::move(pairs.ids), std::move(builder), pairs.second_texts);
}

// One prompt for each item: the query and the item, as texts or as token ids.
Result<std::vector<std::vector<int32_t>>> item_prompts(const Api& api, const FieldReader& reader,
                                                       const PooledOptions& options, bool item_first) {
  const Json* query = reader.find("query");
  const Json* items = reader.find("items");
  if (query == nullptr || items == nullptr || (items->is_array() && items->empty())) {
    return Status::invalid_argument(
        query == nullptr ? "query is missing." : "items is missing or empty; send at least one.",
        query == nullptr ? "query" : "items");
  }
  const bool ids = query->is_array();
  std::vector<int32_t> query_ids;
  if (ids) WW_RETURN_IF_ERROR(read_token_ids(*query, "query", api.info().vocab_size, query->size(), &query_ids));
  if (!ids && !query->is_string()) return wrong_type("query", "a string or a list of token ids", *query);
  const bool items_are_ids = items->is_array() && items->front().is_array();
  if (ids != items_are_ids) {
    return Status::invalid_argument("query and items are of two kinds; send texts for both, or token ids for both.",
                                    ids ? "query" : "items");
  }
  const size_t count = items->is_array() ? items->size() : 1;
  WW_RETURN_IF_ERROR(check_sequences(api, count, 1, "items"));
  PooledEncoder encoder(api, options);
  std::vector<std::vector<int32_t>> out;
  for (size_t i = 0; i < count; ++i) {
    const Json& item = items->is_array() ? (*items)[i] : *items;
    const std::string field = items->is_array() ? fmt::format("items[{}]", i) : "items";
    std::vector<int32_t>& prompt = out.emplace_back();
    if (ids) {
      std::vector<int32_t> item_ids;
      WW_RETURN_IF_ERROR(read_token_ids(item, field, api.info().vocab_size, item.size(), &item_ids));
      prompt = item_first ? item_ids : query_ids;
      prompt.insert(prompt.end(), item_first ? query_ids.begin() : item_ids.begin(),
                    item_first ? query_ids.end() : item_ids.end());
      WW_RETURN_IF_ERROR(encoder.accept(&prompt, field));
      continue;
    }
    std::string text;
    WW_RETURN_IF_ERROR(read_string(item, field, kMaxTextBytes, &text));
    text = item_first ? text + query->get<std::string>() : query->get<std::string>() + text;
    WW_ASSIGN_OR_RETURN(prompt, encoder.encode(text, field));
  }
  return out;
}

Result<GenerationJob> parse_token_score(const Api& api, FieldReader& reader, PooledOptions options) {
  options.max_tokens = api.info().context_len - 1;  // one token is generated
  bool softmax = false, item_first = false;
  reader.get("apply_softmax", &softmax);
  reader.get("item_first", &item_first);
  std::vector<int32_t> labels;
  const bool listed = reader.get_token_ids("label_token_ids", api.info().vocab_size, kMaxTokenIdsLogprob, &labels);
  reader.find("query");
  reader.find("items");
  refuse_unsupported(&reader);
  WW_RETURN_IF_ERROR(refuse_unknown_fields(api, &reader));
  if (!listed || labels.empty()) {
    return Status::invalid_argument("label_token_ids is missing or empty; list the tokens whose probability is wanted.",
                                    "label_token_ids");
  }
  if (!api.info().generates) {
    return Status::unsupported("label_token_ids needs a model that generates; send text_1 and text_2 to this one.",
                               "label_token_ids");
  }
  WW_ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> prompts, item_prompts(api, reader, options, item_first));
  auto builder = std::make_unique<TokenScoreBuilder>(api, prompts.size(), softmax);
  GenerationJob job = make_pooled_job(options, std::move(prompts), std::move(builder));
  for (GenerateRequest& request : job.requests) {
    request.states = StateWish::none;
    request.sampling.max_new_tokens = 1;
    request.sampling.ignore_eos = true;
    request.return_logprob = true;
    request.token_ids_logprob = labels;
  }
  WW_RETURN_IF_ERROR(fit_to_logprob_limit(api, false, &job.requests));
  return job;
}

Result<GenerationJob> parse_reranking(const Api& api, std::string_view body, bool native) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value, {}, unknown_fields(api));
  RerankOptions options;
  options.native = native;
  options.weight_version = api.weight_version();
  WW_RETURN_IF_ERROR(read_pooled_options(api, &reader, "rerank-", &options));
  reader.get("top_n", IntRange{0, std::numeric_limits<int>::max(), "0 gives all"}, &options.top_n);
  reader.get("return_documents", &options.return_documents);
  std::string instruct;
  if (reader.get("instruct", TextLimit{kMaxTextBytes}, &instruct) && !instruct.empty()) {
    reader.fail(
        Status::unsupported("instruct needs a template of the model's own; write it into the query.", "instruct"));
  }
  std::string query;
  const bool has_query = reader.get("query", TextLimit{kMaxTextBytes}, &query);
  reader.find("documents");
  refuse_unsupported(&reader, {"documents"});
  WW_RETURN_IF_ERROR(refuse_unknown_fields(api, &reader));
  if (!has_query) return Status::invalid_argument("query is missing; send a text.", "query");
  WW_ASSIGN_OR_RETURN(FieldTexts documents, field_texts(reader, "documents"));
  WW_ASSIGN_OR_RETURN(Pairs pairs, make_pairs(api, options, {.name = "query", .texts = {query}}, documents));
  auto builder = std::make_unique<RerankBuilder>(options, pairs, std::move(documents.texts));
  return make_pooled_job(options, std::move(pairs.ids), std::move(builder), pairs.second_texts);
}

}  // namespace

Result<GenerationJob> parse_score(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value, {}, unknown_fields(api));
  PooledOptions options;
  WW_RETURN_IF_ERROR(read_pooled_options(api, &reader, "score-", &options));
  // The first of them that is there; null: none.
  const auto first = [&](std::initializer_list<const char*> names) {
    const auto at =
        std::find_if(names.begin(), names.end(), [&](const char* name) { return reader.find(name) != nullptr; });
    return at == names.end() ? nullptr : *at;
  };
  const char* const tokens = first({"query", "items", "label_token_ids"});
  const char* const texts = first({"text_1", "text_2", "queries", "documents", "data_1", "data_2"});
  WW_RETURN_IF_ERROR(reader.status());
  if (tokens && texts) {
    return Status::invalid_argument(
        fmt::format("{} asks for a score of texts, and {} for one of tokens (query, items and "
                    "label_token_ids); send the fields of one of them.",
                    texts, tokens),
        texts);
  }
  return tokens ? parse_token_score(api, reader, options) : parse_text_score(api, reader, options);
}

Result<GenerationJob> parse_rerank(const Api& api, std::string_view body) { return parse_reranking(api, body, false); }
Result<GenerationJob> parse_rerank_native(const Api& api, std::string_view body) {
  return parse_reranking(api, body, true);
}

}  // namespace warpweave::server
