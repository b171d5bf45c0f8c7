#include "server/api/native_builder.h"

#include <algorithm>
#include <utility>

#include "server/api/json_write.h"

namespace warpweave::server {
namespace {

class NativeBuilder final : public ResponseBuilder {
 public:
  NativeBuilder(const Api& api, const NativeReplyOptions& options,
                std::span<const GenerateRequest> requests)
      : tokenizer_(api.tokenizer()),
        weight_version_(api.weight_version()),
        options_(options),
        hidden_size_(static_cast<size_t>(std::max(api.info().hidden_size, 1))),
        sequences_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) {
      sequences_[i].return_logprob = requests[i].return_logprob;
      sequences_[i].top = requests[i].top_logprobs_num > 0;
      sequences_[i].token_ids = !requests[i].token_ids_logprob.empty();
    }
  }

  void add(size_t index, const OutputDelta& delta, std::string* events) override {
    Sequence& sequence = sequences_[index];
    append_json_escaped(delta.text, &sequence.text);
    for (const int32_t id : delta.token_ids) {
      if (!sequence.ids.empty()) sequence.ids += ',';
      append_json_int(id, &sequence.ids);
    }
    if (sequence.return_logprob) {
      for (const auto& position : delta.input_logprobs) add_position(position, &sequence.input);
      for (const auto& position : delta.output_logprobs) add_position(position, &sequence.output);
    }
    if (!events) {
      if (delta.finish) append_reply(index, delta, &sequence.reply);
      return;
    }
    *events += "data: ";
    append_reply(index, delta, events);
    *events += "\n\n";
    if (options_.only_new) sequence.forget();
  }

  std::string body() override {
    if (!options_.as_list) return std::move(sequences_[0].reply);
    std::string out = "[";
    for (Sequence& sequence : sequences_) {
      if (out.size() > 1) out += ',';
      out += sequence.reply;
    }
    return out += ']';
  }

 private:
  struct LogprobLists {
    std::string chosen;
    std::string top;
    std::string token_ids;
  };
  struct Sequence {
    std::string text;  // escaped
    std::string ids;
    LogprobLists input;
    LogprobLists output;
    bool return_logprob = false;
    bool top = false;
    bool token_ids = false;
    std::string reply;

    void forget() {
      text.clear();
      ids.clear();
      input = output = {};
    }
  };

  // [logprob, id, text or null]
  void append_token(const TokenLogprob& token, std::string* out) const {
    *out += '[';
    append_json_logprob(token.logprob, out);
    *out += ',';
    append_json_int(token.token_id, out);
    *out += ',';
    if (options_.return_text_in_logprobs && tokenizer_) {
      append_json_string(tokenizer_->token_bytes(token.token_id), out);
    } else {
      *out += "null";
    }
    *out += ']';
  }

  void append_tokens(const std::vector<TokenLogprob>& tokens, std::string* list) const {
    if (!list->empty()) *list += ',';
    if (tokens.empty()) {  // a position without a distribution: the first of a prompt
      *list += "null";
      return;
    }
    *list += '[';
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) *list += ',';
      append_token(tokens[i], list);
    }
    *list += ']';
  }

  void add_position(const PositionLogprobs& position, LogprobLists* lists) const {
    if (!lists->chosen.empty()) lists->chosen += ',';
    append_token(position.chosen, &lists->chosen);
    append_tokens(position.top, &lists->top);
    append_tokens(position.token_ids, &lists->token_ids);
  }

  static void append_finish_reason(const OutputDelta& delta, std::string* out) {
    *out += "\"finish_reason\":";
    if (!delta.finish) {
      *out += "null";
      return;
    }
    const FinishReason& finish = *delta.finish;
    switch (finish.type) {
      case FinishReason::Type::length:
        *out += "{\"type\":\"length\",\"length\":";
        append_json_int(delta.completion_tokens, out);
        break;
      case FinishReason::Type::stop:
        *out += "{\"type\":\"stop\",\"matched\":";
        if (!finish.matched_string.empty()) {
          append_json_string(finish.matched_string, out);
        } else if (finish.matched_token >= 0) {
          append_json_int(finish.matched_token, out);
        } else {
          *out += "null";
        }
        break;
      case FinishReason::Type::abort:
        *out += "{\"type\":\"abort\",\"message\":";
        append_json_string(finish.error.message(), out);
        break;
    }
    *out += '}';
  }

  void append_logprobs(const Sequence& sequence, std::string* out) const {
    const auto list = [out](std::string_view name, const std::string& items) {
      *out += ",\"";
      *out += name;
      *out += "\":[";
      *out += items;
      *out += ']';
    };
    list("input_token_logprobs", sequence.input.chosen);
    list("output_token_logprobs", sequence.output.chosen);
    if (sequence.top) {
      list("input_top_logprobs", sequence.input.top);
      list("output_top_logprobs", sequence.output.top);
    }
    if (sequence.token_ids) {
      list("input_token_ids_logprobs", sequence.input.token_ids);
      list("output_token_ids_logprobs", sequence.output.token_ids);
    }
  }

  // Under the names that SGLang's meta_info has.
  static void append_speculation(const SpeculationCounts& counts, std::string* out) {
    *out += ",\"spec_verify_ct\":";
    append_json_int(static_cast<int64_t>(counts.verify_steps), out);
    *out += ",\"spec_draft_token_num\":";
    append_json_int(static_cast<int64_t>(counts.draft_tokens), out);
    *out += ",\"spec_accept_token_num\":";
    append_json_int(static_cast<int64_t>(counts.accepted_tokens), out);
    *out += ",\"spec_accept_length\":";
    append_json_double(counts.accept_length(), out);
    *out += ",\"spec_accept_rate\":";
    append_json_double(counts.accept_rate(), out);
  }

  // The prompt's rows as one list, then a row for each new token but the last.
  void append_states(const OutputDelta& delta, std::string* out) const {
    const std::span<const float> states(delta.states);
    const size_t rows = states.size() / hidden_size_;
    const size_t prompt_rows = std::min(rows, static_cast<size_t>(delta.prompt_tokens));
    const auto append_row = [&](size_t row) {
      append_json_floats(states.subspan(row * hidden_size_, hidden_size_), out);
    };
    *out += ",\"hidden_states\":[[";
    for (size_t row = 0; row < prompt_rows; ++row) {
      if (row > 0) *out += ',';
      append_row(row);
    }
    *out += ']';
    for (size_t row = prompt_rows; row < rows; ++row) {
      *out += ',';
      append_row(row);
    }
    *out += ']';
  }

  void append_reply(size_t index, const OutputDelta& delta, std::string* out) const {
    const Sequence& sequence = sequences_[index];
    out->reserve(out->size() + sequence.text.size() + sequence.ids.size() + 512);
    *out += "{\"text\":\"";
    *out += sequence.text;
    *out += "\",\"output_ids\":[";
    *out += sequence.ids;
    *out += "],\"meta_info\":{\"id\":";
    append_json_string(delta.rid, out);
    *out += ',';
    append_finish_reason(delta, out);
    *out += ",\"prompt_tokens\":";
    append_json_int(delta.prompt_tokens, out);
    *out += ",\"weight_version\":";
    append_json_string(weight_version_, out);
    *out += ",\"total_retractions\":";
    append_json_int(delta.total_retractions, out);
    if (sequence.return_logprob) append_logprobs(sequence, out);
    if (!delta.states.empty()) append_states(delta, out);
    *out += ",\"completion_tokens\":";
    append_json_int(delta.completion_tokens, out);
    *out += ",\"cached_tokens\":";
    append_json_int(delta.cached_tokens, out);
    if (delta.cached_kv_tokens) append_cached_by_layer(*delta.cached_kv_tokens, delta.cached_tokens, out);
    if (delta.speculation) append_speculation(*delta.speculation, out);
    if (delta.finish) {
      *out += ",\"e2e_latency\":";
      append_json_double(delta.e2e_latency_s, out);
    }
    *out += '}';
    if (options_.as_list) {
      *out += ",\"index\":";
      append_json_int(static_cast<int64_t>(index), out);
    }
    *out += '}';
  }

  const Tokenizer* tokenizer_;
  const std::string weight_version_;
  const NativeReplyOptions options_;
  const size_t hidden_size_;
  std::vector<Sequence> sequences_;
};

}  // namespace

std::unique_ptr<ResponseBuilder> make_native_builder(const Api& api,
                                                     const NativeReplyOptions& options,
                                                     std::span<const GenerateRequest> requests) {
  return std::make_unique<NativeBuilder>(api, options, requests);
}

}  // namespace warpweave::server
