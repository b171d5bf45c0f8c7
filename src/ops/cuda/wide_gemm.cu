// wgmma with rows of x as the M side and weight rows as the N side, both in shared memory, brought by the bulk copy
// engine. A CTA stays on its SM and takes tile after tile: one warp brings stages, two warpgroups multiply, each a half
// of the tile's rows. They wait for each other only through the ring, so that one multiplies alone while the other
// writes its sums, row by row with the bulk copy engine, which also adds to f32.
//
// Two CTAs of a cluster have neighbouring tiles and read half of what they share, each for both: 128 x 256 tiles would
// otherwise ask the L2 for more than it gives.
#include "ops/cuda/wide_gemm.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "attention/cuda/ptx.h"
#include "attention/cuda/tensor_map.h"
#include "attention/cuda/wgmma_wide.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;

constexpr int kGroups = 2;                      // of 4 warps that multiply
constexpr int kConsumers = 128 * kGroups;
constexpr int kThreads = kConsumers + 128;
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
constexpr int kDepth = 64;                      // of a stage: 128 bytes of a row, the swizzle's width
constexpr int kRowBytes = 2 * kDepth;
constexpr int kBarrierBytes = 16;               // of a stage: it is full, it is free again
constexpr int kMostSmemBytes = 227 * 1024;
constexpr int kOutBytes = 256, kOutPitch = kOutBytes + 16;  // of a row on its way out; the pitch keeps banks apart
constexpr int kOutRows = 16;                    // a warp's, of 64
constexpr int kStagingBytes = kOutRows * kOutPitch;

struct Args {
  CUtensorMap w, x;
  char* y;
  int64_t y_stride_bytes;
  int rows, columns;      // of y; under a GLU up rows follow so many gate rows
  int chunks;             // of the depth
  int units_down, units_across, group;  // tiles, or pairs of them
  WideShare share;
  bool f32_out, accumulate;
  GluActivation glu;
};

template <int kRows_, int kColumns_, bool kGlu_>
struct Tile {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr bool kGlu = kGlu_;
  static constexpr int kOutColumns = kGlu ? kColumns / 2 : kColumns;
  static constexpr int kBlocks = kRows / kGroups / 64;  // of 64 rows, a warpgroup's
  static constexpr int kInputBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kInputBytes + kColumns * kRowBytes;
  static constexpr int kStages = (kMostSmemBytes - 8 * kStagingBytes) / (kStageBytes + kBarrierBytes);
  static constexpr int kSmemBytes = kStages * (kStageBytes + kBarrierBytes) + 8 * kStagingBytes;
  static_assert(kColumns % 16 == 0 && (!kGlu || kColumns % 32 == 0) && kStages >= 3);
};

// The tiles of a CTA, one after the other: those of a group of rows stand below each other, then come their neighbours.
template <class T>
struct Walk {
  int unit, step, rank, row = 0, column = 0;  // of the tile in y

  __device__ explicit Walk(const Args& a) : rank(a.share == WideShare::nothing ? 0 : static_cast<int>(ptx::cluster_rank())) {
    const int shift = a.share == WideShare::nothing ? 0 : 1;
    unit = static_cast<int>(blockIdx.x) >> shift;
    step = static_cast<int>(gridDim.x) >> shift;
    locate(a);
  }
  __device__ bool valid(const Args& a) const { return unit < a.units_down * a.units_across; }
  __device__ void next(const Args& a) {
    unit += step;
    locate(a);
  }
  __device__ void locate(const Args& a) {
    const int of_group = a.group * a.units_across;
    const int first = unit / of_group * a.group, height = min(a.group, a.units_down - first);
    const int in_group = unit % of_group;
    int down = first + in_group % height, across = in_group / height;
    if (a.share == WideShare::weights) down = 2 * down + rank;
    if (a.share == WideShare::inputs) across = 2 * across + rank;
    row = down * T::kRows;
    column = across * T::kOutColumns;
  }
};

// A place in the ring, and the parity of its turn.
template <class T>
struct Ring {
  u32 base, barriers;
  int stage = 0;
  u32 parity = 0;

  __device__ explicit Ring(const char* memory)
      : base(ptx::smem_address(memory)), barriers(base + T::kStages * T::kStageBytes + 8 * kStagingBytes) {}
  __device__ u32 at() const { return base + stage * T::kStageBytes; }
  __device__ u32 full() const { return barriers + kBarrierBytes * stage; }
  __device__ u32 empty() const { return full() + 8; }
  __device__ u32 staging(int warp) const { return base + T::kStages * T::kStageBytes + warp * kStagingBytes; }
  __device__ void next() {
    if (++stage == T::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Inputs and weights come as two halves each; a shared one's halves are brought by one CTA each, for both.
template <class T>
__device__ __forceinline__ void bring_inputs(const Args& a, const Ring<T>& ring, const Walk<T>& tile, int depth) {
  constexpr int kHalf = T::kRows / 2;
  const u32 x = ring.at(), full = ring.full();
  if (a.share == WideShare::inputs) {
    ptx::tma_load_4d_multicast(x + tile.rank * kHalf * kRowBytes, &a.x, full, depth, tile.row + tile.rank * kHalf, 0, 0, 3);
  } else {
    ptx::tma_load_4d(x, &a.x, full, depth, tile.row, 0, 0);
    ptx::tma_load_4d(x + kHalf * kRowBytes, &a.x, full, depth, tile.row + kHalf, 0, 0);
  }
}

template <class T>
__device__ __forceinline__ void bring_weights(const Args& a, const Ring<T>& ring, const Walk<T>& tile, int depth) {
  constexpr int kHalf = T::kColumns / 2;
  const u32 w = ring.at() + T::kInputBytes, full = ring.full();
  const int first = tile.column, second = T::kGlu ? a.columns + tile.column : tile.column + kHalf;
  if (a.share == WideShare::weights) {
    ptx::tma_load_4d_multicast(w + tile.rank * kHalf * kRowBytes, &a.w, full, depth, tile.rank == 0 ? first : second, 0, 0, 3);
  } else {
    ptx::tma_load_4d(w, &a.w, full, depth, first, 0, 0);
    ptx::tma_load_4d(w + kHalf * kRowBytes, &a.w, full, depth, second, 0, 0);
  }
}

// One thread. The first weights come while the kernels before still run.
template <class T>
__device__ void bring(const Args& a, Ring<T> ring) {
  Walk<T> tile(a);
  const int ahead = min(T::kStages, a.chunks);
  Ring<T> at = ring;
  for (int i = 0; i < ahead; ++i, at.next()) {
    ptx::mbarrier_arrive_expect_tx(at.full(), T::kStageBytes);
    bring_weights<T>(a, at, tile, i * kDepth);
  }
  wait_for_predecessor();
  for (int i = 0; i < ahead; ++i, ring.next()) bring_inputs<T>(a, ring, tile, i * kDepth);
  for (int i = ahead; tile.valid(a); tile.next(a), i = 0) {
    for (; i < a.chunks; ++i, ring.next()) {
      ptx::mbarrier_wait(ring.empty(), ring.parity ^ 1);  // the first round is free
      ptx::mbarrier_arrive_expect_tx(ring.full(), T::kStageBytes);
      bring_inputs<T>(a, ring, tile, i * kDepth);
      bring_weights<T>(a, ring, tile, i * kDepth);
    }
  }
}

template <class T>
using Sums = float[T::kBlocks][T::kColumns / 2];

template <class E, class T>
__device__ __forceinline__ void multiply(u32 stage, int group, bool first, Sums<T>& sum) {
  const u32 x = ptx::wgmma_descriptor(stage + group * T::kBlocks * 64 * kRowBytes, 0);
  const u32 w = ptx::wgmma_descriptor(stage + T::kInputBytes, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      ptx::Wgmma<E, T::kColumns>::qk(sum[block], ptx::wgmma_advance(x, block * 64 * kRowBytes + k * 32),
                                     ptx::wgmma_advance(w, k * 32), k > 0 || !first);
    }
  }
  ptx::wgmma_commit();
}

// The rows of a warp, `kPass` columns at a time: into shared memory, and from there a row a lane.
struct Out {
  const Args& a;
  u32 staging;
  int row, column, lane;  // of the warp's first element in y

  __device__ __forceinline__ void begin() const {
    ptx::bulk_wait_read();
    __syncwarp();
  }
  template <int kElementBytes>
  __device__ __forceinline__ void end(int first, int columns) const {
    ptx::fence_proxy_async();
    __syncwarp();
    const int left = min(columns, a.columns - column - first);
    if (lane < kOutRows && row + lane < a.rows && left > 0) {
      char* const to = a.y + (row + lane) * a.y_stride_bytes + int64_t{column + first} * kElementBytes;
      if (kElementBytes == 4 && a.accumulate) {
        ptx::bulk_add_f32(to, staging + lane * kOutPitch, left * kElementBytes);
      } else {
        ptx::bulk_store(to, staging + lane * kOutPitch, left * kElementBytes);
      }
    }
    ptx::bulk_commit();
  }
  __device__ __forceinline__ u32 half_at() const { return staging + lane % 16 * kOutPitch + lane / 16 * 16; }
};

// wgmma leaves a thread two neighbours of every 8 columns, of two rows. `value` of a place among a thread's.
template <class E, int kColumns, class Value>
__device__ __forceinline__ void write_halves(const Out& out, const Value& value) {
  constexpr int kPass = kOutBytes / 2;
#pragma unroll
  for (int first = 0; first < kColumns; first += kPass) {
    out.begin();
#pragma unroll
    for (int c = first; c < first + kPass && c < kColumns; c += 16) {
      u32 r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = E::pack(value(c / 2 + 2 * i), value(c / 2 + 2 * i + 1));
      ptx::stmatrix_x4(out.half_at() + (c - first) * 2, r);
    }
    out.end<2>(first, min(kPass, kColumns - first));
  }
}

template <int kColumns>
__device__ __forceinline__ void write_floats(const Out& out, const float (&sum)[kColumns / 2]) {
  constexpr int kPass = kOutBytes / 4;
#pragma unroll
  for (int first = 0; first < kColumns; first += kPass) {
    out.begin();
#pragma unroll
    for (int c = first; c < first + kPass && c < kColumns; c += 8) {
      const float* const d = sum + c / 2;
      const u32 to = out.staging + out.lane / 4 * kOutPitch + (c - first) * 4 + out.lane % 4 * 8;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(to), "f"(d[0]), "f"(d[1]) : "memory");
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(to + 8 * kOutPitch), "f"(d[2]), "f"(d[3]) : "memory");
    }
    out.end<4>(first, min(kPass, kColumns - first));
  }
}

template <class E, class T>
__device__ __forceinline__ void write(const Args& a, u32 staging, int row, int column, const Sums<T>& sum) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) {
    const Out out = {a, staging, row + (warp / 4 * T::kBlocks + block) * 64 + warp % 4 * kOutRows, column,
                     static_cast<int>(threadIdx.x % 32)};
    const auto& sums = sum[block];
    if constexpr (T::kGlu) {
      write_halves<E, T::kOutColumns>(out, [&](int i) { return activate(a.glu, sums[i], sums[T::kColumns / 4 + i]); });
    } else if (a.f32_out) {
      write_floats<T::kColumns>(out, sums);
    } else {
      write_halves<E, T::kColumns>(out, [&](int i) { return sums[i]; });
    }
  }
}

// A stage is free when the consumers of every CTA that its bytes went to have multiplied it.
template <class T>
__device__ __forceinline__ void release(const Ring<T>& ring, int ctas) {
  const int lane = threadIdx.x % 32;
  if (lane >= ctas) return;
  if (ctas == 1) ptx::mbarrier_arrive(ring.empty());
  else ptx::mbarrier_arrive_cluster(ring.empty(), lane);
}

template <class E, class T>
__device__ void consume(const Args& a, Ring<T> ring) {
  const int ctas = a.share == WideShare::nothing ? 1 : 2, group = threadIdx.x / 128;
  const u32 staging = ring.staging(threadIdx.x / 32);
  Sums<T> sum;
  for (Walk<T> tile(a); tile.valid(a); tile.next(a)) {
    Ring<T> before = ring;
    for (int i = 0; i < a.chunks; ++i) {
      ptx::mbarrier_wait(ring.full(), ring.parity);
      multiply<E, T>(ring.at(), group, i == 0, sum);
      ptx::wgmma_wait<1>();
      if (i > 0) {
        release(before, ctas);
        before.next();
      }
      ring.next();
    }
    ptx::wgmma_wait<0>();
    release(before, ctas);
    write<E, T>(a, staging, tile.row, tile.column, sum);
  }
  ptx::bulk_wait();
}

template <class E, class T>
__global__ void __launch_bounds__(kThreads, 1) wide_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  const Ring<T> ring(memory);
  const bool paired = a.share != WideShare::nothing;
  start_successor();
  if (threadIdx.x == kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    for (int i = 0; i < T::kStages; ++i) {
      ptx::mbarrier_init(ring.barriers + kBarrierBytes * i, 1);
      ptx::mbarrier_init(ring.barriers + kBarrierBytes * i + 8, kConsumers / 32 * (paired ? 2 : 1));
    }
    ptx::mbarrier_init_fence();
  }
  if (paired) ptx::cluster_sync();
  else __syncthreads();
  if (threadIdx.x >= kConsumers) {
    ptx::setmaxnreg_decrease<kProducerRegisters>();
    if (threadIdx.x == kConsumers) bring<T>(a, ring);
    __syncwarp();
  } else {
    ptx::setmaxnreg_increase<kConsumerRegisters>();
    wait_for_predecessor();
    consume<E, T>(a, ring);
  }
  if (paired) ptx::cluster_sync();  // the other's stages and arrivals may still be on their way here
}

template <class E, class T>
void launch(Args& args, const GemmCall& call, const WidePlan& plan, cudaStream_t stream) {
  const GpuLinear& linear = *call.linear;
  if (cuda::make_matrix_map(&args.w, linear.weight, linear.out_features, linear.in_features, T::kColumns / 2) != cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, call.rows, linear.in_features, T::kRows / 2) != cudaSuccess) {
    return;  // the driver is older than the chip: wide_gemm_takes() has asked
  }
  // Where this fails, so does the launch.
  [[maybe_unused]] static const cudaError_t ready = cudaFuncSetAttribute(
      wide_gemm_kernel<E, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSmemBytes);
  const int down = (args.rows + T::kRows - 1) / T::kRows;
  const int across = (args.columns + T::kOutColumns - 1) / T::kOutColumns;
  args.share = plan.share;
  args.units_down = plan.share == WideShare::weights ? (down + 1) / 2 : down;
  args.units_across = plan.share == WideShare::inputs ? (across + 1) / 2 : across;
  args.group = std::max(1, plan.share == WideShare::weights ? plan.group / 2 : plan.group);
  const int ctas = plan.share == WideShare::nothing ? 1 : 2;
  const int units = std::min(args.units_down * args.units_across, num_sms() / ctas);
  launch_dependent({static_cast<unsigned>(units * ctas), kThreads, T::kSmemBytes, stream, static_cast<unsigned>(ctas)},
                   wide_gemm_kernel<E, T>, static_cast<const Args&>(args));
}

using Launch = void (*)(Args&, const GemmCall&, const WidePlan&, cudaStream_t);

struct Kernel {
  int tile_rows, tile_columns;
  bool glu;
  Launch of_element[2];  // bf16, f16
};

template <int kRows, int kColumns, bool kGlu>
constexpr Kernel kernel_of() {
  using T = Tile<kRows, kColumns, kGlu>;
  return {kRows, kColumns, kGlu, {launch<ptx::Bf16, T>, launch<ptx::F16, T>}};
}

constexpr Kernel kKernels[] = {
    kernel_of<128, 96, false>(),  kernel_of<128, 112, false>(), kernel_of<128, 128, false>(), kernel_of<128, 144, false>(),
    kernel_of<128, 160, false>(), kernel_of<128, 176, false>(), kernel_of<128, 192, false>(), kernel_of<128, 208, false>(),
    kernel_of<128, 224, false>(), kernel_of<128, 240, false>(), kernel_of<128, 256, false>(), kernel_of<256, 112, false>(),
    kernel_of<256, 128, false>(), kernel_of<256, 144, false>(), kernel_of<256, 160, false>(), kernel_of<256, 176, false>(),
    kernel_of<256, 192, false>(), kernel_of<128, 192, true>(),  kernel_of<128, 224, true>(),  kernel_of<128, 256, true>(),
    kernel_of<256, 160, true>(),  kernel_of<256, 192, true>()};

const Kernel* find(const GemmCall& call, const WidePlan& plan) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.tile_rows == plan.tile_rows && kernel.tile_columns == plan.tile_columns && kernel.glu == call.fused_glu) {
      return &kernel;
    }
  }
  return nullptr;
}

bool is_sm_90() {
  static const bool value = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    CUtensorMap map;
    return major == 9 && cuda::make_matrix_map(&map, reinterpret_cast<const void*>(1024), 64, 64, 64) == cudaSuccess;
  }();
  return value;
}

}  // namespace

bool wide_gemm_has(const GemmCall& call, const WidePlan& plan) { return find(call, plan) != nullptr; }

bool wide_gemm_takes(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  const bool halves = linear.dtype == DType::f16 || linear.dtype == DType::bf16;
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool fits = linear.in_features >= kDepth && linear.in_features % 8 == 0 && linear.out_features % 16 == 0 &&
                    call.y_stride % 8 == 0 && aligned(linear.weight) && aligned(call.x) && aligned(call.y);
  const bool y_fits = call.y_dtype == linear.dtype ? !call.accumulate : call.y_dtype == DType::f32 && !call.fused_glu;
  return call.norm.x == nullptr && call.partials == nullptr && call.rows > 0 && halves && fits && y_fits &&
         linear.bias == nullptr && (!call.fused_glu || linear.glu != GluActivation::none) && is_sm_90();
}

WidePlan wide_plan(const GemmCall& call) {
  WidePlan best;
  double best_cost = 1e300;
  for (const Kernel& kernel : kKernels) {
    if (kernel.glu != call.fused_glu) continue;
    const int64_t down = (call.rows + kernel.tile_rows - 1) / kernel.tile_rows;
    const int64_t across = (call.linear->out_features + kernel.tile_columns - 1) / kernel.tile_columns;
    for (WideShare share : {WideShare::weights, WideShare::inputs}) {
      const int64_t units = share == WideShare::weights ? (down + 1) / 2 * across : down * ((across + 1) / 2);
      const int64_t waves = (units + num_sms() / 2 - 1) / (num_sms() / 2);
      const double rows = kernel.tile_rows, columns = kernel.tile_columns;
      const double bytes = share == WideShare::weights ? rows + columns / 2 : rows / 2 + columns;
      const double cost = static_cast<double>(waves) * (rows * columns + 40 * bytes);
      if (cost >= best_cost) continue;
      best_cost = cost;
      best = {kernel.tile_rows, kernel.tile_columns, share, 16};
    }
  }
  return best;
}

void wide_gemm(const GemmCall& call, const WidePlan& plan, Stream stream) {
  const GpuLinear& linear = *call.linear;
  const Kernel* const kernel = find(call, plan);
  if (kernel == nullptr) return;
  Args args{};
  args.rows = static_cast<int>(call.rows);
  args.columns = static_cast<int>(call.fused_glu ? linear.out_features / 2 : linear.out_features);
  args.chunks = static_cast<int>((linear.in_features + kDepth - 1) / kDepth);
  args.y = static_cast<char*>(call.y);
  args.f32_out = call.y_dtype == DType::f32;
  args.y_stride_bytes = call.y_stride * (args.f32_out ? 4 : 2);
  args.accumulate = call.accumulate;
  args.glu = call.fused_glu ? linear.glu : GluActivation::none;
  kernel->of_element[linear.dtype == DType::f16](args, call, plan, static_cast<cudaStream_t>(stream));
}

}  // namespace warpweave::gpu
