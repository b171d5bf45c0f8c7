// A pool's format as the kernels of CPUs read it.
#pragma once

#include "attention/cpu_tiles/element.h"
#include "kv/kv_format.h"

namespace warpweave::cpu_tiles {

constexpr Element element_of(KvFormat format) {
  switch (format) {
    case KvFormat::f32: return Element::f32;
    case KvFormat::bf16: return Element::bf16;
    case KvFormat::f16: return Element::f16;
    case KvFormat::fp8_e4m3: return Element::fp8_e4m3;
    case KvFormat::fp8_e5m2: return Element::fp8_e5m2;
    case KvFormat::fp4_e2m1: return Element::fp4_e2m1;
    case KvFormat::fp8_ds_mla:
    case KvFormat::fp4_mla: return Element::bf16;  // whole tokens are widened before the kernels read them
  }
  return Element::f32;
}

}  // namespace warpweave::cpu_tiles
