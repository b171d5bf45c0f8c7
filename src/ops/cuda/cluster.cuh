// Values between the CTAs of a cluster (sm_90; before it nothing calls these): each CTA expects a number of bytes in its
// shared memory once, all meet, then any may send, and a CTA waits for what it expects. No fence of other memory is part
// of it: a barrier of the cluster with release would wait for all stores to memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/ptx.h"

namespace warpweave::gpu::cluster {

// By one thread, before meet(). `arrived` is a barrier in shared memory.
__device__ __forceinline__ void expect(uint64_t* arrived, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  ptx::mbarrier_init(ptx::smem_address(arrived), 1);
  ptx::mbarrier_init_fence();
  ptx::mbarrier_arrive_expect_tx(ptx::smem_address(arrived), bytes);
#endif
}

// All threads of all CTAs.
__device__ __forceinline__ void meet() {
#if __CUDA_ARCH__ >= 900
  ptx::cluster_meet_aligned();
#endif
}

// `value` to the same variable of CTA `rank`, which counts 4 bytes as arrived.
__device__ __forceinline__ void send(float* variable, uint64_t* arrived, unsigned rank, float value) {
#if __CUDA_ARCH__ >= 900
  ptx::store_async_4(ptx::smem_address(variable), ptx::smem_address(arrived), rank, __float_as_uint(value));
#endif
}

// 16 bytes to the same address of shared memory in CTA `rank`, of whose `arrived` they count.
__device__ __forceinline__ void send_16(ptx::u32 smem, ptx::u32 arrived, unsigned rank, const ptx::u32 (&value)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 to, bar;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 bar, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%3, %4, %5, %6}, [bar];\n}\n" ::"r"(smem),
      "r"(arrived), "r"(rank), "r"(value[0]), "r"(value[1]), "r"(value[2]), "r"(value[3])
      : "memory");
#endif
}

// Until all expected bytes are there, for every thread that calls it.
__device__ __forceinline__ void wait(uint64_t* arrived) {
#if __CUDA_ARCH__ >= 900
  ptx::mbarrier_wait(ptx::smem_address(arrived), 0);
#endif
}

}  // namespace warpweave::gpu::cluster
