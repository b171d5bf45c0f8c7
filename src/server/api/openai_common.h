// What /v1/completions and /v1/chat/completions share: the common fields, the frame of answers and
// stream chunks, usage, finish reasons.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/api/generation.h"

namespace warpweave::server {

struct OpenAiOptions {
  // What answers call the model.
  const std::string& model_name(const Api& api) const {
    return adapter.weights ? adapter.name : api.info().served_model_name;
  }

  SamplingFields sampling;
  bool stream = false;
  bool include_usage = false;           // stream_options: a last chunk with the usage
  bool continuous_usage_stats = false;  // stream_options: usage in every chunk
  int priority = 0;
  std::string rid;                      // becomes the answer's id
  std::string cache_salt;
  std::string weight_version;           // for the answer
  AdapterInfo adapter;                  // without weights: none
  bool add_special_tokens = true;       // of texts that no template has written
  bool return_token_ids = false;
  bool return_hidden_states = false;    // of the newest token
  std::optional<int> truncate_prompt_tokens;  // the last so many of a prompt are kept
};

// stream_options that ask for something need a stream.
Status require_stream(const Json& stream_options, bool stream);

// Reads the shared fields and checks `model`. `id_prefix` starts an id where the client gave none.
Status read_openai_options(const Api& api, FieldReader* reader, std::string_view id_prefix,
                           OpenAiOptions* out);

// "id":...,"object":...,"created":...,"model":...
std::string answer_frame(std::string_view id, std::string_view object, std::string_view model);

// Call when every field was asked for: unknown ones are a failure, unless they are allowed.
Status refuse_unknown_fields(const Api& api, FieldReader* reader);

// A request with the shared fields filled in; `choice` is its number among the n of one prompt.
GenerateRequest make_request(const OpenAiOptions& options, const SamplingParams& params,
                             int choice);

// The frame of both answers; the two builders fill in their choices.
class OpenAiBuilder : public ResponseBuilder {
 public:
  struct Frame {
    std::string_view object;        // "chat.completion"
    std::string_view chunk_object;  // "chat.completion.chunk"
    std::string model;
    size_t sequences = 1;
    std::vector<std::string> prompt_ids{};  // the ids of each prompt as JSON items, when asked for
  };
  OpenAiBuilder(const OpenAiOptions& options, Frame frame);

  void add(size_t index, const OutputDelta& delta, std::string* events) override;
  void append_last_events(std::string* events) override;
  std::string body() override;

 protected:
  virtual void append_choice_events(size_t index, const OutputDelta& delta,
                                    std::string* events) = 0;
  virtual void collect(size_t index, const OutputDelta& delta) = 0;
  virtual void append_choice(size_t index, std::string* out) = 0;
  // Members of the whole answer, each with a comma before it.
  virtual void append_answer_members(std::string* out) {}

  // `data: {... "choices":[{"index":3,` and, after the choice's own members without a comma at
  // the end, the finish members, the usage and the end of the event.
  bool return_token_ids() const { return return_token_ids_; }
  std::string_view prompt_ids(size_t index) const { return prompt_ids_[index / choices_per_prompt_]; }
  // ,"name":[items]
  static void append_ids(std::string_view name, std::string_view items, std::string* out);

  // ,"hidden_states":[...] of a sequence that has ended, where it was asked for.
  void append_states(size_t index, std::string* out) const { *out += states_[index]; }

  void begin_chunk(size_t index, std::string* out) const;
  void end_chunk(const FinishReason* finish, std::string* out, std::string_view stop = "stop") const;

 private:
  struct Tokens {
    int prompt = 0;
    int completion = 0;
    int cached = 0;
    std::optional<int> cached_kv;
  };
  void append_usage(std::string* out) const;

  const std::string frame_;         // "id":...,"object":...,"created":...,"model":...
  const bool include_usage_;
  const bool continuous_usage_stats_;
  const bool return_token_ids_;
  const std::string weight_version_;
  const size_t choices_per_prompt_;
  const std::vector<std::string> prompt_ids_;
  std::vector<Tokens> tokens_;      // of each sequence
  std::vector<std::string> states_;
};

// "finish_reason":"stop","matched_stop":2; `stop`: what a stop is called.
void append_finish(const FinishReason* finish, std::string* out, std::string_view stop = "stop");

}  // namespace warpweave::server
