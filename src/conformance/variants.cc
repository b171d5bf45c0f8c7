#include "attention/backends/intel_amx/backend.h"
#include "conformance/cuda_variants.h"
#include "conformance/variant.h"
#include "device/cpu/cpu_info.h"
#include "device/opencl/platform_name.h"

namespace warpweave::conformance {

std::string opencl_name() {
  const std::string platform = opencl::platform_name();
  return platform.empty() ? "OpenCL" : "OpenCL, " + platform;
}

std::vector<Variant> host_variants() {
  const HardwareFacts cpu = cpu_hardware_facts();
  std::vector<Variant> variants;
  for (const BackendRegistration& backend : built_backends()) {
    if (!backend.caps->selectable || !backend.caps->archs.has(cpu.arch)) continue;
    // What it needs beside the CPU, such as an OpenCL driver, may be missing here.
    if (backend.probe && !backend.probe(Probe::thorough).ok()) continue;
    const std::string name(backend.caps->name);
    const AttentionKind kind = backend.caps->kinds.has(AttentionKind::mla) ? AttentionKind::mla : AttentionKind::mha;
    const std::string of_kind = name + (kind == AttentionKind::mla ? "-mla" : "");
    if (name != "intel_amx") {
      variants.push_back({of_kind, "cpu", cpu, backend.caps, backend.create, {}, 1});
      if (backend.caps->kernels.decode == "tile") variants.back().via = opencl_name();
      continue;
    }
    for (int tier = 0; tier <= static_cast<int>(cpu_info().tier); ++tier) {
      const CpuTier value = static_cast<CpuTier>(tier);
      variants.push_back({of_kind + "@" + std::string(cpu_tier_name(value)), "cpu", cpu, backend.caps,
                          [value, kind](const BackendContext& context) {
                            return intel_amx::create_for_tier(context, value, kind);
                          },
                          {}, 1});
    }
  }
  return variants;
}

std::vector<Variant> all_variants() {
  std::vector<Variant> variants = host_variants();
#if WARPWEAVE_CUDA
  for (Variant& variant : cuda_variants()) variants.push_back(std::move(variant));
#endif
  return variants;
}

}  // namespace warpweave::conformance
