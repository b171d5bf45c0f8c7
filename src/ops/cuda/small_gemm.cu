// A CTA an SM owns a range of weight rows; its four warps share the depth. Every warp is a pipeline of
// its own: a ring of cp.async stages (64 or 48 weight rows of 128 bytes, 32 of 256, or 16 of 512, and the input rows of
// the same depth) that runs on across all of the CTA's rows, so that the copies never drain. 16 weight
// rows are the M side of mma.m16n8k16, 8 or 16 input rows its N side; the warps' sums meet in shared
// memory when a group of rows is done. The rings are filled before the kernel's predecessor has ended,
// so that memory does not idle between kernels.
//
// With a norm fused in, every CTA reads the f32 rows itself, keeps them times the norm's weights in shared memory for
// all its steps, and divides by the row's root mean square at the end. 132 CTAs read 16 KB for a row of 4096, 2 MB
// from the L2: less than a kernel of its own costs for one or two rows, more for 8 (17 MB, 3 us).
#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/small_gemm.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda/ptx.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/small_gemm.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kSmemBytes = 224 * 1024;
constexpr int kResidentBytes = 32 * 1024;  // of inputs with a fused norm

struct Args {
  const char* w;
  const char* x;
  void* y;
  int rows;
  int depth;
  int units;                 // of output columns
  int64_t y_stride;
  bool accumulate;
  GluActivation activation;  // of a fused GLU, whose up rows follow all gate rows
  NormedInput norm;          // x is null then
  GemmAddend addend;
};

template <int kTokenTiles_, int kUnits_, bool kGlu_ = false, bool kNorm_ = false>
struct Config {
  static constexpr int kWarps = gpu::kWarps;
  static constexpr int kTokenTiles = kTokenTiles_;  // of 8 input rows
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr bool kGlu = kGlu_, kNorm = kNorm_;
  static constexpr int kUnits = kUnits_;            // whose sums a CTA keeps at a time
  static constexpr int kRows = kUnits * kUnitRows;
  static constexpr int kOutUnits = kGlu ? kUnits / 2 : kUnits;  // with a GLU first gate, then up units
  static constexpr int kOutRows = kOutUnits * kUnitRows;
  static constexpr int kStepDepth = kUnits > 2 ? 64 : 256 / kUnits;  // of a warp's stage
  static constexpr int kRowBytes = 2 * kStepDepth;
  static constexpr int kPartialStride = kTokens + 1;
  static constexpr int kPartialBytes = kWarps * kRows * kPartialStride * 4;
  static constexpr int kStageBytes = (kRows + (kNorm ? 0 : kTokens)) * kRowBytes;
  static constexpr int kSquaresBytes = kNorm ? kWarps * kTokens * 4 : 0;
  static constexpr int kResident = kPartialBytes + kSquaresBytes;  // where resident inputs begin
  static constexpr int kRing = kResident + (kNorm ? kResidentBytes : 0);
  static constexpr int kChains = kUnits > 2 ? 2 : 4;  // of MMAs of the same outputs: one waits for the one before it
  static constexpr int kStages = (kSmemBytes - kRing) / (kWarps * kStageBytes);
  static constexpr int kUsedBytes = kRing + kWarps * kStages * kStageBytes;
  static constexpr int kOutputs = (kOutRows * kTokens + kThreads - 1) / kThreads;  // of a thread
  static_assert(kStages >= 3 && kResident % 128 == 0 && (!kNorm || kTokenTiles == 1));
};

template <class C>
using Walk = SmallGemmWalk<C>;

template <class C>
__device__ __forceinline__ u32 swizzled(int row, int chunk) {
  return row * C::kRowBytes + ((chunk ^ (row & 7)) << 4);
}

// Fills the warp's ring, one stage and one cp.async group at a time, weights ahead of inputs.
template <class C>
class Loader {
 public:
  __device__ Loader(const Args& a, u32 ring) : weights_(a.units), inputs_(a.units), ring_(ring) {}

  __device__ void load_weights(const Args& a, int stage) {
    if (weights_.find(a.depth)) {
      const char* const from = a.w + int64_t{weights_.unit} * kUnitRows * a.depth * 2;
      const u32 to = ring_ + stage * C::kStageBytes;
      copy<C::kOutRows>(from, a.depth, weights_.k, weights_.rows(), to);
      if constexpr (C::kGlu) {
        copy<C::kOutRows>(from + int64_t{a.units} * kUnitRows * a.depth * 2, a.depth, weights_.k, weights_.rows(),
                          to + C::kOutRows * C::kRowBytes);
      }
    }
    weights_.next_step();
  }
  __device__ void load_inputs(const Args& a, int stage) {
    if constexpr (!C::kNorm) {
      if (inputs_.find(a.depth)) {
        copy<C::kTokens>(a.x, a.depth, inputs_.k, a.rows, ring_ + stage * C::kStageBytes + C::kRows * C::kRowBytes);
      }
      inputs_.next_step();
    }
    ptx::cp_async_commit();
  }

 private:
  // Rows past `rows` and depth past the end become zeros.
  template <int kCopiedRows>
  __device__ void copy(const char* matrix, int depth, int k, int rows, u32 to) {
    constexpr int kChunks = C::kRowBytes / 16, kRowsPerCopy = 32 / kChunks;
    const int lane = threadIdx.x % 32, chunk = lane % kChunks, first = lane / kChunks;
    const bool inside = k + chunk * 8 < depth;
    const char* from = matrix + (int64_t{first} * depth + (inside ? k + chunk * 8 : 0)) * 2;
#pragma unroll
    for (int row = 0; row < kCopiedRows; row += kRowsPerCopy) {
      const bool real = inside && row + first < rows;
      ptx::cp_async_16<128>(to + swizzled<C>(row + first, chunk), real ? from + int64_t{row} * depth * 2 : matrix,
                       real ? 16 : 0, policy_);
    }
  }

  const ptx::u64 policy_ = ptx::evict_first_policy();
  Walk<C> weights_, inputs_;
  u32 ring_;
};

__device__ __forceinline__ void load_8(const float* from, float (&to)[8]) {
  const float4 low = __ldcg(reinterpret_cast<const float4*>(from));
  const float4 high = __ldcg(reinterpret_cast<const float4*>(from + 4));
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

// Where 8 elements of a resident row stand.
__device__ __forceinline__ u32 resident_at(const Args& a, int row, int k) {
  return (row * a.depth * 2) + ((k / 8 ^ row) << 4);
}

// Brings the inputs of a fused norm, times its weights, and each warp's share of their squares. All loads of 4096
// columns are under way before the first is used.
template <typename E, class C>
__device__ void keep_inputs(const Args& a, char* resident, float* squares) {
  constexpr int kPacks = 4, kBlock = kPacks * kThreads * 8;
  float sum[kSmallGemmNormRows] = {};
  for (int base = threadIdx.x * 8; base < a.depth; base += kBlock) {
    float weight[kPacks][8] = {}, x[kSmallGemmNormRows][kPacks][8] = {};
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int k = base + i * kThreads * 8;
      if (k < a.depth) load_8(a.norm.weight + k, weight[i]);
#pragma unroll
      for (int row = 0; row < kSmallGemmNormRows; ++row) {
        if (row < a.rows && k < a.depth) load_8(a.norm.x + int64_t{row} * a.depth + k, x[row][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int k = base + i * kThreads * 8;
#pragma unroll
      for (int row = 0; row < kSmallGemmNormRows; ++row) {
        u32 packed[4];
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[row] += x[row][i][j] * x[row][i][j];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          packed[j] = E::pack(x[row][i][2 * j] * (weight[i][2 * j] + a.norm.weight_offset),
                              x[row][i][2 * j + 1] * (weight[i][2 * j + 1] + a.norm.weight_offset));
        }
        if (row < a.rows && k < a.depth) {
          *reinterpret_cast<uint4*>(resident + resident_at(a, row, k)) =
              make_uint4(packed[0], packed[1], packed[2], packed[3]);
        }
      }
    }
  }
#pragma unroll
  for (int row = 0; row < kSmallGemmNormRows; ++row) {
    sum[row] = warp_sum(sum[row]);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32 * C::kTokens + row] = sum[row];
  }
}

// Adds one stage to the warp's sums. `k` is its place in the depth.
template <typename E, class C>
__device__ __forceinline__ void multiply(const Args& a, u32 stage, u32 resident, int k,
                                         float (&sums)[C::kChains][C::kUnits][C::kTokenTiles][4]) {
  const int lane = threadIdx.x % 32;
  const u32 inputs = stage + C::kRows * C::kRowBytes;
#pragma unroll
  for (int step = 0; step < C::kStepDepth / 16; ++step) {
    auto& sum = sums[step % C::kChains];
    u32 x[(C::kTokenTiles + 1) / 2][4];
#pragma unroll
    for (int pair = 0; pair < (C::kTokenTiles + 1) / 2; ++pair) {
      if constexpr (C::kNorm) {  // rows past the last read another's: no result is wanted of them
        const int token = min(lane % 8, a.rows - 1);
        ptx::ldmatrix_x4(x[pair], resident + resident_at(a, token, k + step * 16 + lane / 8 % 2 * 8));
      } else {
        const int token = pair * 16 + (C::kTokenTiles == 1 ? lane % 8 : lane % 8 + lane / 16 * 8);
        ptx::ldmatrix_x4(x[pair], inputs + swizzled<C>(token, step * 2 + lane / 8 % 2));
      }
    }
#pragma unroll
    for (int u = 0; u < C::kUnits; ++u) {
      u32 w[4];
      ptx::ldmatrix_x4(w, stage + swizzled<C>(u * kUnitRows + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) E::mma(sum[u][t], w, x[t / 2][t % 2 * 2], x[t / 2][t % 2 * 2 + 1]);
    }
  }
}

template <class C>
__device__ __forceinline__ void join_chains(float (&sums)[C::kChains][C::kUnits][C::kTokenTiles][4]) {
#pragma unroll
  for (int chain = 1; chain < C::kChains; ++chain) {
#pragma unroll
    for (int u = 0; u < C::kUnits; ++u) {
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[0][u][t][i] += sums[chain][u][t][i];
      }
    }
  }
}

template <typename Y, class C>
struct Outputs {
  float before[C::kOutputs], before_up[C::kOutputs];

  static __device__ bool at(const Args& a, const Walk<C>& group, int i, int& row, int& token) {
    const int index = threadIdx.x + i * kThreads;
    row = index % C::kOutRows;
    token = index / C::kOutRows;
    return row < group.rows() && token < a.rows;
  }
  static __device__ Y* memory(const Args& a, const Walk<C>& group, int row, int token) {
    return static_cast<Y*>(a.y) + token * a.y_stride + group.unit * kUnitRows + row;
  }
  static __device__ float sum_of(const float* partial, int row, int token) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += partial[(warp * C::kRows + row) * C::kPartialStride + token];
    return sum;
  }
  static __device__ float norm_scale(const Args& a, const float* squares, int token) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += squares[warp * C::kTokens + token];
    return rsqrtf(sum / static_cast<float>(a.depth) + a.norm.eps);
  }
  // Early, so that the wait for memory is over when the sums are there.
  __device__ void read(const Args& a, const Walk<C>& group) {
#pragma unroll
    for (int i = 0; i < C::kOutputs; ++i) {
      int row, token;
      const bool wanted = at(a, group, i, row, token);
      before[i] = wanted && a.accumulate ? to_f32(*memory(a, group, row, token)) : 0;
      if constexpr (C::kGlu) before_up[i] = 0;
      const int place = wanted && a.addend.values != nullptr ? a.addend.places[token] : -1;
      if (place < 0) continue;
      const float* const addend = a.addend.values + place * a.addend.row_stride + group.unit * kUnitRows + row;
      before[i] += *addend;
      if constexpr (C::kGlu) before_up[i] = addend[a.units * kUnitRows];
    }
  }
  __device__ void write(const Args& a, const Walk<C>& group, const float* partial, const float* squares) const {
#pragma unroll
    for (int i = 0; i < C::kOutputs; ++i) {
      int row, token;
      if (!at(a, group, i, row, token)) continue;
      const float scale = C::kNorm ? norm_scale(a, squares, token) : 1.0f;
      float total = before[i] + scale * sum_of(partial, row, token);
      if constexpr (C::kGlu) total = activate(a.activation, total, before_up[i] + scale * sum_of(partial, C::kOutRows + row, token));
      *memory(a, group, row, token) = from_f32<Y>(total);
    }
  }
};

template <typename E, typename Y, class C>
__global__ void __launch_bounds__(kThreads, 1) small_gemm_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char smem[];
  float* const partial = reinterpret_cast<float*>(smem);
  float* const squares = reinterpret_cast<float*>(smem + C::kPartialBytes);
  const u32 memory = ptx::smem_address(smem + C::kRing) + threadIdx.x / 32 * C::kStages * C::kStageBytes;
  const u32 resident = ptx::smem_address(smem + C::kResident);
  start_successor();
  SmallGemmRing<C, Loader<C>> ring(a, memory);
  ring.fill(a);
  if constexpr (C::kNorm) {
    keep_inputs<E, C>(a, smem + C::kResident, squares);
    __syncthreads();
  }

  for (Walk<C> at(a.units); at.unit < at.end_unit; at.next_group()) {
    Outputs<Y, C> outputs;
    outputs.read(a, at);
    float sum[C::kChains][C::kUnits][C::kTokenTiles][4] = {};
    ring.each_step(a, at, [&](u32 stage, int k) { multiply<E, C>(a, stage, resident, k, sum); });
    join_chains<C>(sum);
    __syncthreads();  // the last group's sums have been read
    share<C>(sum[0], partial);
    __syncthreads();
    outputs.write(a, at, partial, squares);
  }
  ptx::cp_async_wait<0>();
}

template <typename E, typename Y, class C>
void launch(const Args& args, int blocks, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  limit.raise(small_gemm_kernel<E, Y, C>, C::kUsedBytes);  // where this fails, so does the launch
  launch_dependent({static_cast<unsigned>(blocks), kThreads, C::kUsedBytes, stream}, small_gemm_kernel<E, Y, C>, args);
}

template <typename E, typename Y, int kTokenTiles, bool kNorm = false>
void launch(const Args& args, cudaStream_t stream) {
  const int blocks = std::min(num_sms(), args.units);
  // Units that a CTA does not have cost room in its ring, which then holds less of the weights when the inputs come.
  if constexpr (!kNorm) {
    if (args.units <= blocks) return launch<E, Y, Config<kTokenTiles, 1>>(args, blocks, stream);
    if (args.units > 2 * blocks && args.units <= 3 * blocks) return launch<E, Y, Config<kTokenTiles, 3>>(args, blocks, stream);
  }
  if (args.units <= 2 * blocks) {
    launch<E, Y, Config<kTokenTiles, 2, false, kNorm>>(args, blocks, stream);
  } else {
    launch<E, Y, Config<kTokenTiles, 4, false, kNorm>>(args, blocks, stream);
  }
}

template <typename E, typename Y>
void launch(const Args& args, cudaStream_t stream) {
  args.rows <= 8 ? launch<E, Y, 1>(args, stream) : launch<E, Y, 2>(args, stream);
}

template <typename E, typename Y>
void launch_glu(const Args& args, cudaStream_t stream) {
  const int blocks = std::min(num_sms(), args.units);
  args.rows <= 8 ? launch<E, Y, Config<1, 4, true>>(args, blocks, stream)
                 : launch<E, Y, Config<2, 4, true>>(args, blocks, stream);
}

}  // namespace

bool small_gemm_takes(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  const bool halves = linear.dtype == DType::f16 || linear.dtype == DType::bf16;
  const int64_t columns = call.fused_glu ? 2 * kUnitRows : kUnitRows;
  if (call.norm.x != nullptr && (linear.dtype != DType::bf16 || call.rows > kSmallGemmNormRows || linear.in_features % 128 != 0 ||
                                 call.rows * linear.in_features * 2 > kResidentBytes || call.accumulate)) {
    return false;
  }
  return has_dependent_launch() && call.rows <= kSmallGemmRows && halves && linear.in_features % 64 == 0 &&
         linear.out_features % columns == 0 &&
         (!call.fused_glu || (linear.glu != GluActivation::none && linear.bias == nullptr &&
                              call.y_dtype == linear.dtype && !call.accumulate));
}

void small_gemm(const GemmCall& call, Stream stream) {
  const GpuLinear& linear = *call.linear;
  const int64_t columns = call.fused_glu ? linear.out_features / 2 : linear.out_features;
  const Args args = {static_cast<const char*>(linear.weight), static_cast<const char*>(call.x), call.y,
                     static_cast<int>(call.rows), static_cast<int>(linear.in_features),
                     static_cast<int>(columns / kUnitRows), call.y_stride, call.accumulate, linear.glu, call.norm, call.addend};
  const auto on = static_cast<cudaStream_t>(stream);
  const bool f32_out = call.y_dtype == DType::f32;
  if (linear.dtype == DType::f16) {
    if (call.fused_glu) return launch_glu<ptx::F16, __half>(args, on);
    f32_out ? launch<ptx::F16, float>(args, on) : launch<ptx::F16, __half>(args, on);
  } else if (call.norm.x != nullptr) {
    if (call.fused_glu) {
      return launch<ptx::Bf16, __nv_bfloat16, Config<1, 4, true, true>>(args, std::min(num_sms(), args.units), on);
    }
    f32_out ? launch<ptx::Bf16, float, 1, true>(args, on) : launch<ptx::Bf16, __nv_bfloat16, 1, true>(args, on);
  } else {
    if (call.fused_glu) return launch_glu<ptx::Bf16, __nv_bfloat16>(args, on);
    f32_out ? launch<ptx::Bf16, float>(args, on) : launch<ptx::Bf16, __nv_bfloat16>(args, on);
  }
}

}  // namespace warpweave::gpu
