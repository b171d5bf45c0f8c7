// For tests: a CUDA kernel on the host, a CTA at a time. Include this before the kernel's file: it gives that file's
// CUDA words a meaning. Every thread of the CTA is a fiber that runs until it has to wait for others, a warp as far
// ahead of the next one as barriers let it: a test sees one order at a time and may ask for several. Where a barrier is
// missing, some of them give a wrong result.
//
// What kernels may use: threadIdx.x, blockIdx.x, __shared__ (kept from run to run: nothing is cleared),
// __syncthreads(), what a whole warp does together, atomics, vectors. One CTA at a time, on one thread of the host: a
// grid's one after the other.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>

namespace warpweave::host_cta {

inline constexpr int kWarp = 32;
enum class Order { ascending, descending, random };

struct Index {
  unsigned x = 0, y = 0;
};

// Runs `kernel` as every one of `threads` threads (a multiple of kWarp) of CTA `block`. Aborts where threads wait for
// each other for ever.
void run(int threads, Order order, const std::function<void()>& kernel, Index block = {});

// Of the thread that runs.
const Index& thread_index();
const Index& block_index();
void sync_threads();
// A barrier by name, that opens when `threads` of the CTA's came to it; whoever does not wait there goes on.
void come_to_barrier(int barrier, int threads, bool waits);
// The others run before this thread goes on; it waits for a word that one of them writes.
void let_others_run();
// Every thread of a warp gives `bytes`, at most 8; `all` becomes those of its 32 lanes.
void exchange(const void* mine, size_t bytes, void* all);

template <class T>
std::array<T, kWarp> lanes(T mine) {
  std::array<T, kWarp> all;
  exchange(&mine, sizeof(T), all.data());
  return all;
}
inline unsigned lane() { return thread_index().x % kWarp; }

}  // namespace warpweave::host_cta

#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __grid_constant__
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static
#define __launch_bounds__(...)
#define threadIdx (::warpweave::host_cta::thread_index())
#define blockIdx (::warpweave::host_cta::block_index())
#define __syncthreads() ::warpweave::host_cta::sync_threads()

namespace warpweave {

using std::isfinite;
using std::log2f;
using std::max;
using std::min;

template <class T>
T __shfl_up_sync(unsigned, T value, unsigned step) {
  const unsigned lane = host_cta::lane();
  return host_cta::lanes(value)[lane < step ? lane : lane - step];
}
template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned bits) { return host_cta::lanes(value)[host_cta::lane() ^ bits]; }
template <class T>
T __shfl_sync(unsigned, T value, unsigned from) { return host_cta::lanes(value)[from]; }
inline bool __any_sync(unsigned, bool vote) {
  const auto all = host_cta::lanes(vote);
  return std::find(all.begin(), all.end(), true) != all.end();
}
inline void __syncwarp() { host_cta::lanes(0); }
inline int __reduce_add_sync(unsigned, int value) {
  const auto all = host_cta::lanes(value);
  return std::accumulate(all.begin(), all.end(), 0);
}
inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline unsigned __ballot_sync(unsigned, bool vote) {
  const auto all = host_cta::lanes(vote);
  unsigned bits = 0;
  for (int i = 0; i < host_cta::kWarp; ++i) bits |= unsigned{all[i]} << i;
  return bits;
}

template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}
template <class T>
void atomicMin(T* at, T value) { *at = std::min(*at, value); }
template <class T>
void atomicMax(T* at, T value) { *at = std::max(*at, value); }

inline int __ffs(unsigned bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float __expf(float x) { return std::exp(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
// Byte i of the result is the byte of x (0 to 3) or y (4 to 7) that nibble i of `places` names.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t places) {
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t place = places >> 4 * i & 7;
    out |= ((place < 4 ? x : y) >> 8 * (place % 4) & 0xff) << 8 * i;
  }
  return out;
}

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class T>
T __ldg(const T* at) { return *at; }
template <class T>
T __ldcg(const T* at) { return *at; }
template <class T>
void __stcg(T* at, T value) { *at = value; }

}  // namespace warpweave
