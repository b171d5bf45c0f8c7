#include "model/renamed_weights.h"

#include <string>
#include <utility>

namespace warpweave {
namespace {

constexpr std::string_view kAsked = "model.", kEmbedding = "embed_tokens.weight";

// "model.X" is `stored` + "X" in the source; other names are the same.
class RenamedWeights final : public WeightSource {
 public:
  RenamedWeights(std::shared_ptr<WeightSource> source, std::string_view stored)
      : source_(std::move(source)), stored_(stored) {}

  bool has(std::string_view name) const override { return source_->has(renamed(name)); }
  DType dtype(std::string_view name) const override { return source_->dtype(renamed(name)); }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    return source_->find(renamed(name), shape);
  }
  bool has_fp8(std::string_view name) const override { return source_->has_fp8(renamed(name)); }
  Result<Fp8Matrix> find_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return source_->find_fp8(renamed(name), shape);
  }
  std::optional<RandomMatrix> random(std::string_view name, std::span<const int64_t> shape) const override {
    return source_->random(renamed(name), shape);
  }
  void release(const TensorView& view) const override { source_->release(view); }
  Status intact() const override { return source_->intact(); }
  Status seal() const override { return source_->seal(); }

 private:
  std::string renamed(std::string_view name) const {
    if (!name.starts_with(kAsked)) return std::string(name);
    return stored_ + std::string(name.substr(kAsked.size()));
  }

  const std::shared_ptr<WeightSource> source_;
  const std::string stored_;
};

bool has_embedding(const WeightSource& source, std::string_view prefix) {
  return source.has(std::string(prefix) + std::string(kEmbedding));
}

}  // namespace

std::shared_ptr<WeightSource> language_model_weights(std::shared_ptr<WeightSource> source) {
  constexpr std::string_view kStored = "model.language_model.";
  if (!has_embedding(*source, kStored)) return source;
  return std::make_shared<RenamedWeights>(std::move(source), kStored);
}

std::shared_ptr<WeightSource> with_model_prefix(std::shared_ptr<WeightSource> source) {
  if (has_embedding(*source, kAsked) || !has_embedding(*source, "")) return source;
  return std::make_shared<RenamedWeights>(std::move(source), "");
}

std::shared_ptr<WeightSource> eagle_weight_names(std::shared_ptr<WeightSource> source) {
  return std::make_shared<RenamedWeights>(std::move(source), "");
}

}  // namespace warpweave
