#include <utility>

#include "model/weight_source.h"

namespace warpweave {
namespace {

constexpr std::string_view kPrefix = "model.";

class UnprefixedWeights final : public WeightSource {
 public:
  explicit UnprefixedWeights(std::shared_ptr<WeightSource> inner) : inner_(std::move(inner)) {}

  bool has(std::string_view name) const override { return inner_->has(stored(name)); }
  DType dtype(std::string_view name) const override { return inner_->dtype(stored(name)); }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->find(stored(name), shape);
  }
  bool has_fp8(std::string_view name) const override { return inner_->has_fp8(stored(name)); }
  Result<Fp8Matrix> find_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->find_fp8(stored(name), shape);
  }
  std::optional<RandomMatrix> random(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->random(stored(name), shape);
  }
  void release(const TensorView& view) const override { inner_->release(view); }
  Status intact() const override { return inner_->intact(); }
  Status seal() const override { return inner_->seal(); }

 private:
  static std::string_view stored(std::string_view name) {
    return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  }
  const std::shared_ptr<WeightSource> inner_;
};

}  // namespace

std::shared_ptr<WeightSource> with_model_prefix(std::shared_ptr<WeightSource> inner) {
  constexpr std::string_view kEmbedding = "embed_tokens.weight";
  const bool bare = inner->has(kEmbedding) && !inner->has(std::string(kPrefix) + std::string(kEmbedding));
  if (!bare) return inner;
  return std::make_shared<UnprefixedWeights>(std::move(inner));
}

}  // namespace warpweave
