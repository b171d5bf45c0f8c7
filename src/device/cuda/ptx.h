// Raw PTX wrappers for the CUDA kernels. Includes no header of the toolkit, so that nvcc and NVRTC
// compile it alike and fast. Names follow the PTX instruction; shared-memory addresses are the
// 32-bit addresses of `smem_address`. sm_80 and up unless a comment says sm_90a.
#pragma once

namespace warpweave::ptx {

using u32 = unsigned int;
using u64 = unsigned long long;

#define WW_DEVICE __device__ __forceinline__

WW_DEVICE u32 smem_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// ---- copies into shared memory ----------------------------------------------------------------

// 16 bytes, past the L1. With `bytes` 0 the destination is zero-filled and nothing is read.
WW_DEVICE void cp_async_16(u32 smem, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(global),
               "r"(bytes)
               : "memory");
}
// The same of 4, 8 or 16 bytes, through the L1.
template <int kBytes>
WW_DEVICE void cp_async_few(u32 smem, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(smem), "l"(global), "n"(kBytes), "r"(bytes)
               : "memory");
}
WW_DEVICE void prefetch_l2(const void* global) { asm volatile("prefetch.global.L2 [%0];\n" ::"l"(global)); }
// For data that is read once: it leaves the L2 first.
WW_DEVICE u64 evict_first_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
template <int kPrefetchBytes>
WW_DEVICE void cp_async_16(u32 smem, const void* global, int bytes, u64 policy) {
  static_assert(kPrefetchBytes == 64 || kPrefetchBytes == 128);
  if constexpr (kPrefetchBytes == 64) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::64B [%0], [%1], 16, %2, %3;\n" ::"r"(smem),
                 "l"(global), "r"(bytes), "l"(policy)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;\n" ::"r"(smem),
                 "l"(global), "r"(bytes), "l"(policy)
                 : "memory");
  }
}
// Of which nothing nearby is wanted.
WW_DEVICE void cp_async_16_alone(u32 smem, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(global), "r"(bytes) : "memory");
}
// 16 bytes into registers, past the L1.
WW_DEVICE uint4 load_once_16(const void* global) {
  uint4 w;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "l"(global) : "memory");
  return w;
}
// Of shared memory, 4, 8 and 16 bytes at once.
WW_DEVICE u32 load_shared_4(u32 smem) {
  u32 w;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(w) : "r"(smem) : "memory");
  return w;
}
WW_DEVICE uint2 load_shared_8(u32 smem) {
  uint2 w;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(w.x), "=r"(w.y) : "r"(smem) : "memory");
  return w;
}
WW_DEVICE void load_shared_16(u32 (&w)[4], u32 smem) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(smem) : "memory");
}
WW_DEVICE void store_shared_4(u32 smem, u32 a) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(smem), "r"(a) : "memory");
}
WW_DEVICE void store_shared_8(u32 smem, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(smem), "f"(a), "f"(b) : "memory");
}
WW_DEVICE void store_shared_8(u32 smem, u32 a, u32 b) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};\n" ::"r"(smem), "r"(a), "r"(b) : "memory");
}
WW_DEVICE void clear_shared_16(u32 smem) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};\n" ::"r"(smem), "r"(0) : "memory");
}
WW_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until at most N of this thread's newest groups are in flight.
template <int N>
WW_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

// Bits of `a` where `mask` has ones, of `b` elsewhere, as one instruction, whatever is done with the result.
WW_DEVICE u32 select_bits(u32 a, u32 b, u32 mask) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;\n" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
  return d;
}

// ---- warp matrix instructions -----------------------------------------------------------------

WW_DEVICE void ldmatrix_x4(u32 (&r)[4], u32 smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}
WW_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}
// The inverse of ldmatrix_x4 (sm_90).
WW_DEVICE void stmatrix_x4(u32 smem, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(smem), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// The same, each 8x8 matrix transposed.
WW_DEVICE void stmatrix_x4_trans(u32 smem, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(smem), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// Transposes an 8x8 matrix of 16-bit elements held as ldmatrix leaves it.
WW_DEVICE u32 movmatrix_trans(u32 a) {
  u32 d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(d) : "r"(a));
  return d;
}

// The two 16-bit element types of the models; `Element::` selects the instruction.
struct Bf16 {
  // d[16x8] += a[16x16] * b[16x8]
  static WW_DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  // low half: `low`
  static WW_DEVICE u32 pack(float low, float high) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
    return d;
  }
  // The products of two pairs, rounded; subnormals are kept.
  static WW_DEVICE u32 multiply(u32 a, u32 b) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
  }
  static WW_DEVICE float low(u32 pair) { return __uint_as_float(pair << 16); }
  static WW_DEVICE float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
};

struct F16 {
  static WW_DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static WW_DEVICE u32 pack(float low, float high) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(d) : "f"(high), "f"(low));
    return d;
  }
  static WW_DEVICE u32 multiply(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;\n" : "=r"(d) : "r"(a), "r"(b));
    return d;
  }
  // One half of a pair in both.
  template <bool kUpper>
  static WW_DEVICE u32 twice(u32 pair) {
    u32 d;
    if constexpr (kUpper) asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}\n" : "=r"(d) : "r"(pair));
    else asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}\n" : "=r"(d) : "r"(pair));
    return d;
  }
  static WW_DEVICE float low(u32 pair) {
    float d;
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}\n" : "=f"(d) : "r"(pair));
    return d;
  }
  static WW_DEVICE float high(u32 pair) {
    float d;
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}\n" : "=f"(d) : "r"(pair));
    return d;
  }
};

// Four values as e4m3 bytes (sm_89), the first lowest; too large ones become 448.
WW_DEVICE u32 pack_e4m3(float a, float b, float c, float d) {
  u32 word;
  asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; "
      "mov.b32 %0, {low, high};}\n"
      : "=r"(word) : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
}

// ---- arithmetic -------------------------------------------------------------------------------

WW_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
WW_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
WW_DEVICE float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// ---- barriers ---------------------------------------------------------------------------------

// A named barrier among `threads` threads of the CTA (a multiple of 32); id 0 is __syncthreads.
WW_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
WW_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// mbarriers (sm_90). Phase parity: the first completion is seen by waiting on parity 0.
WW_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
WW_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
WW_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("{.reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0];}\n" ::"r"(barrier) : "memory");
}
// Only where `value` is 0, without a branch.
WW_DEVICE void mbarrier_arrive_if_zero(u32 barrier, u32 value) {
  asm volatile("{.reg .pred p; .reg .b64 s; setp.eq.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 s, [%0];}\n"
               ::"r"(barrier), "r"(value) : "memory");
}
WW_DEVICE void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("{.reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1;}\n" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}
WW_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Whether the phase has completed; may wait for a while.
WW_DEVICE bool mbarrier_try(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}\n"
               : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done != 0;
}
// This thread's earlier cp.async operations arrive on the barrier when they have landed.
WW_DEVICE void cp_async_mbarrier_arrive_noinc(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// ---- TMA (sm_90) ------------------------------------------------------

WW_DEVICE void tensor_map_prefetch(const void* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}
WW_DEVICE void tma_load_4d(u32 smem, const void* map, u32 barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6}], [%2];\n" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
WW_DEVICE void tma_load_4d(u32 smem, const void* map, u32 barrier, int c0, int c1, int c2, int c3, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %5, %6}], [%2], %7;\n" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}
// The same into every CTA of the cluster that `ctas` has a bit for, at the same addresses; each one's own barrier hears
// of its bytes.
struct TensorPlace {
  int c0, c1, c2, c3;
};
WW_DEVICE void tma_multicast_4d(u32 smem, const void* map, u32 barrier, const TensorPlace& at, u32 ctas, u64 policy) {
  asm volatile(
      "{.reg .b16 m; cvt.u16.u32 m, %7; cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], m, %8;}\n" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(at.c0), "r"(at.c1), "r"(at.c2), "r"(at.c3), "r"(ctas), "l"(policy)
      : "memory");
}
WW_DEVICE void tma_multicast_4d(u32 smem, const void* map, u32 barrier, int c0, int c1, int c2, int c3, u32 ctas) {
  asm volatile(
      "{.reg .b16 m; cvt.u16.u32 m, %7; cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], m;}\n" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(ctas)
      : "memory");
}
// To shared memory, multiples of 16 bytes, which the barrier counts as they land.
WW_DEVICE void bulk_load(u32 smem, const void* global, int bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(smem),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
// From shared memory, multiples of 16 bytes; what is written there first needs fence_proxy_async(). A thread's copies
// until bulk_commit() are a group; bulk_wait_read() waits until the memory of all of them has been read.
WW_DEVICE void bulk_store(void* global, u32 smem, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(global), "r"(smem), "r"(bytes)
               : "memory");
}
WW_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
WW_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory"); }
// Of all memory, not only the CTA's.
WW_DEVICE void fence_proxy_async_all() { asm volatile("fence.proxy.async;\n" ::: "memory"); }
WW_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// ---- clusters of CTAs (sm_90) -------------------------------------------------------------------

// On the barrier at the same address in CTA `cta` of the cluster. Orders no writes of this thread for that CTA (in
// cluster scope the instruction would wait for all of them).
WW_DEVICE void mbarrier_arrive_at(u32 barrier, u32 cta) {
  asm volatile(
      "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [remote];}\n"
      ::"r"(barrier), "r"(cta)
      : "memory");
}
WW_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;\n" ::: "memory"); }
WW_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory"); }
// Of all CTAs, whose warps are whole; orders no writes but those of mbarriers (mbarrier_init_fence).
WW_DEVICE void cluster_meet_aligned() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
// Four bytes to the same address of shared memory in CTA `cta`; its barrier at the address of `barrier` hears of them.
WW_DEVICE void store_async_4(u32 smem, u32 barrier, u32 cta, u32 value) {
  asm volatile(
      "{\n.reg .b32 to, bar;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 bar, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [bar];\n}\n" ::"r"(smem),
      "r"(barrier), "r"(cta), "r"(value)
      : "memory");
}

// ---- warpgroup control (sm_90a) ---------------------------------------------------------------

template <int kRegisters>
WW_DEVICE void setmaxnreg_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
WW_DEVICE void setmaxnreg_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
WW_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
WW_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int N>
WW_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}

// ---- words that CTAs share ----------------------------------------------------------------------

WW_DEVICE int load_acquire(const int* global) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(global) : "memory");
  return value;
}
WW_DEVICE void store_release(int* global, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;\n" ::"l"(global), "r"(value) : "memory");
}
WW_DEVICE void reduce_add_release(int* global, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;\n" ::"l"(global), "r"(value) : "memory");
}

// Returns what stood there. Between two barriers of the CTA, orders what all its threads wrote and read.
WW_DEVICE int add_acq_rel(int* global, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;\n" : "=r"(before) : "l"(global), "r"(value) : "memory");
  return before;
}

// Adds 16 bytes of floats in one access (sm_90).
WW_DEVICE void reduce_add_16(float* global, const u32 (&w)[4]) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(global), "f"(__uint_as_float(w[0])),
               "f"(__uint_as_float(w[1])), "f"(__uint_as_float(w[2])), "f"(__uint_as_float(w[3])) : "memory");
}

// Programmatic dependent launch: the next kernel of the stream may start its prologue / waits here
// until the kernels before it have finished.
WW_DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
WW_DEVICE void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

}  // namespace warpweave::ptx
