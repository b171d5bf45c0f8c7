#include "model/renamed_weights.h"

#include <string>
#include <utility>

namespace warpweave {
namespace {

constexpr std::string_view kOuter = "model.", kInner = "model.language_model.";

class LanguageModelWeights final : public WeightSource {
 public:
  explicit LanguageModelWeights(std::shared_ptr<WeightSource> inner) : inner_(std::move(inner)) {}

  bool has(std::string_view name) const override { return inner_->has(renamed(name)); }
  DType dtype(std::string_view name) const override { return inner_->dtype(renamed(name)); }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->find(renamed(name), shape);
  }
  bool has_fp8(std::string_view name) const override { return inner_->has_fp8(renamed(name)); }
  Result<Fp8Matrix> find_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->find_fp8(renamed(name), shape);
  }
  std::optional<RandomMatrix> random(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->random(renamed(name), shape);
  }
  void release(const TensorView& view) const override { inner_->release(view); }
  Status intact() const override { return inner_->intact(); }
  Status seal() const override { return inner_->seal(); }

 private:
  static std::string renamed(std::string_view name) {
    if (!name.starts_with(kOuter)) return std::string(name);
    return std::string(kInner) + std::string(name.substr(kOuter.size()));
  }

  const std::shared_ptr<WeightSource> inner_;
};

}  // namespace

std::shared_ptr<WeightSource> language_model_weights(std::shared_ptr<WeightSource> source) {
  if (!source->has(std::string(kInner) + "embed_tokens.weight")) return source;
  return std::make_shared<LanguageModelWeights>(std::move(source));
}

}  // namespace warpweave
