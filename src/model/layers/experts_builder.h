// Finds and packs the weights of a mixture of experts: one tensor for each expert's matrix, or one for all experts.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "model/layers/experts_weights.h"
#include "model/tensor_packer.h"

namespace warpweave {

inline TensorView f32_view(const float* data, std::initializer_list<int64_t> shape) {
  TensorView view{.data = data, .dtype = DType::f32, .rank = static_cast<int>(shape.size()), .shape = {}};
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  return view;
}

// [experts, in, out]: every expert's matrix transposed, or the rule that makes all of them.
struct FusedMatrix {
  int64_t in = 0, out = 0;
  TensorView all = {};          // without data where there is a rule
  std::optional<RandomMatrix> random = {};

  // An expert's [out, in] in f32; empty where there is a rule.
  std::vector<float> transposed(int64_t expert) const {
    if (random) return {};
    const int64_t row_bytes = out * dtype_info(all.dtype).block_bytes;
    std::vector<float> row(out), result(in * out);
    for (int64_t i = 0; i < in; ++i) {
      dequantize_row(all.dtype, static_cast<const std::byte*>(all.data) + (expert * in + i) * row_bytes, out,
                     row.data());
      for (int64_t o = 0; o < out; ++o) result[o * in + i] = row[o];
    }
    return result;
  }
  // Every step-th row of that, from `first` on.
  LinearPart part(int64_t expert, const std::vector<float>& rows, int64_t first, int64_t step) const {
    LinearPart made{.weight = f32_view(rows.data(), {out, in}),
                    .bias = {},
                    .first_row = first,
                    .row_step = step,
                    .rows = out / step};
    if (random) {
      made.weight = {.data = nullptr, .dtype = all.dtype, .rank = 2, .shape = {out / step, in}};
      made.random = random->transposed(expert * in, in, first, step, out);
    }
    return made;
  }
};

template <typename Target>
class ExpertsBuilder {
 public:
  using Device = typename Target::Device;

  ExpertsBuilder(TensorPacker<Target>& pack, const BranchNames& names)
      : pack_(pack), names_(names), hidden_(pack.config.hidden_size) {}

  Result<ExpertsWeightsOf<Device>> build();

 private:
  using Experts = std::vector<typename Device::Expert>;
  Status router();
  int shared_among_experts() const;
  std::string shared_prefix() const { return names_.prefix + pack_.traits.expert_names.shared; }
  std::string expert_prefix(int expert) const { return names_.prefix + "experts." + std::to_string(expert) + "."; }
  Status shared_experts(int among);
  Status add_shared(int among, Experts& experts);
  Result<typename Device::Linear> down_columns(int first, int among);
  Status single_experts(Experts& experts);
  Status fused_experts(Experts& experts);
  Result<FusedMatrix> fused_matrix(const std::string& name, int64_t in, int64_t out);
  Status stacked_experts(Experts& experts);

  TensorPacker<Target>& pack_;
  const BranchNames& names_;
  const int64_t hidden_;
  ExpertsWeightsOf<Device> out_;
};

template <typename Target>
auto build_experts(TensorPacker<Target>& pack, const BranchNames& names)
    -> Result<ExpertsWeightsOf<typename Target::Device>> {
  return ExpertsBuilder<Target>(pack, names).build();
}

template <typename Target>
auto ExpertsBuilder<Target>::build() -> Result<ExpertsWeightsOf<Device>> {
  WW_ASSIGN_OR_RETURN(out_.norms, pack_.norms(names_));
  WW_RETURN_IF_ERROR(router());
  const int among = shared_among_experts();
  WW_RETURN_IF_ERROR(shared_experts(among));
  Experts experts;
  pack_.target.begin_experts(pack_.config.num_experts + among);
  const std::string first = expert_prefix(0) + pack_.traits.expert_names.gate + ".weight";
  if (pack_.traits.fused_experts) {
    WW_RETURN_IF_ERROR(fused_experts(experts));
  } else if (pack_.traits.stacked_experts && !pack_.source->has(first)) {
    WW_RETURN_IF_ERROR(stacked_experts(experts));
  } else {
    WW_RETURN_IF_ERROR(single_experts(experts));
  }
  WW_RETURN_IF_ERROR(add_shared(among, experts));
  WW_ASSIGN_OR_RETURN(out_.experts, pack_.target.experts(std::move(experts)));
  return std::move(out_);
}

// How many of the routed experts' width the shared ones are, where the target multiplies them together; 0: apart. Their
// down GEMMs are cut by columns, which formats of blocks do not allow, and their gate is read by eight.
template <typename Target>
int ExpertsBuilder<Target>::shared_among_experts() const {
  const int64_t ffn = pack_.config.moe_intermediate_size, all = pack_.config.shared_expert_intermediate_size;
  if (!Target::kSharedAmongExperts || all == 0 || all % ffn != 0 || hidden_ % 8 != 0) return 0;
  const int64_t count = all / ffn;
  if (count > kMaxGpuSharedExperts || pack_.config.experts_per_token + count > kMaxGpuExpertsPerToken) return 0;
  const std::string down = shared_prefix() + ".down_proj.weight";
  const bool fp8 = pack_.source->has_fp8(down);
  if (fp8 != pack_.source->has_fp8(expert_prefix(0) + pack_.traits.expert_names.down + ".weight")) return 0;
  const bool plain = !fp8 && !is_quantized(pack_.source->dtype(down));
  return count == 1 || plain ? static_cast<int>(count) : 0;
}

template <typename Target>
Status ExpertsBuilder<Target>::router() {
  const std::string name = names_.prefix + pack_.traits.expert_names.router;
  const int count = pack_.config.num_experts;
  WW_ASSIGN_OR_RETURN(out_.router,
                      pack_.linear({{.weight = name + ".weight", .rows = count, .bias = name + ".bias",
                                      .bias_may_lack = true}}, hidden_, GluActivation::none,
                                   /*exact=*/true));
  WW_ASSIGN_OR_RETURN(out_.router_correction,
                      pack_.optional_vector(names_.prefix + pack_.traits.expert_names.correction, count));
  return {};
}

template <typename Target>
Status ExpertsBuilder<Target>::shared_experts(int among) {
  const int64_t ffn = pack_.config.shared_expert_intermediate_size;
  if (ffn == 0) return {};
  const std::string shared = shared_prefix();
  if (among == 0) {
    WW_ASSIGN_OR_RETURN(out_.shared_gate_up, pack_.linear({{shared + ".gate_proj.weight", ffn, ""},
                                                           {shared + ".up_proj.weight", ffn, ""}},
                                                          hidden_, pack_.traits.activation));
    WW_ASSIGN_OR_RETURN(out_.shared_down, pack_.linear({{shared + ".down_proj.weight", hidden_, ""}}, ffn));
  }
  if (!pack_.traits.shared_expert_gate) return {};
  const int64_t shape[] = {1, hidden_};
  WW_ASSIGN_OR_RETURN(out_.shared_gate, pack_.flat_vector(shared + "_gate.weight", shape));
  return {};
}

// The shared experts after the routed ones, each with its rows of gate and up and its columns of down.
template <typename Target>
Status ExpertsBuilder<Target>::add_shared(int among, Experts& experts) {
  const int64_t ffn = pack_.config.moe_intermediate_size, all = among * ffn;
  const std::string shared = shared_prefix();
  for (int e = 0; e < among; ++e) {
    auto& out = experts.emplace_back();
    WW_ASSIGN_OR_RETURN(out.gate_up, pack_.linear({{shared + ".gate_proj.weight", ffn, "", e * ffn, all},
                                                   {shared + ".up_proj.weight", ffn, "", e * ffn, all}},
                                                  hidden_, pack_.traits.activation));
    if (among == 1) {
      WW_ASSIGN_OR_RETURN(out.down, pack_.linear({{shared + ".down_proj.weight", hidden_, ""}}, ffn));
    } else {
      WW_ASSIGN_OR_RETURN(out.down, down_columns(e, among));
    }
  }
  return {};
}

// Columns [first * ffn, (first + 1) * ffn) of the shared experts' down GEMM.
template <typename Target>
auto ExpertsBuilder<Target>::down_columns(int first, int among) -> Result<typename Device::Linear> {
  const int64_t ffn = pack_.config.moe_intermediate_size, all = among * ffn, shape[] = {hidden_, all};
  WW_ASSIGN_OR_RETURN(LinearPart whole, pack_.matrix(shared_prefix() + ".down_proj.weight", shape, false));
  LinearPart part = {.weight = whole.weight, .bias = {}};
  part.weight.shape[1] = ffn;
  if (whole.random) {
    part.random = whole.random->piece(0, first * ffn, ffn, all);
    return pack_.target.pack({part}, GluActivation::none, false);
  }
  const int64_t element_bytes = dtype_info(whole.weight.dtype).block_bytes;
  std::vector<std::byte> columns(hidden_ * ffn * element_bytes);
  for (int64_t row = 0; row < hidden_; ++row) {
    const auto* const from =
        static_cast<const std::byte*>(whole.weight.data) + (row * all + first * ffn) * element_bytes;
    std::copy_n(from, ffn * element_bytes, columns.data() + row * ffn * element_bytes);
  }
  part.weight.data = columns.data();
  auto packed = pack_.target.pack({part}, GluActivation::none, false);
  if (first == among - 1) pack_.source->release(whole.weight);
  return packed;
}

template <typename Target>
Status ExpertsBuilder<Target>::single_experts(Experts& experts) {
  const ExpertNames& names = pack_.traits.expert_names;
  const int64_t ffn = pack_.config.moe_intermediate_size;
  for (int e = 0; e < pack_.config.num_experts; ++e) {
    const std::string expert = expert_prefix(e);
    auto& out = experts.emplace_back();
    WW_ASSIGN_OR_RETURN(out.gate_up, pack_.linear({{expert + names.gate + ".weight", ffn, ""},
                                                   {expert + names.up + ".weight", ffn, ""}},
                                                  hidden_, pack_.traits.activation));
    WW_ASSIGN_OR_RETURN(out.down, pack_.linear({{expert + names.down + ".weight", hidden_, ""}}, ffn));
  }
  return {};
}

// Qwen3.5: [experts, gate's rows and up's, hidden] and [experts, hidden, ffn].
template <typename Target>
Status ExpertsBuilder<Target>::stacked_experts(Experts& experts) {
  const int64_t ffn = pack_.config.moe_intermediate_size, n = pack_.config.num_experts;
  const int64_t up_shape[] = {n, 2 * ffn, hidden_}, down_shape[] = {n, hidden_, ffn};
  WW_ASSIGN_OR_RETURN(const TensorView up, pack_.source->find(names_.prefix + "experts.gate_up_proj", up_shape));
  WW_ASSIGN_OR_RETURN(const TensorView down, pack_.source->find(names_.prefix + "experts.down_proj", down_shape));
  const auto of_expert = [](const TensorView& all, int64_t expert) {
    TensorView one = all;
    one.rank = 2;
    one.shape = {all.shape[1], all.shape[2]};
    one.data = static_cast<const std::byte*>(all.data) + expert * static_cast<int64_t>(one.size_bytes());
    return one;
  };
  for (int64_t e = 0; e < n; ++e) {
    const LinearPart gate_rows{.weight = of_expert(up, e), .bias = {}, .rows = ffn, .stays = true};
    LinearPart up_rows = gate_rows;
    up_rows.first_row = ffn;
    auto& expert = experts.emplace_back();
    WW_ASSIGN_OR_RETURN(expert.gate_up, pack_.target.pack({gate_rows, up_rows}, pack_.traits.activation, false));
    WW_ASSIGN_OR_RETURN(expert.down,
                        pack_.target.pack({LinearPart{.weight = of_expert(down, e), .bias = {}, .stays = true}},
                                          GluActivation::none, false));
  }
  pack_.source->release(up);
  pack_.source->release(down);
  return {};
}

// gpt-oss: all experts in one transposed tensor, gate and up in turns.
template <typename Target>
Status ExpertsBuilder<Target>::fused_experts(Experts& experts) {
  const std::string prefix = names_.prefix + "experts.";
  const WeightSource& source = *pack_.source;
  const int64_t ffn = pack_.config.moe_intermediate_size, n = pack_.config.num_experts;
  if (source.has(prefix + "gate_up_proj_blocks")) {
    return Status::unsupported("MXFP4 expert weights (" + prefix + "gate_up_proj_blocks) are not supported; "
                               "use a checkpoint saved in bfloat16");
  }
  const int64_t up_bias_shape[] = {n, 2 * ffn}, down_bias_shape[] = {n, hidden_};
  WW_ASSIGN_OR_RETURN(const FusedMatrix up, fused_matrix(prefix + "gate_up_proj", hidden_, 2 * ffn));
  WW_ASSIGN_OR_RETURN(const FusedMatrix down, fused_matrix(prefix + "down_proj", ffn, hidden_));
  std::vector<float> up_bias, down_bias;
  if (source.has(prefix + "gate_up_proj_bias")) {
    WW_ASSIGN_OR_RETURN(const TensorView ub, source.find(prefix + "gate_up_proj_bias", up_bias_shape));
    WW_ASSIGN_OR_RETURN(const TensorView db, source.find(prefix + "down_proj_bias", down_bias_shape));
    up_bias = widened(ub);
    down_bias = widened(db);
  }
  for (int64_t e = 0; e < n; ++e) {
    const std::vector<float> up_rows = up.transposed(e), down_rows = down.transposed(e);
    LinearPart gate = up.part(e, up_rows, 0, 2), up_part = up.part(e, up_rows, 1, 2),
               down_part = down.part(e, down_rows, 0, 1);
    if (!up_bias.empty()) {
      gate.bias = up_part.bias = f32_view(up_bias.data() + e * 2 * ffn, {2 * ffn});
      down_part.bias = f32_view(down_bias.data() + e * hidden_, {hidden_});
    }
    auto& expert = experts.emplace_back();
    WW_ASSIGN_OR_RETURN(expert.gate_up, pack_.target.pack({gate, up_part}, pack_.traits.activation, false));
    WW_ASSIGN_OR_RETURN(expert.down, pack_.target.pack({down_part}, GluActivation::none, false));
  }
  if (!up.random) source.release(up.all);
  if (!down.random) source.release(down.all);
  return {};
}

template <typename Target>
auto ExpertsBuilder<Target>::fused_matrix(const std::string& name, int64_t in, int64_t out) -> Result<FusedMatrix> {
  const WeightSource& source = *pack_.source;
  const int64_t shape[] = {pack_.config.num_experts, in, out};
  FusedMatrix made = {.in = in, .out = out};
  made.all.dtype = source.dtype(name);
  constexpr int64_t kColumns = 8;  // of a piece of a rule: a multiple
  if (in % kColumns == 0 && pack_.target.takes_random(made.all.dtype)) made.random = source.random(name, shape);
  if (!made.random) {
    WW_ASSIGN_OR_RETURN(made.all, source.find(name, shape));
  }
  return made;
}

}  // namespace warpweave
