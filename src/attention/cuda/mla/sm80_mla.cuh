// Latent attention with mma.sync (sm_80 and later): decode, verification of drafts and short extends (mla_params.h).
//
// A CTA has 16 or 32 rows (query token, head), as few as decode of a rank's heads brings, and streams KV through a ring
// of steps of 32 or 64 tokens in shared memory, in the pool's own format. Eight warps share a step. For S a warp has a
// quarter of the columns (with the block of 128 that one scale is for) and half of the tokens; the quarters are added
// where the softmax is found, by 8 or 16 threads a row. For O it has 64 columns. e4m3 codes are widened in registers,
// the scales of 656-byte tokens multiply S by quarter and P by block. Split-KV as in the Hopper kernel, pieces merged
// by mla_combine.cuh or, of many requests, by the CTA that writes a unit's last piece (sm80_mla_merging.h).
#pragma once

#include "attention/cuda/mla/mla_combine.cuh"
#include "attention/cuda/mla/mla_pool_map.h"
#include "attention/cuda/mla/sm80_mla_loader.cuh"
#include "attention/cuda/mla/sm80_mla_merging.h"
#include "attention/cuda/mla/sm80_mla_mma.cuh"
#include "attention/cuda/pool_map.h"
#include "attention/cuda/split_in_place.cuh"
#include "device/cuda/kernel_launch.h"
#include "device/cuda/shared_memory_limit.h"

namespace warpweave::cuda {

// A row's maximum and sum, in its threads alike.
template <class C>
class Sm80MlaSoftmax {
 public:
  static constexpr int kThreadsOfRow = C::kThreads / C::kRows;
  static constexpr int kOwn = C::kTokens / kThreadsOfRow;  // neighbouring tokens of a thread
  static_assert(kOwn == 2 || kOwn == 4);
  static constexpr float kNone = -1e30f;
  static constexpr float kLog2e = 1.4426950408889634f;

  WW_DEVICE explicit Sm80MlaSoftmax(const MlaParams& p)
      : p_(p),
        scale_log2_(p.scale * kLog2e) {}

  static WW_DEVICE int row() { return static_cast<int>(threadIdx.x) / kThreadsOfRow; }

  // After the queries are loaded.
  WW_DEVICE void begin(const SplitSegment& s, const Sm80MlaShared<C>& shared) {
    if constexpr (C::kCodes) {
      const float stored = mla_kv_scale<C::kFormat>(p_) * C::kWidenedScale;
      scale_log2_ = p_.scale * kLog2e * stored * shared.query_units[row()];
    }
    maximum_ = kNone;
    sum_ = 0;
    plain_end_ = s.kv_len - s.q_len;
  }

  // S of a step whose first token is `first` to P; the factor that O is due.
  WW_DEVICE void step(const Sm80MlaShared<C>& shared, int first) {
    const int own = static_cast<int>(threadIdx.x) % kThreadsOfRow * kOwn;
    float s[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) s[i] = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const float* from = shared.parts + (part * C::kRows + row()) * C::kPartPitch + own;
#pragma unroll
      for (int i = 0; i < kOwn; i += 2) {
        const float2 x = *reinterpret_cast<const float2*>(from + i);
        s[i] += x.x;
        s[i + 1] += x.y;
      }
    }
    if (first + C::kTokens > plain_end_) {
      const SplitSegment& segment = shared.cursor->segment;
      const int query = (segment.unit * C::kRows + row()) / p_.num_heads;
      const MlaSight sight(p_, segment, max(min(query, segment.q_len - 1), 0));
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if (!sight.sees(first + own + i)) s[i] = -INFINITY;
      }
    }
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      s[i] *= scale_log2_;
      top = fmaxf(top, s[i]);
    }
#pragma unroll
    for (int lanes = 1; lanes < kThreadsOfRow; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
    float factor = 1;
    top -= C::kProbabilityLog2;
    if (top > maximum_ + C::kRescaleThreshold) {
      factor = ptx::exp2_approx(maximum_ - top);
      maximum_ = top;
      sum_ *= factor;
    }
    if (own == 0) shared.factors[row()] = factor;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      s[i] = ptx::exp2_approx(s[i] - maximum_);
      sum_ += s[i];
    }
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) {
      ptx::store_shared_4(shared.probability + row() * C::kProbabilityPitch + (own + i) * 2,
                          C::Operand::pack(s[i], s[i + 1]));
    }
  }

  // Of all threads of the row.
  WW_DEVICE float2 max_sum() const {
    float sum = sum_;
#pragma unroll
    for (int lanes = 1; lanes < kThreadsOfRow; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    return maximum_ == kNone ? make_float2(-INFINITY, 0) : make_float2(maximum_, sum);
  }

 private:
  const MlaParams& p_;
  float scale_log2_;
  float maximum_ = kNone, sum_ = 0;  // less kProbabilityLog2; the sum, of this thread's tokens
  int plain_end_ = 0;
};

template <class C>
class Sm80Mla {
 public:
  using E = typename C::Element;

  WW_DEVICE Sm80Mla(const MlaParams& p, const SplitWork& work, const Sm80MlaShared<C>& shared,
                    const Sm80MlaBoxes& boxes)
      : p_(p), work_(work), shared_(shared), merges_(boxes.merges), loader_(p, shared, boxes), softmax_(p) {}

  WW_DEVICE void run() {
    MlaCursor& cursor = *shared_.cursor;
    const SplitSegment& s = cursor.segment;
    if (threadIdx.x == 0) cursor.run.begin(work_, blockIdx.x);
    if (threadIdx.x == 0 && cursor.run.left <= 0) {
      ptx::grid_dependency_wait();
      work_.cuts[blockIdx.x] = {};
    }
    for (;;) {
      __syncthreads();
      if (threadIdx.x == 0 && !cursor.run.current(p_, cursor.segment)) cursor.segment.tile_end = -1;
      __syncthreads();
      if (s.tile_end < 0) break;
      const int end = s.tile_end * C::kSteps;
      if (!begins_settled(s)) ptx::grid_dependency_wait();
      loader_.begin(s, s.tile_begin * C::kSteps, end);
      if constexpr (kBeginsEarly) ptx::grid_dependency_wait();
      mma_.load_queries(p_, s, shared_);
      mma_.clear_out();
      softmax_.begin(s, shared_);
      if (threadIdx.x == 0) cursor.run.advance(p_, work_);
      for (int step = s.tile_begin * C::kSteps; step < end; ++step) {
        const ptx::u32 stage = loader_.take();
        mma_.scores(stage, shared_.parts);
        __syncthreads();
        softmax_.step(shared_, step * C::kTokens);
        __syncthreads();
        mma_.rescale(shared_.factors);
        mma_.add_values(stage, shared_.probability);
      }
      finish(s);
      loader_.end();
    }
  }

 private:
  // Codes' registers are too few for that.
  static constexpr bool kBeginsEarly = C::kSwizzled;
  static constexpr bool kMayMerge = C::kSwizzled && C::kRowBlocks == 1;
  // Whether the tokens of a segment's first stages may be read before the kernel's predecessor has ended.
  WW_DEVICE bool begins_settled(const SplitSegment& s) const {
    const int tokens = (s.tile_begin * C::kSteps + C::kStages - 1) * C::kTokens;
    return kBeginsEarly && tokens <= mla_settled_tokens(p_, s);
  }

  WW_DEVICE void finish(const SplitSegment& s) {
    const int row = Sm80MlaSoftmax<C>::row(), count = min(C::kRows, s.q_len * p_.num_heads - s.unit * C::kRows);
    const float2 total = softmax_.max_sum();
    const bool empty = total.x == -INFINITY, leads = threadIdx.x % Sm80MlaSoftmax<C>::kThreadsOfRow == 0;
    __syncthreads();  // the last factors have been read
    if (threadIdx.x == 0) note_cut(work_, blockIdx.x, s);
    if (leads) {
      shared_.factors[row] = empty ? 0.0f : __fdividef(mla_kv_scale<C::kFormat>(p_), total.y);
      if (row < count && !s.whole()) {
        const int64_t at = static_cast<int64_t>(s.slot(blockIdx.x)) * C::kRows + row;
        __stcg(reinterpret_cast<float2*>(work_.partial_max_sum) + at, total);
      } else if (row < count && p_.lse != nullptr) {
        constexpr float kLn2 = 0.6931471805599453f;
        const int global = s.unit * C::kRows + row, query = global / p_.num_heads;
        p_.lse[(static_cast<int64_t>(s.q_begin) + query) * p_.num_heads + global - query * p_.num_heads] =
            empty ? -INFINITY : (total.x + ptx::log2_approx(total.y)) * kLn2;
      }
    }
    __syncthreads();
    if (s.whole()) return write(s, count);
    write_piece(s, count);
    if constexpr (kMayMerge) {
      if (merges_) merge_if_last(s, count);
    }
  }

  WW_DEVICE void write(const SplitSegment& s, int count) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int local = m * 16 + lane / 4 + i * 8;
        if (local >= count) continue;
        const float factor = shared_.factors[local] * mma_.out_unit();
        const int row = s.unit * C::kRows + local, query = row / p_.num_heads;
        char* out = static_cast<char*>(p_.out) +
                    ((static_cast<int64_t>(s.q_begin) + query) * p_.out_token_stride +
                     (row - query * p_.num_heads) * p_.out_head_stride + warp * 64) * 2;
#pragma unroll
        for (int pair = 0; pair < Sm80MlaMma<C>::kOutTiles; ++pair) {
          const auto place = mma_.place(pair);
          const float4 x = mma_.numbers(m, pair);
          *reinterpret_cast<ptx::u32*>(out + (place.tile * 8 + place.lane % 4 * 2) * 2) =
              i == 0 ? E::pack(x.x * factor, x.y * factor) : E::pack(x.z * factor, x.w * factor);
        }
      }
    }
  }

  WW_DEVICE void write_piece(const SplitSegment& s, int count) const {
    const int warp = threadIdx.x / 32;
    const float unit = mma_.out_unit();
#pragma unroll
    for (int m = 0; m < C::kRowBlocks; ++m) {
      if (m * 16 >= count) continue;
#pragma unroll
      for (int pair = 0; pair < Sm80MlaMma<C>::kOutTiles; ++pair) {
        const auto place = mma_.place(pair);
        const float4 x = mma_.numbers(m, pair);
        __stcg(split_piece<kMlaLatentDim>(work_, s.slot(blockIdx.x), m, warp * 8 + place.tile) + place.lane,
               make_float4(x.x * unit, x.y * unit, x.z * unit, x.w * unit));
      }
    }
  }

  // The unit of the segment, where this CTA has written its last piece.
  WW_DEVICE void merge_if_last(const SplitSegment& s, int count) const {
    __shared__ SplitCutUnit unit;
    __shared__ bool last;
    __syncthreads();  // all have written
    if (threadIdx.x == 0) {
      SplitCuts cuts;
      cuts.begin(work_, blockIdx.x);
      cuts.add(s, blockIdx.x, work_.lockstep, count);
      unit = cuts.units[0];
      last = arrives_last(unit.arrivals(work_, 0), unit.cut.pieces);
    }
    __syncthreads();
    if (!last) return;
    constexpr int kTilesAtOnce = 4;  // of 8 columns, a warp's
    const MlaRows<E> rows(p_, work_);
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < kMlaLatentDim / 8 / kTilesAtOnce; i += C::kThreads / 32) {
      merge_in_place<kTilesAtOnce>(work_, rows, {unit.cut, unit.pieces(work_.lockstep), 0, i * kTilesAtOnce});
    }
  }

  const MlaParams& p_;
  const SplitWork& work_;
  const Sm80MlaShared<C>& shared_;
  const bool merges_;
  Sm80MlaLoader<C> loader_;
  Sm80MlaSoftmax<C> softmax_;
  Sm80MlaMma<C> mma_;
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtasPerSm)
    sm80_mla(const __grid_constant__ MlaParams p, const __grid_constant__ SplitWork work,
             const __grid_constant__ Sm80MlaBoxes boxes) {
  extern __shared__ __align__(1024) char smem80[];
  ptx::launch_dependents();
  if (!work.plan_is_older) ptx::grid_dependency_wait();  // else before what the kernel before this one writes is read
  const Sm80MlaShared<C> shared(smem80);
  Sm80Mla<C>(p, work, shared, boxes).run();
}

template <class C>
cudaError_t launch_sm80_mla(const MlaParams& p, const SplitWork& work, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  if (const cudaError_t error = limit.raise(sm80_mla<C>, C::kSmemBytes); error != cudaSuccess) {
    return error;
  }
  Sm80MlaBoxes boxes{};
  boxes.merges = sm80_mla_merges(C::kFormat, p, work.num_workers);
  if constexpr (C::kSwizzled) {
    constexpr int kLeastTokens = 16;  // smaller boxes take TMA longer than gathering takes the threads
    boxes.tokens = box_tokens_of(p.page_size, C::kTokens);
    const bool takes = boxes.tokens >= kLeastTokens && make_mla_pool_map(&boxes.map, p, boxes.tokens) == cudaSuccess;
    if (!takes) boxes.tokens = 0;  // nor do drivers and GPUs before Hopper
  }
  const LaunchShape shape = {.grid = static_cast<unsigned>(work.num_workers), .block = C::kThreads,
                             .shared_bytes = C::kSmemBytes, .stream = stream};
  return launch_kernel(shape, true, sm80_mla<C>, p, work, boxes);
}

}  // namespace warpweave::cuda
