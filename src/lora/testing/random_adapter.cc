#include "lora/testing/random_adapter.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include <fmt/format.h>

#include "ops/elementwise.h"

namespace warpweave {
namespace {

// The header of a safetensors file, and the sizes of its tensors in order.
class FileLayout {
 public:
  explicit FileLayout(DType dtype) : dtype_(dtype) {}

  void add(const std::string& name, int64_t rows, int64_t cols) {
    const size_t bytes = rows * cols * dtype_info(dtype_).block_bytes;
    header_ +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{},{}],"data_offsets":[{},{}]}})", header_.empty() ? "{" : ",",
                    name, dtype_ == DType::f32 ? "F32" : "BF16", rows, cols, end_, end_ + bytes);
    end_ += bytes;
    elements_ += rows * cols;
  }
  std::string header() const { return header_ + "}"; }
  int64_t elements() const { return elements_; }

 private:
  DType dtype_;
  std::string header_;
  size_t end_ = 0;
  int64_t elements_ = 0;
};

// Numbers from -1 to 1 whose deviation is `deviation`; a draw is two instructions, for adapters may be large.
void write_values(std::ofstream& out, int64_t count, const RandomAdapter& adapter) {
  std::minstd_rand rng(adapter.seed);
  std::vector<float> values(1 << 16);
  std::vector<uint16_t> halves(values.size());
  const float width = adapter.deviation * std::sqrt(12.0f);
  for (int64_t done = 0; done < count;) {
    const int64_t n = std::min<int64_t>(count - done, static_cast<int64_t>(values.size()));
    for (int64_t i = 0; i < n; ++i) values[i] = width * (static_cast<float>(rng() >> 8) / (1 << 23) - 0.5f);
    f32_to_bf16_row(values.data(), n, halves.data());
    const bool wide = adapter.dtype == DType::f32;
    out.write(wide ? reinterpret_cast<const char*>(values.data()) : reinterpret_cast<const char*>(halves.data()),
              n * (wide ? 4 : 2));
    done += n;
  }
}

}  // namespace

void write_random_adapter(const std::filesystem::path& folder, const LoraTargets& targets,
                          const RandomAdapter& adapter) {
  std::filesystem::create_directories(folder);
  FileLayout layout(adapter.dtype);
  for (size_t layer = 0; layer < targets.layers.size(); ++layer) {
    for (const LoraModule& module : targets.layers[layer]) {
      const std::string name = fmt::format("base_model.model.model.layers.{}.{}", layer, module.path);
      layout.add(name + ".lora_A.weight", adapter.rank, module.in_features);
      layout.add(name + ".lora_B.weight", module.columns, adapter.rank);
    }
  }
  std::ofstream(folder / "adapter_config.json")
      << fmt::format(R"({{"peft_type": "LORA", "r": {}, "lora_alpha": {}}})", adapter.rank, adapter.alpha);
  const std::string header = layout.header();
  const uint64_t size = header.size();
  std::ofstream out(folder / "adapter_model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof(size));
  out << header;
  write_values(out, layout.elements(), adapter);
}

}  // namespace warpweave
