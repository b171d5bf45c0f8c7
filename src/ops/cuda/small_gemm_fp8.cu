// small_gemm.cu with weights of 8 bits, on the same plan: a CTA an SM owns a range of weight rows, its warps
// share the depth, and every warp runs a cp.async ring of its own that never drains. Widening is twenty
// times the instructions that 16-bit weights need; eight warps leave a scheduler another one while one waits.
//
// A stage is 4 KiB of codes and the inputs of the same depth. ldmatrix hands a lane four neighbouring
// codes of a row; bytes 0 and 2, and 1 and 3, become the pairs of an mma.m16n8k16, so that the depth is
// multiplied in the order 0 2 1 3 of every four, and the inputs are picked in that order, too. Codes are
// widened by moving bits (attention/cuda/kv_fragment.h): what stands in a register is the value times a
// power of two, taken back with the scale. bf16 holds a code as value * 2^-120, so inputs come times 2^60
// and no sum of the two gets near f32's smallest.
#include <cuda_runtime.h>

#include <algorithm>

#include "attention/cuda/kv_fragment.h"
#include "device/cuda/shared_memory_limit.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/small_gemm.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;

constexpr int kSmemBytes = 224 * 1024;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kCodeBytes = 4096;   // of a stage
constexpr int kMmaDepth = 32;     // of one ldmatrix: two mma

struct Args {
  const char* w;
  const char* x;
  const float* scales;
  void* y;
  int rows;
  int depth;
  int units;
  int scale_stride;  // of blocks
  int64_t y_stride;
  bool accumulate;
};

template <int kTokenTiles_, int kUnits_, bool kBlocks_>
struct Config {
  static constexpr int kWarps = gpu::kWarps;
  static constexpr int kTokenTiles = kTokenTiles_;  // of 8 input rows
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kUnits = kUnits_;            // whose sums a CTA keeps at a time
  static constexpr int kOutUnits = kUnits;
  static constexpr bool kBlocks = kBlocks_;         // scales of blocks
  static constexpr int kRows = kUnits * kUnitRows;
  static constexpr int kStepDepth = kCodeBytes / kRows;
  static constexpr int kXRowBytes = 2 * kStepDepth;
  static constexpr int kPartialStride = kTokens + 1;
  static constexpr int kPartialBytes = kWarps * kRows * kPartialStride * 4;
  static constexpr int kStageBytes = kCodeBytes + kTokens * kXRowBytes;
  static constexpr int kStages = (kSmemBytes - kPartialBytes) / (kWarps * kStageBytes);
  static constexpr int kUsedBytes = kPartialBytes + kWarps * kStages * kStageBytes;
  static constexpr int kOutputs = (kRows * kTokens + kThreads - 1) / kThreads;  // of a thread
  static_assert(kStages >= 3 && kPartialBytes % 128 == 0 && kThreads % kRows == 0 && kFp8Block % kMmaDepth == 0);
  static_assert(kStepDepth % kFp8Block == 0 || kStepDepth == 64);
};

template <class C>
using Walk = SmallGemmWalk<C>;

// ldmatrix reads one chunk of eight rows; ld.shared.v2, two neighbouring chunks of four rows.
template <class C>
__device__ __forceinline__ u32 code_offset(int row, int chunk) {
  return cuda::swizzled<C::kStepDepth>(row, chunk);
}
template <class C>
__device__ __forceinline__ u32 input_offset(int row, int chunk) {
  return kCodeBytes + row * C::kXRowBytes + ((chunk ^ (row & 3) * 2) << 4);
}

// Fills the warp's ring, one stage and one cp.async group at a time, weights ahead of inputs. Rows past
// the end and depth past the end become zeros.
template <class C>
class Loader {
 public:
  __device__ Loader(const Args& a, u32 ring) : weights_(a.units), inputs_(a.units), ring_(ring) {}

  __device__ void load_weights(const Args& a, int stage) {
    if (weights_.find(a.depth)) {
      constexpr int kChunks = C::kStepDepth / 16, kRowsPerCopy = 32 / kChunks;
      const int lane = threadIdx.x % 32, chunk = lane % kChunks, first = lane / kChunks;
      const bool inside = weights_.k + chunk * 16 < a.depth;
      const char* from = a.w + (int64_t{weights_.unit} * kUnitRows + first) * a.depth + weights_.k + chunk * 16;
      const u32 to = ring_ + stage * C::kStageBytes;
      const int rows = weights_.rows();
#pragma unroll
      for (int row = 0; row < C::kRows; row += kRowsPerCopy) {
        const bool real = inside && row + first < rows;
        ptx::cp_async_16<128>(to + code_offset<C>(row + first, chunk), real ? from + int64_t{row} * a.depth : a.w,
                              real ? 16 : 0, policy_);
      }
    }
    weights_.next_step();
  }

  __device__ void load_inputs(const Args& a, int stage) {
    if (inputs_.find(a.depth)) {
      constexpr int kChunks = C::kStepDepth / 8;
      const int lane = threadIdx.x % 32;
      const u32 to = ring_ + stage * C::kStageBytes;
#pragma unroll
      for (int i = 0; i < C::kTokens * kChunks; i += 32) {
        const int row = (i + lane) / kChunks, chunk = (i + lane) % kChunks, k = inputs_.k + chunk * 8;
        const bool real = row < a.rows && k < a.depth;
        ptx::cp_async_16(to + input_offset<C>(row, chunk), real ? a.x + (int64_t{row} * a.depth + k) * 2 : a.x,
                         real ? 16 : 0);
      }
    }
    inputs_.next_step();
    ptx::cp_async_commit();
  }

 private:
  const ptx::u64 policy_ = ptx::evict_first_policy();
  Walk<C> weights_, inputs_;
  u32 ring_;
};

template <typename E>
struct Widening : cuda::KvFragment<E, cuda::KvStorage::e4m3> {
  using Base = cuda::KvFragment<E, cuda::KvStorage::e4m3>;
  static constexpr int kInputLog2 = Base::kWidenedScaleLog2 / 2 >= 60 ? 60 : 0;
  static constexpr u32 kInputFactor = 0x5d805d80u;  // 2^60 twice, in bf16
  static __device__ __forceinline__ u32 input(u32 pair) {
    if constexpr (kInputLog2 == 0) return pair;
    return E::multiply(pair, kInputFactor);
  }
  // What sums are multiplied with.
  static constexpr float kFactor = cuda::power_of_two(Base::kWidenedScaleLog2 - kInputLog2);
};

template <class C>
using Sums = float[C::kUnits][C::kTokenTiles][4];

// The operands of one kMmaDepth as they are in shared memory: codes of all units, inputs of all tokens.
template <typename E, class C>
struct Operands {
  u32 w[C::kUnits][4];
  u32 x[C::kTokenTiles][4];

  __device__ __forceinline__ void load(u32 stage, int step) {
    const int lane = threadIdx.x % 32, quarter = lane % 4;
#pragma unroll
    for (int u = 0; u < C::kUnits; ++u) {
      ptx::ldmatrix_x4(w[u], stage + code_offset<C>(u * kUnitRows + lane % 16, step * 2 + lane / 16));
    }
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int chunk = step * 4 + half * 2 + quarter / 2;
        const uint2 two = ptx::load_shared_8(stage + input_offset<C>(t * 8 + lane / 4, chunk) + quarter % 2 * 8);
        x[t][2 * half] = two.x;
        x[t][2 * half + 1] = two.y;
      }
    }
  }

  __device__ __forceinline__ void multiply(Sums<C>& sum) const {
    using W = Widening<E>;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      u32 even[C::kTokenTiles], odd[C::kTokenTiles];  // pairs of depth 0 and 2, and 1 and 3, of every four
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) {
        even[t] = W::input(__byte_perm(x[t][2 * half], x[t][2 * half + 1], 0x5410));
        odd[t] = W::input(__byte_perm(x[t][2 * half], x[t][2 * half + 1], 0x7632));
      }
#pragma unroll
      for (int u = 0; u < C::kUnits; ++u) {
        const u32 upper = w[u][2 * half], lower = w[u][2 * half + 1];  // rows 0 to 7 and 8 to 15 of the unit
        const u32 a[4] = {W::widen_low(upper), W::widen_low(lower), W::widen_high(upper), W::widen_high(lower)};
#pragma unroll
        for (int t = 0; t < C::kTokenTiles; ++t) E::mma(sum[u][t], a, even[t], odd[t]);
      }
    }
  }
};

// Adds depth [first, first + kDepth) of one stage. The operands of the next step are on their way while
// those of this one are multiplied.
template <typename E, class C, int kDepth>
__device__ __forceinline__ void multiply(u32 stage, int first, Sums<C>& sum) {
  constexpr int kSteps = kDepth / kMmaDepth;
  Operands<E, C> operands[2];
  operands[0].load(stage, first / kMmaDepth);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i + 1 < kSteps) operands[(i + 1) % 2].load(stage, first / kMmaDepth + i + 1);
    operands[i % 2].multiply(sum);
  }
}

template <typename E, class C>
__device__ __forceinline__ void add_stage(const Args& a, u32 stage, const Walk<C>& group, int k, Sums<C>& sum) {
  if constexpr (!C::kBlocks) {
    multiply<E, C, C::kStepDepth>(stage, 0, sum);
  } else {
    constexpr int kBlock = static_cast<int>(kFp8Block), kSubDepth = C::kStepDepth < kBlock ? C::kStepDepth : kBlock;
    constexpr int kSubSteps = C::kStepDepth / kSubDepth;
    float scale[kSubSteps][C::kUnits];
#pragma unroll
    for (int s = 0; s < kSubSteps; ++s) {
      const int block = min(k / kBlock + s, a.scale_stride - 1);
#pragma unroll
      for (int u = 0; u < C::kUnits; ++u) {
        const int band = min(group.unit + u, a.units - 1) / (kBlock / kUnitRows);
        scale[s][u] = __ldg(a.scales + int64_t{band} * a.scale_stride + block);
      }
    }
#pragma unroll
    for (int s = 0; s < kSubSteps; ++s) {
      Sums<C> part = {};
      multiply<E, C, kSubDepth>(stage, s * kSubDepth, part);
#pragma unroll
      for (int u = 0; u < C::kUnits; ++u) {
#pragma unroll
        for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[u][t][i] = fmaf(part[u][t][i], scale[s][u], sum[u][t][i]);
        }
      }
    }
  }
}

// A thread's outputs are all of one weight row.
template <typename Y, class C>
struct Outputs {
  float before[C::kOutputs];
  float factor;

  static __device__ int row() { return static_cast<int>(threadIdx.x) % C::kRows; }
  static __device__ int token(int i) { return static_cast<int>(threadIdx.x) / C::kRows + i * (kThreads / C::kRows); }
  static __device__ bool has(const Args& a, const Walk<C>& group, int i) {
    return row() < group.rows() && token(i) < a.rows;
  }
  static __device__ Y* memory(const Args& a, const Walk<C>& group, int i) {
    return static_cast<Y*>(a.y) + token(i) * a.y_stride + group.unit * kUnitRows + row();
  }
  // Early, so that the wait for memory is over when the sums are there.
  __device__ void read(const Args& a, const Walk<C>& group, float widening) {
    factor = widening;
    if (!C::kBlocks && row() < group.rows()) factor *= __ldg(a.scales + group.unit * kUnitRows + row());
#pragma unroll
    for (int i = 0; i < C::kOutputs; ++i) {
      before[i] = has(a, group, i) && a.accumulate ? to_f32(*memory(a, group, i)) : 0;
    }
  }
  __device__ void write(const Args& a, const Walk<C>& group, const float* partial) const {
#pragma unroll
    for (int i = 0; i < C::kOutputs; ++i) {
      if (!has(a, group, i)) continue;
      float total = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        total += partial[(warp * C::kRows + row()) * C::kPartialStride + token(i)];
      }
      *memory(a, group, i) = from_f32<Y>(fmaf(total, factor, before[i]));
    }
  }
};

template <typename E, typename Y, class C>
__global__ void __launch_bounds__(kThreads, 1) small_gemm_fp8_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char smem[];
  float* const partial = reinterpret_cast<float*>(smem);
  const u32 memory = ptx::smem_address(smem + C::kPartialBytes) + threadIdx.x / 32 * C::kStages * C::kStageBytes;
  start_successor();
  SmallGemmRing<C, Loader<C>> ring(a, memory);
  ring.fill(a);

  for (Walk<C> at(a.units); at.unit < at.end_unit; at.next_group()) {
    Outputs<Y, C> outputs;
    outputs.read(a, at, Widening<E>::kFactor);
    Sums<C> sum = {};
    ring.each_step(a, at, [&](u32 stage, int k) { add_stage<E, C>(a, stage, at, k, sum); });
    __syncthreads();  // the last group's sums have been read
    share<C>(sum, partial);
    __syncthreads();
    outputs.write(a, at, partial);
  }
  ptx::cp_async_wait<0>();
}

template <typename E, typename Y, class C>
void launch(const Args& args, int blocks, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  limit.raise(small_gemm_fp8_kernel<E, Y, C>, C::kUsedBytes);  // where this fails, so does the launch
  launch_dependent({static_cast<unsigned>(blocks), kThreads, C::kUsedBytes, stream}, small_gemm_fp8_kernel<E, Y, C>,
                   args);
}

template <typename E, typename Y, bool kBlocks>
void launch(const Args& args, cudaStream_t stream) {
  const int blocks = std::min(num_sms(), args.units);
  const bool few_units = args.units <= 2 * blocks;
  if (args.rows <= 8) {
    few_units ? launch<E, Y, Config<1, 2, kBlocks>>(args, blocks, stream)
              : launch<E, Y, Config<1, 4, kBlocks>>(args, blocks, stream);
  } else {
    few_units ? launch<E, Y, Config<2, 2, kBlocks>>(args, blocks, stream)
              : launch<E, Y, Config<2, 4, kBlocks>>(args, blocks, stream);
  }
}

template <typename E, typename Y>
void launch(const Args& args, Fp8Scaling scaling, cudaStream_t stream) {
  scaling == Fp8Scaling::block ? launch<E, Y, true>(args, stream) : launch<E, Y, false>(args, stream);
}

}  // namespace

bool small_gemm_fp8_takes(const GemmCall& call) {
  const GpuLinear& linear = *call.linear;
  return keeps_fp8() && call.rows <= kSmallGemmFp8Rows && linear.dtype == DType::fp8_e4m3 &&
         linear.in_features % kFp8Columns == 0 && linear.out_features % kUnitRows == 0;
}

void small_gemm_fp8(const GemmCall& call, Stream stream) {
  const GpuLinear& linear = *call.linear;
  const Args args = {static_cast<const char*>(linear.weight), static_cast<const char*>(call.x), linear.scales, call.y,
                     static_cast<int>(call.rows), static_cast<int>(linear.in_features),
                     static_cast<int>(linear.out_features / kUnitRows),
                     static_cast<int>(fp8_scale_stride(linear.in_features)), call.y_stride, call.accumulate};
  const auto on = static_cast<cudaStream_t>(stream);
  const bool f32_out = call.y_dtype == DType::f32;
  if (linear.x_dtype == DType::f16) {
    f32_out ? launch<ptx::F16, float>(args, linear.scaling, on)
            : launch<ptx::F16, __half>(args, linear.scaling, on);
  } else {
    f32_out ? launch<ptx::Bf16, float>(args, linear.scaling, on)
            : launch<ptx::Bf16, __nv_bfloat16>(args, linear.scaling, on);
  }
}

}  // namespace warpweave::gpu
