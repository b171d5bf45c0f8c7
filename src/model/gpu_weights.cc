#include "model/gpu_weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/stream.h"
#include "model/decoder_builder.h"
#include "model/dual_chunk.h"
#include "model/unread_weights.h"
#include "model/uploader.h"
#include "model/weight_rows.h"
#include "ops/cuda/any_width.h"
#include "ops/cuda/fp8.h"

namespace warpweave {
namespace {

using gpu::GpuLinear;

constexpr size_t kSlabBytes = size_t{64} << 20;

bool has_whole_widths(const ModelConfig& config) {
  const auto odd = [](int width) { return width % gpu::kWholeWidth != 0; };
  return !odd(config.hidden_size) && !odd(config.intermediate_size) && !odd(config.moe_intermediate_size) &&
         !odd(config.shared_expert_intermediate_size);
}

// Releases what the uploader has read.
class ReleasedWhenRead final : public WeightSource {
 public:
  ReleasedWhenRead(std::shared_ptr<WeightSource> inner, Uploader& uploader)
      : inner_(std::move(inner)), uploader_(uploader) {}

  bool has(std::string_view name) const override { return inner_->has(name); }
  bool may_lack_biases() const override { return inner_->may_lack_biases(); }
  DType dtype(std::string_view name) const override { return inner_->dtype(name); }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->find(name, shape);
  }
  bool has_fp8(std::string_view name) const override { return inner_->has_fp8(name); }
  Result<Fp8Matrix> find_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->find_fp8(name, shape);
  }
  std::optional<RandomMatrix> random(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->random(name, shape);
  }
  std::optional<RandomFp8> random_fp8(std::string_view name, std::span<const int64_t> shape) const override {
    return inner_->random_fp8(name, shape);
  }
  void release(const TensorView& view) const override {
    uploader_.then([inner = inner_, view] { inner->release(view); });
  }
  std::vector<std::string> unread() const override { return inner_->unread(); }
  Status intact() const override { return inner_->intact(); }
  Status seal() const override { return inner_->seal(); }

 private:
  const std::shared_ptr<WeightSource> inner_;
  Uploader& uploader_;
};

// What DecoderBuilder packs into (decoder_builder.h).
class GpuTarget {
 public:
  using Device = OnGpu;
  using Weights = GpuDecoderWeights;
  static constexpr bool kOneFormat = true;
  static constexpr bool kStackedHeads = true;
  static constexpr bool kSharedAmongExperts = true;
  static constexpr bool kRopesGrow = false;
  bool takes_fp8() const { return dtype_ != DType::f32 && gpu::keeps_fp8(); }
  int fp8_kept() const { return fp8_kept_; }
  int fp8_widened() const { return fp8_widened_; }

  // whole_widths: the model's widths are multiples of 8, as vector loads want them.
  GpuTarget(DType dtype, bool whole_widths, Uploader& uploader, DeviceArena& arena)
      : dtype_(dtype), whole_widths_(whole_widths), uploader_(uploader), arena_(arena) {}

  Result<GpuVector> vector(const TensorView& view) { return floats(widened(view)); }

  Result<GpuRope> rope(const RopeTable& table) {
    GpuRope out;
    out.rotary_dim = table.rotary_dim;
    out.interleaved = table.interleaved;
    WW_ASSIGN_OR_RETURN(const GpuVector cos, floats(table.cos));
    WW_ASSIGN_OR_RETURN(const GpuVector sin, floats(table.sin));
    out.cos = cos.data;
    out.sin = sin.data;
    return out;
  }

  bool takes_random(DType dtype) const { return dtype == dtype_ && whole_widths_; }
  bool takes_random_fp8(const RandomFp8& rule, int64_t rows, int64_t cols) const {
    const bool of_rows = rule.block_rows == 1 && rule.block_cols == cols;
    const bool of_blocks = rule.block_rows == gpu::kFp8Block && rule.block_cols == gpu::kFp8Block;
    return whole_widths_ && cols % gpu::kFp8Columns == 0 &&
           (of_rows || (of_blocks && rows % gpu::kFp8Block == 0 && cols > gpu::kFp8Block));
  }
  Status embedding(const LinearPart& table, const std::shared_ptr<WeightSource>& source, GpuDecoderWeights& out) {
    WW_ASSIGN_OR_RETURN(const GpuLinear packed, pack({table}, GluActivation::none, false));
    out.embedding = packed.weight;
    if (!table.random) source->release(table.weight);
    return {};
  }

  Result<GpuLinear> pack(const std::vector<LinearPart>& parts, GluActivation glu, bool exact) {
    GpuLinear out;
    const bool fills_up = experts_left_ > 0 && !whole_widths_;  // experts' kernels have no loads of other widths
    const std::optional<gpu::Fp8Scaling> scaling = fills_up ? std::nullopt : common_scaling(parts);
    // A router is multiplied as it is stored: 16-bit weights by 16-bit rows lose nothing.
    const bool widened = exact && parts[0].weight.dtype != dtype_;
    out.dtype = scaling ? DType::fp8_e4m3 : widened ? DType::f32 : dtype_;
    out.x_dtype = widened ? DType::f32 : dtype_;
    out.glu = glu;
    out.in_features = stored_width(parts[0].weight.shape[1]);
    for (const LinearPart& part : parts) out.out_features += stored_width(rows_of(part));
    fp8_kept_ += scaling.has_value();
    fp8_widened_ += !scaling && parts[0].scales != nullptr;
    const bool made_codes = scaling && parts[0].random;
    if (scaling) {
      out.scaling = *scaling;
      WW_ASSIGN_OR_RETURN(out.scales, made_codes ? empty_scales(out) : uploaded_scales(parts, *scaling));
    }
    const size_t row_bytes = static_cast<size_t>(out.in_features) * dtype_info(out.dtype).block_bytes;
    WW_ASSIGN_OR_RETURN(std::byte* const to, memory_for(out, row_bytes));
    out.weight = to;
    const bool turns = experts_left_ > 0 && glu != GluActivation::none;
    if (made_codes) {
      make_codes(parts, out, turns);
    } else {
      WW_RETURN_IF_ERROR(turns ? upload_turns(parts, out.dtype, row_bytes, to)
                               : upload_all(parts, out.dtype, row_bytes, to));
    }
    WW_ASSIGN_OR_RETURN(out.bias, bias(parts, turns));
    if (experts_left_ > 0) --experts_left_;
    return out;
  }

  // The next 2 * count GEMMs are gate_up and down of a layer's experts.
  void begin_experts(int count) {
    experts_ = count;
    experts_left_ = 2 * count;
    gate_up_ = down_ = {};
  }
  Result<GpuExpertLayer> experts(const std::vector<GpuExpert>& list) {
    experts_left_ = 0;
    GpuExpertLayer out;
    WW_ASSIGN_OR_RETURN(out.gate_up, stacked(list, &GpuExpert::gate_up));
    WW_ASSIGN_OR_RETURN(out.down, stacked(list, &GpuExpert::down));
    return out;
  }

 private:
  // Equally large pieces of one allocation.
  struct Stack {
    std::byte* next = nullptr;
    size_t piece_bytes = 0;
  };

  Result<std::byte*> memory_for(const GpuLinear& linear, size_t row_bytes) {
    const size_t size_bytes = linear.out_features * row_bytes;
    if (experts_left_ == 0) {
      WW_ASSIGN_OR_RETURN(void* const memory, arena_.allocate(size_bytes, "weights"));
      return static_cast<std::byte*>(memory);
    }
    Stack& stack = linear.glu != GluActivation::none ? gate_up_ : down_;
    const size_t piece_bytes = (size_bytes + kPieceMultiple - 1) / kPieceMultiple * kPieceMultiple;
    if (stack.next == nullptr) {
      WW_ASSIGN_OR_RETURN(void* const memory, arena_.allocate(experts_ * piece_bytes, "weights of experts"));
      stack = {static_cast<std::byte*>(memory), piece_bytes};
    }
    if (piece_bytes != stack.piece_bytes) return different_experts();
    return std::exchange(stack.next, stack.next + piece_bytes);
  }

  static Status different_experts() {
    return Status::unsupported("experts of one layer have weights of different kinds (8-bit ones with and "
                               "without scales of blocks, or 16-bit ones); use --device cpu");
  }

  // Of rows and columns: those of experts are filled up with zeros, which change nothing.
  int64_t stored_width(int64_t width) const { return experts_left_ > 0 ? gpu::whole_width(width) : width; }

  Status upload_all(const std::vector<LinearPart>& parts, DType dtype, size_t row_bytes, std::byte* to) {
    for (const LinearPart& part : parts) {
      WW_RETURN_IF_ERROR(upload(part, dtype, row_bytes, to));
      to += stored_width(rows_of(part)) * row_bytes;
    }
    return {};
  }

  // Two parts' rows by turns of kGluTurn.
  Status upload_turns(const std::vector<LinearPart>& parts, DType dtype, size_t row_bytes, std::byte* to) {
    constexpr int64_t kTurn = gpu::kGluTurn;
    if (parts[0].random && parts[1].random) {
      for (int i = 0; i < 2; ++i) {
        gpu::fill_random_turns({*parts[i].random, parts[i].weight.shape[0], parts[i].weight.shape[1], i}, dtype, to,
                               nullptr);
      }
      return {};
    }
    const int64_t rows = 2 * stored_width(rows_of(parts[0]));
    return uploader_.rows(rows, row_bytes, to, [&](int64_t begin, int64_t end, std::byte* out) {
      for (int64_t row = begin; row < end;) {
        const LinearPart& part = parts[row / kTurn % 2];
        const int64_t from = row / (2 * kTurn) * kTurn + row % kTurn;
        const int64_t count = std::min(end - row, kTurn - row % kTurn);
        write_rows(part, from, from + count, {out + (row - begin) * row_bytes, row_bytes, dtype});
        row += count;
      }
      return Status();
    });
  }

  Status upload(const LinearPart& part, DType dtype, size_t row_bytes, std::byte* to) {
    if (part.random) {
      gpu::fill_random(*part.random, part.weight.elements(), dtype, to, nullptr);
      return {};
    }
    const int64_t rows = stored_width(rows_of(part));
    const bool filled_up = rows != rows_of(part) || part.weight.shape[1] != stored_width(part.weight.shape[1]);
    if (part.weight.dtype != dtype || part.row_step != 1 || filled_up) {
      return uploader_.rows(rows, row_bytes, to, [&](int64_t begin, int64_t end, std::byte* out) {
        write_rows(part, begin, end, {out, row_bytes, dtype});
        return Status();
      });
    }
    const auto* const from = static_cast<const std::byte*>(part.weight.data) + part.first_row * row_bytes;
    if (!part.stays) return uploader_.bytes(from, rows_of(part) * row_bytes, to);
    uploader_.add_bytes(from, rows_of(part) * row_bytes, to);
    return {};
  }

  // How the scales of all parts can stand in GPU memory, or nullopt: then the parts are widened.
  static std::optional<gpu::Fp8Scaling> common_scaling(const std::vector<LinearPart>& parts) {
    const int64_t cols = parts[0].weight.shape[1];
    bool rows = cols % gpu::kFp8Columns == 0, blocks = rows;
    for (const LinearPart& part : parts) {
      const WeightScales* scales = part.scales;
      if (scales == nullptr) return std::nullopt;
      const bool last = &part == &parts.back();
      const bool whole = (last || rows_of(part) % gpu::kFp8Block == 0) && part.first_row % gpu::kFp8Block == 0;
      rows &= scales->block_cols >= cols;
      blocks &= scales->block_rows == gpu::kFp8Block && scales->block_cols == gpu::kFp8Block && whole;
    }
    if (rows) return gpu::Fp8Scaling::row;
    return blocks ? std::optional(gpu::Fp8Scaling::block) : std::nullopt;
  }

  // Codes and scales of made-up matrices, on the GPU.
  static void make_codes(const std::vector<LinearPart>& parts, const GpuLinear& linear, bool turns) {
    auto* codes = static_cast<uint8_t*>(const_cast<void*>(linear.weight));
    auto* scales = const_cast<float*>(linear.scales);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t rows = rows_of(parts[i]);
      gpu::RandomCodes call = {*parts[i].random, parts[i].random_dtype, rows, linear.in_features, linear.scaling};
      call.turn = turns ? static_cast<int>(i) : gpu::kNoTurn;
      call.codes = codes;
      call.scales = scales;
      gpu::fill_random_codes(call, nullptr);
      if (!turns) codes += rows * linear.in_features;
      scales += gpu::fp8_scales(linear.scaling, rows, linear.in_features);
    }
  }
  Result<const float*> empty_scales(const GpuLinear& linear) {
    const size_t size_bytes = gpu::fp8_scales(linear.scaling, linear.out_features, linear.in_features) * sizeof(float);
    WW_ASSIGN_OR_RETURN(void* const memory, arena_.allocate(size_bytes, "weights"));
    WW_RETURN_IF_ERROR(fill_async(memory, 0, size_bytes, nullptr, "scales of random weights"));
    return static_cast<const float*>(memory);
  }
  Result<const float*> uploaded_scales(const std::vector<LinearPart>& parts, gpu::Fp8Scaling scaling) {
    WW_ASSIGN_OR_RETURN(const GpuVector scales, floats(stacked_scales(parts, scaling)));
    return scales.data;
  }
  // As GpuLinear wants them.
  static std::vector<float> stacked_scales(const std::vector<LinearPart>& parts, gpu::Fp8Scaling scaling) {
    const bool by_row = scaling == gpu::Fp8Scaling::row;
    const int64_t stride = by_row ? 1 : gpu::fp8_scale_stride(parts[0].weight.shape[1]);
    std::vector<float> out;
    for (const LinearPart& part : parts) {
      const WeightScales& scales = *part.scales;
      for (int64_t r = 0; r < rows_of(part); r += by_row ? 1 : gpu::kFp8Block) {
        const size_t first = out.size();
        out.resize(first + stride);
        for (int64_t c = 0; c < scales.stride; ++c)
          out[first + c] = scales.at(part.first_row + r, c * scales.block_cols);
      }
    }
    return out;
  }

  Result<const float*> bias(const std::vector<LinearPart>& parts, bool turns) {
    std::vector<float> all;
    bool any = false;
    for (const LinearPart& part : parts) {
      const std::vector<float> whole = part.bias.data != nullptr ? widened(part.bias) : std::vector<float>();
      any |= !whole.empty();
      for (int64_t r = 0; r < rows_of(part); ++r) {
        all.push_back(whole.empty() ? 0.0f : whole[part.first_row + r * part.row_step]);
      }
      all.resize(all.size() + stored_width(rows_of(part)) - rows_of(part));
    }
    if (!any) return static_cast<const float*>(nullptr);
    if (turns) {
      std::vector<float> turned(all.size());
      for (size_t row = 0, half = all.size() / 2; row < all.size(); ++row) {
        const size_t of_part = row % half, second = row / half;
        turned[(of_part / gpu::kGluTurn * 2 + second) * gpu::kGluTurn + of_part % gpu::kGluTurn] = all[row];
      }
      all = std::move(turned);
    }
    WW_ASSIGN_OR_RETURN(const GpuVector out, floats(all));
    return out.data;
  }

  Result<GpuVector> floats(const std::vector<float>& values) {
    const size_t size_bytes = values.size() * sizeof(float);
    WW_ASSIGN_OR_RETURN(void* const memory, arena_.allocate(size_bytes, "weights"));
    WW_RETURN_IF_ERROR(uploader_.bytes(values.data(), size_bytes, memory));
    return GpuVector{static_cast<const float*>(memory)};
  }

  // One GEMM multiplies all experts, so they are of one kind.
  Result<gpu::ExpertWeights> stacked(const std::vector<GpuExpert>& experts, GpuLinear GpuExpert::*linear_of) {
    const GpuLinear& first = experts[0].*linear_of;
    gpu::ExpertWeights out;
    out.data = first.weight;
    out.experts = static_cast<int>(experts.size());
    out.rows = first.out_features;
    out.cols = first.in_features;
    out.dtype = first.dtype;
    out.scaling = first.scaling;
    out.glu = first.glu;
    const auto address = [&](size_t expert) {
      return static_cast<const std::byte*>((experts[expert].*linear_of).weight);
    };
    out.stride_bytes = experts.size() > 1 ? address(1) - address(0) : out.rows * out.cols * 4;
    std::vector<const void*> scales, biases;
    for (const GpuExpert& expert : experts) {
      const GpuLinear& linear = expert.*linear_of;
      if (linear.dtype != first.dtype || linear.scaling != first.scaling) return different_experts();
      scales.push_back(linear.scales);
      biases.push_back(linear.bias);
    }
    if (scales[0] != nullptr) {
      WW_ASSIGN_OR_RETURN(out.scales, pointers<const float*>(scales));
    }
    if (biases[0] != nullptr) {
      WW_ASSIGN_OR_RETURN(out.biases, pointers<const float*>(biases));
    }
    return out;
  }

  template <typename Pointer>
  Result<const Pointer*> pointers(const std::vector<const void*>& values) {
    const size_t size_bytes = values.size() * sizeof(void*);
    WW_ASSIGN_OR_RETURN(void* const memory, arena_.allocate(size_bytes, "weights"));
    WW_RETURN_IF_ERROR(uploader_.bytes(values.data(), size_bytes, memory));
    return static_cast<const Pointer*>(memory);
  }

  static constexpr size_t kPieceMultiple = 256;

  DType dtype_;
  bool whole_widths_;
  Uploader& uploader_;
  DeviceArena& arena_;
  int experts_ = 0, experts_left_ = 0;  // GEMMs of experts that are yet to come
  Stack gate_up_, down_;
  int fp8_kept_ = 0;      // GEMMs
  int fp8_widened_ = 0;
};

}  // namespace

static Result<GpuDecoderWeights> load(const ModelConfig& config, const FamilyTraits& traits,
                                      std::shared_ptr<WeightSource> source, const BuildOptions& options,
                                      ThreadTeam& team) {
  auto arena = std::make_unique<DeviceArena>(kSlabBytes);
  WW_ASSIGN_OR_RETURN(const std::unique_ptr<Uploader> uploader, Uploader::create(team.size()));
  const bool stored_fp8 = source->has_fp8("model.layers.0.self_attn.q_proj.weight");
  source = release_in_background(std::move(source));
  GpuTarget target(options.dtype, has_whole_widths(config), *uploader, *arena);
  BuildOptions build = options;
  if (const auto dual_chunk = dual_chunk_in_use(config, options.max_positions)) {
    build.max_positions = DualChunkRope(*dual_chunk).rope_positions();
  }
  DecoderBuilder builder(config, traits, std::make_shared<ReleasedWhenRead>(source, *uploader), build, target);
  auto built = builder.build();
  WW_RETURN_IF_ERROR(source->intact());  // a file that changed explains every other error
  WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights, std::move(built));
  if (stored_fp8 && !target.takes_fp8()) {
    LOG_INFO("8-bit weights are widened to {}: {}", dtype_info(options.dtype).name,
             options.dtype == DType::f32 ? "GEMMs in f32 take no others"
                                         : "GEMMs of 8-bit weights need a GPU of compute capability 9.0 or newer");
  }
  if (target.fp8_widened() > 0) {
    LOG_INFO(
        "8-bit weights of {} GEMMs are widened to {}, {} stay: only scales of tensors, of rows and of blocks of "
        "{} x {} stay, of the same kind for what is multiplied together",
        target.fp8_widened(), dtype_info(options.dtype).name, target.fp8_kept(), gpu::kFp8Block, gpu::kFp8Block);
  }
  if (weights.embedding == nullptr) weights.embedding = weights.lm_head.weight;
  WW_RETURN_IF_ERROR(uploader->finish());
  WW_RETURN_IF_ERROR(source->seal());
  WW_RETURN_IF_ERROR(wait_for_device("making random weights"));
  weights.arena = std::move(arena);
  return weights;
}

Result<GpuDecoderWeights> load_gpu_weights(const ModelConfig& config, std::shared_ptr<WeightSource> source,
                                           const BuildOptions& options, ThreadTeam& team) {
  WW_ASSIGN_OR_RETURN(const FamilyTraits traits, family_traits(config));
  auto weights = load(config, traits, source, options, team);
  if (weights.ok()) warn_of_unread_weights(*source, config);
  return weights;
}

Result<GpuDecoderWeights> load_gpu_draft_head(const ModelConfig& config, const FamilyTraits& traits,
                                              std::shared_ptr<WeightSource> head_weights, const BuildOptions& options,
                                              ThreadTeam& team) {
  return load(config, traits, std::move(head_weights), options, team);
}

}  // namespace warpweave
