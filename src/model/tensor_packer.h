// Tensors by name to packed matrices and vectors, for every kind of memory: finds each, checks its shape, and hands it
// to a Target that packs it (build_decoder.cc: host memory; gpu_weights.cc: a GPU's). What the builders of all parts of
// a model (decoder_builder.h, layers/*_builder.h) go through.
//
// A Target has
//   type Device                         OnHost or OnGpu: what the following are (layers/on_host.h)
//   type Weights                        of the whole model
//   bool kOneFormat                     all parts of a GEMM end in one format
//   bool kStackedHeads                  the heads' matrices of latent attention stand in one (Device::LatentHeads)
//   bool kSharedAmongExperts            shared experts are multiplied with the routed ones (RouterRule::shared)
//   bool kRopesGrow                     angles are made as positions come (RopeTable::reach)
//   Result<Vector> vector(view)         a list of floats
//   Result<Linear> pack(parts, glu, exact)  one GEMM; parts may go away afterwards (LinearPart::stays: when
//                                       they are released). exact: it multiplies in f32 (a router, which
//                                       decides discretely)
//   bool takes_fp8()                    parts may be e4m3 codes with scales
//   bool takes_random(dtype)            parts of that dtype may be a rule without data (LinearPart::random)
//   bool takes_random_fp8(rule, rows, cols)  the same of codes with scales of the rule's blocks
//   void begin_experts(count)           the next 2 * count GEMMs are a layer's experts, in turns of gate_up and down
//   Result<Experts> experts(list)       those, as one
//   Status embedding(part, source, weights) an untied embedding
//   Result<Rope> rope(table)            a rotary table
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/families/family.h"
#include "model/layers/branch_norms.h"
#include "model/weight_source.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace warpweave {

// A weight matrix, or some rows of one, with the optional bias that belongs to it.
struct PartName {
  std::string weight;
  int64_t rows;
  std::string bias;       // empty: none
  int64_t first_row = 0;
  int64_t of_rows = -1;   // that the matrix has; -1: `rows` are all
  bool bias_may_lack = false;  // no configuration says whether there is one
};

// What the tensors of a branch are called: a mixer's or a feed-forward's.
struct BranchNames {
  std::string prefix;    // "model.layers.3.self_attn."
  std::string in_norm;   // "model.layers.3.input_layernorm"; empty: none
  std::string out_norm;  // empty: none
  std::string after_norm;  // empty: none
};

inline std::vector<float> widened(const TensorView& view) {
  std::vector<float> out(view.elements());
  dequantize_row(view.dtype, view.data, view.elements(), out.data());
  return out;
}
inline Result<std::vector<float>> find_widened(const WeightSource& source, std::string_view name,
                                               std::span<const int64_t> shape) {
  WW_ASSIGN_OR_RETURN(const TensorView view, source.find(name, shape));
  return widened(view);
}

template <typename Target>
class TensorPacker {
 public:
  using Device = typename Target::Device;
  using Linear = typename Device::Linear;
  using Vector = typename Device::Vector;

  // All but `source`, which is shared, outlive the packer.
  TensorPacker(const ModelConfig& config, const FamilyTraits& traits, std::shared_ptr<WeightSource> source,
               Target& target)
      : config(config), traits(traits), source(std::move(source)), target(target) {}

  Result<Vector> vector(const std::string& name, int64_t size);
  // A tensor of any rank, as a list.
  Result<Vector> flat_vector(const std::string& name, std::span<const int64_t> shape);
  Result<Vector> optional_vector(const std::string& name, int64_t size);  // empty where there is none
  Result<Linear> linear(const std::vector<PartName>& names, int64_t in_features,
                        GluActivation glu = GluActivation::none, bool exact = false);
  // The same as one GEMM where all are in one format (GGUF files often mix them), else one for each run of a format.
  Result<std::vector<Linear>> linears(const std::vector<PartName>& names, int64_t in_features);
  // Empty where there is none and may be none.
  Result<TensorView> bias(const std::string& name, int64_t size, bool may_lack);
  Result<LinearPart> matrix(const std::string& name, std::span<const int64_t> shape, bool exact);
  // Rules of 8-bit matrices which the target makes itself: of all, or none.
  std::vector<RandomFp8> random_fp8(const std::vector<PartName>& names, int64_t in_features) const;
  // `name` without its ".weight".
  Result<RowNormOf<Device>> row_norm(const std::string& name);
  Result<BranchNormsOf<Device>> norms(const BranchNames& names);

  const ModelConfig& config;
  const FamilyTraits& traits;
  const std::shared_ptr<WeightSource> source;
  Target& target;
};

template <typename Target>
auto TensorPacker<Target>::flat_vector(const std::string& name, std::span<const int64_t> shape) -> Result<Vector> {
  WW_ASSIGN_OR_RETURN(TensorView view, source->find(name, shape));
  view.shape = {view.elements()};
  view.rank = 1;
  return target.vector(view);
}

template <typename Target>
auto TensorPacker<Target>::vector(const std::string& name, int64_t size) -> Result<Vector> {
  const int64_t shape[] = {size};
  return flat_vector(name, shape);
}

template <typename Target>
auto TensorPacker<Target>::optional_vector(const std::string& name, int64_t size) -> Result<Vector> {
  return source->has(name) ? vector(name, size) : Result<Vector>(Vector());
}

template <typename Target>
auto TensorPacker<Target>::row_norm(const std::string& name) -> Result<RowNormOf<Device>> {
  RowNormOf<Device> out;
  WW_ASSIGN_OR_RETURN(out.weight, vector(name + ".weight", config.hidden_size));
  if (traits.layer_norm) {
    WW_ASSIGN_OR_RETURN(out.bias, optional_vector(name + ".bias", config.hidden_size));
  }
  return out;
}

template <typename Target>
auto TensorPacker<Target>::norms(const BranchNames& names) -> Result<BranchNormsOf<Device>> {
  BranchNormsOf<Device> out;
  if (!names.in_norm.empty()) {
    WW_ASSIGN_OR_RETURN(out.in, row_norm(names.in_norm));
  }
  if (!names.after_norm.empty()) {
    WW_ASSIGN_OR_RETURN(out.after, row_norm(names.after_norm));
  }
  if (names.out_norm.empty()) return out;
  WW_ASSIGN_OR_RETURN(out.out, vector(names.out_norm + ".weight", config.hidden_size));
  return out;
}

template <typename Target>
Result<TensorView> TensorPacker<Target>::bias(const std::string& name, int64_t size, bool may_lack) {
  const bool optional = may_lack || source->may_lack_biases() || traits.layers_only;  // of drafts only the text counts
  if (optional && !source->has(name)) return TensorView();
  const int64_t shape[] = {size};
  return source->find(name, shape);
}

// A whole weight matrix that is not in 8 bits.
template <typename Target>
Result<LinearPart> TensorPacker<Target>::matrix(const std::string& name, std::span<const int64_t> shape, bool exact) {
  LinearPart part;
  part.stays = true;
  const DType dtype = source->dtype(name);
  if (!exact && target.takes_random(dtype)) part.random = source->random(name, shape);
  if (part.random) {
    part.weight = {.data = nullptr, .dtype = dtype, .rank = 2, .shape = {shape[0], shape[1]}};
  } else {
    WW_ASSIGN_OR_RETURN(part.weight, source->find(name, shape));
  }
  return part;
}

template <typename Target>
std::vector<RandomFp8> TensorPacker<Target>::random_fp8(const std::vector<PartName>& names, int64_t in_features) const {
  std::vector<RandomFp8> out;
  for (const PartName& name : names) {
    const int64_t shape[] = {name.rows, in_features};
    if (name.of_rows >= 0 || !source->has_fp8(name.weight)) return {};
    const std::optional<RandomFp8> rule = source->random_fp8(name.weight, shape);
    if (!rule || !target.takes_random_fp8(*rule, name.rows, in_features)) return {};
    out.push_back(*rule);
  }
  return out;
}

template <typename Target>
auto TensorPacker<Target>::linear(const std::vector<PartName>& names, int64_t in_features,
                                  GluActivation glu, bool exact) -> Result<Linear> {
  std::vector<LinearPart> parts;
  std::vector<TensorView> used;
  std::vector<WeightScales> scales(names.size());
  const std::vector<RandomFp8> made =
      !exact && target.takes_fp8() ? random_fp8(names, in_features) : std::vector<RandomFp8>();
  for (const PartName& name : names) {
    LinearPart part;
    const bool whole = name.of_rows < 0;
    const int64_t all_rows = whole ? name.rows : name.of_rows, shape[] = {all_rows, in_features};
    const bool known = !parts.empty() && !parts.back().random && names[parts.size() - 1].weight == name.weight;
    if (!made.empty()) {
      const RandomFp8& rule = made[parts.size()];
      part.random = rule.matrix;
      part.random_dtype = rule.dtype;
      part.weight = {.data = nullptr, .dtype = DType::fp8_e4m3, .rank = 2, .shape = {all_rows, in_features}};
      part.scales =
          &(scales[parts.size()] = {.values = {}, .block_rows = rule.block_rows, .block_cols = rule.block_cols});
    } else if (known) {  // more rows of the tensor before
      part = parts.back();
      part.bias = {};
    } else if (!exact && target.takes_fp8() && source->has_fp8(name.weight)) {
      WW_ASSIGN_OR_RETURN(Fp8Matrix matrix, source->find_fp8(name.weight, shape));
      part.weight = matrix.codes;
      part.stays = true;
      part.scales = &(scales[parts.size()] = std::move(matrix.scales));
    } else {
      WW_ASSIGN_OR_RETURN(part, matrix(name.weight, shape, exact));
    }
    if (part.random) {
      part.random = part.random->piece(name.first_row, 0, in_features, in_features);
      part.weight.shape = {name.rows, in_features};
    } else {
      part.first_row = name.first_row;
    }
    part.rows = name.rows;
    if (!part.random && !known) used.push_back(part.weight);
    if (!name.bias.empty()) {
      WW_ASSIGN_OR_RETURN(part.bias, bias(name.bias, all_rows, name.bias_may_lack));
    }
    parts.push_back(part);
  }
  auto packed = target.pack(std::move(parts), glu, exact);
  for (const TensorView& view : used) source->release(view);
  if (!packed.ok()) return packed.status().with_context(names[0].weight);
  return packed;
}

template <typename Target>
auto TensorPacker<Target>::linears(const std::vector<PartName>& names, int64_t in_features)
    -> Result<std::vector<Linear>> {
  std::vector<Linear> out;
  for (size_t begin = 0, end = 0; begin < names.size(); begin = end) {
    const DType format = source->dtype(names[begin].weight);
    while (end < names.size() && (Target::kOneFormat || source->dtype(names[end].weight) == format)) ++end;
    WW_ASSIGN_OR_RETURN(out.emplace_back(), linear({names.begin() + begin, names.begin() + end}, in_features));
  }
  return out;
}

}  // namespace warpweave
