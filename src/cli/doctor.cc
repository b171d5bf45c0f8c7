#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/machine_share.h"
#include "cli/commands.h"
#include "cli/embedded_model.h"
#include "cli/model_search.h"
#include "device/cpu/cpu_info.h"
#include "device/cuda/cuda_device.h"

namespace warpweave {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// A line of /proc/meminfo in GiB; 0 when it is not there.
double meminfo_gib(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  double kib = 0;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == wanted) return kib / (1024 * 1024);
  }
  return 0;
}

void print_gpu() {
  const Result<CudaDeviceInfo> gpu = probe_cuda_device();
  if (!gpu.ok()) {
    std::printf("GPU: none to serve on: %s\n", gpu.status().message().c_str());
    return;
  }
  std::printf("GPU: %s, %.1f GB, %.1f GB free, compute capability %d.%d, driver for CUDA %d.%d\n",
              gpu->name.c_str(), gpu->total_bytes / kGiB, gpu->free_bytes / kGiB,
              gpu->compute_capability / 10, gpu->compute_capability % 10, gpu->driver_version / 1000,
              gpu->driver_version % 1000 / 10);
}

}  // namespace

int doctor_command(std::span<const std::string> argv) {
  CLI::App app("Shows what this machine offers: CPU, memory, GPU, open files, and the models found by name.",
               "warpweave doctor");
  if (const std::optional<int> code = parse_command(app, argv)) return *code;
  const CpuInfo& cpu = cpu_info();
  std::printf("%s\n", version_text().c_str());
  std::printf("CPU: %s, kernel tier %s\n", cpu.model_name.c_str(),
              std::string(cpu_tier_name(cpu.tier)).c_str());
  if (cpu.tier == CpuTier::scalar) {
    std::printf("  slow: no AVX2 here, every kernel runs its portable version\n");
  }
  std::printf("Compute threads: %d (--threads)\n", cpu.cpus);
  if (const double total_gib = meminfo_gib("MemTotal:"); total_gib > 0) {
    const double left_gib = static_cast<double>(available_memory_bytes()) / kGiB;
    std::printf("Memory: %.1f GB, %.1f GB available%s\n", total_gib, left_gib,
                cgroup_limits().memory_bytes ? " within the limit of this container or control group" : "");
  } else {
    std::printf(
        "Memory: not known, since /proc/meminfo cannot be read here; serve takes 4 GB for free (or: "
        "--max-total-tokens)\n");
  }
  print_gpu();
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  std::printf("Open files: %llu (one per connection)\n",
              static_cast<unsigned long long>(files.rlim_cur));
  std::printf("Models:\n");
  for (const std::string& folder : model_folders()) {
    std::error_code error;
    const bool exists = std::filesystem::is_directory(folder, error);
    std::printf("  %s%s\n", folder.c_str(), exists ? "" : " (not there)");
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      if (std::filesystem::exists(entry.path() / "config.json", error)) {
        std::printf("    %s\n", entry.path().filename().c_str());
      }
    }
  }
  size_t embedded_bytes = 0;
  for (const EmbeddedFile& file : embedded_model()) embedded_bytes += file.bytes.size();
  std::printf("  %s inside this program, %.1f MB\n", kDefaultModel, embedded_bytes / 1e6);
  return 0;
}

}  // namespace warpweave
