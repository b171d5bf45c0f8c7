#include "ops/elementwise.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "ops/elementwise_dispatch.h"
#include "ops/gguf_blocks.h"

namespace warpweave {
namespace {

// Fewer elements than this are done before another thread has woken up.
constexpr int64_t kSerialElements = 16 * 1024;

// Runs body(begin, end) over rows, on the caller alone when the work is small.
void over_rows(ThreadTeam& team, int64_t rows, int64_t cols,
               FunctionRef<void(int64_t, int64_t)> body) {
  if (rows * cols <= kSerialElements) {
    body(0, rows);
    return;
  }
  team.parallel_for(rows, std::max<int64_t>(1, kSerialElements / 2 / std::max<int64_t>(1, cols)),
                    body);
}

const ElementwiseKernels& kernels() {
  static const ElementwiseKernels& chosen = elementwise_kernels_of(cpu_info().tier);
  return chosen;
}

}  // namespace

const ElementwiseKernels& elementwise_kernels_of(CpuTier tier) {
#if defined(__x86_64__)
  if (tier >= CpuTier::avx512) return kElementwiseAvx512;
  if (tier == CpuTier::avx2) return kElementwiseAvx2;
#endif
  return kElementwiseScalar;
}

void rms_norm(const RmsNormCall& call, ThreadTeam& team) {
  assert(call.out_dtype == DType::f32 || (call.out_dtype == DType::bf16 && !call.accumulate));
  const bool bf16 = call.out_dtype == DType::bf16;
  over_rows(team, call.rows, call.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      kernels().rms_norm({.x = call.x + r * call.x_stride,
                          .weight = call.weight,
                          .cols = call.cols,
                          .weight_offset = call.weight_offset,
                          .eps = call.eps,
                          .out = static_cast<char*>(call.out) + r * call.out_stride * (bf16 ? 2 : 4),
                          .out_is_bf16 = bf16,
                          .accumulate = call.accumulate});
    }
  });
}

void layer_norm(const LayerNormCall& call, ThreadTeam& team) {
  assert(call.out_dtype == DType::f32 || call.out_dtype == DType::bf16);
  const bool bf16 = call.out_dtype == DType::bf16;
  over_rows(team, call.rows, call.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      kernels().layer_norm({.x = call.x + r * call.x_stride,
                            .weight = call.weight,
                            .bias = call.bias,
                            .cols = call.cols,
                            .eps = call.eps,
                            .out = static_cast<char*>(call.out) + r * call.out_stride * (bf16 ? 2 : 4),
                            .out_is_bf16 = bf16});
    }
  });
}

void embedding_gather(const TensorView& table, const EmbeddingRows& rows, ThreadTeam& team) {
  assert(table.rank == 2);
  const int64_t cols = table.shape[1];
  const int64_t row_bytes = bytes_of_elements(table.dtype, cols);
  over_rows(team, std::ssize(rows.ids), cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = rows.ids[i];
      float* const out = rows.out + i * cols;
      assert(id >= 0 && id < table.shape[0]);
      dequantize_row(table.dtype, static_cast<const char*>(table.data) + id * row_bytes, cols, out);
      if (rows.scale != 1.0f) kernels().scale(out, rows.scale, cols);
    }
  });
}

void embedding_gather(const PackedLinear& table, const EmbeddingRows& rows, ThreadTeam& team) {
  const int64_t cols = table.in_features();
  over_rows(team, std::ssize(rows.ids), cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* const out = rows.out + i * cols;
      table.weight_row(rows.ids[i], out);
      if (rows.scale != 1.0f) kernels().scale(out, rows.scale, cols);
    }
  });
}

void activate_rows(GluActivation activation, const ActivatedRows& to, ThreadTeam& team) {
  constexpr int64_t kRun = 256;
  static const std::vector<float> ones(kRun, 1.0f);
  over_rows(team, to.rows, to.cols * 4, [&](int64_t begin, int64_t end) {
    float run[kRun];
    for (int64_t r = begin; r < end; ++r) {
      float* const row = to.x + r * to.cols;
      for (int64_t c = 0; c < to.cols; c += kRun) {
        const int64_t count = std::min(kRun, to.cols - c);
        kernels().glu(activation, {.gate = row + c, .up = ones.data(), .count = count, .out = run});
        if (to.dtype == DType::bf16) {
          f32_to_bf16_row(run, count, reinterpret_cast<uint16_t*>(row) + c);
        } else {
          std::memcpy(row + c, run, count * sizeof(float));
        }
      }
    }
  });
}

void add_inplace(float* x, const float* y, int64_t count) { kernels().add(x, y, count); }
void add_scaled_inplace(float* x, const float* y, float scale, int64_t count) {
  kernels().add_scaled(x, y, scale, count);
}
void scale_inplace(float* x, float scale, int64_t count) { kernels().scale(x, scale, count); }

void softcap_inplace(float* x, float cap, int64_t count, ThreadTeam& team) {
  constexpr int64_t kChunk = 4096;
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  over_rows(team, chunks, kChunk * 4, [&](int64_t begin, int64_t end) {
    kernels().softcap(x + begin * kChunk, cap, std::min(count, end * kChunk) - begin * kChunk);
  });
}

int64_t argmax(const float* x, int64_t n) { return kernels().argmax(x, n); }

float log_sum_exp(const float* x, int64_t n) {
  const float shift = kernels().max(x, n);
  return shift + std::log(kernels().sum_exp(x, shift, n));
}

double exp_row(const float* x, int64_t n, float shift, float scale, float* out) {
  kernels().exp_scaled(x, shift, scale, n, out);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += out[i];
  return sum;
}

float log_softmax(const float* x, int64_t n, float* out) {
  const float total = log_sum_exp(x, n);
  kernels().subtract(x, total, n, out);
  return total;
}

void f32_to_bf16_row(const float* x, int64_t n, uint16_t* out) { kernels().f32_to_bf16(x, n, out); }
void bf16_to_f32_row(const uint16_t* x, int64_t n, float* out) { kernels().bf16_to_f32(x, n, out); }
void f32_to_f16_row(const float* x, int64_t n, uint16_t* out) { kernels().f32_to_f16(x, n, out); }
void f16_to_f32_row(const uint16_t* x, int64_t n, float* out) { kernels().f16_to_f32(x, n, out); }

void dequantize_row(DType dtype, const void* x, int64_t n, float* out) {
  switch (dtype) {
    case DType::f32: std::memcpy(out, x, n * sizeof(float)); break;
    case DType::bf16: bf16_to_f32_row(static_cast<const uint16_t*>(x), n, out); break;
    case DType::f16: f16_to_f32_row(static_cast<const uint16_t*>(x), n, out); break;
    default: dequantize_row_reference(dtype, x, n, out);
  }
}

}  // namespace warpweave
