#include "model/build_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "model/decoder_builder.h"
#include "model/dual_chunk.h"
#include "model/renamed_weights.h"
#include "model/unread_weights.h"
#include "ops/block_rows.h"
#include "ops/rope.h"
#include "ops/router.h"

namespace warpweave {
namespace {

// Packs into host memory (ops/linear.h).
class HostTarget {
 public:
  using Device = OnHost;
  using Weights = DecoderWeights;
  static constexpr bool kOneFormat = false;
  static constexpr bool kStackedHeads = false;
  static constexpr bool kSharedAmongExperts = false;
  static constexpr bool kRopesGrow = true;
  static constexpr bool takes_fp8() { return false; }

  HostTarget(const BuildOptions& options, ThreadTeam& team)
      : dtype_(options.dtype), blocks_(options.blocks), batch_invariant_(options.batch_invariant), team_(team) {}

  Result<std::vector<float>> vector(const TensorView& view) { return widened(view); }
  Result<RopeTable> rope(RopeTable table) { return table; }
  static bool takes_random(DType) { return false; }
  static bool takes_random_fp8(const RandomFp8&, int64_t, int64_t) { return false; }
  void begin_experts(int) {}
  Result<std::vector<MoeExpert>> experts(std::vector<MoeExpert> list) { return list; }
  Status embedding(const LinearPart& table, const std::shared_ptr<WeightSource>& source, DecoderWeights& out) {
    out.embedding = table.weight;
    out.embedding_owner = source;
    return {};
  }
  Result<PackedLinear> pack(std::vector<LinearPart> parts, GluActivation glu, bool exact) {
    convert(parts);
    if (!exact) compress(parts);
    const ComputeMode mode = !exact && dtype_ == DType::bf16 ? ComputeMode::bf16 : ComputeMode::f32;
    LinearOptions linear = {.compute = mode, .glu = glu};
    if (!batch_invariant_) linear.widen_from_rows = fastest_widen_from_rows(parts[0].weight.dtype);
    auto packed = PackedLinear::pack(parts, linear, team_);
    converted_.clear();
    compressed_.clear();
    return packed;
  }

 private:
  DType common_type(const std::vector<LinearPart>& parts) const;
  void convert(std::vector<LinearPart>& parts);
  std::vector<std::byte> converted(const TensorView& weight, DType to);
  void compress(std::vector<LinearPart>& parts);

  DType dtype_;
  std::optional<DType> blocks_;
  bool batch_invariant_;
  ThreadTeam& team_;
  std::vector<std::vector<std::byte>> converted_, compressed_;  // alive while one linear is packed
};

// What parts of a GEMM in unlike types become together: the serving type, but f16 where some are blocks of GGUF files,
// of whose digits it holds more than bf16 does.
DType HostTarget::common_type(const std::vector<LinearPart>& parts) const {
  const bool blocks = std::any_of(parts.begin(), parts.end(), [](const LinearPart& part) {
    return is_quantized(part.weight.dtype);
  });
  return blocks && dtype_ != DType::f32 ? DType::f16 : dtype_;
}

// Brings f32 weights (or 16-bit ones of the other kind) to the serving dtype, and parts in unlike types to one. Parts
// of one tensor share what it becomes.
void HostTarget::convert(std::vector<LinearPart>& parts) {
  bool mixed = false;
  for (const LinearPart& part : parts) mixed |= part.weight.dtype != parts[0].weight.dtype;
  const DType common = common_type(parts);  // before any part changes
  std::map<const void*, const std::byte*> done;
  for (LinearPart& part : parts) {
    const DType from = part.weight.dtype;
    DType to = from;
    if (mixed) {
      to = common;
    } else if (!is_quantized(from) && dtype_ != DType::f32) {
      to = dtype_;
    }
    if (from == to) continue;
    const std::byte*& known = done[part.weight.data];
    if (known == nullptr) known = converted_.emplace_back(converted(part.weight, to)).data();
    part.weight.data = known;
    part.weight.dtype = to;
  }
}

std::vector<std::byte> HostTarget::converted(const TensorView& weight, DType to) {
  const int64_t rows = weight.shape[0], cols = weight.shape[1];
  const size_t row_bytes = weight.size_bytes() / rows, out_bytes = cols * dtype_info(to).block_bytes;
  std::vector<std::byte> out(rows * out_bytes);
  team_.parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> row(cols);
    for (int64_t r = begin; r < end; ++r) {
      dequantize_row(weight.dtype, static_cast<const std::byte*>(weight.data) + r * row_bytes, cols, row.data());
      std::byte* const to_row = out.data() + r * out_bytes;
      if (to == DType::f32) {
        std::memcpy(to_row, row.data(), out_bytes);
      } else if (to == DType::bf16) {
        f32_to_bf16_row(row.data(), cols, reinterpret_cast<uint16_t*>(to_row));
      } else {
        f32_to_f16_row(row.data(), cols, reinterpret_cast<uint16_t*>(to_row));
      }
    }
  });
  return out;
}

// To blocks_. Parts of one tensor share what it becomes.
void HostTarget::compress(std::vector<LinearPart>& parts) {
  if (!blocks_ || dtype_ != DType::bf16 || !multiplies_bytes()) return;
  const TensorView& first = parts[0].weight;
  if (is_quantized(first.dtype) || first.shape[1] % dtype_info(*blocks_).block_elements != 0) return;
  std::map<const void*, const std::byte*> done;
  for (LinearPart& part : parts) {
    const std::byte*& known = done[part.weight.data];
    if (known == nullptr) known = compressed_.emplace_back(matrix_in_blocks(part.weight, *blocks_, team_)).data();
    part.weight.data = known;
    part.weight.dtype = *blocks_;
  }
}

}  // namespace

DecoderSpec decoder_spec(const ModelConfig& config, const FamilyTraits& traits) {
  DecoderSpec spec;
  spec.vocab_size = config.vocab_size;
  spec.hidden_size = config.hidden_size;
  spec.final_softcap = static_cast<float>(config.final_softcap);
  spec.logit_scale = static_cast<float>(config.logit_scale);
  spec.activation = traits.activation;
  // The rows are kept divided by what multiplies every branch: norms look at directions alone, but for eps.
  const double branch = config.residual_multiplier;
  spec.embedding_scale = static_cast<float>(traits.embedding_scale / branch);
  spec.norm = {.eps = static_cast<float>(config.norm_eps / (branch * branch)),
               .weight_offset = traits.norm_weight_offset,
               .layer_norm = traits.layer_norm};
  AttentionSpec& attention = spec.attention;
  attention.num_q_heads = config.num_q_heads;
  attention.num_kv_heads = config.num_kv_heads;
  attention.head_dim = config.head_dim;
  attention.scale = traits.attention_scale > 0 ? traits.attention_scale
                                               : 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  attention.softcap = static_cast<float>(config.attention_softcap);
  attention.wide_qk_norm = traits.wide_qk_norm;
  attention.qk_norm_after_rope = traits.qk_norm_after_rope;
  if (config.takes_rope_positions()) {
    attention.rope_axes = rope_axes(config.rope.sections, config.rope.interleaved_sections);
  }
  if (config.latent) spec.latent = {.dims = *config.latent, .num_heads = config.num_q_heads, .scale = attention.scale};
  attention.output_gate = traits.attention_gate;
  if (config.num_experts > 0) spec.router = traits.router;
  spec.layers = traits.layers;
  return spec;
}

// Whether a configuration's name for an activation is of this one. Families that compute GELU by tanh call it all kinds
// of names; those that compute it exactly have one for it.
static bool is_activation(GluActivation activation, const std::string& name) {
  switch (activation) {
    case GluActivation::silu: return name == "silu";
    case GluActivation::gelu_tanh: return name.starts_with("gelu");
    case GluActivation::gelu: return name == "gelu";
    case GluActivation::none:
    case GluActivation::swiglu_oai: break;
  }
  return true;
}

Result<FamilyTraits> family_traits(const ModelConfig& config) {
  WW_ASSIGN_OR_RETURN(const Family family, find_family(config.architecture));
  FamilyTraits traits = family.traits(config);
  traits.layers = transformer_layers(config);
  if (config.num_experts > 0 && traits.router.num_experts == 0) {
    return Status::unsupported("config.json: num_experts is " + std::to_string(config.num_experts) + ", but " +
                               config.architecture + " has no experts; leave it out", "num_experts");
  }
  if (config.num_experts > 0) WW_RETURN_IF_ERROR(check_router_rule(traits.router));
  if (!is_activation(traits.activation, config.hidden_act)) {
    return Status::unsupported("config.json: hidden_act '" + config.hidden_act.substr(0, 40) +
                               "' is not supported for " + config.architecture, "hidden_act");
  }
  return traits;
}

// GEMM kernels read eight elements at a time.
static Status check_gpu_latent(const LatentConfig& latent) {
  if (latent.q_rank % 8 == 0 && latent.kv_rank % 8 == 0 && latent.rope_dim % 8 == 0) return {};
  return Status::unsupported(
      "--device cuda needs ranks and rotary dims of latent attention that are multiples of 8; this "
      "model has " +
          std::to_string(latent.q_rank) + ", " + std::to_string(latent.kv_rank) + " and " +
          std::to_string(latent.rope_dim) + "; use --device cpu",
      "--device");
}

Status check_gpu_model(const ModelConfig& config) {
  WW_RETURN_IF_ERROR(find_family(config.architecture).status());
  if (config.encoder) {
    return Status::unsupported(
        "--device cuda has no encoders (" + config.declared_architecture +
            "): nothing norms rows after a branch or adds learned positions there; use --device cpu",
        "--device");
  }
  if (config.latent) WW_RETURN_IF_ERROR(check_gpu_latent(*config.latent));
  if (config.num_experts > kMaxGpuExperts || config.experts_per_token > kMaxGpuExpertsPerToken ||
      config.n_group > kMaxGpuGroups) {
    return Status::unsupported(
        "--device cuda runs up to " + std::to_string(kMaxGpuExperts) + " experts, " +
            std::to_string(kMaxGpuExpertsPerToken) + " of a token, in up to " + std::to_string(kMaxGpuGroups) +
            " groups; this model has " + std::to_string(config.num_experts) + ", " +
            std::to_string(config.experts_per_token) + " and " + std::to_string(config.n_group) + "; use --device cpu",
        "--device");
  }
  if (config.head_dim % 2 != 0 || (config.head_dim > 512 && !config.latent)) {
    return Status::unsupported("--device cuda needs an even head dim up to 512; this model has " +
                                   std::to_string(config.head_dim) + "; use --device cpu", "--device");
  }
  return {};
}

namespace {

Result<std::unique_ptr<DecoderModel>> build_with(const ModelConfig& config, const FamilyTraits& traits,
                                                 const std::shared_ptr<WeightSource>& source,
                                                 const BuildOptions& options, ThreadTeam& team) {
  HostTarget target(options, team);
  BuildOptions build = options;
  DecoderSpec spec = decoder_spec(config, traits);
  std::optional<DualChunkConfig>& dual_chunk = spec.attention.dual_chunk;
  dual_chunk = dual_chunk_in_use(config, options.max_positions);
  if (dual_chunk) build.max_positions = DualChunkRope(*dual_chunk).rope_positions();
  DecoderBuilder builder(config, traits, source, build, target);
  auto weights = builder.build();
  if (weights.ok() && config.encoder) {
    auto input = EncoderInput::create(config, *source);
    if (input.ok()) weights->encoder_input = std::move(input).value();
    else weights = input.status();
  }
  // A file that changed explains every other error. Some tensors stay where they are in memory.
  WW_RETURN_IF_ERROR(source->seal());
  if (!weights.ok()) return weights.status();
  return std::make_unique<DecoderModel>(config, std::move(spec), std::move(weights).value());
}

}  // namespace

Result<std::unique_ptr<DecoderModel>> build_decoder(const ModelConfig& config,
                                                    std::shared_ptr<WeightSource> source,
                                                    const BuildOptions& options, ThreadTeam& team) {
  WW_ASSIGN_OR_RETURN(const FamilyTraits traits, family_traits(config));
  auto model = build_with(config, traits, source, options, team);
  if (model.ok()) warn_of_unread_weights(*source, config);
  return model;
}

Result<std::unique_ptr<DecoderModel>> build_draft_head(DraftHeadKind kind, const ModelConfig& config,
                                                       std::shared_ptr<WeightSource> source,
                                                       const BuildOptions& options, ThreadTeam& team) {
  WW_ASSIGN_OR_RETURN(const FamilyTraits traits, draft_head_traits(kind, config, *source));
  return build_with(config, traits, draft_head_weights(kind, config, std::move(source)), options, team);
}

}  // namespace warpweave
