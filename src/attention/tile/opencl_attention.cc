#include "attention/tile/opencl_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "attention/batch_check.h"
#include "attention/tile/tile_call.h"
#include "attention/tree_texts.h"
#include "base/log.h"
#include "base/threads.h"
#include "device/opencl/shared_device.h"

namespace warpweave::tile {
namespace {

constexpr int kManyRows = 1 << 20;

struct BuiltTile {
  TileSpec spec;
  cl_kernel attend = nullptr;
  cl_kernel merge_splits = nullptr;
};

TileDevice tile_device(const opencl::DeviceInfo& info, const OpenClOptions& options) {
  TileDevice device;
  const bool cpu = info.kind == opencl::DeviceKind::cpu;
  const bool vector = cpu && !options.threads_as_lanes && !options.emulate_matrix;
  const bool matrix = cpu ? options.emulate_matrix : info.intel_matrix;
  device.lanes = vector ? LaneKind::vector : matrix ? LaneKind::dpas : LaneKind::threads;
  device.emulate_matrix = options.emulate_matrix;
  device.native_float_width = info.native_float_width;
  device.local_memory_bytes = info.local_memory_bytes;
  device.intel_shuffle = !vector && info.intel_subgroups;
  return device;
}

// The kernels of one tile on a device.
Result<BuiltTile> build_tile(opencl::SharedDevice& shared, const TileShape& shape, const TileSpec& spec) {
  std::string flags = "-cl-std=CL1.2";
  for (const std::string& define : tile_defines(spec)) flags += " -D" + define;
  BuiltTile built;
  built.spec = spec;
  WW_ASSIGN_OR_RETURN(auto* const program, shared.program({tile_source(spec.lanes), flags}));
  WW_ASSIGN_OR_RETURN(built.attend, program->kernel("attend"));
  WW_ASSIGN_OR_RETURN(built.merge_splits, program->kernel("merge_splits"));
  LOG_INFO("OpenCL kernels for head dim {}, {} KV, tiles of {} rows: {} in {:.2f} s", shape.head_dim,
           kv_format_name(shape.kv_format), spec.tile_m, program->from_cache() ? "read from the cache" : "compiled",
           program->build_seconds());
  return built;
}

// The tiles of this process, by thread count of the device.
class Runtime {
 public:
  static Result<std::shared_ptr<Runtime>> get(int threads);

  explicit Runtime(std::shared_ptr<opencl::SharedDevice> shared) : shared_(std::move(shared)) {}
  opencl::Device& device() { return shared_->device(); }
  std::mutex& mutex() { return shared_->mutex(); }
  // Call with the mutex held.
  Result<const BuiltTile*> tile(const TileShape& shape, int rows, const OpenClOptions& options);

 private:
  std::shared_ptr<opencl::SharedDevice> shared_;
  std::map<std::string, BuiltTile> tiles_;  // by compiler options
};

Result<std::shared_ptr<Runtime>> Runtime::get(int threads) {
  static std::mutex mutex;
  static auto& runtimes = *new std::map<int, std::shared_ptr<Runtime>>;  // never destroyed, as shared devices are
  std::lock_guard lock(mutex);
  if (const auto found = runtimes.find(threads); found != runtimes.end()) return found->second;
  WW_ASSIGN_OR_RETURN(std::shared_ptr<opencl::SharedDevice> shared, opencl::SharedDevice::get(threads));
  return runtimes.emplace(threads, std::make_shared<Runtime>(std::move(shared))).first->second;
}

Result<const BuiltTile*> Runtime::tile(const TileShape& shape, int rows, const OpenClOptions& options) {
  WW_ASSIGN_OR_RETURN(const TileSpec spec, choose_tile(shape, rows, tile_device(device().info(), options)));
  std::string key;
  for (const std::string& define : tile_defines(spec)) key += define + " ";
  if (const auto found = tiles_.find(key); found != tiles_.end()) return &found->second;
  WW_ASSIGN_OR_RETURN(BuiltTile built, build_tile(*shared_, shape, spec));
  return &tiles_.emplace(key, std::move(built)).first->second;
}

class OpenClAttention : public AttentionBackend {
 public:
  OpenClAttention(const BackendContext& context, const OpenClOptions& options)
      : options_(options) {
    auto runtime = Runtime::get(context.team->size());
    if (runtime.ok()) {
      runtime_ = *runtime;
    } else {
      no_runtime_ = runtime.status();
    }
  }

  const Caps& caps() const override { return *options_.caps; }

  Status init_forward_metadata(const ForwardBatch& batch) override {
    WW_RETURN_IF_ERROR(no_runtime_);
    return check_batch(batch);
  }
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward(batch, call, false);
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    return forward(batch, call, true);
  }

 private:
  Status forward(const ForwardBatch& batch, const AttentionCall& call, bool decode);
  Status run(const ForwardBatch& batch, const AttentionCall& call, bool decode);
  Status run_split(const BuiltTile& tile, const TileGrid& grid, TileArgs& args);

  OpenClOptions options_;
  std::shared_ptr<Runtime> runtime_;
  Status no_runtime_;
  std::vector<float> partial_out_, partial_stats_;
};

Status OpenClAttention::forward(const ForwardBatch& batch, const AttentionCall& call, bool decode) {
  if (batch.num_tokens == 0) return {};
  const Status status = run(batch, call, decode);
  return status.ok() ? status : status.with_context(options_.caps->name);
}

Status OpenClAttention::run(const ForwardBatch& batch, const AttentionCall& call, bool decode) {
  std::lock_guard lock(runtime_->mutex());
  TileArgs args = make_args(batch, call);
  WW_ASSIGN_OR_RETURN(const BuiltTile* tile,
                      runtime_->tile(shape_of(call), decode ? args.group : kManyRows, options_));
  TileGrid grid = plan_grid(tile->spec, decode ? 1 : 0, args);
  grid.splits = split_count(tile->spec, batch.max_kv_len);
  opencl::Device& device = runtime_->device();
  // Two work-groups for each compute unit are enough to even out their lengths.
  const int enough = 2 * device.info().compute_units;
  if (decode && grid.splits > 1 && grid.tiles * grid.kv_heads < enough) {
    return run_split(*tile, grid, args);
  }
  opencl::Grid groups;
  groups.groups[0] = static_cast<size_t>(grid.tiles);
  groups.groups[1] = static_cast<size_t>(grid.kv_heads);
  groups.work_items = static_cast<size_t>(tile->spec.work_items());
  WW_RETURN_IF_ERROR(device.launch(tile->attend, &args, sizeof(args), groups));
  return device.finish();
}

Status OpenClAttention::run_split(const BuiltTile& tile, const TileGrid& grid, TileArgs& args) {
  const size_t out = partial_out_bytes(tile.spec, args, grid.splits) / sizeof(float);
  const size_t stats = partial_stats_bytes(args, grid.splits) / sizeof(float);
  if (partial_out_.size() < out) partial_out_.resize(out);
  if (partial_stats_.size() < stats) partial_stats_.resize(stats);
  args.partial_out = reinterpret_cast<tile_address>(partial_out_.data());
  args.partial_stats = reinterpret_cast<tile_address>(partial_stats_.data());
  opencl::Device& device = runtime_->device();
  opencl::Grid groups;
  groups.groups[0] = static_cast<size_t>(grid.tiles);
  groups.groups[1] = static_cast<size_t>(grid.kv_heads);
  groups.groups[2] = static_cast<size_t>(grid.splits);
  groups.work_items = static_cast<size_t>(tile.spec.work_items());
  WW_RETURN_IF_ERROR(device.launch(tile.attend, &args, sizeof(args), groups));
  groups.groups[2] = 1;
  WW_RETURN_IF_ERROR(device.launch(tile.merge_splits, &args, sizeof(args), groups));
  return device.finish();
}

}  // namespace

std::unique_ptr<AttentionBackend> create_opencl_attention(const BackendContext& context,
                                                          const OpenClOptions& options) {
  return with_trees_as_texts(std::make_unique<OpenClAttention>(context, options), context);
}

Status probe_opencl(Probe probe) {
  if (probe == Probe::quick) return opencl::look_for_drivers();
  static const Status found = [] {
    WW_ASSIGN_OR_RETURN(const std::vector<opencl::DeviceInfo> devices, opencl::devices());
    return opencl::check_shares_addresses(devices.front());
  }();
  return found;
}

}  // namespace warpweave::tile
