#include "model/fp8_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/threads.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

bool is_fp8(DType dtype) { return dtype == DType::fp8_e4m3 || dtype == DType::fp8_e5m2; }

// Of a layer: attention's and the feed-forward's, not the head or a router.
bool is_projection(std::string_view name) {
  if (name.ends_with("_proj.weight")) return true;
  // Mixtral's experts call theirs w1, w2 and w3.
  return name.find(".experts.") != name.npos &&
         (name.ends_with(".w1.weight") || name.ends_with(".w2.weight") || name.ends_with(".w3.weight"));
}

// What both kinds share: matrices in 8 bits, and what they are widened to.
class Fp8Source : public WeightSource {
 public:
  Fp8Source(std::shared_ptr<WeightSource> inner, const Fp8Config& config)
      : inner_(std::move(inner)), config_(config) {}

  bool has(std::string_view name) const override { return inner_->has(name); }
  bool may_lack_biases() const override { return inner_->may_lack_biases(); }
  DType dtype(std::string_view name) const override {
    return in_8_bits(name) ? DType::f32 : inner_->dtype(name);
  }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    if (!in_8_bits(name)) return inner_->find(name, shape);
    WW_ASSIGN_OR_RETURN(const Fp8Matrix matrix, matrix_of(name, shape));
    const int64_t rows = matrix.codes.shape[0], cols = matrix.codes.shape[1];
    TensorView view = matrix.codes;
    view.dtype = DType::f32;
    WW_ASSIGN_OR_RETURN(std::byte* const memory, allocate(name, view.size_bytes()));
    view.data = memory;
    {
      std::lock_guard lock(mutex_);
      team_.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          widen_fp8_row(matrix.codes, matrix.scales, r, reinterpret_cast<float*>(memory) + r * cols);
        }
      });
    }
    release(matrix.codes);
    return view;
  }
  void release(const TensorView& view) const override {
    {
      std::lock_guard lock(mutex_);
      if (std::erase_if(buffers_, [&](const auto& buffer) { return buffer.get() == view.data; }) > 0) return;
    }
    inner_->release(view);
  }
  std::optional<RandomMatrix> random(std::string_view name, std::span<const int64_t> shape) const override {
    return in_8_bits(name) ? std::nullopt : inner_->random(name, shape);
  }
  std::vector<std::string> unread() const override { return inner_->unread(); }
  Status intact() const override { return inner_->intact(); }
  Status seal() const override { return inner_->seal(); }
  Result<Fp8Matrix> find_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return matrix_of(name, shape);
  }

 protected:
  virtual bool in_8_bits(std::string_view name) const = 0;
  virtual Result<Fp8Matrix> matrix_of(std::string_view name, std::span<const int64_t> shape) const = 0;

  Result<std::byte*> allocate(std::string_view name, size_t size_bytes) const {
    std::unique_ptr<std::byte[]> buffer(new (std::nothrow) std::byte[size_bytes]);
    if (buffer == nullptr) {
      return Status::resource_exhausted("tensor " + std::string(name) + " needs " + std::to_string(size_bytes) +
                                        " bytes of memory");
    }
    std::lock_guard lock(mutex_);
    return buffers_.emplace_back(std::move(buffer)).get();
  }

  std::shared_ptr<WeightSource> inner_;
  Fp8Config config_;
  mutable std::mutex mutex_;
  mutable ThreadTeam team_{available_cpus()};

 private:
  mutable std::vector<std::unique_ptr<std::byte[]>> buffers_;
};

class StoredFp8 : public Fp8Source {
 public:
  using Fp8Source::Fp8Source;

  bool has_fp8(std::string_view name) const override {
    return is_projection(name) && inner_->dtype(name) == DType::fp8_e4m3;
  }

 private:
  bool in_8_bits(std::string_view name) const override { return is_fp8(inner_->dtype(name)); }

  Result<Fp8Matrix> matrix_of(std::string_view name, std::span<const int64_t> shape) const override {
    Fp8Matrix out;
    WW_ASSIGN_OR_RETURN(out.codes, inner_->find(name, shape));
    if (out.codes.rank != 2) {
      return Status::unsupported("tensor " + std::string(name) + " has 8-bit values and " +
                                 std::to_string(out.codes.rank) + " dimensions; only matrices may be stored so",
                                 std::string(name));
    }
    WW_ASSIGN_OR_RETURN(out.scales, scales_of(std::string(name), out.codes));
    std::lock_guard lock(mutex_);
    if (out.codes.dtype == DType::fp8_e4m3 && has_nan_e4m3(out.codes, team_)) {
      return Status::data_loss("tensor " + std::string(name) + " holds NaN", std::string(name));
    }
    return out;
  }

  Result<WeightScales> scales_of(const std::string& name, const TensorView& stored) const {
    const int64_t rows = stored.shape[0], cols = stored.shape[1];
    const auto read = [&](const std::string& tensor, std::vector<std::vector<int64_t>> shapes) -> Result<TensorView> {
      Result<TensorView> found = Status::internal("");
      for (const std::vector<int64_t>& shape : shapes) {
        found = inner_->find(tensor, shape);
        if (found.ok()) break;
      }
      return found;
    };
    WeightScales out;
    TensorView view;
    std::string tensor = name + "_scale_inv";
    if (inner_->has(tensor)) {
      if (config_.block_rows == 0) {
        return Status::data_loss("tensor " + tensor + " holds scales of blocks, but quantization_config has no "
                                 "weight_block_size", tensor);
      }
      out.block_rows = config_.block_rows;
      out.block_cols = config_.block_cols;
      out.stride = (cols + out.block_cols - 1) / out.block_cols;
      WW_ASSIGN_OR_RETURN(view, read(tensor, {{(rows + out.block_rows - 1) / out.block_rows, out.stride}}));
    } else if (tensor = name + "_scale"; inner_->has(tensor)) {
      const int64_t block_rows = std::max(config_.block_rows, 1), block_cols = std::max(config_.block_cols, 1);
      const int64_t down = (rows + block_rows - 1) / block_rows, across = (cols + block_cols - 1) / block_cols;
      const bool blocks = config_.block_rows > 0 && inner_->find(tensor, std::array{down, across}).ok();
      WW_ASSIGN_OR_RETURN(view, blocks ? read(tensor, {{down, across}}) : read(tensor, {{}, {rows}, {rows, 1}, {1}}));
      out.block_rows = blocks ? block_rows : view.elements() == 1 ? rows : 1;
      out.block_cols = blocks ? block_cols : cols;
      out.stride = blocks ? across : 1;
    } else {
      return Status::data_loss("tensor " + name + " holds 8-bit values without scales: there is no " + name +
                               "_scale and no " + name + "_scale_inv", name);
    }
    if (view.dtype != DType::f32 && view.dtype != DType::f16 && view.dtype != DType::bf16) {
      return Status::data_loss("tensor " + tensor + " must hold f32, f16 or bf16", tensor);
    }
    out.values.resize(view.elements());
    dequantize_row(view.dtype, view.data, view.elements(), out.values.data());
    if (!std::all_of(out.values.begin(), out.values.end(), [](float x) { return std::isfinite(x); })) {
      return Status::data_loss("tensor " + tensor + " holds a scale that is not finite", tensor);
    }
    return out;
  }
};

class QuantizedFp8 : public Fp8Source {
 public:
  using Fp8Source::Fp8Source;

  bool has_fp8(std::string_view name) const override { return in_8_bits(name); }
  std::optional<RandomFp8> random_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    const auto matrix = inner_->random(name, shape);
    if (!in_8_bits(name) || !matrix) return std::nullopt;
    const auto [block_rows, block_cols] = blocks_of(shape[1]);
    return RandomFp8{*matrix, inner_->dtype(name), block_rows, block_cols};
  }

 private:
  bool in_8_bits(std::string_view name) const override { return is_projection(name); }
  std::pair<int64_t, int64_t> blocks_of(int64_t cols) const {
    if (config_.block_rows > 0) return {config_.block_rows, config_.block_cols};
    return {1, cols};
  }

  Result<Fp8Matrix> matrix_of(std::string_view name, std::span<const int64_t> shape) const override {
    WW_ASSIGN_OR_RETURN(const TensorView weight, inner_->find(name, shape));
    Fp8Matrix out;
    out.codes = weight;
    out.codes.dtype = DType::fp8_e4m3;
    WW_ASSIGN_OR_RETURN(std::byte* const codes, allocate(name, out.codes.size_bytes()));
    out.codes.data = codes;
    const auto [block_rows, block_cols] = blocks_of(weight.shape[1]);
    Result<WeightScales> scales = [&, rows = block_rows, cols = block_cols] {
      std::lock_guard lock(mutex_);
      return quantize_fp8(weight, rows, cols, reinterpret_cast<uint8_t*>(codes), team_);
    }();
    inner_->release(weight);
    if (!scales.ok()) return scales.status().with_context("tensor " + std::string(name));
    out.scales = *std::move(scales);
    return out;
  }
};

}  // namespace

std::shared_ptr<WeightSource> read_fp8_weights(std::shared_ptr<WeightSource> inner, const Fp8Config& config) {
  return std::make_shared<StoredFp8>(std::move(inner), config);
}

std::shared_ptr<WeightSource> quantize_weights_fp8(std::shared_ptr<WeightSource> inner, const Fp8Config& config) {
  return std::make_shared<QuantizedFp8>(std::move(inner), config);
}

}  // namespace warpweave
