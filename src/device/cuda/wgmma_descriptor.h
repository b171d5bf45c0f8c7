// What wgmma's operands in shared memory are named by, and what its wrappers are declared as (wgmma.h).
#pragma once

#include "device/cuda/ptx.h"

namespace warpweave::ptx {

// The lower half of the descriptor of a tile of 128-byte rows, written by TMA with the
// 128-byte swizzle; tiles begin at multiples of 1024 bytes. `leading_bytes`: from one 64-element column
// block to the next (read for MN-major tiles only). The upper half is the same for all such tiles.
WW_DEVICE u32 wgmma_descriptor(u32 smem, u32 leading_bytes) {
  return (smem & 0x3ffff) >> 4 | leading_bytes >> 4 << 16;
}
// The same descriptor `bytes` further on.
WW_DEVICE u32 wgmma_advance(u32 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

template <class Element, int kColumns>
struct Wgmma;

}  // namespace warpweave::ptx
