#include "model/gpu_weights.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/log.h"
#include "device/cuda/stream.h"
#include "model/decoder_builder.h"
#include "ops/cuda/fp8.h"

namespace warpweave {
namespace {

using gpu::GpuLinear;

constexpr size_t kSlabBytes = size_t{64} << 20;
constexpr size_t kStagingBytes = size_t{16} << 20;
constexpr size_t kStagingBuffers = 4;

using SteadyClock = std::chrono::steady_clock;

double seconds(SteadyClock::duration time) { return std::chrono::duration<double>(time).count(); }

// Host memory to the GPU: while pinned buffers are on their way, the next is filled.
class Uploader {
 public:
  static Result<std::unique_ptr<Uploader>> create(ThreadTeam& team) {
    std::unique_ptr<Uploader> out(new Uploader(team));
    WW_ASSIGN_OR_RETURN(out->stream_, create_stream());
    for (Staging& staging : out->staging_) {
      WW_ASSIGN_OR_RETURN(staging.buffer, PinnedBuffer::allocate(kStagingBytes, "staging of weights"));
      WW_ASSIGN_OR_RETURN(staging.sent, create_event());
    }
    return out;
  }

  // `rows` rows of row_bytes; fill(begin, end, out) writes rows [begin, end) to `out`, from any thread.
  template <typename Fill>
  Status rows(int64_t rows, size_t row_bytes, std::byte* to, const Fill& fill) {
    if (row_bytes > kStagingBytes) return Status::unsupported("a weight row of more than 16 MiB");
    const int64_t chunk = std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes / row_bytes));
    const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>((size_t{1} << 20) / row_bytes));
    for (int64_t first = 0; first < rows; first += chunk) {
      const int64_t count = std::min(chunk, rows - first);
      Staging& staging = staging_[next_];
      next_ = (next_ + 1) % staging_.size();
      const auto before = SteadyClock::now();
      WW_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(staging.sent.get()), "uploading weights");
      const auto waited = SteadyClock::now();
      std::byte* const buffer = staging.buffer.as<std::byte>();
      team_.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        fill(first + begin, first + end, buffer + begin * row_bytes);
      });
      waited_s_ += seconds(waited - before);
      filled_s_ += seconds(SteadyClock::now() - waited);
      WW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(to + first * row_bytes, buffer, count * row_bytes,
                                              cudaMemcpyHostToDevice, stream_.get()),
                              "uploading weights");
      WW_CUDA_RETURN_IF_ERROR(cudaEventRecord(staging.sent.get(), stream_.get()), "uploading weights");
    }
    return {};
  }

  Status bytes(const void* from, size_t size_bytes, void* to) {
    return rows(1, size_bytes, static_cast<std::byte*>(to),
                [&](int64_t, int64_t, std::byte* out) { std::memcpy(out, from, size_bytes); });
  }

  Status finish() {
    WW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_.get()), "uploading weights");
    LOG_DEBUG("weights: {:.3f} s reading and converting, {:.3f} s waiting for the link", filled_s_, waited_s_);
    return {};
  }

 private:
  struct Staging {
    PinnedBuffer buffer;
    CudaEvent sent;
  };
  explicit Uploader(ThreadTeam& team) : team_(team) {}

  ThreadTeam& team_;
  CudaStream stream_;
  std::array<Staging, kStagingBuffers> staging_;
  size_t next_ = 0;
  double filled_s_ = 0, waited_s_ = 0;
};

void narrow_row(const std::vector<float>& row, DType to, std::byte* out) {
  const auto cols = static_cast<int64_t>(row.size());
  if (to == DType::bf16) {
    f32_to_bf16_row(row.data(), cols, reinterpret_cast<uint16_t*>(out));
  } else if (to == DType::f16) {
    f32_to_f16_row(row.data(), cols, reinterpret_cast<uint16_t*>(out));
  } else {
    std::memcpy(out, row.data(), cols * sizeof(float));
  }
}

void convert_row(const TensorView& weight, int64_t row, DType to, std::byte* out, std::vector<float>& scratch) {
  const int64_t cols = weight.shape[1];
  const size_t row_bytes = weight.size_bytes() / weight.shape[0];
  const std::byte* from = static_cast<const std::byte*>(weight.data) + row * row_bytes;
  if (weight.dtype == to) {
    std::memcpy(out, from, row_bytes);
    return;
  }
  scratch.resize(cols);
  dequantize_row(weight.dtype, from, cols, scratch.data());
  narrow_row(scratch, to, out);
}

// What DecoderBuilder packs into (decoder_builder.h).
class GpuTarget {
 public:
  using Linear = GpuLinear;
  using Vector = GpuVector;
  using Expert = GpuExpert;
  using Layer = GpuDecoderLayer;
  using Weights = GpuDecoderWeights;
  static constexpr bool kOneFormat = true;
  bool takes_fp8() const { return dtype_ != DType::f32 && gpu::keeps_fp8(); }
  int fp8_kept() const { return fp8_kept_; }
  int fp8_widened() const { return fp8_widened_; }

  GpuTarget(DType dtype, Uploader& uploader, DeviceArena& arena)
      : dtype_(dtype), uploader_(uploader), arena_(arena) {}

  Result<GpuVector> vector(const TensorView& view) { return floats(widened(view)); }

  Result<GpuRope> rope(const RopeTable& table) {
    GpuRope out;
    out.rotary_dim = table.rotary_dim;
    out.interleaved = table.interleaved;
    WW_ASSIGN_OR_RETURN(const GpuVector cos, large_floats(table.cos, table.rotary_dim / 2));
    WW_ASSIGN_OR_RETURN(const GpuVector sin, large_floats(table.sin, table.rotary_dim / 2));
    out.cos = cos.data;
    out.sin = sin.data;
    return out;
  }

  Status embedding(const TensorView& view, const std::shared_ptr<WeightSource>& source, GpuDecoderWeights& out) {
    WW_ASSIGN_OR_RETURN(const GpuLinear table, pack({LinearPart{.weight = view, .bias = {}}}, GluActivation::none, false));
    out.embedding = table.weight;
    source->release(view);
    return {};
  }

  Result<GpuLinear> pack(const std::vector<LinearPart>& parts, GluActivation glu, bool exact) {
    GpuLinear out;
    const std::optional<gpu::Fp8Scaling> scaling = common_scaling(parts);
    out.dtype = scaling ? DType::fp8_e4m3 : exact ? DType::f32 : dtype_;
    out.x_dtype = exact ? DType::f32 : dtype_;
    out.glu = glu;
    out.in_features = parts[0].weight.shape[1];
    for (const LinearPart& part : parts) out.out_features += rows_of(part);
    fp8_kept_ += scaling.has_value();
    fp8_widened_ += !scaling && parts[0].scales != nullptr;
    if (scaling) {
      out.scaling = *scaling;
      WW_ASSIGN_OR_RETURN(const GpuVector scales, floats(stacked_scales(parts, *scaling)));
      out.scales = scales.data;
    }
    const size_t row_bytes = static_cast<size_t>(out.in_features) * dtype_info(out.dtype).block_bytes;
    WW_ASSIGN_OR_RETURN(void* const memory, arena_.allocate(out.out_features * row_bytes, "weights"));
    out.weight = memory;
    std::byte* to = static_cast<std::byte*>(memory);
    for (const LinearPart& part : parts) {
      WW_RETURN_IF_ERROR(uploader_.rows(rows_of(part), row_bytes, to, [&](int64_t begin, int64_t end, std::byte* rows) {
        copy_rows(part, out.dtype, begin, end, rows, row_bytes);
      }));
      to += rows_of(part) * row_bytes;
    }
    WW_ASSIGN_OR_RETURN(out.bias, bias(parts));
    return out;
  }

  // The device arrays of pointers that the experts of each layer need.
  Result<GpuExpertTable> expert_table(const std::vector<GpuExpert>& experts) {
    std::vector<const void*> gate_up, down, gate_up_bias, down_bias;
    for (const GpuExpert& expert : experts) {
      gate_up.push_back(expert.gate_up.weight);
      down.push_back(expert.down.weight);
      gate_up_bias.push_back(expert.gate_up.bias);
      down_bias.push_back(expert.down.bias);
    }
    GpuExpertTable out;
    WW_ASSIGN_OR_RETURN(out.gate_up, pointers<const void*>(gate_up));
    WW_ASSIGN_OR_RETURN(out.down, pointers<const void*>(down));
    WW_ASSIGN_OR_RETURN(out.gate_up_scales, scale_pointers(experts, &GpuExpert::gate_up));
    WW_ASSIGN_OR_RETURN(out.down_scales, scale_pointers(experts, &GpuExpert::down));
    if (gate_up_bias[0] != nullptr) {
      WW_ASSIGN_OR_RETURN(out.gate_up_bias, pointers<const float*>(gate_up_bias));
      WW_ASSIGN_OR_RETURN(out.down_bias, pointers<const float*>(down_bias));
    }
    return out;
  }

 private:
  static int64_t rows_of(const LinearPart& part) {
    return part.rows >= 0 ? part.rows : (part.weight.shape[0] - part.first_row) / part.row_step;
  }

  // How the scales of all parts can stand in GPU memory, or nullopt: then the parts are widened.
  static std::optional<gpu::Fp8Scaling> common_scaling(const std::vector<LinearPart>& parts) {
    const int64_t cols = parts[0].weight.shape[1];
    bool rows = cols % gpu::kFp8Columns == 0, blocks = rows;
    for (const LinearPart& part : parts) {
      const WeightScales* scales = part.scales;
      if (scales == nullptr) return std::nullopt;
      const bool whole = &part == &parts.back() || rows_of(part) % gpu::kFp8Block == 0;
      rows &= scales->block_cols >= cols;
      blocks &= scales->block_rows == gpu::kFp8Block && scales->block_cols == gpu::kFp8Block && whole;
    }
    if (rows) return gpu::Fp8Scaling::row;
    return blocks ? std::optional(gpu::Fp8Scaling::block) : std::nullopt;
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
        for (int64_t c = 0; c < scales.stride; ++c) out[first + c] = scales.at(r, c * scales.block_cols);
      }
    }
    return out;
  }

  static void copy_rows(const LinearPart& part, DType to, int64_t begin, int64_t end, std::byte* out,
                        size_t row_bytes) {
    if (part.weight.dtype == to && part.row_step == 1) {
      std::memcpy(out, static_cast<const std::byte*>(part.weight.data) + (part.first_row + begin) * row_bytes,
                  (end - begin) * row_bytes);
      return;
    }
    std::vector<float> scratch;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = part.first_row + r * part.row_step;
      std::byte* const to_row = out + (r - begin) * row_bytes;
      if (part.scales == nullptr) {
        convert_row(part.weight, row, to, to_row, scratch);
        continue;
      }
      scratch.resize(part.weight.shape[1]);
      widen_fp8_row(part.weight, *part.scales, row, scratch.data());
      narrow_row(scratch, to, to_row);
    }
  }

  Result<const float*> bias(const std::vector<LinearPart>& parts) {
    std::vector<float> all;
    bool any = false;
    for (const LinearPart& part : parts) {
      const std::vector<float> whole = part.bias.data != nullptr ? widened(part.bias) : std::vector<float>();
      any |= !whole.empty();
      for (int64_t r = 0; r < rows_of(part); ++r) {
        all.push_back(whole.empty() ? 0.0f : whole[part.first_row + r * part.row_step]);
      }
    }
    if (!any) return static_cast<const float*>(nullptr);
    WW_ASSIGN_OR_RETURN(const GpuVector out, floats(all));
    return out.data;
  }

  Result<GpuVector> floats(const std::vector<float>& values) {
    return large_floats(values, static_cast<int64_t>(values.size()));
  }

  Result<GpuVector> large_floats(const std::vector<float>& values, int64_t cols) {
    WW_ASSIGN_OR_RETURN(void* const memory, arena_.allocate(values.size() * sizeof(float), "weights"));
    const size_t row_bytes = cols * sizeof(float);
    WW_RETURN_IF_ERROR(uploader_.rows(static_cast<int64_t>(values.size()) / cols, row_bytes,
                                      static_cast<std::byte*>(memory), [&](int64_t begin, int64_t end, std::byte* out) {
                                        std::memcpy(out, values.data() + begin * cols, (end - begin) * row_bytes);
                                      }));
    return GpuVector{static_cast<const float*>(memory)};
  }

  // Null where the weights are not in 8 bits. One product multiplies all experts, so they are of one kind.
  Result<const float* const*> scale_pointers(const std::vector<GpuExpert>& experts, GpuLinear GpuExpert::*product) {
    std::vector<const void*> scales;
    for (const GpuExpert& expert : experts) {
      const GpuLinear& linear = expert.*product;
      const GpuLinear& first = experts[0].*product;
      if (linear.dtype != first.dtype || linear.scaling != first.scaling) {
        return Status::unsupported("experts of one layer have weights of different kinds (8-bit ones with and "
                                   "without scales of blocks, or 16-bit ones); use --device cpu");
      }
      scales.push_back(linear.scales);
    }
    if (scales[0] == nullptr) return static_cast<const float* const*>(nullptr);
    return pointers<const float*>(scales);
  }

  template <typename Pointer>
  Result<const Pointer*> pointers(const std::vector<const void*>& values) {
    const size_t size_bytes = values.size() * sizeof(void*);
    WW_ASSIGN_OR_RETURN(void* const memory, arena_.allocate(size_bytes, "weights"));
    WW_RETURN_IF_ERROR(uploader_.bytes(values.data(), size_bytes, memory));
    return static_cast<const Pointer*>(memory);
  }

  DType dtype_;
  Uploader& uploader_;
  DeviceArena& arena_;
  int fp8_kept_ = 0;      // products
  int fp8_widened_ = 0;
};

}  // namespace

Result<GpuDecoderWeights> load_gpu_weights(const ModelConfig& config, std::shared_ptr<WeightSource> source,
                                           const BuildOptions& options, ThreadTeam& team) {
  WW_ASSIGN_OR_RETURN(const FamilyTraits traits, family_traits(config));
  WW_ASSIGN_OR_RETURN(const std::unique_ptr<Uploader> uploader, Uploader::create(team));
  auto arena = std::make_unique<DeviceArena>(kSlabBytes);
  GpuTarget target(options.dtype, *uploader, *arena);
  BuildOptions build = options;
  if (const auto dual_chunk = dual_chunk_in_use(config, options.max_positions)) {
    build.max_positions = DualChunkRope(*dual_chunk).rope_positions();
  }
  const bool stored_fp8 = source->has_fp8("model.layers.0.self_attn.q_proj.weight");
  DecoderBuilder builder(config, traits, release_in_background(std::move(source)), build, target);
  WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights, builder.build());
  if (stored_fp8 && !target.takes_fp8()) {
    LOG_INFO("8-bit weights are widened to {}: {}", dtype_info(options.dtype).name,
             options.dtype == DType::f32 ? "products in f32 take no others"
                                         : "products of 8-bit weights need a GPU of compute capability 9.0 or newer");
  }
  if (target.fp8_widened() > 0) {
    LOG_INFO("8-bit weights of {} products are widened to {}, {} stay: only scales of tensors, of rows and of blocks of "
             "{} x {} stay, of the same kind for what is multiplied together", target.fp8_widened(),
             dtype_info(options.dtype).name, target.fp8_kept(), gpu::kFp8Block, gpu::kFp8Block);
  }
  if (weights.embedding == nullptr) weights.embedding = weights.lm_head.weight;
  for (const GpuDecoderLayer& layer : weights.layers) {
    GpuExpertTable& table = weights.expert_tables.emplace_back();
    if (layer.experts.empty()) continue;
    WW_ASSIGN_OR_RETURN(table, target.expert_table(layer.experts));
  }
  WW_RETURN_IF_ERROR(uploader->finish());
  weights.arena = std::move(arena);
  return weights;
}

}  // namespace warpweave
