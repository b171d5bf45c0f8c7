// What the parts of a head task (head_task.cc, head_rows.cc) share.
#pragma once

#include <cstdint>

#include "linear/cpu/kernels.h"
#include "linear/linear_attn.h"

namespace warpweave::linear_head {

inline constexpr int kMaxDim = kLinearAttnMaxHeadDim;
inline constexpr int kMaxWindow = kLinearAttnMaxConvWidth - 1;
inline constexpr int kBlock = 16;
inline constexpr int kMaxParts = 3;  // LinearGemm::parts

inline LinearCpuType type_of(DType dtype) {
  return dtype == DType::bf16 ? LinearCpuType::bf16 : dtype == DType::f16 ? LinearCpuType::f16 : LinearCpuType::f32;
}
inline int64_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }
inline int padded(int n, int to) { return (n + to - 1) / to * to; }
inline const void* offset(const void* data, DType dtype, int64_t at) {
  return static_cast<const char*>(data) + at * size_of(dtype);
}
inline void* offset(void* data, DType dtype, int64_t at) { return static_cast<char*>(data) + at * size_of(dtype); }

}  // namespace warpweave::linear_head
