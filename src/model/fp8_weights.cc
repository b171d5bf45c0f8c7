#include "model/fp8_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <new>
#include <string>

#include "base/float8.h"
#include "base/threads.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

using DecodeTable = std::array<float, 256>;

DecodeTable decode_table(DType dtype) {
  DecodeTable table;
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    table[code] = dtype == DType::fp8_e4m3 ? e4m3_to_f32(bits) : e5m2_to_f32(bits);
  }
  return table;
}

// Scales of a matrix: that of element (r, c) is values[r / block_rows * stride + c / block_cols].
struct Scales {
  std::vector<float> values;
  int64_t block_rows = 1, block_cols = 1, stride = 0;
};

class Fp8Source : public WeightSource {
 public:
  Fp8Source(std::shared_ptr<WeightSource> inner, const Fp8Config& config)
      : inner_(std::move(inner)), config_(config), e4m3_(decode_table(DType::fp8_e4m3)),
        e5m2_(decode_table(DType::fp8_e5m2)) {}

  bool has(std::string_view name) const override { return inner_->has(name); }
  DType dtype(std::string_view name) const override {
    const DType stored = inner_->dtype(name);
    return is_fp8(stored) ? DType::f32 : stored;
  }

  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    WW_ASSIGN_OR_RETURN(const TensorView stored, inner_->find(name, shape));
    if (!is_fp8(stored.dtype)) return stored;
    if (stored.rank != 2) {
      return Status::unsupported("tensor " + std::string(name) + " has 8-bit values and " + std::to_string(stored.rank) +
                                 " dimensions; only matrices may be stored so", std::string(name));
    }
    WW_ASSIGN_OR_RETURN(const Scales scales, scales_of(std::string(name), stored));
    std::unique_ptr<float[]> wide(new (std::nothrow) float[stored.elements()]);
    if (wide == nullptr) {
      return Status::resource_exhausted("tensor " + std::string(name) + " needs " +
                                        std::to_string(stored.elements() * 4) + " bytes of memory");
    }
    std::lock_guard lock(mutex_);
    widen(stored, scales, wide.get());
    inner_->release(stored);
    TensorView view = stored;
    view.dtype = DType::f32;
    view.data = wide.get();
    widened_.push_back(std::move(wide));
    return view;
  }

  void release(const TensorView& view) const override {
    {
      std::lock_guard lock(mutex_);
      if (std::erase_if(widened_, [&](const auto& buffer) { return buffer.get() == view.data; }) > 0) return;
    }
    inner_->release(view);
  }

 private:
  static bool is_fp8(DType dtype) { return dtype == DType::fp8_e4m3 || dtype == DType::fp8_e5m2; }

  Result<Scales> scales_of(const std::string& name, const TensorView& stored) const {
    const int64_t rows = stored.shape[0], cols = stored.shape[1];
    const auto read = [&](const std::string& tensor, std::vector<std::vector<int64_t>> shapes) -> Result<TensorView> {
      Result<TensorView> found = Status::internal("");
      for (const std::vector<int64_t>& shape : shapes) {
        found = inner_->find(tensor, shape);
        if (found.ok()) break;
      }
      return found;
    };
    Scales out;
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
      WW_ASSIGN_OR_RETURN(view, read(tensor, {{}, {rows}, {rows, 1}, {1}}));
      out.block_rows = view.elements() == 1 ? rows : 1;
      out.block_cols = cols;
      out.stride = 1;
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

  void widen(const TensorView& stored, const Scales& scales, float* out) const {
    const DecodeTable& table = stored.dtype == DType::fp8_e4m3 ? e4m3_ : e5m2_;
    const int64_t cols = stored.shape[1];
    const auto* codes = static_cast<const uint8_t*>(stored.data);
    team_.parallel_for(stored.shape[0], 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* row_scales = scales.values.data() + r / scales.block_rows * scales.stride;
        for (int64_t first = 0; first < cols; first += scales.block_cols) {
          const float scale = row_scales[first / scales.block_cols];
          const int64_t last = std::min(cols, first + scales.block_cols);
          for (int64_t c = first; c < last; ++c) out[r * cols + c] = table[codes[r * cols + c]] * scale;
        }
      }
    });
  }

  std::shared_ptr<WeightSource> inner_;
  Fp8Config config_;
  DecodeTable e4m3_, e5m2_;
  mutable std::mutex mutex_;
  mutable ThreadTeam team_{available_cpus()};
  mutable std::vector<std::unique_ptr<float[]>> widened_;
};

}  // namespace

std::shared_ptr<WeightSource> widen_fp8_weights(std::shared_ptr<WeightSource> inner, const Fp8Config& config) {
  return std::make_shared<Fp8Source>(std::move(inner), config);
}

}  // namespace warpweave
