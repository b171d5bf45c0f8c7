// What a CPU tier provides to the row-wise ops: plain structs and function pointers, no STL, so
// that tier files may include it. Contracts: see the functions of elementwise.h and rope.h.
#pragma once

#include <stdint.h>

#include "ops/compute_types.h"

namespace warpweave {

struct RmsNormRow {
  const float* x;
  const float* weight;   // null: ones
  int64_t cols;
  float weight_offset;
  float eps;
  void* out;
  bool out_is_bf16;
  bool accumulate;       // f32 only
};

struct LayerNormRow {
  const float* x;
  const float* weight;
  const float* bias;     // null: none
  int64_t cols;
  float eps;
  void* out;
  bool out_is_bf16;
};

// out = act(gate) * up.
struct GluRow {
  const float* gate;
  const float* up;
  int64_t count;
  void* out;  // f32 or bf16
  bool out_is_bf16 = false;
};

struct ElementwiseKernels {
  void (*rms_norm)(const RmsNormRow& row);
  void (*layer_norm)(const LayerNormRow& row);
  void (*glu)(GluActivation activation, const GluRow& row);
  void (*add)(float* x, const float* y, int64_t n);
  void (*add_scaled)(float* x, const float* y, float scale, int64_t n);  // x += scale * y
  void (*scale)(float* x, float scale, int64_t n);
  void (*softcap)(float* x, float cap, int64_t n);
  int64_t (*argmax)(const float* x, int64_t n);
  float (*max)(const float* x, int64_t n);                   // NaN skipped; -inf if none
  float (*sum_exp)(const float* x, float shift, int64_t n);  // sum of exp(x - shift)
  // out = exp((x - shift) * scale)
  void (*exp_scaled)(const float* x, float shift, float scale, int64_t n, float* out);
  void (*subtract)(const float* x, float shift, int64_t n, float* out);
  // Rotates the first 2 * half values of a head in place.
  void (*rope)(float* head, const float* cos, const float* sin, int half, bool interleaved);
  void (*f32_to_bf16)(const float* x, int64_t n, uint16_t* out);
  void (*bf16_to_f32)(const uint16_t* x, int64_t n, float* out);
  void (*f32_to_f16)(const float* x, int64_t n, uint16_t* out);
  void (*f16_to_f32)(const uint16_t* x, int64_t n, float* out);
  // The KV cache's formats, as kv/kv_codec.h writes them: x * inverse_scale in one code each, and
  // x / head_scale in 16-value blocks (n a multiple of 16): n / 2 bytes, n / 16 scales.
  void (*f32_to_e4m3)(const float* x, float inverse_scale, int64_t n, uint8_t* out);
  void (*f32_to_e5m2)(const float* x, float inverse_scale, int64_t n, uint8_t* out);
  void (*f32_to_fp4)(const float* x, float head_scale, int64_t n, uint8_t* out, uint8_t* block_scales);
};

extern const ElementwiseKernels kElementwiseScalar;
#if defined(__x86_64__)
extern const ElementwiseKernels kElementwiseAvx2;
extern const ElementwiseKernels kElementwiseAvx512;
#endif

}  // namespace warpweave
