// What this CPU can do, probed once at run time. Kernels are compiled per tier and chosen here;
// nothing in the build depends on the machine that built it.
#pragma once

#include <string>
#include <string_view>

namespace warpweave {

// Ordered: a higher tier can run every lower one.
enum class CpuTier { scalar, avx2, avx512, avx512_bf16, amx_bf16 };

std::string_view cpu_tier_name(CpuTier tier);

struct CpuInfo {
  std::string model_name;  // "AMD EPYC 9B14", from the CPU itself
  CpuTier tier = CpuTier::scalar;
  bool avx2 = false;        // with FMA and F16C
  bool avx512 = false;      // F, BW, DQ, VL
  bool avx512_bf16 = false;
  bool avx512_vnni = false;
  bool amx_bf16 = false;    // present, and the kernel granted tile state to this process
  bool amx_int8 = false;    // beside amx_bf16
  int cpus = 1;             // that this process may use
};

// Thread-safe. The environment variable WARPWEAVE_CPU_TIER (a name of cpu_tier_name) lowers the
// tier, for tests and bug reports; it never raises it.
const CpuInfo& cpu_info();

}  // namespace warpweave
