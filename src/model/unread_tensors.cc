#include "model/unread_tensors.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "model/decoder_builder.h"
#include "model/layers/encoder_input.h"

namespace warpweave {
namespace {

// The tensors of a source with zeros for values.
class ShapesOnly final : public WeightSource {
 public:
  explicit ShapesOnly(std::shared_ptr<WeightSource> inner) : inner_(std::move(inner)) {}

  bool has(std::string_view name) const override { return inner_->has(name); }
  bool may_lack_biases() const override { return inner_->may_lack_biases(); }
  DType dtype(std::string_view name) const override { return inner_->dtype(name); }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    WW_ASSIGN_OR_RETURN(TensorView view, inner_->look(name, shape));
    WW_ASSIGN_OR_RETURN(view.data, zeros(view.size_bytes()));
    return view;
  }
  // A matrix that needs no values at all.
  std::optional<RandomMatrix> random(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->look(name, shape).ok() ? std::optional<RandomMatrix>(RandomMatrix{}) : std::nullopt;
  }

 private:
  using Buffer = std::unique_ptr<void, decltype(&std::free)>;

  // Zeros that the system gives as addresses only: all tensors share them.
  Result<const void*> zeros(size_t bytes) const {
    std::lock_guard lock(mutex_);
    if (buffers_.empty() || bytes > bytes_) {
      Buffer more(std::calloc(std::max<size_t>(bytes, 1), 1), &std::free);
      if (more == nullptr) {
        return Status::resource_exhausted("no memory for a tensor of " + std::to_string(bytes) + " bytes");
      }
      buffers_.push_back(std::move(more));
      bytes_ = bytes;
    }
    return buffers_.back().get();
  }

  const std::shared_ptr<WeightSource> inner_;
  mutable std::mutex mutex_;
  mutable std::vector<Buffer> buffers_;  // the last is the largest; views may be of earlier ones
  mutable size_t bytes_ = 0;
};

// Packs nothing.
struct ShapeTarget {
  using Device = OnHost;
  using Weights = DecoderWeights;
  static constexpr bool kOneFormat = false;
  static constexpr bool kStackedHeads = false;
  static constexpr bool kSharedAmongExperts = false;
  static constexpr bool kRopesGrow = true;
  static bool takes_fp8() { return false; }
  static bool takes_random(DType) { return true; }
  static bool takes_random_fp8(const RandomFp8&, int64_t, int64_t) { return false; }

  Result<std::vector<float>> vector(const TensorView&) { return std::vector<float>(); }
  Result<RopeTable> rope(RopeTable table) { return table; }
  void begin_experts(int) {}
  Result<std::vector<MoeExpert>> experts(std::vector<MoeExpert> list) { return list; }
  Status embedding(const LinearPart&, const std::shared_ptr<WeightSource>&, DecoderWeights&) { return {}; }
  Result<PackedLinear> pack(const std::vector<LinearPart>&, GluActivation, bool) { return PackedLinear(); }
};

// Scales beside a matrix of 8 bits, which are read with it.
bool is_scale_of_read(const std::string& name, const std::vector<std::string>& unread) {
  for (const std::string_view suffix : {"_scale_inv", "_scale"}) {
    if (!name.ends_with(suffix)) continue;
    return !std::binary_search(unread.begin(), unread.end(), name.substr(0, name.size() - suffix.size()));
  }
  return false;
}

}  // namespace

Result<std::vector<std::string>> unread_tensors(const ModelConfig& config, std::shared_ptr<WeightSource> source) {
  WW_ASSIGN_OR_RETURN(const FamilyTraits traits, family_traits(config));
  const auto shapes = std::make_shared<ShapesOnly>(source);
  BuildOptions options;
  options.max_positions = 1;
  ShapeTarget target;
  WW_RETURN_IF_ERROR(DecoderBuilder(config, traits, shapes, options, target).build().status());
  if (config.encoder) WW_RETURN_IF_ERROR(EncoderInput::create(config, *shapes).status());
  std::vector<std::string> unread = source->unread();
  if (config.quant_method != "fp8") return unread;
  std::vector<std::string> without_scales;
  std::copy_if(unread.begin(), unread.end(), std::back_inserter(without_scales),
               [&](const std::string& name) { return !is_scale_of_read(name, unread); });
  return without_scales;
}

}  // namespace warpweave
