#include "attention/tile/cuda_attention.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "attention/batch_check.h"
#include "attention/tile/tile_call.h"
#include "base/log.h"
#include "device/cuda/compute_capability.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/current_device.h"
#include "device/cuda/memory.h"
#include "device/cuda/nvrtc_program.h"

namespace warpweave::tile {
namespace {

// Work-groups that keep an SM busy where they have 16 rows; with more rows one does.
constexpr int kSmallGroupsPerSm = 8;
constexpr int kSmallWideGroupsPerSm = 2;   // where two warps share the columns of V: as many as fit
// Fewer tokens than this are not worth a split.
constexpr int kMinSplitTokens = 128;
constexpr int kMaxSplits = 64;
constexpr int kMergeGroups = 16;  // that share a tile's rows

struct BuiltTile {
  TileSpec spec;
  std::unique_ptr<NvrtcProgram> program;
  CUfunction attend = nullptr;
  CUfunction merge_splits = nullptr;
};

// What decides the program of a launch, beside the backend's own text.
struct TileKey {
  TileShape shape;
  int rows = 0;
  bool aligned = false;
  bool operator==(const TileKey&) const = default;
};

// Rows that share a tile configuration, named by their largest number.
int row_class(int rows) { return rows <= 16 ? 16 : rows <= 64 ? 64 : 1 << 20; }

int groups_per_sm(const TileSpec& spec) {
  if (spec.warps > spec.column_warps) return 1;
  return spec.column_warps == 1 ? kSmallGroupsPerSm : kSmallWideGroupsPerSm;
}

struct Gpu {
  int compute_capability = 0;
  int num_sms = 0;
  TileDevice tiles;
};

Result<Gpu> current_gpu() {
  Gpu gpu;
  WW_ASSIGN_OR_RETURN(const int shared_bytes, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, "attention"));
  WW_ASSIGN_OR_RETURN(gpu.num_sms, multiprocessors("attention"));
  gpu.compute_capability = current_compute_capability();
  gpu.tiles = {.lanes = LaneKind::mma, .local_memory_bytes = static_cast<size_t>(shared_bytes), .even_splits = true};
  return gpu;
}

// The programs of one backend's text, shared by all backends of this process that have it. Several threads may ask at
// once: who asks first for a program builds it, and only those that want the same one wait.
class Programs {
 public:
  static std::shared_ptr<Programs> of(const CudaTileOptions& options);
  explicit Programs(const CudaTileOptions& options) : modifiers_(options.modifiers), defines_(options.defines) {}

  Result<const BuiltTile*> tile(const Gpu& gpu, const TileKey& key);
  // Builds it, unless another thread is at it already: that one is not waited for.
  Status build_ahead(const Gpu& gpu, const TileKey& key);

 private:
  struct Entry {
    explicit Entry(const TileKey& wanted) : key(wanted) {}
    const TileKey key;
    std::mutex mutex;  // held while it is built
    std::optional<BuiltTile> tile;
  };
  Entry& entry_of(const TileKey& key);
  Status fill(Entry& entry, const Gpu& gpu) const;
  Result<BuiltTile> build(const Gpu& gpu, const TileKey& key) const;

  const std::string modifiers_;
  const std::vector<std::string> defines_;
  const ProgramCache cache_{ProgramCache::default_folder()};
  std::mutex mutex_;          // of the list alone
  std::deque<Entry> tiles_;   // addresses stay
};

std::shared_ptr<Programs> Programs::of(const CudaTileOptions& options) {
  static std::mutex mutex;
  // Never destroyed: the driver may be gone before static objects are.
  static auto& all = *new std::vector<std::pair<std::string, std::shared_ptr<Programs>>>;
  std::lock_guard lock(mutex);
  for (const auto& [text, programs] : all) {
    if (text == options.modifiers) return programs;
  }
  return all.emplace_back(options.modifiers, std::make_shared<Programs>(options)).second;
}

Programs::Entry& Programs::entry_of(const TileKey& key) {
  std::lock_guard lock(mutex_);
  for (Entry& known : tiles_) {
    if (known.key == key) return known;
  }
  return tiles_.emplace_back(key);
}

Result<const BuiltTile*> Programs::tile(const Gpu& gpu, const TileKey& key) {
  Entry& entry = entry_of(key);
  std::lock_guard lock(entry.mutex);
  WW_RETURN_IF_ERROR(fill(entry, gpu));
  return &*entry.tile;
}

Status Programs::build_ahead(const Gpu& gpu, const TileKey& key) {
  Entry& entry = entry_of(key);
  const std::unique_lock lock(entry.mutex, std::try_to_lock);
  return lock.owns_lock() ? fill(entry, gpu) : Status();
}

Status Programs::fill(Entry& entry, const Gpu& gpu) const {
  if (!entry.tile) {
    WW_ASSIGN_OR_RETURN(entry.tile, build(gpu, entry.key));
  }
  return {};
}

Result<BuiltTile> Programs::build(const Gpu& gpu, const TileKey& key) const {
  BuiltTile built;
  WW_ASSIGN_OR_RETURN(built.spec, choose_tile(key.shape, key.rows, gpu.tiles));
  built.spec.aligned_rows = key.aligned && built.spec.lanes == LaneKind::mma;
  NvrtcSource source = {tile_source(built.spec.lanes, modifiers_), tile_defines(built.spec), gpu.compute_capability};
  source.defines.insert(source.defines.end(), defines_.begin(), defines_.end());
  WW_ASSIGN_OR_RETURN(built.program, NvrtcProgram::build(source, cache_));
  WW_ASSIGN_OR_RETURN(built.attend, built.program->kernel("attend", local_bytes(built.spec)));
  WW_ASSIGN_OR_RETURN(built.merge_splits, built.program->kernel("merge_splits", 0));
  LOG_INFO("tile kernels for head dim {}, {} KV, tiles of {} rows: {} in {:.2f} s", key.shape.head_dim,
           kv_format_name(key.shape.kv_format), built.spec.tile_m,
           built.program->from_cache() ? "read from the cache" : "compiled", built.program->build_seconds());
  return built;
}

class CudaAttention : public AttentionBackend {
 public:
  explicit CudaAttention(const CudaTileOptions& options)
      : caps_(*options.caps), mask_modifier_(options.mask_modifier), programs_(Programs::of(options)) {}

  const Caps& caps() const override { return caps_; }
  Status init_forward_metadata(const ForwardBatch& batch) override;
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward(batch, call, batch.max_q_len);
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward(batch, call, 1);
  }
  Status reserve(const ForwardBatch& batch, const AttentionCall& shape) override;
  Status compile(const AttentionCall& shape, int max_q_len) override;
  Status init_cuda_graph_state(const GraphLimits& limits) override;
  Status init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch) override;
  Status init_forward_metadata_replay_cuda_graph(const ForwardBatch&) override { return {}; }
  bool captures_verification() const override { return caps_.graph_capture; }

 private:
  struct Launch {
    const BuiltTile* tile = nullptr;
    TileArgs args = {};
    TileGrid grid;
  };

  Status prepare();
  TileKey key_of(const AttentionCall& call, int max_q_len) const;
  Status forward(const ForwardBatch& batch, const AttentionCall& call, int max_q_len);
  Result<Launch> plan(const ForwardBatch& batch, const AttentionCall& call, int max_q_len);
  Status make_room(Launch& launch);
  Status run(const ForwardBatch& batch, const AttentionCall& call, int max_q_len);

  const Caps& caps_;
  const bool mask_modifier_;
  std::shared_ptr<Programs> programs_;
  Gpu gpu_;
  int max_pages_ = 0;       // a request's, in captured batches
  bool capturing_ = false;
  DeviceBuffer partial_out_, partial_stats_;
  std::vector<DeviceBuffer> outgrown_;  // captured graphs may still write to them
};

Status CudaAttention::prepare() {
  if (gpu_.num_sms == 0) {
    WW_ASSIGN_OR_RETURN(gpu_, current_gpu());
  }
  return {};
}

Status CudaAttention::init_forward_metadata(const ForwardBatch& batch) {
  capturing_ = false;
  WW_RETURN_IF_ERROR(prepare());
  return batch.q_indptr.empty() ? Status() : check_batch(batch);
}

Status CudaAttention::init_cuda_graph_state(const GraphLimits& limits) {
  max_pages_ = limits.max_pages_per_request;
  return prepare();
}

Status CudaAttention::init_forward_metadata_capture_cuda_graph(const ForwardBatch&) {
  capturing_ = true;
  return prepare();
}

Status CudaAttention::reserve(const ForwardBatch& batch, const AttentionCall& shape) {
  WW_RETURN_IF_ERROR(prepare());
  WW_ASSIGN_OR_RETURN(Launch launch, plan(batch, shape, batch.max_q_len));
  return make_room(launch);
}

TileKey CudaAttention::key_of(const AttentionCall& call, int max_q_len) const {
  TileKey key = {shape_of(call), row_class(max_q_len * (call.num_q_heads / call.num_kv_heads)), rows_are_aligned(call)};
  key.shape.mask_modifier = mask_modifier_;
  key.shape.latent = caps_.kinds.has(AttentionKind::mla);
  return key;
}

// What prepare() keeps is for the thread of the forwards.
Status CudaAttention::compile(const AttentionCall& shape, int max_q_len) {
  WW_ASSIGN_OR_RETURN(const Gpu gpu, current_gpu());
  return programs_->build_ahead(gpu, key_of(shape, max_q_len));
}

Status CudaAttention::forward(const ForwardBatch& batch, const AttentionCall& call, int max_q_len) {
  if (batch.num_tokens == 0) return {};
  const Status status = run(batch, call, max_q_len);
  return status.ok() ? status : status.with_context(caps_.name);
}

Result<CudaAttention::Launch> CudaAttention::plan(const ForwardBatch& batch, const AttentionCall& call,
                                                  int max_q_len) {
  Launch launch;
  launch.args = make_device_args(batch, call);
  WW_ASSIGN_OR_RETURN(launch.tile, programs_->tile(gpu_, key_of(call, max_q_len)));
  const TileSpec& spec = launch.tile->spec;
  const bool uniform = batch.num_tokens == batch.num_reqs * max_q_len;
  launch.grid = plan_grid(spec, uniform ? max_q_len : 0, launch.args);
  // A captured launch serves every length to come.
  const int64_t kv_len = capturing_ ? int64_t{max_pages_} * batch.page_size : batch.max_kv_len;
  const int most = static_cast<int>(std::min<int64_t>(kMaxSplits, kv_len / kMinSplitTokens));
  launch.grid.splits = even_split_count(launch.grid, groups_per_sm(spec) * gpu_.num_sms, most);
  launch.args.splits = launch.grid.splits;
  return launch;
}

Status CudaAttention::make_room(Launch& launch) {
  if (launch.grid.splits == 1) return {};
  const auto grow = [&](DeviceBuffer& buffer, size_t bytes) -> Status {
    if (buffer.size_bytes() >= bytes) return {};
    if (buffer.size_bytes() > 0) outgrown_.push_back(std::move(buffer));
    WW_ASSIGN_OR_RETURN(buffer, DeviceBuffer::allocate(bytes + bytes / 2, "attention partials"));
    return {};
  };
  const TileSpec& spec = launch.tile->spec;
  WW_RETURN_IF_ERROR(grow(partial_out_, partial_out_bytes(spec, launch.args, launch.grid.splits)));
  WW_RETURN_IF_ERROR(grow(partial_stats_, partial_stats_bytes(launch.args, launch.grid.splits)));
  launch.args.partial_out = reinterpret_cast<tile_address>(partial_out_.as<void>());
  launch.args.partial_stats = reinterpret_cast<tile_address>(partial_stats_.as<void>());
  return {};
}

Status CudaAttention::run(const ForwardBatch& batch, const AttentionCall& call, int max_q_len) {
  const auto stream = static_cast<cudaStream_t>(batch.device.stream);
  WW_ASSIGN_OR_RETURN(Launch launch, plan(batch, call, max_q_len));
  WW_RETURN_IF_ERROR(make_room(launch));
  KernelGrid grid = {.x = static_cast<unsigned>(launch.grid.tiles),
                     .y = static_cast<unsigned>(launch.grid.kv_heads),
                     .z = static_cast<unsigned>(launch.grid.splits),
                     .threads = static_cast<unsigned>(launch.tile->spec.work_items()),
                     .shared_bytes = static_cast<unsigned>(local_bytes(launch.tile->spec))};
  WW_RETURN_IF_ERROR(launch_kernel(launch.tile->attend, grid, &launch.args, stream));
  if (launch.grid.splits == 1) return {};
  grid.z = kMergeGroups;
  grid.shared_bytes = 0;
  return launch_kernel(launch.tile->merge_splits, grid, &launch.args, stream);
}

}  // namespace

std::unique_ptr<AttentionBackend> create_cuda_attention(const CudaTileOptions& options) {
  return std::make_unique<CudaAttention>(options);
}

Status probe_nvrtc(Probe) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  return nvrtc.ok() ? Status() : nvrtc.status();
}

}  // namespace warpweave::tile
