#include "linear/conformance/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "attention/registry.h"
#include "device/cpu/cpu_info.h"
#include "linear/conformance/cuda_families.h"
#include "linear/cpu/cpu_linear_attn.h"
#include "linear/cuda/testing/slack.h"
#include "linear/host_backends.h"
#include "linear/testing/suite.h"

namespace warpweave::testing_linear {
namespace {

// The names of `backends` that stand for kernels with these caps, with what selection knows of them on the device.
std::vector<conformance::Variant> names_of(const LinearAttnKernelCaps& kernels,
                                           std::span<const LinearAttnBackend> backends, const HardwareFacts& hardware,
                                           std::string_view device, std::string_view tier) {
  std::vector<conformance::Variant> names;
  for (const LinearAttnBackend& backend : backends) {
    if (backend.caps != &kernels) continue;
    for (const KnownBackend& known : known_layer_backends()) {
      const Caps& caps = *known.caps;
      if (caps.name != backend.name || !caps.kinds.has(AttentionKind::linear) || !caps.archs.has(hardware.arch)) {
        continue;
      }
      names.push_back(
          {fmt::format("{}-linear@{}", backend.name, tier), std::string(device), hardware, &caps, nullptr, {}, 1});
    }
  }
  return names;
}

}  // namespace

std::vector<LinearFamily> linear_families(ThreadTeam& team) {
  std::vector<LinearFamily> families;
  const std::vector<LinearAttnBackend> on_cpu = cpu_linear_attn_backends(team);
  for (CpuTier tier : kCpuLinearTiers) {
    if (tier > cpu_info().tier) continue;
    families.push_back({names_of(*on_cpu.front().caps, on_cpu, cpu_hardware_facts(), "cpu", cpu_tier_name(tier)),
                        [&team, tier](bool) { return make_cpu_linear_attn(team, tier); },
                        [](const LinearAttnCase&) { return SuiteOptions{}.slack; }});
  }
  // What runs through a driver, where there is one.
  const std::vector<LinearAttnBackend> on_host = host_linear_attn_backends(team);
  for (const LinearAttnBackend& backend : on_host) {
    if (backend.probe == nullptr || !backend.probe().ok()) continue;
    families.push_back({names_of(*backend.caps, on_host, cpu_hardware_facts(), "cpu", "opencl"),
                        [create = backend.create](bool) { return create(); },
                        [](const LinearAttnCase&) { return SuiteOptions{}.slack; }});
    for (conformance::Variant& name : families.back().names) name.via = conformance::opencl_name();
  }
#if WARPWEAVE_CUDA
  const std::optional<CudaLinearFamilies> cuda = cuda_linear_families();
  if (!cuda) return families;
  for (const CudaLinearFamily& family : cuda->families) {
    families.push_back(
        {names_of(*family.caps, cuda->backends, cuda->hardware, "cuda", "cuda"), family.create, linear::gpu_slack});
  }
#endif
  return families;
}

}  // namespace warpweave::testing_linear
