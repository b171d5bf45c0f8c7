// What a thread has seen of a row of values: its first largest one, and the sum of exponentials. Of several threads the
// largest key is the likeliest value's, among equal ones that of the lowest column.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/choice_gemm.h"

namespace warpweave::gpu {
namespace {

__device__ __forceinline__ float number_or_least(float x) { return isfinite(x) && x > kLeastChoice ? x : kLeastChoice; }

// Above 0 for every id below 2^32 - 1.
__device__ __forceinline__ unsigned long long choice_key(float value, int id) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

struct TopSeen {
  float largest = -INFINITY, sum = 0;  // of exp(value - largest)
  int id = -1;                         // of the first of the largest

  // values[k], by number_or_least(), is that of column id_of(k), which ascends; -INFINITY: there is none.
  template <int kCount, class IdOf>
  __device__ __forceinline__ void add(const float (&values)[kCount], const IdOf& id_of) {
    float most = largest;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (values[k] > most) {
        most = values[k];
        id = id_of(k);
      }
    }
    const float shift = max(most, kLeastChoice);
    sum *= __expf(largest - shift);
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum += __expf(values[k] - shift);
    largest = most;
  }
  // Adds another thread's `largest` and `sum`.
  __device__ __forceinline__ void add_sum(float other_largest, float other_sum) {
    const float both = max(largest_possible(), other_largest);
    sum = sum * __expf(largest - both) + other_sum * __expf(other_largest - both);
    largest = both;
  }
  __device__ __forceinline__ unsigned long long key() const { return id < 0 ? 0 : choice_key(largest, id); }
  __device__ __forceinline__ float largest_possible() const { return max(largest, kLeastChoice); }
};

}  // namespace
}  // namespace warpweave::gpu
