// Requests that end with a pooled state of the model: /v1/embeddings, /encode, /classify, /v1/score, /v1/rerank. What
// their parsers and answers share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/generation.h"
#include "server/api/request_cost.h"

namespace warpweave::server {

// The fields every one of these endpoints takes.
struct PooledOptions {
  std::string rid;
  std::string model;
  int priority = 0;
  std::string cache_salt;
  bool add_special_tokens = true;
  std::optional<int> truncate_prompt_tokens;  // -1: max_tokens
  int max_tokens = 0;                         // of one prompt: the context, and one less where a token is generated
};
Status read_pooled_options(const Api& api, FieldReader* reader, std::string_view id_prefix, PooledOptions* out);

// `unsupported`, naming the endpoint that works, unless the server gives embeddings.
Status require_embeddings(const Api& api);

// The prompts of one body to token ids. Failures name the field whose prompt does not fit.
class PooledEncoder {
 public:
  // One prompt, and where its second text begins; -1: it is one text.
  struct Prompt {
    std::vector<int32_t> ids;
    int second_text_at = -1;
  };
  PooledEncoder(const Api& api, const PooledOptions& options);
  Result<std::vector<int32_t>> encode(std::string_view text, const std::string& field);
  // Two texts as the model's tokenizer joins them. `field` is the second one's.
  Result<Prompt> encode_pair(std::string_view first, std::string_view second, const std::string& field);
  Status accept(std::vector<int32_t>* ids, const std::string& field);  // that the client sent

 private:
  Result<Prompt> encode_whole(std::vector<std::string_view> texts, const std::string& field);
  Result<Prompt> join(const std::vector<std::vector<int32_t>>& texts) const;
  Status check_length(size_t tokens, const std::string& field) const;

  const Api& api_;
  const EncodeOptions encode_;
  const size_t max_tokens_;
  const std::optional<int> kept_tokens_;
  PromptEncoder encoder_;
  std::optional<PromptEncoder> texts_;  // of an encoder's texts before they are joined: all are as many to a prompt
};

// One text, a list of them, a list of token ids, or a list of such lists.
struct PooledInputs {
  std::vector<std::vector<int32_t>> ids;
  bool is_batch = false;
};
Result<PooledInputs> read_pooled_inputs(const Api& api, const FieldReader& reader, std::string_view field,
                                        const PooledOptions& options);
// A text, or a list of texts or of objects {"text": "..."}; none may be missing.
Result<std::vector<std::string>> read_texts(const FieldReader& reader, std::string_view field, bool* is_list = nullptr);

// `second_texts`: where the second text of each prompt begins; empty: none has two.
GenerationJob make_pooled_job(const PooledOptions& options, std::vector<std::vector<int32_t>> ids,
                              std::unique_ptr<ResponseBuilder> builder, std::span<const int> second_texts = {});

// Keeps the last delta of each sequence for body().
class PooledBuilder : public ResponseBuilder {
 public:
  explicit PooledBuilder(size_t sequences) : last_(sequences) {}
  void add(size_t index, const OutputDelta& delta, std::string*) override {
    if (delta.finish) last_[index] = delta;
  }

 protected:
  std::span<const OutputDelta> last() const { return last_; }
  // "usage":{...} of all sequences
  std::string usage() const;

 private:
  std::vector<OutputDelta> last_;
};

// "meta_info":{...} as SGLang's native endpoints have it
void append_meta_info(const OutputDelta& delta, std::string_view weight_version, std::string* out);

// What a classifier's logits say: softmax, or the sigmoid of a single one.
std::vector<float> label_probabilities(std::span<const float> logits);

Result<GenerationJob> parse_embeddings(const Api& api, std::string_view body);        // /v1/embeddings
Result<GenerationJob> parse_encode(const Api& api, std::string_view body);            // /encode
Result<GenerationJob> parse_classify(const Api& api, std::string_view body);          // /classify, either shape
Result<GenerationJob> parse_score(const Api& api, std::string_view body);             // /v1/score, either shape
Result<GenerationJob> parse_rerank(const Api& api, std::string_view body);            // /rerank, /v2/rerank
Result<GenerationJob> parse_rerank_native(const Api& api, std::string_view body);     // /v1/rerank, SGLang's shape

}  // namespace warpweave::server
