// RMS norm, router and choice of a few rows in one kernel. CTAs of eight experts make their logits of all rows by tensor cores, and
// the one that comes last chooses; beside them a CTA a row writes the normed row. Three kernels for the same would cost a small step
// more than the router's own bytes do, and what runs here runs once, so that every instruction is fetched for it.
#include <cuda_runtime.h>

#include <type_traits>

#include "device/cuda/ptx.h"
#include "ops/cuda/expert_choice.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8_codes.cuh"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {
namespace {

using ptx::u32;

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kExperts = 8;                    // of a CTA: the N side of an MMA; rows and what they lose in bf16 are its M side
constexpr int kChunk = 32;                     // columns that a warp multiplies at a time, 8 neighbours a lane
constexpr int kRowStep = kThreads * 8;         // columns that the threads of a row's CTA have at a time
constexpr int kNarrowColumns = kRowStep;       // rows of up to so many are loaded at once by less code
constexpr int kMostNormBytes = 44 * 1024;      // of shared memory, beside what is fixed
static_assert(kSharedRows == kWarps && 2 * kSharedRows == 16);

__host__ __device__ constexpr int router_ctas(int experts) { return (experts + kExperts - 1) / kExperts; }

// 8 neighbours of a row that the kernel before wrote.
__device__ __forceinline__ void load_x(const float* from, float (&to)[8]) {
  *reinterpret_cast<float4*>(to) = __ldcg(reinterpret_cast<const float4*>(from));
  *reinterpret_cast<float4*>(to + 4) = __ldcg(reinterpret_cast<const float4*>(from) + 1);
}

// Two values as bf16, and what they lose by it, which keeps 16 bits of them in all.
struct Halves {
  u32 high, low;
  __device__ Halves(float a, float b) : high(ptx::Bf16::pack(a, b)), low(ptx::Bf16::pack(a - ptx::Bf16::low(high), b - ptx::Bf16::high(high))) {}
};

// The logits of a CTA's experts. Lane l has columns of row l / 4 of x and of expert l / 4 of the CTA: of each of the warp's chunks
// the (l % 4)th 8. An MMA's depth may have any order, as long as it is the same on both sides.
template <typename R, bool kWide>
class Router {
  static constexpr int kChunks = (sizeof(R) == 2 ? 4 : 2) + (kWide ? sizeof(R) == 2 ? 2 : 1 : 0);  // of a batch
  static constexpr int kBatch = kChunks * kWarps * kChunk;
  struct Weights {
    Pack<R, 8> of[kChunks];
  };
  struct Rows {
    Pack<float, 8> of[kChunks];
  };

 public:
  // Asks for the weights of the first two batches.
  __device__ explicit Router(const NormRouteCall& call)
      : hidden_(static_cast<int>(call.hidden)), first_(static_cast<int>(threadIdx.x) / 32 * kChunk + static_cast<int>(threadIdx.x) % 4 * 8) {
    const int of_lane = static_cast<int>(threadIdx.x) % 32 / 4, expert = static_cast<int>(blockIdx.x) * kExperts + of_lane;
    has_row_ = of_lane < call.rows;
    has_expert_ = expert < call.rule.num_experts;
    x_ = call.x + int64_t{of_lane} * hidden_;
    router_ = static_cast<const R*>(call.router) + int64_t{expert} * hidden_;
    read(0, weights_);
    read(kBatch, next_weights_);
    const int of_logit = static_cast<int>(blockIdx.x) * kExperts + static_cast<int>(threadIdx.x) % kExperts;
    if (of_logit < call.rule.num_experts && call.router_bias != nullptr) bias_ = call.router_bias[of_logit];
    if (threadIdx.x == 0 && call.correction != nullptr) ptx::prefetch_l2(call.correction + blockIdx.x * kExperts);  // for the last CTA
  }

  // `norm`: the norm's weights. Sums of all rows' products by expert and of their squares, a warp's share.
  __device__ void multiply(const float* norm) {
    Rows rows, next_rows;
    read(0, rows);
    read(kBatch, next_rows);
#pragma unroll 1
    for (int base = 0; base < hidden_; base += kBatch) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int i = at(base, c);
        Pack<float, 8> of_norm = {};
        if (i < hidden_) of_norm = *reinterpret_cast<const Pack<float, 8>*>(norm + i);
        add(rows.of[c], of_norm, weights_.of[c]);
      }
      rows = next_rows;
      weights_ = next_weights_;
      read(base + 2 * kBatch, next_rows);
      read(base + 2 * kBatch, next_weights_);
    }
  }

  __device__ void write_logits(const NormRouteCall& call) const {
    __shared__ float2 products[kWarps][kSharedRows][kExperts / 2];
    __shared__ float squares[kWarps][kSharedRows];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float of_row = squares_ + __shfl_xor_sync(~0u, squares_, 1);
    of_row += __shfl_xor_sync(~0u, of_row, 2);
    products[warp][lane / 4][lane % 4] = make_float2(sum_[0] + sum_[2], sum_[1] + sum_[3]);
    if (lane % 4 == 0) squares[warp][lane / 4] = of_row;
    __syncthreads();
    const int row = threadIdx.x / kExperts, of_cta = threadIdx.x % kExperts, expert = static_cast<int>(blockIdx.x) * kExperts + of_cta;
    if (row >= call.rows || expert >= call.rule.num_experts) return;
    float product = 0, square = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      product += reinterpret_cast<const float*>(products[w][row])[of_cta];
      square += squares[w][row];
    }
    const float scale = rsqrtf(__fdividef(square, static_cast<float>(hidden_)) + call.norm_eps);
    call.logits[row * call.rule.num_experts + expert] = product * scale + bias_;
  }

 private:
  __device__ __forceinline__ int at(int base, int chunk) const { return base + chunk * kWarps * kChunk + first_; }
  __device__ __forceinline__ void read(int base, Weights& to) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      to.of[c] = {};
      if (has_expert_ && at(base, c) < hidden_) to.of[c] = *reinterpret_cast<const Pack<R, 8>*>(router_ + at(base, c));
    }
  }
  __device__ __forceinline__ void read(int base, Rows& to) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      to.of[c] = {};
      if (has_row_ && at(base, c) < hidden_) load_x(x_ + at(base, c), to.of[c].value);
    }
  }
  __device__ __forceinline__ void add(const Pack<float, 8>& x, const Pack<float, 8>& norm, const Pack<R, 8>& weights) {
#pragma unroll
    for (const float v : x.value) squares_ += v * v;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const Halves a(x.value[i] * norm.value[i], x.value[i + 1] * norm.value[i + 1]);
      const Halves b(x.value[i + 2] * norm.value[i + 2], x.value[i + 3] * norm.value[i + 3]);
      const u32 rows[4] = {a.high, a.low, b.high, b.low};
      if constexpr (std::is_same_v<R, __nv_bfloat16>) {
        const u32* const pairs = reinterpret_cast<const u32*>(weights.value + i);
        ptx::Bf16::mma(sum_, rows, pairs[0], pairs[1]);
      } else {
        const Halves c(to_f32(weights.value[i]), to_f32(weights.value[i + 1])), d(to_f32(weights.value[i + 2]), to_f32(weights.value[i + 3]));
        ptx::Bf16::mma(sum_, rows, c.high, d.high);
        ptx::Bf16::mma(sum_, rows, c.low, d.low);
      }
    }
  }

  const int hidden_, first_;
  bool has_row_, has_expert_;
  const float* x_;
  const R* router_;
  Weights weights_, next_weights_;
  float sum_[4] = {}, squares_ = 0;
  float bias_ = 0;              // of the logit that this thread writes
};

// The norm's weights to shared memory: a thread has 4 neighbours of each of a few packs, whose loads are under way together.
__device__ void keep_norm(const NormRouteCall& call, float* norm) {
  constexpr int kPacks = 4, kStep = kThreads * 4;
  const int hidden = static_cast<int>(call.hidden);
  const float offset = call.norm_weight_offset;
#pragma unroll 1
  for (int base = threadIdx.x * 4; base < hidden; base += kPacks * kStep) {
    float4 w[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (base + p * kStep < hidden) w[p] = *reinterpret_cast<const float4*>(call.norm_weight + base + p * kStep);
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const float4 sum = make_float4(w[p].x + offset, w[p].y + offset, w[p].z + offset, w[p].w + offset);
      if (base + p * kStep < hidden) *reinterpret_cast<float4*>(norm + base + p * kStep) = sum;
    }
  }
  __syncthreads();
}

// What a row's CTA finds out about it.
struct RowSums {
  float squares = 0, gate = 0, largest = 0;

  __device__ void add(const float (&x)[8], const float* norm, const float* of_gate) {
    float w[8], g[8] = {};
    load_f32(norm, w);
    if (of_gate != nullptr) load_f32(of_gate, g);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float value = x[c] * w[c];
      squares += x[c] * x[c];
      gate += value * g[c];
      largest = fmaxf(largest, fabsf(value));
    }
  }
  // Of all threads of the CTA.
  __device__ void join() {
    __shared__ RowSums of_warp[kWarps];
    squares = warp_sum(squares), gate = warp_sum(gate), largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = *this;
    __syncthreads();
    *this = {};
#pragma unroll
    for (const RowSums& of : of_warp) squares += of.squares, gate += of.gate, largest = fmaxf(largest, of.largest);
  }
};

// Where a normed row is left.
template <typename T>
struct NormedRow {
  const NormRouteCall& call;
  int64_t begin;                // of h, of the codes
  const float* norm;
  float scale, inverse;         // of the row; of its codes

  __device__ __forceinline__ void write(int column, float (&value)[8]) const {
    float w[8];
    load_f32(norm + column, w);
#pragma unroll
    for (int c = 0; c < 8; ++c) value[c] *= w[c] * scale;
    store_f32(static_cast<T*>(call.h) + begin + column, value);
    if (call.codes == nullptr) return;
    Pack<uint16_t, 4> codes;
#pragma unroll
    for (int c = 0; c < 4; ++c) codes.value[c] = codes_of(value[2 * c], value[2 * c + 1], inverse);
    *reinterpret_cast<Pack<uint16_t, 4>*>(call.codes + begin + column) = codes;
  }
};

// A CTA's row, normed, and what its shared experts weigh.
template <typename T, bool kWide>
__device__ void norm_row(const NormRouteCall& call, int row, const float* norm) {
  constexpr int kKept = kWide ? 2 : 1;  // packs in registers; more are read twice
  const int hidden = static_cast<int>(call.hidden), first = threadIdx.x * 8;
  const float* const x = call.x + int64_t{row} * hidden;
  float kept[kKept][8];
  RowSums sums;
  const auto add = [&](int i, const float(&value)[8]) { sums.add(value, norm + i, call.shared_gate != nullptr ? call.shared_gate + i : nullptr); };
#pragma unroll
  for (int pack = 0; pack < kKept; ++pack) {
    if (first + pack * kRowStep < hidden) load_x(x + first + pack * kRowStep, kept[pack]);
  }
#pragma unroll
  for (int pack = 0; pack < kKept; ++pack) {
    if (first + pack * kRowStep < hidden) add(first + pack * kRowStep, kept[pack]);
  }
#pragma unroll 1
  for (int i = first + kKept * kRowStep; kWide && i < hidden; i += kRowStep) {
    float value[8];
    load_x(x + i, value);
    add(i, value);
  }
  sums.join();
  const float scale = rsqrtf(__fdividef(sums.squares, static_cast<float>(hidden)) + call.norm_eps);
  const CodeScale of_codes(sums.largest * scale);
  const NormedRow<T> normed = {call, int64_t{row} * hidden, norm, scale, of_codes.inverse};
#pragma unroll
  for (int pack = 0; pack < kKept; ++pack) {
    if (first + pack * kRowStep < hidden) normed.write(first + pack * kRowStep, kept[pack]);
  }
#pragma unroll 1
  for (int i = first + kKept * kRowStep; kWide && i < hidden; i += kRowStep) {
    float value[8];
    load_x(x + i, value);
    normed.write(i, value);
  }
  if (threadIdx.x == 0 && call.codes != nullptr) call.code_scales[row] = of_codes.scale;
  if (threadIdx.x < call.rule.shared) {
    const float gate = call.shared_gate != nullptr ? __fdividef(1.0f, 1 + __expf(-sums.gate * scale)) : 1.0f;
    call.plan.weights[row * call.rule.of_row() + call.rule.k + threadIdx.x] = gate;
  }
}

constexpr int kWords = (kMaxGpuExperts + kMaxGpuSharedExperts + 31) / 32;  // of a bit an expert
static_assert(kWords <= 32);

// A tile for every expert that rows chose, shared ones first, in ascending order. A warp has a row, or none (`real`). Rows that chose
// the same expert write the same tile.
__device__ void write_tiles(const NormRouteCall& call, const Choice& choice, bool real, bool padding) {
  __shared__ u32 chosen[kWords];
  const int row = threadIdx.x / 32, lane = threadIdx.x % 32, k = call.rule.of_row(), expert = choice.expert;
  real = real && lane < k;
  if (threadIdx.x < kWords) chosen[threadIdx.x] = 0;
  __syncthreads();
  if (real) atomicOr(&chosen[expert / 32], 1u << expert % 32);
  __syncthreads();
  const u32 word = lane < kWords ? chosen[lane] : 0;
  int up_to = __popc(word);  // experts of this lane's word and those before it
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(~0u, up_to, step);
    if (lane >= step) up_to += before;
  }
  const u32 others = __shfl_sync(~0u, word, expert / 32) & ~0u >> (31 - expert % 32);  // up to this one, in its word
  const int before = __shfl_sync(~0u, up_to - __popc(word), expert / 32) + __popc(others) - 1;
  const int tiles = __shfl_sync(~0u, up_to, 31);
  if (threadIdx.x == 0 && real) *call.plan.num_tiles = tiles;
  if (!real) return;
  const int at = expert < call.rule.num_experts ? before + call.rule.shared : expert - call.rule.num_experts;
  call.plan.tiles[at] = {expert, at * kSharedRows, static_cast<int32_t>(call.rows), 0};
  call.plan.chosen[row * k + lane] = expert;
  call.plan.place_of[row * k + lane] = at * kSharedRows + row;
  if (lane < call.rule.k) call.plan.weights[row * k + lane] = choice.weight;
  if (!padding) count_row(call.plan.load, expert);
}

template <typename T, typename R, int kEach, bool kWide>
__global__ void __launch_bounds__(kThreads, 1) norm_route_kernel(const __grid_constant__ NormRouteCall call) {
  extern __shared__ __align__(16) float norm[];
  const int ctas = router_ctas(call.rule.num_experts), of_rows = static_cast<int>(blockIdx.x) - ctas;
  const int row = threadIdx.x / 32;
  const bool real = row < call.rows, padding = real && is_padding(call.kv_slots, row);  // of a step's arrays, which are there early
  start_successor();
  if (of_rows >= 0) {
    keep_norm(call, norm);
    wait_for_predecessor();
    return norm_row<T, kWide>(call, of_rows, norm);
  }
  Router<R, kWide> router(call);
  keep_norm(call, norm);
  wait_for_predecessor();
  router.multiply(norm);
  router.write_logits(call);
  if (!arrives_last(call.plan.arrived, ctas)) return;
  Choice choice = {};
  if (real) {
    const int from = padding ? 0 : row;
    choice = choose_row<kEach>(call.rule, call.logits + int64_t{from} * call.rule.num_experts, call.correction, call.dice, from);
  }
  write_tiles(call, choice, real, padding);
}

template <typename T, typename R>
void launch(const NormRouteCall& call, cudaStream_t stream) {
  with_experts_a_lane(call.rule.num_experts, [&]<typename Each>(Each) {
    const auto ctas = static_cast<unsigned>(router_ctas(call.rule.num_experts) + call.rows);
    const auto kernel = call.hidden > kNarrowColumns ? norm_route_kernel<T, R, Each::value, true> : norm_route_kernel<T, R, Each::value, false>;
    launch_dependent({ctas, kThreads, static_cast<size_t>(call.hidden * 4), stream}, kernel, call);
  });
}

}  // namespace

bool norm_route_takes(const NormRouteCall& call) {
  return has_dependent_launch() && call.rows >= 1 && call.rows <= kSharedRows && call.hidden % 8 == 0 && call.hidden * 4 <= kMostNormBytes &&
         call.dtype != DType::f32 && (call.router_dtype == DType::f32 || call.router_dtype == call.dtype);
}

void norm_route(const NormRouteCall& call, Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  with_type(call.dtype, [&]<typename T>(T*) {
    if constexpr (sizeof(T) == 2) call.router_dtype == DType::f32 ? launch<T, float>(call, on) : launch<T, T>(call, on);
  });
}

}  // namespace warpweave::gpu
