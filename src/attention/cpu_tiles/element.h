// The numbers that CPU kernels read from a pool. Plain C types only: the kernels of every tier include it.
#pragma once

#include <stdint.h>

namespace warpweave::cpu_tiles {

enum class Element : uint8_t { f32, bf16, f16, fp8_e4m3, fp8_e5m2, fp4_e2m1 };

}  // namespace warpweave::cpu_tiles
