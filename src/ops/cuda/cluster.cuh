// Values between the CTAs of a cluster (sm_90; before it nothing calls these): each CTA expects a number of bytes in its
// shared memory once, all meet, then any may send, and a CTA waits for what it expects. No fence of other memory is part
// of it: a barrier of the cluster with release would wait for all stores to memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace warpweave::gpu::cluster {

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// By one thread, before meet(). `arrived` is a barrier in shared memory.
__device__ __forceinline__ void expect(uint64_t* arrived, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "fence.mbarrier_init.release.cluster;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(arrived)),
      "r"(bytes)
      : "memory");
#endif
}

// All threads of all CTAs.
__device__ __forceinline__ void meet() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
}

// `value` to the same variable of CTA `rank`, which counts 4 bytes as arrived.
__device__ __forceinline__ void send(float* variable, uint64_t* arrived, unsigned rank, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 to, bar;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 bar, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [bar];\n}\n" ::"r"(shared_address(variable)),
      "r"(shared_address(arrived)), "r"(rank), "r"(__float_as_uint(value))
      : "memory");
#endif
}

// Until all expected bytes are there, for every thread that calls it.
__device__ __forceinline__ void wait(uint64_t* arrived) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nWAIT_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra WAIT_%=;\n}\n" ::"r"(shared_address(arrived))
      : "memory");
#endif
}

}  // namespace warpweave::gpu::cluster
