#include "linear/tile/opencl_linear_attn.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "attention/tile/opencl_attention.h"
#include "base/log.h"
#include "device/opencl/shared_device.h"
#include "linear/tile/tile_call.h"

namespace warpweave {
namespace {

using linear_tile::Launch;
using linear_tile::TileSpec;

constexpr LinearAttnKernelCaps kCaps = {.name = "portable",
                                        .gdn = true,
                                        .kda = true,
                                        .decode = true,
                                        .extend = true,
                                        .verify_chain = true,
                                        .verify_tree = true,
                                        .bf16_state = true,
                                        .checkpoints = true,
                                        .deterministic = true};

// Vectors as lanes are what CPUs run; of the devices they come first.
Status check_is_cpu(const opencl::DeviceInfo& info) {
  if (info.kind == opencl::DeviceKind::cpu) return {};
  return Status::unsupported(fmt::format(
      "OpenCL finds {} but no CPU; install a driver, on Debian: apt-get install "
      "pocl-opencl-icd",
      info.name));
}

Status probe_opencl_cpu() {
  WW_RETURN_IF_ERROR(tile::probe_opencl(Probe::thorough));
  WW_ASSIGN_OR_RETURN(const std::vector<opencl::DeviceInfo> devices, opencl::devices());
  return check_is_cpu(devices.front());
}

struct BuiltTile {
  TileSpec spec;
  opencl::Program* program = nullptr;
};

class OpenClLinearAttn : public LinearAttnKernelBase {
 public:
  explicit OpenClLinearAttn(int threads) : threads_(threads) {}

  const LinearAttnKernelCaps& caps() const override { return kCaps; }

  size_t workspace_bytes(const LinearAttnShape& shape, const LinearAttnLimits& limits) const override {
    TileSpec spec;
    spec.shape = shape;
    return linear_tile::workspace_bytes(spec, limits);
  }

  Status prepare(const LinearAttnShape& shape) override { return tile(shape).status(); }

  void decode(const LinearAttnCall& call) override { run_or_keep(call, LinearAttnPhase::decode); }
  void extend(const LinearAttnCall& call) override { run_or_keep(call, LinearAttnPhase::extend); }
  void target_verify(const LinearAttnCall& call) override { run_or_keep(call, LinearAttnPhase::target_verify); }
  void commit(const LinearAttnCall& call) override { run_or_keep(call, LinearAttnPhase::commit); }
  Status take_failure() override { return std::exchange(failure_, {}); }

 private:
  Result<BuiltTile> tile(const LinearAttnShape& shape);
  Status run(const LinearAttnCall& call, LinearAttnPhase phase);
  void run_or_keep(const LinearAttnCall& call, LinearAttnPhase phase) {
    const Status status = run(call, phase);
    if (status.ok() || !failure_.ok()) return;
    failure_ = status.with_context(fmt::format("linear attention through OpenCL, {}", linear_attn_phase_name(phase)));
  }

  const int threads_;
  std::shared_ptr<opencl::SharedDevice> shared_;
  std::map<std::string, opencl::Program*> programs_;  // by compiler options
  Status failure_;
};

Result<BuiltTile> OpenClLinearAttn::tile(const LinearAttnShape& shape) {
  if (shared_ == nullptr) {
    WW_ASSIGN_OR_RETURN(shared_, opencl::SharedDevice::get(threads_));
  }
  std::lock_guard lock(shared_->mutex());
  const opencl::DeviceInfo& info = shared_->device().info();
  WW_RETURN_IF_ERROR(check_is_cpu(info));
  tile::TileDevice device;
  device.native_float_width = info.native_float_width;
  device.local_memory_bytes = info.local_memory_bytes;
  WW_ASSIGN_OR_RETURN(const TileSpec spec, linear_tile::choose_tile(shape, device));
  // Decayed states reach denormal numbers, which some CPUs compute a hundred times slower.
  std::string flags = "-cl-std=CL1.2 -cl-denorms-are-zero";
  for (const std::string& define : linear_tile::tile_defines(spec)) flags += " -D" + define;
  opencl::Program*& program = programs_[flags];
  if (program == nullptr) {
    WW_ASSIGN_OR_RETURN(program, shared_->program({linear_tile::tile_source(), flags}));
    LOG_INFO("OpenCL kernels for linear attention: {} in {:.2f} s",
             program->from_cache() ? "read from the cache" : "compiled", program->build_seconds());
  }
  return BuiltTile{spec, program};
}

Status OpenClLinearAttn::run(const LinearAttnCall& call, LinearAttnPhase phase) {
  WW_ASSIGN_OR_RETURN(const BuiltTile built, tile(call.shape));
  const TileSpec& spec = built.spec;
  const LinearTileArgs args = linear_tile::make_args(spec, call, phase);
  std::lock_guard lock(shared_->mutex());
  for (const Launch& launch : linear_tile::launches(spec, call, phase)) {
    WW_ASSIGN_OR_RETURN(cl_kernel kernel, built.program->kernel(launch.kernel));
    opencl::Grid grid;
    grid.groups[0] = static_cast<size_t>(launch.x);
    grid.groups[1] = static_cast<size_t>(launch.y);
    grid.groups[2] = static_cast<size_t>(launch.z);
    grid.work_items = static_cast<size_t>(spec.work_items());
    WW_RETURN_IF_ERROR(shared_->device().launch(kernel, &args, sizeof(args), grid));
  }
  return shared_->device().finish();
}

}  // namespace

std::unique_ptr<LinearAttnKernelBase> make_opencl_linear_attn(int threads) {
  return std::make_unique<OpenClLinearAttn>(threads);
}

LinearAttnBackend opencl_linear_attn_backend(const ThreadTeam& team) {
  return {"triton", &kCaps, [threads = team.size()] { return make_opencl_linear_attn(threads); },
          probe_opencl_cpu};
}

}  // namespace warpweave
