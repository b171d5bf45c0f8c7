#include "device/cpu/cpu_info.h"

#include <cstdlib>
#include <cstring>

#include "base/threads.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace warpweave {
namespace {

#if defined(__x86_64__)
std::string read_model_name() {
  unsigned words[12] = {};
  if (__get_cpuid_max(0x80000000u, nullptr) < 0x80000004u) return "x86-64";
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    __get_cpuid(0x80000002u + leaf, &words[leaf * 4], &words[leaf * 4 + 1], &words[leaf * 4 + 2],
                &words[leaf * 4 + 3]);
  }
  char text[49] = {};
  std::memcpy(text, words, 48);
  std::string name(text);
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name;
}

// Linux hands out AMX tile state only on request, once per process.
void request_amx(CpuInfo* info) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
  const bool has_tiles = d >> 24 & 1, has_bf16 = d >> 22 & 1, has_int8 = d >> 25 & 1;
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  info->amx_bf16 = has_tiles && has_bf16 && syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
  info->amx_int8 = info->amx_bf16 && has_int8;
}
#endif

CpuInfo probe() {
  CpuInfo info;
  info.cpus = available_cpus();
#if defined(__x86_64__)
  info.model_name = read_model_name();
  info.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  info.avx512 = info.avx2 && __builtin_cpu_supports("avx512f") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl");
  info.avx512_vnni = info.avx512 && __builtin_cpu_supports("avx512vnni");
  unsigned a = 0, b = 0, c = 0, d = 0;
  info.avx512_bf16 = info.avx512_vnni && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
  if (info.avx512_bf16) request_amx(&info);
#else
  info.model_name = "unknown";
#endif
  CpuTier best = info.amx_bf16      ? CpuTier::amx_bf16
                 : info.avx512_bf16 ? CpuTier::avx512_bf16
                 : info.avx512      ? CpuTier::avx512
                 : info.avx2        ? CpuTier::avx2
                                    : CpuTier::scalar;
  if (const char* wanted = std::getenv("WARPWEAVE_CPU_TIER")) {
    for (int t = 0; t < static_cast<int>(best); ++t) {
      if (cpu_tier_name(static_cast<CpuTier>(t)) == wanted) best = static_cast<CpuTier>(t);
    }
  }
  info.tier = best;
  return info;
}

}  // namespace

std::string_view cpu_tier_name(CpuTier tier) {
  switch (tier) {
    case CpuTier::scalar: return "scalar";
    case CpuTier::avx2: return "avx2";
    case CpuTier::avx512: return "avx512";
    case CpuTier::avx512_bf16: return "avx512_bf16";
    case CpuTier::amx_bf16: return "amx_bf16";
  }
  return "scalar";
}

const CpuInfo& cpu_info() {
  static const CpuInfo info = probe();
  return info;
}

}  // namespace warpweave
