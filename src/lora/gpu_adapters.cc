#include "lora/gpu_adapters.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/stream.h"

namespace warpweave {
namespace {

// An adapter counts as gone a moment before its memory is: what its last request still does takes no longer.
constexpr std::chrono::seconds kSlotPatience{10};

gpu::LoraSiteShape shape_of(const std::vector<LoraModule>& modules, LoraSite site) {
  std::vector<const LoraModule*> of_site;
  for (const LoraModule& module : modules) {
    if (module.site == site) of_site.push_back(&module);
  }
  std::sort(of_site.begin(), of_site.end(),
            [](const auto* a, const auto* b) { return a->first_column < b->first_column; });
  gpu::LoraSiteShape out;
  for (const LoraModule* module : of_site) {
    out.in_features = module->in_features;
    out.first_column[out.num_parts] = module->first_column;
    out.columns[out.num_parts++] = module->columns;
  }
  return out;
}

// Numbers that are infinite or NaN become zeros; false if there were any.
bool make_finite(std::span<std::byte> values, DType dtype) {
  if (dtype == DType::f32) return true;
  const uint16_t exponent = dtype == DType::f16 ? 0x7c00 : 0x7f80;
  bool finite = true;
  for (size_t at = 0; at < values.size(); at += sizeof(uint16_t)) {
    uint16_t bits;
    std::memcpy(&bits, values.data() + at, sizeof(bits));
    if ((bits & exponent) != exponent) continue;
    std::memset(values.data() + at, 0, sizeof(bits));
    finite = false;
  }
  return finite;
}

// 16-bit rows are read 16 bytes at a time and written by pairs.
Status check_widths(const LoraTargets& targets, DType dtype) {
  if (dtype == DType::f32) return {};
  for (const auto& layer : targets.layers) {
    for (const LoraModule& module : layer) {
      if (module.in_features % 8 == 0 && module.first_column % 2 == 0 && module.columns % 2 == 0) continue;
      return Status::unsupported(
          fmt::format("--enable-lora: {} of {} is {} x {}, and adapters on GPUs take multiples of 8 by even "
                      "widths in 16 bits; use --dtype float32 or --device cpu",
                      module.name(), targets.model, module.columns, module.in_features),
          "--enable-lora");
    }
  }
  return {};
}

}  // namespace

class GpuAdapter : public LoraOnDevice {
 public:
  GpuAdapter(std::shared_ptr<GpuAdapters> home, int at) : home_(std::move(home)) { slot = at; }
  ~GpuAdapter() override {
    memory = {};  // before another adapter may have the slot
    home_->give_back(slot);
  }

  DeviceBuffer memory;

 private:
  std::shared_ptr<GpuAdapters> home_;
};

// Builds the image of an adapter's memory on the host, then copies it at once.
class GpuPlacer : public LoraPlacer {
 public:
  explicit GpuPlacer(std::shared_ptr<GpuAdapters> home)
      : home_(std::move(home)), sites_(home_->model_.layers.size() * kLoraSites) {}

  Status add(LoraPlace place, std::span<const LoraMatrices> parts) override;
  Status finish(LoraAdapter& out) override;

 private:
  // Where the image has room for `rows` rows of `cols` numbers, as an offset in it.
  size_t room(int64_t rows, int64_t cols) {
    const size_t at = image_.size();
    image_.resize(at + (rows * cols * element_ + 255) / 256 * 256);
    return at;
  }
  void copy_rows(size_t at, const TensorView& from, int64_t to_cols) {
    for (int64_t row = 0; row < from.shape[0]; ++row) {
      std::memcpy(image_.data() + at + row * to_cols * element_,
                  static_cast<const std::byte*>(from.data) + row * from.shape[1] * element_, from.shape[1] * element_);
    }
  }

  std::shared_ptr<GpuAdapters> home_;
  const size_t element_ = dtype_info(home_->options_.dtype).block_bytes;
  std::vector<std::byte> image_;
  std::vector<gpu::LoraSiteWeights> sites_;   // pointers are offsets in the image until it has its place
};

Status GpuPlacer::add(LoraPlace place, std::span<const LoraMatrices> parts) {
  const gpu::LoraSiteShape& shape = home_->model_.shape(place);
  gpu::LoraSiteWeights& site = sites_[place.layer * kLoraSites + static_cast<int>(place.site)];
  for (const LoraMatrices& matrices : parts) site.ranks += gpu::padded_lora_rank(static_cast<int>(matrices.a.shape[0]));
  const size_t shrink = room(site.ranks, shape.in_features);
  site.shrink = reinterpret_cast<const void*>(shrink);
  int first_rank = 0;
  for (const LoraMatrices& matrices : parts) {
    const auto columns = std::find(std::begin(shape.first_column), std::begin(shape.first_column) + shape.num_parts,
                                   matrices.module->first_column);
    const auto part = columns - std::begin(shape.first_column);
    const int rank = gpu::padded_lora_rank(static_cast<int>(matrices.a.shape[0]));
    copy_rows(shrink + first_rank * shape.in_features * element_, matrices.a, shape.in_features);
    const size_t expand = room(matrices.module->columns, rank);
    copy_rows(expand, matrices.b, rank);
    // In a GEMM's kernel zeros of other rows meet B (lora_join.cuh): what is not finite in it is the adapter's own
    // requests' trouble, by a scale that makes their rows NaN.
    const bool finite = make_finite(std::span(image_).subspan(expand, matrices.module->columns * rank * element_),
                                    home_->options_.dtype);
    site.expand[part] = reinterpret_cast<const void*>(expand);
    site.first_rank[part] = first_rank;
    site.rank[part] = rank;
    site.scale[part] = finite ? matrices.scale : std::numeric_limits<float>::quiet_NaN();
    first_rank += rank;
  }
  return {};
}

Status GpuPlacer::finish(LoraAdapter& out) {
  WW_ASSIGN_OR_RETURN(const int slot, home_->take_slot());
  auto adapter = std::make_unique<GpuAdapter>(home_, slot);
  WW_ASSIGN_OR_RETURN(adapter->memory,
                      DeviceBuffer::allocate(image_.size(), "an adapter; unload one, or lower --mem-fraction-static"));
  WW_RETURN_IF_ERROR(home_->copy(adapter->memory.as<void>(), image_.data(), image_.size()));
  const auto placed = [&](const void* offset) {
    return static_cast<const void*>(adapter->memory.as<std::byte>() + reinterpret_cast<size_t>(offset));
  };
  for (gpu::LoraSiteWeights& site : sites_) {
    site.shrink = placed(site.shrink);
    for (int part = 0; part < gpu::kLoraParts; ++part) {
      if (site.rank[part] > 0) site.expand[part] = placed(site.expand[part]);
    }
  }
  WW_RETURN_IF_ERROR(home_->publish(slot, sites_));
  out.bytes = adapter->memory.size_bytes();
  out.on_device = std::move(adapter);
  return {};
}

GpuAdapters::GpuAdapters(const LoraTargets& targets, const GpuAdaptersOptions& options)
    : options_(options), free_slots_(options.max_loaded) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  model_.max_rank = options.max_rank;
  for (const auto& modules : targets.layers) {
    auto& layer = model_.layers.emplace_back();
    for (int site = 0; site < kLoraSites; ++site) layer[site] = shape_of(modules, static_cast<LoraSite>(site));
  }
}

Result<std::shared_ptr<GpuAdapters>> GpuAdapters::create(const LoraTargets& targets,
                                                         const GpuAdaptersOptions& options) {
  WW_RETURN_IF_ERROR(check_widths(targets, options.dtype));
  std::shared_ptr<GpuAdapters> out(new GpuAdapters(targets, options));
  const size_t row_bytes = out->model_.layers.size() * kLoraSites * sizeof(gpu::LoraSiteWeights);
  WW_ASSIGN_OR_RETURN(out->table_, DeviceBuffer::allocate(options.max_loaded * row_bytes,
                                                          "the table of adapters; lower --max-loaded-loras"));
  WW_ASSIGN_OR_RETURN(out->stream_, create_stream());
  WW_ASSIGN_OR_RETURN(out->counters_, DeviceBuffer::allocate(2 * sizeof(int32_t), "the adapters' counters"));
  WW_RETURN_IF_ERROR(fill_now(out->counters_.as<void>(), 0, 2 * sizeof(int32_t), "the adapters' counters"));
  out->model_.sites = out->table_.as<gpu::LoraSiteWeights>();
  out->model_.counters = out->counters_.as<int32_t>();
  return out;
}

std::unique_ptr<LoraPlacer> GpuAdapters::placer() { return std::make_unique<GpuPlacer>(shared_from_this()); }

Result<int> GpuAdapters::take_slot() {
  std::unique_lock lock(mutex_);
  if (!slot_freed_.wait_for(lock, kSlotPatience, [&] { return !free_slots_.empty(); })) {
    return Status(StatusCode::resource_exhausted, "every slot for adapters is in use; try again", "--max-loaded-loras");
  }
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void GpuAdapters::give_back(int slot) {
  {
    std::lock_guard lock(mutex_);
    free_slots_.push_back(slot);
  }
  slot_freed_.notify_one();
}

Status GpuAdapters::publish(int slot, const std::vector<gpu::LoraSiteWeights>& sites) {
  return copy(table_.as<gpu::LoraSiteWeights>() + slot * sites.size(), sites.data(), sites.size() * sizeof(sites[0]));
}

Status GpuAdapters::copy(void* to, const void* from, size_t size_bytes) const {
  WW_RETURN_IF_ERROR(copy_async(to, from, size_bytes, stream_.get(), "copying an adapter to the GPU"));
  return wait_for_stream(stream_.get(), "copying an adapter to the GPU");
}

}  // namespace warpweave
