// Dialects: what the kernels need of OpenCL C, CUDA (nvcc, NVRTC) and HIP, under one set of names.
//
// A kernel is written once over LANES lanes: vf, vi and vu hold one float, int or uint per lane.
//   WW_VECTOR_LANES   a lane is an element of a 16-wide vector and a work-group has one work-item:
//                     OpenCL CPUs, where this maps onto SIMD registers without help from a vectoriser
//   otherwise         a lane is a thread, LANES threads are a warp (a sub-group), a work-group has
//                     WARPS of them
// Control flow is uniform over the lanes of a warp; per-lane choices are written c ? a : b, which
// in OpenCL C selects element by element.

#if defined(__OPENCL_C_VERSION__)
#pragma OPENCL FP_CONTRACT OFF
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
#define KERNEL __kernel
#define GLOBAL __global
#define LOCAL __local
#define PRIVATE __private
#define INLINE static inline __attribute__((always_inline))
#define TILE_X ((int)get_group_id(0))
#define TILE_Y ((int)get_group_id(1))
#define TILE_Z ((int)get_group_id(2))
#define GRID_Z ((int)get_num_groups(2))
#define AS_F32(x) as_float(x)
#define AS_U32(x) as_uint(x)
#define FMA(a, b, c) fma((a), (b), (c))
#define LOG2(x) log2(x)
#define SQRT(x) sqrt(x)
#define ADDRESS(type, address) ((__global type*)(address))
#else
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
#define GLOBAL
#define LOCAL
#define PRIVATE
#define INLINE static __device__ __forceinline__
#define ADDRESS(type, address) ((type*)(address))
#endif

#if defined(__HIP__)
// Built without ROCm's headers and device library: everything is a compiler builtin.
#undef INLINE
#define INLINE static __attribute__((device, always_inline)) inline
#define KERNEL extern "C" __attribute__((global))
#define TILE_X ((int)__builtin_amdgcn_workgroup_id_x())
#define TILE_Y ((int)__builtin_amdgcn_workgroup_id_y())
#define TILE_Z ((int)__builtin_amdgcn_workgroup_id_z())
#define GRID_Z ((int)(__builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()))
#define THREAD ((int)__builtin_amdgcn_workitem_id_x())
#define AS_F32(x) __builtin_bit_cast(float, (u32)(x))
#define AS_U32(x) __builtin_bit_cast(u32, (float)(x))
#define FMA(a, b, c) __builtin_fmaf((a), (b), (c))
#define LOG2(x) __builtin_log2f(x)
#define SQRT(x) __builtin_sqrtf(x)
#define BARRIER()                                                  \
  do {                                                             \
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");         \
    __builtin_amdgcn_s_barrier();                                  \
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");         \
  } while (0)
// Lanes of a 64-wide wave are taken in two halves, so that a warp is 32 lanes everywhere.
#define SHUFFLE_XOR(x, mask) \
  AS_F32(__builtin_amdgcn_ds_bpermute(((THREAD & 63) ^ (mask)) << 2, (int)AS_U32(x)))
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define KERNEL extern "C" __global__
#define TILE_X ((int)blockIdx.x)
#define TILE_Y ((int)blockIdx.y)
#define TILE_Z ((int)blockIdx.z)
#define GRID_Z ((int)gridDim.z)
#define THREAD ((int)threadIdx.x)
#define AS_F32(x) __uint_as_float(x)
#define AS_U32(x) __float_as_uint(x)
#define FMA(a, b, c) __fmaf_rn((a), (b), (c))
#define LOG2(x) log2f(x)
#define SQRT(x) __fsqrt_rn(x)
#define BARRIER() __syncthreads()
#define WARP_BARRIER() __syncwarp()
#define SHUFFLE_XOR(x, mask) __shfl_xor_sync(0xffffffffu, (x), (mask))
#endif

#if defined(WW_VECTOR_LANES)
#define LANES 16
#define WARPS 1
typedef float16 vf;
typedef int16 vi;
typedef uint16 vu;
#define AS_VF(x) as_float16(x)
#define AS_VU(x) as_uint16(x)
#define AS_VI(x) as_int16(x)
#define LANE_IDS ((vi)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define FIRST_LANE(x) ((x).s0)
// Whole-register accesses to floats of any alignment; vstore16 may be split into narrower stores.
typedef float16 vf_memory __attribute__((aligned(4)));
#define LOAD_LANES(p) (*(LOCAL const vf_memory*)(p))
#define STORE_LANES(p, x) (*(LOCAL vf_memory*)(p) = (x))
#define LOAD_GLOBAL_LANES(p) (*(GLOBAL const vf_memory*)(p))
#define STORE_GLOBAL_LANES(p, x) (*(GLOBAL vf_memory*)(p) = (x))
#define THREAD 0
#define BARRIER()
#else
#ifndef LANES
#define LANES 32
#endif
typedef float vf;
typedef int vi;
typedef u32 vu;
#define AS_VF(x) AS_F32(x)
#define AS_VU(x) AS_U32(x)
#if defined(__OPENCL_C_VERSION__)
#define THREAD ((int)get_local_id(0))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define AS_VI(x) as_int(x)
// The host names the shuffle that the device has; sub-groups are then made LANES wide.
#if defined(WW_INTEL_SHUFFLE)
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#define SHUFFLE_XOR(x, mask) intel_sub_group_shuffle_xor((x), (mask))
#endif
#else
#define AS_VI(x) ((int)AS_U32(x))
#endif
#define LANE_IDS (THREAD & (LANES - 1))
#define FIRST_LANE(x) (x)
#define LOAD_LANES(p) ((p)[LANE_IDS])
#define STORE_LANES(p, x) ((p)[LANE_IDS] = (x))
#define LOAD_GLOBAL_LANES(p) LOAD_LANES(p)
#define STORE_GLOBAL_LANES(p, x) STORE_LANES(p, x)
#endif

// Between a warp's writes to local memory and its reads, where no barrier of the work-group stands.
#if !defined(WARP_BARRIER)
#define WARP_BARRIER() BARRIER()
#endif

// Work of a warp that one work-item does at a time: all of it where the work-group is one work-item.
#if defined(WW_VECTOR_LANES)
#define THREADS 1
#define WARP 0
#define WARP_ITEM 0
#define WARP_ITEM_STEP 1
#else
#define THREADS (WARPS * LANES)
#define WARP (THREAD / LANES)
#define WARP_ITEM (THREAD % LANES)
#define WARP_ITEM_STEP LANES
#endif

#define SPLAT(x) ((vf)(x))
#define SPLAT_I(x) ((vi)(x))
#define NEG_INF AS_F32(0xff800000u)
#define ROUND_UP(x, n) (((x) + (n)-1) / (n) * (n))
#define MIN_INT(a, b) ((a) < (b) ? (a) : (b))
#define MAX_INT(a, b) ((a) > (b) ? (a) : (b))
#define UNROLL _Pragma("unroll")
// Loops over a lane's rows and blocks of columns: these are in registers where lanes are threads, and
// in memory where they are vectors; copies of the loop body would then only cost compile time.
#if defined(WW_VECTOR_LANES)
#define UNROLL_ROWS _Pragma("nounroll")
#define UNROLL_SPLITS _Pragma("nounroll")
#define SPLAT_U(x) ((vu)(x))
#define TO_VU(x) as_uint16(x)
#define LOAD_ITEM(p) LOAD_GLOBAL_LANES(p)
#define ITEM_LANE 0
#else
#define UNROLL_ROWS UNROLL
#define UNROLL_SPLITS _Pragma("unroll 8")   // so many loads in flight
#define SPLAT_U(x) ((u32)(x))
#define TO_VU(x) ((u32)(x))
#define LOAD_ITEM(p) (*(p))
#define ITEM_LANE LANE_IDS
#endif

#define PARTIAL_STRIDE ROUND_UP(DV, 32)

#if defined(WW_HOST_LANES)
// A test on the host (linear/tile/tile_host_test.cc), which says what kernels and lanes are.
#elif defined(__OPENCL_C_VERSION__)
#if defined(WW_INTEL_SHUFFLE)
#define WORK_GROUP_SIZE                                     \
  __attribute__((reqd_work_group_size(THREADS, 1, 1)))      \
  __attribute__((intel_reqd_sub_group_size(LANES)))
#else
#define WORK_GROUP_SIZE __attribute__((reqd_work_group_size(THREADS, 1, 1)))
#endif
#define DECLARE_LOCAL(base)                                                \
  __local char local_storage[LOCAL_BYTES] __attribute__((aligned(128)));   \
  LOCAL char* base = local_storage
#elif defined(__HIP__)
#define WORK_GROUP_SIZE __attribute__((amdgpu_flat_work_group_size(THREADS, THREADS)))
#define DECLARE_LOCAL(base) char* base = (char*)local_storage
extern __attribute__((shared, aligned(16))) char local_storage[];
#else
#define WORK_GROUP_SIZE __launch_bounds__(THREADS, 1)
#define DECLARE_LOCAL(base) char* base = (char*)local_storage
extern __shared__ uint4 local_storage[];
#endif
