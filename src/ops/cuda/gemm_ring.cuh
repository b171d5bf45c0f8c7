// What stream_gemm.cu and tile_gemm.cu share: a ring of stages in shared memory, each a chunk of the depth of a tile's
// weights and of the inputs. One thread has TMA bring the weights and another one the inputs; two warpgroups multiply.
#pragma once

#include "device/cuda/ptx.h"

namespace warpweave::gpu {

constexpr int kGroups = 2;                 // of 4 warps that multiply
constexpr int kConsumers = 128 * kGroups;
constexpr int kDepth = 64;                 // of a stage: 128 bytes of a row, the swizzle's width
constexpr int kRowBytes = 2 * kDepth;
constexpr int kBarrierBytes = 24;          // of a stage: weights are there, inputs are, it is free again
constexpr int kMostSmemBytes = 227 * 1024;
constexpr int kGluTile = 224;

// The part of a tile's depth that falls to a CTA, in chunks: the CTAs of a tile take turns, so that together they read
// the same rows on. Units are the splits of tile 0, then those of tile 1, ...
struct DepthShare {
  int tile, rank, count;

  __device__ DepthShare(int unit, int splits, int chunks)
      : tile(unit / splits), rank(unit % splits), count((chunks - rank + splits - 1) / splits) {}
};

// A place in the ring, and the parity of its turn. The barriers stand `behind_bytes` behind the stages.
template <int kStageBytes>
struct GemmRing {
  ptx::u32 base, barriers;
  int stages, stage = 0;
  ptx::u32 parity = 0;

  __device__ GemmRing(const char* memory, int num_stages, int behind_bytes)
      : base(ptx::smem_address(memory)), barriers(base + num_stages * kStageBytes + behind_bytes), stages(num_stages) {}

  // By one thread, before any other call.
  __device__ void init_barriers() const {
    for (int i = 0; i < stages; ++i) {
      const ptx::u32 at = barriers + kBarrierBytes * i;
      ptx::mbarrier_init(at, 1);
      ptx::mbarrier_init(at + 8, 1);
      ptx::mbarrier_init(at + 16, kConsumers / 32);
    }
  }

  __device__ ptx::u32 at() const { return base + stage * kStageBytes; }
  __device__ ptx::u32 weights_full() const { return barriers + kBarrierBytes * stage; }
  __device__ ptx::u32 inputs_full() const { return weights_full() + 8; }
  __device__ ptx::u32 empty() const { return weights_full() + 16; }
  __device__ void wait_full() const {
    ptx::mbarrier_wait(weights_full(), parity);
    ptx::mbarrier_wait(inputs_full(), parity);
  }
  __device__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void skip(int count) {
    stage += count;
    parity ^= stage / stages & 1;
    stage %= stages;
  }
};

}  // namespace warpweave::gpu
