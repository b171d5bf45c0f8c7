// wgmma with rows of x as the M side and weight rows as the N side, both in shared memory, brought by TMA.
// A CTA stays on its SM and takes tile after tile: one warp brings stages, two warpgroups take the tiles in turns.
// So one multiplies while the other writes its sums, and the tensor cores are never without work.
//
// Two CTAs of a cluster have neighbouring tiles and read half of what they share, each for both: the L2 could not give
// every CTA all of its own.
#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/wide_gemm.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "device/cuda/ptx.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/wgmma_wide.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/stream_gemm.h"

namespace warpweave::gpu {
namespace {

using ptx::u32;

constexpr int kGroups = 2;                      // of 4 warps that multiply
constexpr int kConsumers = 128 * kGroups;
constexpr int kThreads = kConsumers + 128;
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kCtas = 2;                        // of a cluster
constexpr int kRows = 128;                      // of a tile
constexpr int kBlocks = kRows / 64;
constexpr int kWidest = 192;                    // columns; beside such sums a thread has no registers to write y in f32
constexpr int kDepth = 64;                      // of a stage: 128 bytes of a row, the swizzle's width
constexpr int kRowBytes = 2 * kDepth;
constexpr int kBarrierBytes = 16;               // of a stage: it is full, it is free again
constexpr int kMostSmemBytes = 227 * 1024;
constexpr int kOutBytes = 128;                  // of a row on its way out
constexpr int kOutRows = 16;                    // a warp's, of 64
constexpr int kOutPieces = kOutBytes / 16;
constexpr int kGroup = 16;                      // tiles below each other that run at about the same time
constexpr int kStagingBytes = kOutRows * kOutBytes;

struct Args {
  CUtensorMap w, x;
  char* y;
  int64_t y_stride_bytes;
  int rows, columns;      // of y; under a GLU up rows follow so many gate rows
  int chunks;             // of the depth
  int units_down, units_across, group;  // tiles, pairs of them in the direction that is shared
  WideShare share;
  bool f32_out, accumulate;
  GluActivation glu;
};

template <int kColumns_, bool kGlu_>
struct Tile {
  static constexpr int kColumns = kColumns_;
  static constexpr bool kGlu = kGlu_;
  static constexpr int kOutColumns = kGlu ? kColumns / 2 : kColumns;
  static constexpr bool kHalvesOnly = kGlu || kColumns == kWidest;
  static constexpr int kInputBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kInputBytes + kColumns * kRowBytes;
  static constexpr int kStages = (kMostSmemBytes - 8 * kStagingBytes) / (kStageBytes + kBarrierBytes);
  static constexpr int kSmemBytes = kStages * (kStageBytes + kBarrierBytes) + 8 * kStagingBytes;
  static_assert(kColumns % 16 == 0 && kColumns <= kWidest && kStages >= 5);
};

// The tiles of a CTA, one after the other: those of a group of rows stand below each other, then come their neighbours.
template <class T>
struct Walk {
  int unit, row = 0, column = 0;  // of the tile in y

  __device__ explicit Walk(const Args& a) : unit(static_cast<int>(blockIdx.x) / kCtas) { locate(a); }
  __device__ static int step() { return static_cast<int>(gridDim.x) / kCtas; }
  __device__ static int rank() { return static_cast<int>(blockIdx.x) % kCtas; }
  __device__ bool valid(const Args& a) const { return unit < a.units_down * a.units_across; }
  __device__ void next(const Args& a) {
    unit += step();
    locate(a);
  }
  __device__ void locate(const Args& a) {
    const int of_group = a.group * a.units_across;
    const int first = unit / of_group * a.group, height = min(a.group, a.units_down - first);
    const int in_group = unit % of_group;
    int down = first + in_group % height, across = in_group / height;
    if (a.share == WideShare::weights) down = kCtas * down + rank();
    else across = kCtas * across + rank();
    row = down * kRows;
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
  __device__ void skip(int stages) {
    const int to = stage + stages;
    stage = to % T::kStages;
    parity ^= to / T::kStages & 1;
  }
};

// Inputs and weights come as two halves each; a shared one's halves are brought by one CTA each, for both.
template <class T>
__device__ __forceinline__ void bring_inputs(const Args& a, const Ring<T>& ring, const Walk<T>& tile, int depth) {
  constexpr int kHalf = kRows / 2;
  const u32 x = ring.at(), full = ring.full();
  if (a.share == WideShare::inputs) {
    ptx::tma_multicast_4d(x + tile.rank() * kHalf * kRowBytes, &a.x, full, depth, tile.row + tile.rank() * kHalf, 0, 0, 3);
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
    ptx::tma_multicast_4d(w + tile.rank() * kHalf * kRowBytes, &a.w, full, depth, tile.rank() == 0 ? first : second, 0, 0, 3);
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
using Sums = float[kBlocks][T::kColumns / 2];

template <class E, class T>
__device__ __forceinline__ void multiply(u32 stage, bool first, Sums<T>& sum) {
  const u32 x = ptx::wgmma_descriptor(stage, 0), w = ptx::wgmma_descriptor(stage + T::kInputBytes, 0);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      ptx::Wgmma<E, T::kColumns>::qk(sum[block], ptx::wgmma_advance(x, block * 64 * kRowBytes + k * 32),
                                     ptx::wgmma_advance(w, k * 32), k > 0 || !first);
    }
  }
  ptx::wgmma_commit();
}

// The rows of a warp, 128 bytes of each at a time: through its own 2 KiB of shared memory, so that whole lines leave.
// Pieces of 16 bytes stand where neither writing nor reading them meets in a bank.
struct Out {
  const Args& a;
  u32 staging;
  int row, column, lane;  // of the warp's first element in y

  static __device__ __forceinline__ u32 place(int of_row, int piece, int turn) { return of_row * kOutBytes + (piece ^ turn) * 16; }

  // `turn` of a row as it was written.
  template <int kElementBytes, class Turn>
  __device__ __forceinline__ void leave(int first, int columns, const Turn& turn) const {
    __syncwarp();
    constexpr int kOfPiece = 16 / kElementBytes;
    constexpr int kAtOnce = 32 / kOutPieces;
    const int piece = lane % kOutPieces, at = first + piece * kOfPiece;
    const bool inside = piece * kOfPiece < columns && column + at < a.columns;
    char* to = a.y + (row + lane / kOutPieces) * a.y_stride_bytes + int64_t{column + at} * kElementBytes;
#pragma unroll
    for (int i = 0; i < kOutRows / kAtOnce; ++i, to += kAtOnce * a.y_stride_bytes) {
      const int of_row = kAtOnce * i + lane / kOutPieces;
      u32 v[4];
      ptx::load_shared_16(v, staging + place(of_row, piece, turn(of_row)));
      if (!inside || row + of_row >= a.rows) continue;
      if (kElementBytes == 4 && a.accumulate) {
        ptx::reduce_add_16(reinterpret_cast<float*>(to), v);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(v[0], v[1], v[2], v[3]);
      }
    }
    __syncwarp();
  }
};

// wgmma leaves a thread two neighbours of every 8 columns, of two rows. `value` of a place among a thread's.
template <class E, int kColumns, class Value>
__device__ __forceinline__ void write_halves(const Out& out, const Value& value) {
  constexpr int kPass = kOutBytes / 2;
  const int row = out.lane % 16;
#pragma unroll
  for (int first = 0; first < kColumns; first += kPass) {
#pragma unroll
    for (int c = first; c < first + kPass && c < kColumns; c += 16) {
      if (c + 8 == kColumns) {
        const u32 to = out.staging + Out::place(out.lane / 4, (c - first) / 8, out.lane / 4) + out.lane % 4 * 4;
        ptx::store_shared_4(to, E::pack(value(c / 2), value(c / 2 + 1)));
        ptx::store_shared_4(to + 8 * kOutBytes, E::pack(value(c / 2 + 2), value(c / 2 + 3)));
        continue;
      }
      u32 r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i] = E::pack(value(c / 2 + 2 * i), value(c / 2 + 2 * i + 1));
      ptx::stmatrix_x4(out.staging + Out::place(row, (c - first) / 8 + out.lane / 16, row % 8), r);
    }
    out.leave<2>(first, min(kPass, kColumns - first), [](int of_row) { return of_row % 8; });
  }
}

template <int kColumns>
__device__ __forceinline__ void write_floats(const Out& out, const float (&sum)[kColumns / 2]) {
  constexpr int kPass = kOutBytes / 4;
  const int row = out.lane / 4, turn = row % 4 * 2;
#pragma unroll
  for (int first = 0; first < kColumns; first += kPass) {
#pragma unroll
    for (int c = first; c < first + kPass && c < kColumns; c += 8) {
      const float* const d = sum + c / 2;
      const u32 to = out.staging + Out::place(row, (c - first) / 4 + out.lane % 4 / 2, turn) + out.lane % 2 * 8;
      ptx::store_shared_8(to, d[0], d[1]);
      ptx::store_shared_8(to + 8 * kOutBytes, d[2], d[3]);
    }
    out.leave<4>(first, min(kPass, kColumns - first), [](int of_row) { return of_row % 4 * 2; });
  }
}

template <class E, class T, GluActivation kActivation>
__device__ __forceinline__ void write_glu(const Out& out, const float (&sum)[T::kColumns / 2]) {
  write_halves<E, T::kOutColumns>(out, [&](int i) { return activate<kActivation>(sum[i], sum[T::kColumns / 4 + i]); });
}

template <class E, class T>
__device__ __forceinline__ void write(const Args& a, u32 staging, int row, int column, const Sums<T>& sum) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const Out out = {a, staging, row + block * 64 + warp % 4 * kOutRows, column, lane};
    const auto& sums = sum[block];
    if constexpr (T::kGlu) {
      switch (a.glu) {
        case GluActivation::gelu_tanh: write_glu<E, T, GluActivation::gelu_tanh>(out, sums); break;
        case GluActivation::swiglu_oai: write_glu<E, T, GluActivation::swiglu_oai>(out, sums); break;
        default: write_glu<E, T, GluActivation::silu>(out, sums);
      }
    } else if (!T::kHalvesOnly && a.f32_out) {
      if constexpr (!T::kHalvesOnly) write_floats<T::kColumns>(out, sums);
    } else {
      write_halves<E, T::kColumns>(out, [&](int i) { return sums[i]; });
    }
  }
}

// The stage before this one. It is free when the consumers of both CTAs, to which its bytes went, have multiplied it.
template <class T>
__device__ __forceinline__ void release_last(Ring<T> ring) {
  const int lane = threadIdx.x % 32;
  ring.stage = (ring.stage == 0 ? T::kStages : ring.stage) - 1;
  if (lane < kCtas) ptx::mbarrier_arrive_at(ring.empty(), lane);
}

// A warpgroup has every second tile, and every second run of stages. It looks for its stages when the other has seen its
// last one: a barrier's parity tells only one round of the ring from the next.
template <class E, class T>
__device__ void consume(const Args& a, Ring<T> ring) {
  Walk<T> tile(a);
  if (threadIdx.x >= 128) {
    tile.next(a);
    ring.skip(a.chunks);
  }
  Sums<T> sum;
  while (tile.valid(a)) {
    if (tile.unit >= Walk<T>::step()) ptx::named_barrier_sync(1 + threadIdx.x / 128, kConsumers);  // all but the first
    const bool followed = tile.unit + tile.step() < a.units_down * a.units_across;
    for (int i = 0; i < a.chunks; ++i) {
      ptx::mbarrier_wait(ring.full(), ring.parity);
      if (followed && i == a.chunks - 1) ptx::named_barrier_arrive(2 - threadIdx.x / 128, kConsumers);
      multiply<E, T>(ring.at(), i == 0, sum);
      ptx::wgmma_wait<1>();
      if (i > 0) release_last(ring);
      ring.next();
    }
    ptx::wgmma_wait<0>();
    release_last(ring);
    write<E, T>(a, ring.staging(threadIdx.x / 32), tile.row, tile.column, sum);
    ring.skip(a.chunks);
    tile.next(a);
    tile.next(a);
  }
}

template <class E, class T>
__global__ void __launch_bounds__(kThreads, 1) wide_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) char memory[];
  const Ring<T> ring(memory);
  start_successor();
  if (threadIdx.x == kConsumers) {
    ptx::tensor_map_prefetch(&a.w);
    ptx::tensor_map_prefetch(&a.x);
    for (int i = 0; i < T::kStages; ++i) {
      ptx::mbarrier_init(ring.barriers + kBarrierBytes * i, 1);
      ptx::mbarrier_init(ring.barriers + kBarrierBytes * i + 8, kConsumers / kGroups / 32 * kCtas);
    }
    ptx::mbarrier_init_fence();
  }
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
  if (threadIdx.x >= kConsumers) {
    ptx::setmaxnreg_decrease<kProducerRegisters>();
    if (threadIdx.x == kConsumers) bring<T>(a, ring);
    __syncwarp();
  } else {
    ptx::setmaxnreg_increase<kConsumerRegisters>();
    wait_for_predecessor();
    consume<E, T>(a, ring);
  }
  ptx::cluster_arrive_relaxed();  // the other's stages and arrivals may still be on their way here
  ptx::cluster_wait();
}

template <class E, class T>
void launch(Args& args, const GemmCall& call, const WidePlan& plan, cudaStream_t stream) {
  const GpuLinear& linear = *call.linear;
  if (cuda::make_matrix_map(&args.w, linear.weight, linear.out_features, linear.in_features, T::kColumns / 2) != cudaSuccess ||
      cuda::make_matrix_map(&args.x, call.x, call.rows, linear.in_features, kRows / 2) != cudaSuccess) {
    return;  // the driver is older than the chip: wide_gemm_takes() has asked
  }
  static SharedMemoryLimit limit;
  limit.raise(wide_gemm_kernel<E, T>, T::kSmemBytes);  // where this fails, so does the launch
  const int down = (args.rows + kRows - 1) / kRows;
  const int across = (args.columns + T::kOutColumns - 1) / T::kOutColumns;
  args.share = plan.share;
  args.units_down = plan.share == WideShare::weights ? (down + 1) / kCtas : down;
  args.units_across = plan.share == WideShare::inputs ? (across + 1) / kCtas : across;
  args.group = plan.share == WideShare::weights ? kGroup / kCtas : kGroup;
  const unsigned ctas = kCtas * std::min(args.units_down * args.units_across, num_sms() / kCtas);
  launch_dependent({ctas, kThreads, T::kSmemBytes, stream, kCtas},
                   wide_gemm_kernel<E, T>, static_cast<const Args&>(args));
}

using Launch = void (*)(Args&, const GemmCall&, const WidePlan&, cudaStream_t);

struct Kernel {
  int tile_columns;
  bool glu;
  Launch of_element[2];  // bf16, f16
};

template <int kColumns, bool kGlu>
constexpr Kernel kernel_of() {
  using T = Tile<kColumns, kGlu>;
  return {kColumns, kGlu, {launch<ptx::Bf16, T>, launch<ptx::F16, T>}};
}

constexpr Kernel kKernels[] = {kernel_of<128, false>(), kernel_of<144, false>(), kernel_of<160, false>(),
                               kernel_of<176, false>(), kernel_of<192, false>(), kernel_of<128, true>(),
                               kernel_of<160, true>(),  kernel_of<176, true>(),  kernel_of<192, true>()};

const Kernel* find(const GemmCall& call, const WidePlan& plan) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.tile_columns == plan.tile_columns && kernel.glu == call.fused_glu) return &kernel;
  }
  return nullptr;
}

// Pairs of tiles that a cluster has, at most.
int64_t waves_of(const GemmCall& call, const WidePlan& plan) {
  const int64_t down = (call.rows + kRows - 1) / kRows, clusters = num_sms() / kCtas;
  const int64_t across = (call.linear->out_features + plan.tile_columns - 1) / plan.tile_columns;
  const int64_t units = plan.share == WideShare::weights ? (down + 1) / kCtas * across : down * ((across + 1) / kCtas);
  return (units + clusters - 1) / clusters;
}

}  // namespace

std::vector<WidePlan> all_wide_plans(const GemmCall& call) {
  std::vector<WidePlan> out;
  for (const Kernel& kernel : kKernels) {
    if (kernel.glu != call.fused_glu || (kernel.tile_columns == kWidest && call.y_dtype == DType::f32)) continue;
    out.push_back({kernel.tile_columns, WideShare::weights});
    out.push_back({kernel.tile_columns, WideShare::inputs});
  }
  return out;
}

bool wide_gemm_takes(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  const bool halves = linear.dtype == DType::f16 || linear.dtype == DType::bf16;
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool fits = linear.in_features >= kDepth && linear.in_features % 8 == 0 && linear.out_features % 16 == 0 &&
                    call.y_stride % 8 == 0 && aligned(linear.weight) && aligned(call.x) && aligned(call.y);
  const bool y_fits = call.y_dtype == linear.dtype ? !call.accumulate : call.y_dtype == DType::f32 && !call.fused_glu;
  return call.norm.x == nullptr && call.partials == nullptr && call.rows > 0 && halves && fits && y_fits &&
         linear.bias == nullptr && (!call.fused_glu || linear.glu != GluActivation::none) && has_wgmma();
}

bool wide_gemm_pays(const GemmCall& call) {
  constexpr int kLeastRows = 512;
  constexpr double kLeastUse = 0.88;  // of the SMs: the library splits what is left over
  if (call.accumulate || call.rows < kLeastRows || !wide_gemm_takes(call)) return false;
  const WidePlan plan = wide_plan(call);
  const double computed = double{kRows} * plan.tile_columns * kCtas * (num_sms() / kCtas) * waves_of(call, plan);
  return static_cast<double>(call.rows) * call.linear->out_features >= kLeastUse * computed;
}

WidePlan wide_plan(const GemmCall& call) {
  // Cycles of a stage: those of the tensor cores, and what its bytes from the L2 cost at the power limit, from times of
  // Llama-3.1-8B's GEMMs of 512 to 8192 rows. The L2 gives an SM about 52 bytes a cycle. 500 a tile is its rest.
  constexpr double kCyclesOfByte = 0.0028, kBytesOfCycle = 52, kCyclesOfTile = 500;
  const double chunks = static_cast<double>((call.linear->in_features + kDepth - 1) / kDepth);
  WidePlan best;
  double best_cost = std::numeric_limits<double>::infinity();
  for (const WidePlan& plan : all_wide_plans(call)) {
    const double halves = plan.share == WideShare::weights ? kRows + plan.tile_columns / 2 : kRows / 2 + plan.tile_columns;
    const double bytes = kRowBytes * halves, tensor = kRows * plan.tile_columns / 32;
    const double stage = std::max(tensor, bytes / kBytesOfCycle) + kCyclesOfByte * bytes;
    const double cost = static_cast<double>(waves_of(call, plan)) * (chunks * stage + kCyclesOfTile);
    if (cost >= best_cost) continue;
    best_cost = cost;
    best = plan;
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
