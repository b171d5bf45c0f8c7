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

class FloatWeights final : public RenamedWeights {
 public:
  FloatWeights(std::shared_ptr<WeightSource> source, bool fp8) : RenamedWeights(std::move(source)), fp8_(fp8) {}

  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    return of_floats(name, source().find(name, shape));
  }
  Result<TensorView> look(std::string_view name, std::span<const int64_t> shape) const override {
    return of_floats(name, source().look(name, shape));
  }

 protected:
  std::string renamed(std::string_view name) const override { return std::string(name); }

 private:
  static constexpr std::string_view kIntegers = "d2t";

  Result<TensorView> of_floats(std::string_view name, Result<TensorView> view) const {
    if (!view.ok()) return view;
    switch (view->dtype) {
      case DType::i8:
      case DType::u8:
      case DType::i32:
      case DType::i64:
        if (name == kIntegers) return view;
        break;
      case DType::fp8_e4m3:
      case DType::fp8_e5m2:
        if (fp8_) return view;
        break;
      default: return view;
    }
    return Status::data_loss(
        "tensor " + std::string(name) + " is of the type " + std::string(dtype_info(view->dtype).name) +
            "; weights are read as F32, F16 and BF16, and as floats of 8 bits where quantization_config of config.json "
            "says quant_method fp8",
        std::string(name));
  }

  const bool fp8_;
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

std::shared_ptr<WeightSource> weights_of_floats(std::shared_ptr<WeightSource> source, bool fp8) {
  return std::make_shared<FloatWeights>(std::move(source), fp8);
}

}  // namespace warpweave
