// Hardware as facts: the machine at hand, and well-known ones by name.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "attention/hardware_memory.h"
#include "attention/select.h"
#include "device/cpu/cpu_info.h"

namespace warpweave {
namespace {

struct NamedHardware {
  std::string_view key;
  std::string_view name;
  DeviceArch arch;
  int cuda_version;
  int memory_gib = 0;  // 0: not known
};

constexpr int kCuda = 12080;  // the version assumed for a described NVIDIA device

constexpr NamedHardware kNamed[] = {
    {"h100", "NVIDIA H100", DeviceArch::sm_90, kCuda, 94},
    {"h200", "NVIDIA H200", DeviceArch::sm_90, kCuda, 141},
    {"h20", "NVIDIA H20", DeviceArch::sm_90, kCuda, 96},
    {"gh200", "NVIDIA GH200", DeviceArch::sm_90, kCuda, 144},
    {"b200", "NVIDIA B200", DeviceArch::sm_100, kCuda, 192},
    {"gb200", "NVIDIA GB200", DeviceArch::sm_100, kCuda, 192},
    {"b300", "NVIDIA B300", DeviceArch::sm_103, kCuda, 288},
    {"gb300", "NVIDIA GB300", DeviceArch::sm_103, kCuda, 288},
    {"rtx5090", "NVIDIA GeForce RTX 5090", DeviceArch::sm_120, kCuda, 32},
    {"a100", "NVIDIA A100", DeviceArch::sm_80, kCuda, 80},
    {"a40", "NVIDIA A40", DeviceArch::sm_86, kCuda, 48},
    {"a10", "NVIDIA A10", DeviceArch::sm_86, kCuda, 24},
    {"rtx3090", "NVIDIA GeForce RTX 3090", DeviceArch::sm_86, kCuda, 24},
    {"l40s", "NVIDIA L40S", DeviceArch::sm_89, kCuda, 48},
    {"l4", "NVIDIA L4", DeviceArch::sm_89, kCuda, 24},
    {"rtx4090", "NVIDIA GeForce RTX 4090", DeviceArch::sm_89, kCuda, 24},
    {"t4", "NVIDIA T4", DeviceArch::sm_75, kCuda, 16},
    {"mi250x", "AMD Instinct MI250X", DeviceArch::gfx90a, 0},
    {"mi300x", "AMD Instinct MI300X", DeviceArch::gfx942, 0},
    {"mi355x", "AMD Instinct MI355X", DeviceArch::gfx950, 0},
    {"intel-gpu", "Intel GPU", DeviceArch::intel_xe, 0},
    {"npu", "Ascend NPU", DeviceArch::ascend_npu, 0},
    {"xeon", "x86-64 CPU with AMX", DeviceArch::cpu_x86_64, 0},
    {"xeon-avx512", "x86-64 CPU with AVX-512, no AMX", DeviceArch::cpu_x86_64, 0},
    {"cpu", "x86-64 CPU", DeviceArch::cpu_x86_64, 0},
    {"arm", "64-bit Arm CPU", DeviceArch::cpu_other, 0},
};

// Other names for the same.
struct Alias {
  std::string_view name, key;
};
constexpr Alias kAliases[] = {{"intel_xpu", "intel-gpu"}, {"intel-xpu", "intel-gpu"}, {"intel_gpu", "intel-gpu"},
                              {"xpu", "intel-gpu"},       {"ascend", "npu"}};

// Case and a maker's word in front do not matter: "H200", "nvidia-h200".
std::string hardware_key(std::string_view name) {
  std::string key(name.substr(0, 64));
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const Alias& alias : kAliases) {
    if (key == alias.name) return std::string(alias.key);
  }
  for (std::string_view maker : {"nvidia-", "amd-"}) {
    if (key.starts_with(maker)) key.erase(0, maker.size());
  }
  return key;
}

}  // namespace

HardwareFacts cpu_hardware_facts() {
  const CpuInfo& cpu = cpu_info();
  HardwareFacts facts;
  facts.name = fmt::format("{} ({})", cpu.model_name, cpu_tier_name(cpu.tier));
#if defined(__x86_64__)
  facts.arch = DeviceArch::cpu_x86_64;
#else
  facts.arch = DeviceArch::cpu_other;
#endif
  return facts;
}

std::optional<DeviceArch> arch_of_compute_capability(int compute_capability) {
  switch (compute_capability) {
    case 75: return DeviceArch::sm_75;
    case 80: return DeviceArch::sm_80;
    case 86: return DeviceArch::sm_86;
    case 89: return DeviceArch::sm_89;
    case 90: return DeviceArch::sm_90;
    case 100: return DeviceArch::sm_100;
    case 103: return DeviceArch::sm_103;
    case 120: return DeviceArch::sm_120;
    case 121: return DeviceArch::sm_121;
    default: return std::nullopt;
  }
}

Result<HardwareFacts> named_hardware(std::string_view name) {
  std::string names;
  const std::string key = hardware_key(name);
  for (const NamedHardware& hardware : kNamed) {
    if (hardware.key == key) {
      return HardwareFacts{std::string(hardware.name), hardware.arch, hardware.cuda_version};
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", hardware.key);
  }
  return Status::not_found(fmt::format("--hardware \"{}\" is not known; known: {}", name.substr(0, 64), names),
                           "--hardware");
}

int64_t named_hardware_memory_bytes(std::string_view name) {
  const std::string key = hardware_key(name);
  for (const NamedHardware& hardware : kNamed) {
    if (hardware.key == key) return int64_t{hardware.memory_gib} << 30;
  }
  return 0;
}

std::vector<std::string> named_hardware_list() {
  std::vector<std::string> names;
  for (const NamedHardware& hardware : kNamed) names.emplace_back(hardware.key);
  return names;
}

}  // namespace warpweave
