#include "lora/load_adapter.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "base/log.h"
#include "base/mapped_file.h"
#include "lora/adapter_config.h"
#include "model/weight_source.h"
#include "ops/elementwise.h"
#include "ops/gguf_blocks.h"

namespace warpweave {
namespace {

// What the file has of one module.
struct FoundTensors {
  const LoraModule* module = nullptr;
  const NamedTensor* a = nullptr;
  const NamedTensor* b = nullptr;
};

// "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight" taken apart.
struct TensorName {
  int layer = 0;
  std::string_view module;  // "self_attn.q_proj"
  bool is_a = false;
};

std::optional<TensorName> parse_name(std::string_view name) {
  for (const std::string_view prefix : {"base_model.model.", "model.", "layers."}) {
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
    } else if (prefix != "model.") {  // adapters of a model without a head lack it
      return std::nullopt;
    }
  }
  TensorName out;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out.layer);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  name.remove_prefix(end - name.data() + 1);
  constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
  out.is_a = name.ends_with(kA);
  if (!out.is_a && !name.ends_with(kB)) return std::nullopt;
  out.module = name.substr(0, name.size() - kA.size());
  return out;
}

class AdapterLoader {
 public:
  AdapterLoader(const LoraSource& source, LoraPlacer& placer)
      : targets_(source.targets), limits_(source.limits), dtype_(source.dtype), placer_(placer) {}

  Result<std::unique_ptr<LoraAdapter>> load(const std::string& folder);

 private:
  Status sort(const std::vector<NamedTensor>& tensors);
  const LoraModule* find_module(const TensorName& name) const;
  Status check(int layer, const FoundTensors& found) const;
  Status place(LoraAdapter& out);
  Status place_update(LoraPlace place, std::span<const FoundTensors> parts);
  Result<TensorView> converted(const NamedTensor& tensor);

  const LoraTargets& targets_;
  const LoraLimits& limits_;
  const DType dtype_;
  LoraPlacer& placer_;
  LoraConfig config_;
  std::vector<std::map<std::string, FoundTensors, std::less<>>> layers_;  // by module path
  std::vector<std::vector<std::byte>> copies_;  // of tensors in another type, alive while one GEMM is placed
};

Result<std::unique_ptr<LoraAdapter>> AdapterLoader::load(const std::string& folder) {
  const std::string config_path = folder + "/" + kAdapterConfigName, weights_path = folder + "/" + kAdapterWeightsName;
  if (!path_exists(config_path)) {
    return Status::not_found(
        fmt::format("there is no {} in the adapter's folder; give a folder that PEFT's save_pretrained() wrote",
                    kAdapterConfigName),
        kAdapterConfigName);
  }
  if (!path_exists(weights_path)) {
    return Status::not_found(
        fmt::format("there is no {} in the adapter's folder; save the adapter with safe_serialization=True",
                    kAdapterWeightsName),
        kAdapterWeightsName);
  }
  WW_ASSIGN_OR_RETURN(const std::string text, read_text_file(config_path, kMaxAdapterConfigBytes));
  WW_ASSIGN_OR_RETURN(config_, parse_adapter_config(text));
  WW_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(weights_path));
  auto out = std::make_unique<LoraAdapter>();
  const Status status = [&]() -> Status {
    WW_ASSIGN_OR_RETURN(const std::vector<NamedTensor> tensors, parse_safetensors(file.text(), kAdapterWeightsName));
    WW_RETURN_IF_ERROR(sort(tensors));
    WW_RETURN_IF_ERROR(place(*out));
    return placer_.finish(*out);
  }();
  WW_RETURN_IF_ERROR(file.intact());  // a file that changed explains every other error
  WW_RETURN_IF_ERROR(status);
  out->path = folder;
  return out;
}

const LoraModule* AdapterLoader::find_module(const TensorName& name) const {
  if (name.layer < 0 || name.layer >= static_cast<int>(targets_.layers.size())) return nullptr;
  for (const LoraModule& module : targets_.layers[name.layer]) {
    if (module.path == name.module) return &module;
  }
  return nullptr;
}

Status AdapterLoader::sort(const std::vector<NamedTensor>& tensors) {
  layers_.resize(targets_.layers.size());
  for (const NamedTensor& tensor : tensors) {
    WW_RETURN_IF_ERROR(tensor.readable);
    const std::optional<TensorName> name = parse_name(tensor.name);
    const LoraModule* const module = name ? find_module(*name) : nullptr;
    if (module == nullptr) {
      return Status::unsupported(
          fmt::format("tensor {} is of no module that adapters change here; {} has {} ({} layers): "
                      "train on those or merge the adapter into the model",
                      log_safe(tensor.name, 120), targets_.model, fmt::join(targets_.names(), ", "),
                      targets_.layers.size()),
          log_safe(tensor.name, 120));
    }
    if (!limits_.modules.empty() &&
        std::find(limits_.modules.begin(), limits_.modules.end(), module->name()) == limits_.modules.end()) {
      return Status::unsupported(
          fmt::format("the adapter changes {}, which --lora-target-modules does not name; it names {}", module->name(),
                      fmt::join(limits_.modules, ", ")),
          "--lora-target-modules");
    }
    FoundTensors& found = layers_[name->layer][module->path];
    found.module = module;
    const NamedTensor*& slot = name->is_a ? found.a : found.b;
    if (slot != nullptr)
      return Status::data_loss("two tensors are called like " + log_safe(tensor.name, 120), log_safe(tensor.name, 120));
    slot = &tensor;
  }
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (const auto& [path, found] : layers_[layer]) WW_RETURN_IF_ERROR(check(static_cast<int>(layer), found));
  }
  const bool any = std::any_of(layers_.begin(), layers_.end(), [](const auto& layer) { return !layer.empty(); });
  return any ? Status()
             : Status::data_loss(std::string(kAdapterWeightsName) + " holds no matrices", kAdapterWeightsName);
}

std::string path_of(int layer, const LoraModule& module) {
  return fmt::format("model.layers.{}.{}", layer, module.path);
}

// Both are there, and their shapes are those of the module and the configuration.
Status AdapterLoader::check(int layer, const FoundTensors& found) const {
  const LoraModule& module = *found.module;
  const std::string path = path_of(layer, module);
  if (found.a == nullptr || found.b == nullptr) {
    return Status::data_loss(
        fmt::format("{} lacks lora_{} of {}", kAdapterWeightsName, found.a == nullptr ? "A" : "B", path), path);
  }
  const int rank = config_.rank_of(path);
  if (rank > limits_.max_rank) {
    return Status::invalid_argument(
        fmt::format("{} has rank {}, and --max-lora-rank is {}; start the server with --max-lora-rank {}", path, rank,
                    limits_.max_rank, rank),
        "--max-lora-rank");
  }
  const int64_t a_shape[] = {rank, module.in_features}, b_shape[] = {module.columns, rank};
  WW_RETURN_IF_ERROR(check_shape(found.a->name, found.a->view, a_shape));
  return check_shape(found.b->name, found.b->view, b_shape);
}

// A tensor in the serving dtype; alive until the GEMM is placed.
Result<TensorView> AdapterLoader::converted(const NamedTensor& tensor) {
  const DType from = tensor.view.dtype;
  if (from != DType::f32 && from != DType::f16 && from != DType::bf16) {
    return Status::unsupported("tensor " + log_safe(tensor.name, 120) + " is not in F32, F16 or BF16",
                               log_safe(tensor.name, 120));
  }
  if (from == dtype_) return tensor.view;
  const int64_t count = tensor.view.elements();
  std::vector<float> wide(count);
  dequantize_row(from, tensor.view.data, count, wide.data());
  std::vector<std::byte>& bytes = copies_.emplace_back(count * dtype_info(dtype_).block_bytes);
  switch (dtype_) {
    case DType::bf16: f32_to_bf16_row(wide.data(), count, reinterpret_cast<uint16_t*>(bytes.data())); break;
    case DType::f16: f32_to_f16_row(wide.data(), count, reinterpret_cast<uint16_t*>(bytes.data())); break;
    default: std::memcpy(bytes.data(), wide.data(), bytes.size());
  }
  TensorView view = tensor.view;
  view.data = bytes.data();
  view.dtype = dtype_;
  return view;
}

Status AdapterLoader::place_update(LoraPlace place, std::span<const FoundTensors> parts) {
  std::vector<LoraMatrices> matrices;
  for (const FoundTensors& found : parts) {
    LoraMatrices& part = matrices.emplace_back();
    part.module = found.module;
    WW_ASSIGN_OR_RETURN(part.a, converted(*found.a));
    WW_ASSIGN_OR_RETURN(part.b, converted(*found.b));
    part.scale = config_.scale_of(path_of(place.layer, *found.module));
  }
  std::sort(matrices.begin(), matrices.end(), [](const LoraMatrices& a, const LoraMatrices& b) {
    return a.module->first_column < b.module->first_column;
  });
  const Status status = placer_.add(place, matrices);
  copies_.clear();
  return status;
}

Status AdapterLoader::place(LoraAdapter& out) {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    std::array<std::vector<FoundTensors>, kLoraSites> sites;
    for (const auto& [path, found] : layers_[layer]) {
      sites[static_cast<int>(found.module->site)].push_back(found);
      out.rank = std::max(out.rank, static_cast<int>(found.a->view.shape[0]));
    }
    for (int site = 0; site < kLoraSites; ++site) {
      if (!sites[site].empty())
        WW_RETURN_IF_ERROR(place_update({static_cast<int>(layer), static_cast<LoraSite>(site)}, sites[site]));
    }
  }
  return {};
}

class HostPlacer : public LoraPlacer {
 public:
  explicit HostPlacer(size_t num_layers) : layers_(num_layers) {}

  Status add(LoraPlace place, std::span<const LoraMatrices> parts) override {
    LoraUpdate& out = layers_[place.layer][static_cast<int>(place.site)];
    std::vector<LinearPart> shrink;
    int64_t first_rank = 0;
    for (const LoraMatrices& matrices : parts) {
      LinearPart a, b;
      a.weight = matrices.a;
      b.weight = matrices.b;
      LoraUpdate::Part& part = out.parts.emplace_back();
      WW_ASSIGN_OR_RETURN(part.expand, PackedLinear::pack(std::span(&b, 1), {}, team_));
      part.first_rank = first_rank;
      part.first_column = matrices.module->first_column;
      part.scale = matrices.scale;
      first_rank += matrices.a.shape[0];
      out.columns += matrices.module->columns;
      bytes_ += part.expand.size_bytes();
      shrink.push_back(a);
    }
    WW_ASSIGN_OR_RETURN(out.shrink, PackedLinear::pack(shrink, {}, team_));
    bytes_ += out.shrink.size_bytes();
    return {};
  }

  Status finish(LoraAdapter& out) override {
    out.layers = std::move(layers_);
    out.bytes = bytes_;
    return {};
  }

 private:
  std::vector<std::array<LoraUpdate, kLoraSites>> layers_;
  size_t bytes_ = 0;
  ThreadTeam team_{1};  // requests have the others
};

}  // namespace

std::unique_ptr<LoraPlacer> place_lora_on_host(size_t num_layers) { return std::make_unique<HostPlacer>(num_layers); }

Result<std::unique_ptr<LoraAdapter>> load_lora_adapter(const std::string& folder, const LoraSource& source,
                                                       LoraPlacer& placer) {
  return AdapterLoader(source, placer).load(folder);
}

Result<std::unique_ptr<LoraAdapter>> load_lora_adapter(const std::string& folder, const LoraTargets& targets,
                                                       const LoraLimits& limits, DType dtype) {
  HostPlacer placer(targets.layers.size());
  return load_lora_adapter(folder, {targets, limits, dtype}, placer);
}

}  // namespace warpweave
