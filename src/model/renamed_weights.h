// Weights under other names than their files have: of a model that stands within a larger one, beside a vision tower,
// say, or that was saved without its head.
//
// Each returns `source` itself where its names are as wanted. Thread-safe as the source is, which lives as long.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "model/weight_source.h"

namespace warpweave {

// A source under other names: what each is called in the source, renamed() says.
class RenamedWeights : public WeightSource {
 public:
  explicit RenamedWeights(std::shared_ptr<WeightSource> source) : source_(std::move(source)) {}

  bool has(std::string_view name) const override { return source_->has(renamed(name)); }
  bool may_lack_biases() const override { return source_->may_lack_biases(); }
  DType dtype(std::string_view name) const override { return source_->dtype(renamed(name)); }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    return source_->find(renamed(name), shape);
  }
  Result<TensorView> look(std::string_view name, std::span<const int64_t> shape) const override {
    return source_->look(renamed(name), shape);
  }
  bool has_fp8(std::string_view name) const override { return source_->has_fp8(renamed(name)); }
  Result<Fp8Matrix> find_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return source_->find_fp8(renamed(name), shape);
  }
  std::optional<RandomMatrix> random(std::string_view name, std::span<const int64_t> shape) const override {
    return source_->random(renamed(name), shape);
  }
  std::optional<RandomFp8> random_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return source_->random_fp8(renamed(name), shape);
  }
  void release(const TensorView& view) const override { source_->release(view); }
  std::vector<std::string> unread() const override { return source_->unread(); }
  Status intact() const override { return source_->intact(); }
  Status seal() const override { return source_->seal(); }

 protected:
  virtual std::string renamed(std::string_view name) const = 0;
  const WeightSource& source() const { return *source_; }

 private:
  const std::shared_ptr<WeightSource> source_;
};

// "model.X" for the language model's "model.language_model.X".
std::shared_ptr<WeightSource> language_model_weights(std::shared_ptr<WeightSource> source);

// "model.X" for the "X" of a model that was saved without its head.
std::shared_ptr<WeightSource> with_model_prefix(std::shared_ptr<WeightSource> source);

// The names of Llama's parts for those of an encoder (its decoder architecture, "BertModel"), saved alone or beneath
// labels or a head; "head.dense", "head.norm" and "score" for what makes labels. Norms may be saved as gamma and beta.
std::shared_ptr<WeightSource> encoder_weight_names(std::shared_ptr<WeightSource> source, std::string_view architecture);

// "model.X" for "X", always: an EAGLE head has no embedding to tell by.
std::shared_ptr<WeightSource> eagle_weight_names(std::shared_ptr<WeightSource> source);

// The same names, without tensors of integers, and of floats in 8 bits unless `fp8` (read_fp8_weights() takes those):
// their find() is `data_loss` that names the type. Only "d2t" of an EAGLE3 head is of integers.
std::shared_ptr<WeightSource> weights_of_floats(std::shared_ptr<WeightSource> source, bool fp8);

}  // namespace warpweave
