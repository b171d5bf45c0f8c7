// For tests: the PTX words of the kernels that host_cta.h runs on the host, under the name of the file that has them
// for the GPU; a test puts this folder first on its include path. What an instruction leaves open is settled against
// the kernel: cp.async reads at once and writes nothing until its group is waited for. Shared memory is
// set_shared_memory()'s, its addresses count from there.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "device/cuda/testing/host_cta.h"

#define WW_DEVICE inline

namespace warpweave::ptx {

using u32 = unsigned int;
using u64 = unsigned long long;

// ---- shared memory ------------------------------------------------------------------------------

struct Copy {
  u32 smem, bytes;
  char data[16];
};
struct HostShared {
  char* memory = nullptr;
  size_t bytes = 0;
  std::vector<std::vector<std::vector<Copy>>> groups;  // of each thread's copies, oldest first, the last one open
};
inline HostShared host_shared;

// Before every run: nothing is in flight.
inline void set_shared_memory(char* memory, size_t bytes, int threads) {
  host_shared = {memory, bytes, std::vector<std::vector<std::vector<Copy>>>(threads, {{}})};
}

inline u32 smem_address(const void* pointer) {
  return static_cast<u32>(static_cast<const char*>(pointer) - host_shared.memory);
}

template <class T>
T* shared_at(u32 address) {
  if (address % sizeof(T) != 0 || address + sizeof(T) > host_shared.bytes) std::abort();  // as a GPU would
  return reinterpret_cast<T*>(host_shared.memory + address);
}

template <int kBytes>
void cp_async_few(u32 smem, const void* global, int bytes) {
  if (smem % kBytes != 0 || smem + kBytes > host_shared.bytes) std::abort();  // as a GPU would
  if (bytes != 0 && reinterpret_cast<uintptr_t>(global) % kBytes != 0) std::abort();
  Copy copy = {smem, kBytes, {}};
  if (bytes != 0) std::memcpy(copy.data, global, kBytes);
  host_shared.groups[threadIdx.x].back().push_back(copy);
}
inline void cp_async_16(u32 smem, const void* global, int bytes) { cp_async_few<16>(smem, global, bytes); }
template <int kPrefetchBytes>
void cp_async_16(u32 smem, const void* global, int bytes, u64) { cp_async_16(smem, global, bytes); }
inline void cp_async_16_alone(u32 smem, const void* global, int bytes) { cp_async_16(smem, global, bytes); }
inline u64 evict_first_policy() { return 0; }
inline uint4 load_once_16(const void* global) {
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0) std::abort();  // as a GPU would
  return *static_cast<const uint4*>(global);
}
inline void cp_async_commit() { host_shared.groups[threadIdx.x].emplace_back(); }
template <int N>
void cp_async_wait() {
  auto& groups = host_shared.groups[threadIdx.x];
  while (groups.size() > N + 1) {
    for (const Copy& copy : groups.front()) std::memcpy(host_shared.memory + copy.smem, copy.data, copy.bytes);
    groups.erase(groups.begin());
  }
}

inline u32 load_shared_4(u32 smem) { return *shared_at<u32>(smem); }
inline uint2 load_shared_8(u32 smem) { return *shared_at<uint2>(smem); }
inline void load_shared_16(u32 (&w)[4], u32 smem) {
  const uint4 all = *shared_at<uint4>(smem);
  w[0] = all.x, w[1] = all.y, w[2] = all.z, w[3] = all.w;
}
inline void store_shared_4(u32 smem, u32 a) { *shared_at<u32>(smem) = a; }
inline void store_shared_8(u32 smem, u32 a, u32 b) { *shared_at<uint2>(smem) = {a, b}; }

// ---- warp matrix instructions: fragments as PTX's manual draws them -------------------------------

// Matrix r's row i is at the address of lane 8 * r + i.
inline void ldmatrix(u32 (&r)[4], u32 smem, bool transposed) {
  const auto rows = host_cta::lanes(smem);
  const u32 lane = host_cta::lane();
  for (u32 matrix = 0; matrix < 4; ++matrix) {
    uint16_t pair[2];
    for (u32 i = 0; i < 2; ++i) {
      const u32 a = lane / 4, b = lane % 4 * 2 + i;
      pair[i] = shared_at<uint16_t>(rows[8 * matrix + (transposed ? b : a)])[transposed ? a : b];
    }
    r[matrix] = pair[0] | u32{pair[1]} << 16;
  }
  host_cta::lanes(0);  // nobody writes there before all have read
}
inline void ldmatrix_x4(u32 (&r)[4], u32 smem) { ldmatrix(r, smem, false); }
inline void ldmatrix_x4_trans(u32 (&r)[4], u32 smem) { ldmatrix(r, smem, true); }

inline void stmatrix(u32 smem, const u32 (&r)[4], bool transposed) {
  const auto rows = host_cta::lanes(smem);
  const u32 lane = host_cta::lane();
  for (u32 matrix = 0; matrix < 4; ++matrix) {
    for (u32 i = 0; i < 2; ++i) {
      const u32 a = lane / 4, b = lane % 4 * 2 + i;
      shared_at<uint16_t>(rows[8 * matrix + (transposed ? b : a)])[transposed ? a : b] = static_cast<uint16_t>(r[matrix] >> 16 * i);
    }
  }
  host_cta::lanes(0);  // nobody reads there before all have written
}
inline void stmatrix_x4(u32 smem, const u32 (&r)[4]) { stmatrix(smem, r, false); }
inline void stmatrix_x4_trans(u32 smem, const u32 (&r)[4]) { stmatrix(smem, r, true); }

inline u32 movmatrix_trans(u32 a) {
  const auto all = host_cta::lanes(a);
  const u32 lane = host_cta::lane();
  const auto element = [&](u32 row, u32 column) { return all[row * 4 + column / 2] >> column % 2 * 16 & 0xffff; };
  return element(lane % 4 * 2, lane / 4) | element(lane % 4 * 2 + 1, lane / 4) << 16;
}

struct Bf16;
struct F16;

// d[16x8] += a[16x16] * b[16x8]
template <class Element>
void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const auto upper = host_cta::lanes(std::array<u32, 2>{a[0], a[1]}),
             lower = host_cta::lanes(std::array<u32, 2>{a[2], a[3]});
  const auto columns = host_cta::lanes(std::array<u32, 2>{b0, b1});
  const u32 lane = host_cta::lane();
  for (u32 i = 0; i < 4; ++i) {
    const u32 row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (u32 k = 0; k < 16; ++k) {
      const u32 holder = k % 8 / 2;
      const u32 pair_a = (k < 8 ? upper : lower)[row * 4 + holder][i / 2], pair_b = columns[column * 4 + holder][k / 8];
      d[i] += k % 2 == 0 ? Element::low(pair_a) * Element::low(pair_b) : Element::high(pair_a) * Element::high(pair_b);
    }
  }
}

struct Bf16 {
  static void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_add<Bf16>(d, a, b0, b1); }
  static u32 pack(float low, float high) { return f32_to_bf16(low) | u32{f32_to_bf16(high)} << 16; }
  static u32 multiply(u32 a, u32 b) { return pack(low(a) * low(b), high(a) * high(b)); }
  static float low(u32 pair) { return bf16_to_f32(static_cast<uint16_t>(pair)); }
  static float high(u32 pair) { return bf16_to_f32(static_cast<uint16_t>(pair >> 16)); }
};

struct F16 {
  static void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_add<F16>(d, a, b0, b1); }
  static u32 pack(float low, float high) { return f32_to_f16(low) | u32{f32_to_f16(high)} << 16; }
  static u32 multiply(u32 a, u32 b) { return pack(low(a) * low(b), high(a) * high(b)); }
  template <bool kUpper>
  static u32 twice(u32 pair) { return (kUpper ? pair >> 16 : pair & 0xffff) * 0x10001u; }
  static float low(u32 pair) { return f16_to_f32(static_cast<uint16_t>(pair)); }
  static float high(u32 pair) { return f16_to_f32(static_cast<uint16_t>(pair >> 16)); }
};

// ---- the rest -----------------------------------------------------------------------------------

inline u32 select_bits(u32 a, u32 b, u32 mask) { return (a & mask) | (b & ~mask); }
inline float exp2_approx(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}
inline float log2_approx(float x) { return std::log2(x); }
inline float tanh_approx(float x) { return std::tanh(x); }

inline int load_acquire(const int* global) { return *global; }
inline void store_release(int* global, int value) { *global = value; }
inline int add_acq_rel(int* global, int value) { return atomicAdd(global, value); }

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int N>
void wgmma_wait() {}
inline void fence_proxy_async() {}
template <int kRegisters>
void setmaxnreg_increase() {}
template <int kRegisters>
void setmaxnreg_decrease() {}

inline void named_barrier_sync(int id, int threads) { host_cta::come_to_barrier(id, threads, true); }
inline void named_barrier_arrive(int id, int threads) { host_cta::come_to_barrier(id, threads, false); }

// mbarriers: a word of arrivals wanted, arrivals still missing and completed phases.
struct HostMbarrier {
  uint16_t wanted, missing;
  u32 phase;
};
inline void mbarrier_init(u32 barrier, u32 arrivals) {
  const auto count = static_cast<uint16_t>(arrivals);
  *shared_at<HostMbarrier>(barrier) = {count, count, 0};
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(u32 barrier) {
  HostMbarrier& b = *shared_at<HostMbarrier>(barrier);
  if (b.missing == 0) std::abort();
  if (--b.missing == 0) b.missing = b.wanted, ++b.phase;
}
inline void mbarrier_arrive_if_zero(u32 barrier, u32 value) {
  if (value == 0) mbarrier_arrive(barrier);
}
inline void mbarrier_wait(u32 barrier, u32 parity) {
  constexpr int kMostTurns = 1 << 20;  // nobody arrives any more
  for (int turns = 0; shared_at<HostMbarrier>(barrier)->phase % 2 == parity % 2; host_cta::let_others_run()) {
    if (++turns > kMostTurns) std::abort();
  }
}

// What the kernel before this one does, done when it is first waited for.
inline std::function<void()> predecessor;
inline void prefetch_l2(const void*) {}
inline void grid_dependency_wait() {
  if (const auto work = std::exchange(predecessor, nullptr)) work();
}
inline void launch_dependents() {}

}  // namespace warpweave::ptx
