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

// kStepRows rows of the state, in `rows`, over all tokens.
template <bool kPerChannel>
WW_INLINE void step_rows(const LinearStep& s, int row, float (*rows)[kMaxHeadDim]) {
  for (int t = 0; t < s.tokens; ++t) {
    const float* k = s.k + t * s.stride;
    const float* decayed_k = kPerChannel ? s.decayed_k + t * s.stride : k;
    const float* decayed_q = kPerChannel ? s.decayed_q + t * s.stride : s.q + t * s.stride;
    Vec with_k[kStepRows], with_q[kStepRows];
    for (int r = 0; r < kStepRows; ++r) with_k[r] = with_q[r] = vzero();
    for (int c = 0; c < s.k_dim; c += kLanes) {
      const Vec kc = vload(decayed_k + c), qc = vload(decayed_q + c);
      for (int r = 0; r < kStepRows; ++r) {
        const Vec state = vload(rows[r] + c);
        with_k[r] = vfma(state, kc, with_k[r]);
        with_q[r] = vfma(state, qc, with_q[r]);
      }
    }
    const float scalar = kPerChannel ? 1.0f : s.decay[t];
    float change[kStepRows];
    for (int r = 0; r < kStepRows; ++r) {
      change[r] = s.beta[t] * (s.v[t * s.v_stride + row + r] - scalar * vreduce_add(with_k[r]));
      s.out[t * s.v_stride + row + r] = scalar * vreduce_add(with_q[r]) + change[r] * s.kq[t];
    }
    const float* decay = kPerChannel ? s.decay + t * s.stride : nullptr;
    for (int c = 0; c < s.k_dim; c += kLanes) {
      const Vec kc = vload(k + c), a = kPerChannel ? vload(decay + c) : vset1(scalar);
      for (int r = 0; r < kStepRows; ++r) {
        vstore(rows[r] + c, vfma(vset1(change[r]), kc, vmul(vload(rows[r] + c), a)));
      }
    }
  }
}

void step(const LinearStep& s) {
  alignas(64) float rows[kStepRows][kMaxHeadDim];
  for (int row = 0; row < s.v_dim; row += kStepRows) {
    for (int r = 0; r < kStepRows; ++r) {
      const int64_t at = static_cast<int64_t>(row + r) * s.k_dim;
      for (int c = 0; c < s.k_dim; c += kLanes) {
        vstore(rows[r] + c, s.state_in != nullptr ? load16(s.state_in, s.type, at + c) : vzero());
      }
    }
    s.per_channel ? step_rows<true>(s, row, rows) : step_rows<false>(s, row, rows);
    for (int r = 0; r < kStepRows; ++r) {
      const int64_t at = static_cast<int64_t>(row + r) * s.k_dim;
      for (int c = 0; c < s.k_dim; c += kLanes) store16(s.state_out, s.type, at + c, vload(rows[r] + c));
    }
  }
}

}  // namespace
