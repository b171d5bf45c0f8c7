// The backends under test: every built one but the reference, the CPU backend once per tier.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/backends/intel_amx/backend.h"
#include "attention/registry.h"
#include "device/cpu/cpu_info.h"

namespace warpweave::conformance {

struct Variant {
  std::string name;
  const Caps* caps;
  std::function<std::unique_ptr<AttentionBackend>(const BackendContext&)> create;
};

inline std::vector<Variant> all_variants() {
  std::vector<Variant> variants;
  for (const BackendRegistration& backend : built_backends()) {
    if (!backend.caps->selectable) continue;
    if (backend.caps->name != "intel_amx") {
      variants.push_back({std::string(backend.caps->name), backend.caps, backend.create});
      continue;
    }
    for (int tier = 0; tier <= static_cast<int>(cpu_info().tier); ++tier) {
      const CpuTier value = static_cast<CpuTier>(tier);
      variants.push_back({"intel_amx@" + std::string(cpu_tier_name(value)), backend.caps,
                          [value](const BackendContext& context) {
                            return intel_amx::create_for_tier(context, value);
                          }});
    }
  }
  return variants;
}

}  // namespace warpweave::conformance
