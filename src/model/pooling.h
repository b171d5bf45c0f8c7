// From the states of a prompt's tokens to the one vector that a request for a pooled result gets: an embedding, or a
// score for each label of a classifier.
//
// A state is a row of the model behind its final norm, [hidden]. Which rows count is the model's own choice: the files
// of sentence-transformers in its folder (modules.json and the pooling module's config.json), else the last token, and
// an encoder's first. An embedding is scaled to length 1 where a Normalize module says so, or nothing is said.
// Immutable; thread-safe. Source: https://sbert.net/docs/package_reference/sentence_transformer/models.html
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/weight_source.h"

namespace warpweave {

enum class PoolingMethod { last, mean, first };
std::string_view pooling_method_name(PoolingMethod method);  // "last"

struct PoolingConfig {
  PoolingMethod method = PoolingMethod::last;
  bool normalize = true;
  bool stored = false;  // the folder says so: its model is one for embeddings
};

// What the folder's files say; `unsupported` names a module or method that is missing here.
Result<PoolingConfig> read_pooling_config(const std::string& folder);

class Pooler {
 public:
  Pooler() = default;
  // With labels: the classifier's weights are read from `source`, and the last token's state counts, or what an
  // encoder's configuration says; an encoder's state goes through a GEMM, an activation and perhaps a norm ("head")
  // before.
  static Result<Pooler> create(const ModelConfig& config, const PoolingConfig& pooling, const WeightSource& source);

  PoolingMethod method() const { return pooling_.method; }
  bool normalizes() const { return pooling_.normalize; }
  int hidden_size() const { return hidden_size_; }
  int size() const { return labels_ > 0 ? labels_ : hidden_size_; }  // of what finish() gives

  // Of the state that counts, or of the sum of `count` states, [hidden]: the embedding, or a logit for each label.
  std::vector<float> finish(std::vector<float> sum, int count) const;

 private:
  Status read_head(const ModelConfig& config, const WeightSource& source);
  void run_head(std::vector<float>& state) const;

  PoolingConfig pooling_;
  int hidden_size_ = 0;
  int labels_ = 0;
  struct Head {
    std::vector<float> dense;       // [hidden, hidden]
    std::vector<float> bias;        // [hidden], or empty
    bool gelu = false;              // the activation; else tanh
    std::vector<float> norm;        // [hidden], or empty
    std::vector<float> norm_bias;   // [hidden], or empty
    double norm_eps = 0;
  };
  Head head_;                      // of an encoder's labels; else without weights
  std::vector<float> classifier_;  // [labels, hidden]
  std::vector<float> bias_;        // [labels], or empty
};

}  // namespace warpweave
