#include "attention/caps.h"

namespace warpweave {

std::string_view arch_name(DeviceArch arch) {
  switch (arch) {
    case DeviceArch::cpu_x86_64: return "CPU (x86-64)";
    case DeviceArch::cpu_other: return "CPU";
    case DeviceArch::sm_75: return "sm_75";
    case DeviceArch::sm_80: return "sm_80";
    case DeviceArch::sm_86: return "sm_86";
    case DeviceArch::sm_89: return "sm_89";
    case DeviceArch::sm_90: return "sm_90";
    case DeviceArch::sm_100: return "sm_100";
    case DeviceArch::sm_103: return "sm_103";
    case DeviceArch::sm_120: return "sm_120";
    case DeviceArch::sm_121: return "sm_121";
    case DeviceArch::gfx90a: return "gfx90a";
    case DeviceArch::gfx942: return "gfx942";
    case DeviceArch::gfx950: return "gfx950";
    case DeviceArch::intel_xe: return "Intel GPU";
    case DeviceArch::ascend_npu: return "Ascend NPU";
  }
  return "unknown";
}

std::string_view kind_name(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::mha: return "MHA";
    case AttentionKind::mla: return "MLA";
    case AttentionKind::sparse: return "sparse";
    case AttentionKind::linear: return "linear";
    case AttentionKind::mm: return "multimodal";
  }
  return "unknown";
}

}  // namespace warpweave
