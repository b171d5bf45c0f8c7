#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "base/float16.h"
#include "base/threads.h"
#include "model/weight_source.h"

namespace warpweave {
namespace {

uint64_t hash_name(std::string_view name, uint64_t seed) {
  uint64_t h = seed ^ 0xcbf29ce484222325ull;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return mixed_bits(h);
}

class DummyWeights : public WeightSource {
 public:
  DummyWeights(DType dtype, uint64_t seed) : dtype_(dtype), seed_(seed) {}

  // What a checkpoint may leave out is left out; nothing is in a quantised layout ("_blocks").
  bool has(std::string_view name) const override {
    return !name.ends_with("bias") && !name.ends_with("sinks") && !name.ends_with("_blocks") &&
           !name.ends_with("_scale");
  }

  bool may_lack_biases() const override { return true; }
  DType dtype(std::string_view) const override { return dtype_; }

  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    TensorView view;
    view.dtype = dtype_;
    view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    constexpr size_t kMaxTensorBytes = size_t{256} << 30;
    std::unique_ptr<std::byte[]> buffer;
    if (view.size_bytes() <= kMaxTensorBytes) buffer.reset(new (std::nothrow) std::byte[view.size_bytes()]);
    if (buffer == nullptr) {
      return Status::resource_exhausted("tensor " + std::string(name) + " needs " +
                                        std::to_string(view.size_bytes()) + " bytes of memory");
    }
    fill(name, view, buffer.get());
    view.data = buffer.get();
    std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
    return view;
  }

  std::optional<RandomMatrix> random(std::string_view name, std::span<const int64_t> shape) const override {
    if (shape.size() < 2) return std::nullopt;
    return RandomMatrix{hash_name(name, seed_), matrix_scale(shape.back())};
  }

  void release(const TensorView& view) const override {
    std::lock_guard lock(mutex_);
    std::erase_if(buffers_, [&](const auto& buffer) { return buffer.get() == view.data; });
  }

 private:
  void fill(std::string_view name, const TensorView& view, std::byte* out) const {
    const bool is_norm = view.rank == 1 && name.find("norm") != name.npos;
    const float centre = is_norm ? 1.0f : 0.0f;
    const RandomMatrix rule = {hash_name(name, seed_), is_norm ? 0.05f : matrix_scale(view.shape[view.rank - 1])};
    std::lock_guard lock(mutex_);
    team_.parallel_for(view.elements(), 1 << 16, [&](int64_t begin, int64_t end) {
      fill_range(rule, centre, begin, end, out);
    });
  }

  // Uniform in +-scale; sqrt(3) gives unit variance times 1/sqrt(columns).
  static float matrix_scale(int64_t columns) { return std::sqrt(3.0f / static_cast<float>(columns)); }

  void fill_range(const RandomMatrix& rule, float centre, int64_t begin, int64_t end, std::byte* out) const {
    for (int64_t i = begin; i < end; ++i) {
      const float value = centre + rule.scale * random_unit(rule.base, static_cast<uint64_t>(i));
      if (dtype_ == DType::f32) {
        std::memcpy(out + i * 4, &value, 4);
      } else {
        const uint16_t bits = dtype_ == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
        std::memcpy(out + i * 2, &bits, 2);
      }
    }
  }

  DType dtype_;
  uint64_t seed_;
  mutable std::mutex mutex_;
  mutable ThreadTeam team_{available_cpus()};
  mutable std::vector<std::unique_ptr<std::byte[]>> buffers_;
};

}  // namespace

std::shared_ptr<WeightSource> make_dummy_weights(DType dtype, uint64_t seed) {
  return std::make_shared<DummyWeights>(dtype, seed);
}

}  // namespace warpweave
