// Sampling of one row by one CTA, but that few rows have their largest logit found by several, of which the last goes
// on alone: one CTA takes 15 us to read the 800 KB of a large vocabulary. Truncation needs no sort: the weight at which
// top_k or top_p cuts is searched on the bits of the weights (positive floats order like their bits), seven pivots a
// pass. For sample_rows.cu, and for its
// test, which runs it on the host.
#pragma once

#include "device/cuda/ptx.h"
#include "sample/cuda/gpu_sampler.h"
#include "sample/kept_guess.h"

namespace warpweave::gpu {
namespace {

constexpr int kSampleThreads = 512;
constexpr int kWarps = kSampleThreads / 32;
constexpr int kPivots = 7;
constexpr uint32_t kOneBits = 0x3f800000u;
constexpr int32_t kNoCutoff = 0x7fffffff;

struct Shared {
  unsigned long long best[kWarps];
  double mass[kWarps][kPivots];
  int count[kWarps][kPivots];
  double segment[kWarps];
  int ties[kWarps];
  int32_t found;
  unsigned long long of_row;
  bool last;
};

// How many weights are at least a pivot, and what they sum to.
struct Measure {
  int count = 0;
  double mass = 0;
};

// The kept tokens: weights above `bits`, and those equal to it with an id up to `last_tied_id`.
struct Cut {
  uint32_t bits = 0;
  int32_t last_tied_id = kNoCutoff;
};

struct Row {
  const float* logits;
  int vocab_size;
  float max;
  float inverse_temperature;

  __device__ float weight(int i) const {
    const float w = __expf((logits[i] - max) * inverse_temperature);
    return w <= 1.0f ? w : 1.0f;
  }
};

__device__ double warp_sum(double x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ unsigned long long argmax_key(float x, int i) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(i));
}

// The ids of a row that one CTA reads.
struct IdRange {
  int begin, end;
};

// Slice `slice` of `slices`; all but the last begin and end at multiples of 4.
__device__ IdRange slice_of_row(int vocab_size, int slices, int slice) {
  const int length = (vocab_size + 4 * slices - 1) / (4 * slices) * 4;
  return {min(slice * length, vocab_size), min((slice + 1) * length, vocab_size)};
}

// Calls take(logit, id) for this thread's share of a row's ids.
template <typename Take>
__device__ void each_logit(const float* logits, int vocab_size, const IdRange& ids, const Take& take) {
  if (vocab_size % 4 == 0) {  // rows then start at multiples of 16 bytes
#pragma unroll 8
    for (int i = ids.begin / 4 + threadIdx.x; i < ids.end / 4; i += kSampleThreads) {
      const float4 x = reinterpret_cast<const float4*>(logits)[i];
      take(x.x, 4 * i);
      take(x.y, 4 * i + 1);
      take(x.z, 4 * i + 2);
      take(x.w, 4 * i + 3);
    }
  } else {
    for (int i = ids.begin + threadIdx.x; i < ids.end; i += kSampleThreads) take(logits[i], i);
  }
}

constexpr unsigned long long kNanKey = ~0ull;  // above every number's

// The key of the largest logit of some ids, the first of equal ones.
__device__ unsigned long long block_best(const float* logits, int vocab_size, const IdRange& ids, Shared& shared) {
  unsigned long long best = 0;
  each_logit(logits, vocab_size, ids, [&](float x, int i) { best = max(best, x == x ? argmax_key(x, i) : kNanKey); });
  for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(~0u, best, step));
  if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = best;
  __syncthreads();
  best = shared.best[threadIdx.x % kWarps];
  for (int step = kWarps / 2; step > 0; step /= 2) best = max(best, __shfl_xor_sync(~0u, best, step));
  return best;
}

// Whether this CTA is the last of those that share a row; then `best`, its own slice's key, becomes the row's.
__device__ bool comes_last(SharedMaximum& of_row, int slices, unsigned long long& best, Shared& shared) {
  if (threadIdx.x == 0) {
    atomicMax(&of_row.key, best);
    shared.last = ptx::add_acq_rel(&of_row.arrived, 1) == slices - 1;
    if (shared.last) {
      shared.of_row = __ldcg(&of_row.key);
      of_row = {};
    }
  }
  __syncthreads();
  if (shared.last) best = shared.of_row;
  return shared.last;
}

// The id of a key, or -1 for that of a NaN or of only -inf.
__device__ int id_of_best(unsigned long long best) {
  if (best == kNanKey || best <= argmax_key(-INFINITY, 0)) return -1;
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
}

// Measures at pivots[0] < pivots[1] < ...; every thread gets all of them.
__device__ void measure(const Row& row, const uint32_t (&pivots)[kPivots], Measure (&out)[kPivots], Shared& shared) {
  int count[kPivots] = {};
  float mass[kPivots] = {};
  for (int i = threadIdx.x; i < row.vocab_size; i += kSampleThreads) {
    const float w = row.weight(i);
#pragma unroll
    for (int p = 0; p < kPivots; ++p) {
      if (__float_as_uint(w) >= pivots[p]) {
        ++count[p];
        mass[p] += w;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < kPivots; ++p) {
    const int all = __reduce_add_sync(~0u, count[p]);
    const double sum = warp_sum(mass[p]);
    if (threadIdx.x % 32 == 0) {
      shared.count[threadIdx.x / 32][p] = all;
      shared.mass[threadIdx.x / 32][p] = sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < kPivots; ++p) {
    out[p] = {};
#pragma unroll 4
    for (int w = 0; w < kWarps; ++w) {
      out[p].count += shared.count[w][p];
      out[p].mass += shared.mass[w][p];
    }
  }
}

// The largest bits in [low, high) at which the measure reaches the target, given that it does at
// `low`; `above` is the measure just above them.
template <typename Reaches>
__device__ uint32_t search(const Row& row, uint32_t low, Measure& above, const Reaches& reaches, Shared& shared) {
  uint32_t high = kOneBits + 1;
  above = {};
  while (high - low > 1) {
    uint32_t pivots[kPivots];
    Measure at[kPivots];
#pragma unroll
    for (int p = 0; p < kPivots; ++p) {
      pivots[p] = low + static_cast<uint32_t>(static_cast<uint64_t>(high - low) * (p + 1) / (kPivots + 1));
    }
    measure(row, pivots, at, shared);
#pragma unroll
    for (int p = kPivots - 1; p >= 0; --p) {
      if (pivots[p] <= low || pivots[p] >= high) continue;
      if (reaches(at[p])) {
        low = pivots[p];
        break;
      }
      high = pivots[p];
      above = at[p];
    }
  }
  return low;
}

// Sums over the segments of the row that the warps own, in id order; the first id at which the
// running sum of value(i) passes the target, or -1.
template <typename Value>
__device__ int find_passing(const Row& row, double target, const Value& value, Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int length = (row.vocab_size + kSampleThreads - 1) / kSampleThreads * 32, begin = warp * length;
  const int end = min(begin + length, row.vocab_size);
  double sum = 0;
  for (int i = begin + lane; i < end; i += 32) sum += value(i);
  sum = warp_sum(sum);
  __syncthreads();
  if (lane == 0) shared.segment[warp] = sum;
  if (threadIdx.x == 0) shared.found = -1;
  __syncthreads();
  double before = 0;
  for (int w = 0; w < warp; ++w) before += shared.segment[w];
  if (before <= target && before + sum > target) {
    for (int base = begin; base < end; base += 32) {
      double running = base + lane < end ? value(base + lane) : 0;
      for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(~0u, running, step);
        if (lane >= step) running += other;
      }
      const unsigned passed = __ballot_sync(~0u, before + running > target);
      if (passed != 0) {
        if (lane == 0) shared.found = base + __ffs(passed) - 1;
        break;
      }
      before += __shfl_sync(~0u, running, 31);
    }
  }
  __syncthreads();
  return shared.found;
}

// Of all ids; every thread gets it.
template <typename Value>
__device__ double block_sum(int vocab_size, const Value& value, Shared& shared) {
  double sum = 0;
  for (int i = threadIdx.x; i < vocab_size; i += kSampleThreads) sum += value(i);
  sum = warp_sum(sum);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.segment[threadIdx.x / 32] = sum;
  __syncthreads();
  double total = 0;
  for (int w = 0; w < kWarps; ++w) total += shared.segment[w];
  __syncthreads();
  return total;
}

__device__ Measure measure_at(const Row& row, uint32_t bits, Shared& shared) {
  uint32_t pivots[kPivots];
  Measure at[kPivots];
#pragma unroll
  for (int p = 0; p < kPivots; ++p) pivots[p] = bits + p;
  measure(row, pivots, at, shared);
  return at[0];
}

// Which tokens temperature, top_k, top_p and min_p leave.
__device__ Cut find_cut(const Row& row, const SampleRowParams& params, double total, Shared& shared) {
  const float floor = fmaxf(params.min_p, static_cast<float>(total * 1e-12));
  Cut cut{max(__float_as_uint(floor), 1u), kNoCutoff};
  const bool cut_k = params.top_k > 0 && params.top_k < row.vocab_size;
  int ties_left = kNoCutoff;  // how many of the tokens at cut.bits stay, lowest ids first
  Measure above{};
  double mass = total;
  if (cut_k) {
    const Measure all = measure_at(row, cut.bits, shared);
    mass = all.mass;
    if (all.count > params.top_k) {
      cut.bits = search(row, cut.bits, above, [&](const Measure& m) { return m.count >= params.top_k; }, shared);
      ties_left = params.top_k - above.count;
      mass = above.mass + ties_left * static_cast<double>(__uint_as_float(cut.bits));
    }
  }
  if (params.top_p < 1.0f) {
    const double target = mass * params.top_p;
    const auto reaches = [&](const Measure& m) { return m.mass >= target; };
    const bool tied_k = ties_left != kNoCutoff;
    if (tied_k ? reaches(above) : reaches(measure_at(row, cut.bits, shared))) {
      const uint32_t low = tied_k ? cut.bits + 1 : cut.bits;
      cut.bits = search(row, low, above, reaches, shared);
      ties_left = kNoCutoff;
    }
    if (tied_k || ties_left == kNoCutoff) {
      const double needed = ceil((target - above.mass) / __uint_as_float(cut.bits));
      if (needed < ties_left) ties_left = max(1, static_cast<int>(needed));
    }
  }
  if (ties_left != kNoCutoff) {
    const uint32_t bits = cut.bits;
    const int last = find_passing(
        row, ties_left - 0.5, [&](int i) { return __float_as_uint(row.weight(i)) == bits ? 1.0 : 0.0; }, shared);
    if (last >= 0) cut.last_tied_id = last;
  }
  return cut;
}

// `slices` neighbouring CTAs a row.
__global__ void __launch_bounds__(kSampleThreads, 1) sample_kernel(SampleCall call, int slices) {
  __shared__ Shared shared;
  const float* const logits = call.logits;
  const int vocab_size = call.vocab_size;
  const int index = static_cast<int>(blockIdx.x) / slices, slice = static_cast<int>(blockIdx.x) % slices;
  const SampleRowParams params = call.rows[index];  // of a step's arrays, which are there early
  int32_t& token = call.out[params.token_slot < 0 ? index : params.token_slot];
  ptx::grid_dependency_wait();
  if (params.logits_row < 0) {
    if (threadIdx.x == 0 && slice == 0) token = 0;
    return;
  }
  Row row{logits + int64_t{params.logits_row} * vocab_size, vocab_size, 0, 1};
  unsigned long long key = block_best(row.logits, vocab_size, slice_of_row(vocab_size, slices, slice), shared);
  if (slices > 1 && !comes_last(call.maxima[index], slices, key, shared)) return;
  const int best = id_of_best(key);
  if (best < 0) {
    if (threadIdx.x == 0) token = -1;
    return;
  }
  row.max = row.logits[best];
  int chosen = best;
  if (params.temperature > 0 && isfinite(row.max)) {
    row.inverse_temperature = 1.0f / params.temperature;
    const double total = block_sum(vocab_size, [&](int i) { return row.weight(i); }, shared);
    const bool all = (params.top_k < 1 || params.top_k >= vocab_size) && params.top_p >= 1.0f && params.min_p <= 0;
    const Cut cut = all ? Cut{} : find_cut(row, params, total, shared);
    const auto kept = [&](int i) -> double {
      const float w = row.weight(i);
      const uint32_t bits = __float_as_uint(w);
      return bits > cut.bits || (bits == cut.bits && i <= cut.last_tied_id) ? w : 0.0f;
    };
    const double kept_total = all ? total : block_sum(vocab_size, kept, shared);
    // The sums of the walk are ordered otherwise than kept_total: stay clear of their last bits.
    const int passing = find_passing(row, fmin(params.draw, 1 - 1e-9) * kept_total, kept, shared);
    if (passing >= 0) chosen = passing;
    if (params.num_guesses > 0) {
      const KeptGuessRule rule = {call.guesses + params.guesses, params.num_guesses, params.accept_single,
                                  params.accept_acc, params.accept_draw};
      chosen = drawn_or_guess(chosen, rule, kept_total, kept);
    }
  }
  if (threadIdx.x == 0) token = chosen;
}

}  // namespace
}  // namespace warpweave::gpu
