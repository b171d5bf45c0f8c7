#include "model/renamed_weights.h"

#include <string>
#include <utility>

namespace warpweave {
namespace {

constexpr std::string_view kAsked = "model.", kEmbedding = "embed_tokens.weight";

// "model.X" is `stored` + "X" in the source; other names are the same.
class PrefixedWeights final : public RenamedWeights {
 public:
  PrefixedWeights(std::shared_ptr<WeightSource> source, std::string_view stored)
      : RenamedWeights(std::move(source)), stored_(stored) {}

 protected:
  std::string renamed(std::string_view name) const override {
    if (!name.starts_with(kAsked)) return std::string(name);
    return stored_ + std::string(name.substr(kAsked.size()));
  }

 private:
  const std::string stored_;
};

bool has_embedding(const WeightSource& source, std::string_view prefix) {
  return source.has(std::string(prefix) + std::string(kEmbedding));
}

}  // namespace

std::shared_ptr<WeightSource> language_model_weights(std::shared_ptr<WeightSource> source) {
  constexpr std::string_view kStored = "model.language_model.";
  if (!has_embedding(*source, kStored)) return source;
  return std::make_shared<PrefixedWeights>(std::move(source), kStored);
}

std::shared_ptr<WeightSource> with_model_prefix(std::shared_ptr<WeightSource> source) {
  if (has_embedding(*source, kAsked) || !has_embedding(*source, "")) return source;
  return std::make_shared<PrefixedWeights>(std::move(source), "");
}

std::shared_ptr<WeightSource> eagle_weight_names(std::shared_ptr<WeightSource> source) {
  return std::make_shared<PrefixedWeights>(std::move(source), "");
}

}  // namespace warpweave
