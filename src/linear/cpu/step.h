// The recurrence itself, for one or few tokens. Included by kernels_<tier>.cc once.
#pragma once

#include "linear/cpu/rows.h"

namespace {

#if defined(__AVX512F__)
constexpr int kStepRows = 4;  // their sums stay in registers
#else
constexpr int kStepRows = 2;
#endif
constexpr int kMaxHeadDim = 256;

// kStepRows rows of the state from row `row` on, over all tokens; between the first token, which reads the state, and
// the last, which writes it, they stand in `rows`.
template <bool kPerChannel, LinearCpuType kType>
WW_INLINE void step_rows(const LinearStep& s, int row, float (*rows)[kMaxHeadDim]) {
  constexpr int kBytes = kType == LinearCpuType::f32 ? 4 : 2;
  const int64_t state_at = static_cast<int64_t>(row) * s.k_dim;
  for (int t = 0; t < s.tokens; ++t) {
    const float* k = s.k + t * s.stride;
    const float* decayed_k = kPerChannel ? s.decayed_k + t * s.stride : k;
    const float* decayed_q = kPerChannel ? s.decayed_q + t * s.stride : s.q + t * s.stride;
    Vec with_k[kStepRows], with_q[kStepRows];
    for (int r = 0; r < kStepRows; ++r) with_k[r] = with_q[r] = vzero();
    const auto sum = [&](int r, int c, Vec state, Vec kc, Vec qc) __attribute__((always_inline)) {
      with_k[r] = vfma(state, kc, with_k[r]);
      with_q[r] = vfma(state, qc, with_q[r]);
    };
    for (int c = 0; c < s.k_dim; c += kLanes) {
      const Vec kc = vload(decayed_k + c), qc = vload(decayed_q + c);
      for (int r = 0; r < kStepRows; ++r) {
        if (t > 0) {
          sum(r, c, vload(rows[r] + c), kc, qc);
        } else {
          const Vec state = s.state_in != nullptr ? load16(s.state_in, kType, state_at + r * s.k_dim + c) : vzero();
          // The rows after these: decode meets a state that other layers' weights have driven out of the caches.
          if (s.state_in != nullptr) {
            prefetch(static_cast<const char*>(s.state_in) + (state_at + (kStepRows + r) * s.k_dim + c) * kBytes);
          }
          vstore(rows[r] + c, state);
          sum(r, c, state, kc, qc);
        }
      }
    }
    const float scalar = kPerChannel ? 1.0f : s.decay[t];
    Vec change[kStepRows];
    for (int r = 0; r < kStepRows; ++r) {
      const float by = s.beta[t] * (s.v[t * s.v_stride + row + r] - scalar * vreduce_add(with_k[r]));
      s.out[t * s.v_stride + row + r] = scalar * vreduce_add(with_q[r]) + by * s.kq[t];
      change[r] = vset1(by);
    }
    const float* decay = kPerChannel ? s.decay + t * s.stride : nullptr;
    const bool last = t == s.tokens - 1;
    for (int c = 0; c < s.k_dim; c += kLanes) {
      const Vec kc = vload(k + c), a = kPerChannel ? vload(decay + c) : vset1(scalar);
      for (int r = 0; r < kStepRows; ++r) {
        const Vec state = vfma(change[r], kc, vmul(vload(rows[r] + c), a));
        if (last) {
          store16(s.state_out, kType, state_at + r * s.k_dim + c, state);
        } else {
          vstore(rows[r] + c, state);
        }
      }
    }
  }
}

template <bool kPerChannel, LinearCpuType kType>
void step_all(const LinearStep& s) {
  alignas(64) float rows[kStepRows][kMaxHeadDim];
  for (int row = 0; row < s.v_dim; row += kStepRows) step_rows<kPerChannel, kType>(s, row, rows);
}

void step(const LinearStep& s) {
  if (s.type == LinearCpuType::bf16) {
    s.per_channel ? step_all<true, LinearCpuType::bf16>(s) : step_all<false, LinearCpuType::bf16>(s);
  } else {
    s.per_channel ? step_all<true, LinearCpuType::f32>(s) : step_all<false, LinearCpuType::f32>(s);
  }
}

}  // namespace
