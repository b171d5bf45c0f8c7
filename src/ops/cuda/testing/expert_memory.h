// A layer of experts in GPU memory with made-up 16-bit or f32 weights, for tests and benchmarks: the host can say every
// weight, so that nothing is copied. Errors end the program.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "base/float8.h"
#include "device/cuda/memory.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8.h"

namespace warpweave::gpu {

inline void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::abort();
}

inline float rounded(float x, DType dtype) {
  if (dtype == DType::bf16) return bf16_to_f32(f32_to_bf16(x));
  return dtype == DType::f16 ? f16_to_f32(f32_to_f16(x)) : x;
}

struct ExpertShape {
  int experts = 8;
  int k = 2;
  int64_t hidden = 64;
  int64_t ffn = 64;
  int64_t rows = 1;             // at most
  DType dtype = DType::bf16;
  GluActivation glu = GluActivation::silu;
  bool fp8 = false;             // weights in e4m3, `dtype` is that of the rows
  Fp8Scaling scaling = Fp8Scaling::row;
  bool alike = false;           // every expert has the codes of the first: soon made, and as fast; weight() is not theirs
};

class ExpertMemory {
 public:
  explicit ExpertMemory(const ExpertShape& shape) : shape_(shape) {
    const int64_t pairs = shape.rows * shape.k, places = std::max<int64_t>(pairs, kSharedRows * std::min<int64_t>(pairs, shape.experts));
    const int64_t element = static_cast<int64_t>(dtype_info(shape.dtype).block_bytes);
    const int64_t weight_bytes = shape.fp8 ? 1 : element;
    gate_up.data = get<char>(shape.experts * (gate_up.stride_bytes = 2 * shape.ffn * shape.hidden * weight_bytes));
    down.data = get<char>(shape.experts * (down.stride_bytes = shape.hidden * shape.ffn * weight_bytes));
    gate_up.rows = 2 * shape.ffn;
    gate_up.cols = down.rows = shape.hidden;
    down.cols = shape.ffn;
    gate_up.experts = down.experts = shape.experts;
    gate_up.dtype = down.dtype = shape.dtype;
    gate_up.glu = shape.glu;
    if (shape.fp8) fill_fp8();
    for (int e = 0; e < shape.experts && !shape.fp8; ++e) {
      char* const to = static_cast<char*>(const_cast<void*>(gate_up.data)) + e * gate_up.stride_bytes;
      for (int i = 0; i < 2; ++i) fill_random_turns({rule(e, i), shape.ffn, shape.hidden, i}, shape.dtype, to, nullptr);
      fill_random(rule(e, 2), shape.hidden * shape.ffn, shape.dtype,
                  static_cast<char*>(const_cast<void*>(down.data)) + e * down.stride_bytes, nullptr);
    }
    x = get<float>(shape.rows * shape.hidden);
    h = get<char>(std::max<int64_t>(shape.rows, kSharedRows) * shape.hidden * element);
    rows = get<char>(places * shape.hidden * element);
    act = get<char>(places * shape.ffn * element);
    logits = get<float>(std::max<int64_t>(shape.rows, kSharedRows) * shape.experts);
    plan.chosen = get<int32_t>(pairs);
    plan.weights = get<float>(pairs);
    plan.offsets = get<int32_t>(shape.experts + 1);
    plan.place_of = get<int32_t>(pairs);
    plan.row_of = get<int32_t>(pairs);
    plan.tiles = get<ExpertTile>(most_expert_tiles(places, shape.experts, kNarrowTilePlaces));
    plan.num_tiles = get<int32_t>(1);
    plan.counts = get<int32_t>(expert_plan_blocks(shape.rows) * shape.experts);
    plan.histogram = get<int32_t>(shape.experts);
    plan.arrived = get<int32_t>(1);
    must(cudaMemset(plan.histogram, 0, shape.experts * 4));
    must(cudaMemset(plan.arrived, 0, 4));
  }

  // A planted mistake: a row's pairs take the places of the next row's. Returns the places that the plan had.
  std::vector<int32_t> shift_places(int64_t pairs) const {
    std::vector<int32_t> place_of(pairs), shifted(pairs), row_of(pairs);
    must(cudaMemcpy(place_of.data(), plan.place_of, pairs * 4, cudaMemcpyDeviceToHost));
    for (int64_t pair = 0; pair < pairs; ++pair) {
      shifted[pair] = place_of[(pair + shape_.k) % pairs];
      row_of[shifted[pair]] = static_cast<int32_t>(pair / shape_.k);
    }
    must(cudaMemcpy(plan.place_of, shifted.data(), pairs * 4, cudaMemcpyHostToDevice));
    must(cudaMemcpy(plan.row_of, row_of.data(), pairs * 4, cudaMemcpyHostToDevice));
    return place_of;
  }
  // Weight [row, col] of an expert's matrix 0 gate, 1 up, 2 down.
  float weight(int expert, int matrix, int64_t row, int64_t col) const {
    if (shape_.fp8) return e4m3_to_f32(code(expert, matrix, row, col)) * scale(expert, matrix, row, col);
    const RandomMatrix of = rule(expert, matrix);
    const int64_t cols = matrix == 2 ? shape_.ffn : shape_.hidden;
    return rounded(of.scale * random_unit(of.base, static_cast<uint64_t>(row * cols + col)), shape_.dtype);
  }

  ExpertWeights gate_up, down;
  ExpertPlan plan;
  float* x = nullptr;
  void* h = nullptr;
  void* rows = nullptr;         // by place: rows, then results
  void* act = nullptr;
  float* logits = nullptr;

  template <typename T>
  T* get(int64_t count) {
    auto memory = DeviceBuffer::allocate(std::max<int64_t>(count, 1) * sizeof(T), "a test of experts");
    if (!memory.ok()) {
      std::fprintf(stderr, "%s\n", memory.status().message().c_str());
      std::abort();
    }
    must(cudaMemset(memory->template as<void>(), 0xff, std::max<int64_t>(count, 1) * sizeof(T)));
    memory_.push_back(std::move(*memory));
    return memory_.back().template as<T>();
  }

 private:
  RandomMatrix rule(int expert, int matrix) const {
    const auto cols = static_cast<float>(matrix == 2 ? shape_.ffn : shape_.hidden);
    return {mixed_bits(static_cast<uint64_t>(expert) * 3 + matrix + 1), 1.7f / std::sqrt(cols)};
  }

  // Any code but NaN's.
  uint8_t code(int expert, int matrix, int64_t row, int64_t col) const {
    const int64_t cols = matrix == 2 ? shape_.ffn : shape_.hidden;
    const auto bits = static_cast<uint8_t>(mixed_bits(rule(expert, matrix).base + static_cast<uint64_t>(row * cols + col)) >> 40);
    return (bits & 0x7f) == 0x7f ? bits ^ 1 : bits;
  }
  float scale(int expert, int matrix, int64_t row, int64_t col) const {
    const float cols = static_cast<float>(matrix == 2 ? shape_.ffn : shape_.hidden);
    const bool by_row = shape_.scaling == Fp8Scaling::row;
    const int64_t of = by_row ? row : row / kFp8Block * 5 + col / kFp8Block;
    return static_cast<float>(1 + (of + expert + matrix) % 7) * 0.003f / std::sqrt(cols);
  }
  void fill_fp8() {
    gate_up.dtype = down.dtype = DType::fp8_e4m3;
    gate_up.scaling = down.scaling = shape_.scaling;
    std::vector<const float*> gate_up_scales, down_scales;
    for (int e = 0; e < shape_.experts; ++e) {
      fill_fp8_matrix(e, gate_up, gate_up_scales);
      fill_fp8_matrix(e, down, down_scales);
    }
    for (auto [weights, scales] : {std::pair(&gate_up, &gate_up_scales), std::pair(&down, &down_scales)}) {
      auto** const out = get<const float*>(shape_.experts);
      must(cudaMemcpy(out, scales->data(), scales->size() * sizeof(float*), cudaMemcpyHostToDevice));
      weights->scales = out;
    }
  }
  void fill_codes(int expert, const ExpertWeights& weights) {
    char* const first = static_cast<char*>(const_cast<void*>(weights.data));
    char* const to = first + expert * weights.stride_bytes;
    if (shape_.alike && expert > 0) return must(cudaMemcpy(to, first, weights.stride_bytes, cudaMemcpyDeviceToDevice));
    const bool glu = &weights == &gate_up;
    std::vector<uint8_t> codes(weights.rows * weights.cols);
    for (int64_t row = 0; row < weights.rows; ++row) {
      const int64_t of = glu ? row / 16 * 8 + row % 8 : row;
      for (int64_t c = 0; c < weights.cols; ++c) codes[row * weights.cols + c] = code(expert, glu ? static_cast<int>(row / 8 % 2) : 2, of, c);
    }
    must(cudaMemcpy(to, codes.data(), codes.size(), cudaMemcpyHostToDevice));
  }
  void fill_fp8_matrix(int expert, const ExpertWeights& weights, std::vector<const float*>& scales) {
    const bool glu = &weights == &gate_up;
    fill_codes(expert, weights);
    const bool by_row = shape_.scaling == Fp8Scaling::row;
    const int64_t stride = by_row ? 1 : fp8_scale_stride(weights.cols), step = by_row ? 1 : kFp8Block;
    std::vector<float> values;
    for (int64_t row = 0; row < weights.rows; row += step) {  // gate's, then up's
      const int matrix = !glu ? 2 : row < shape_.ffn ? 0 : 1;
      for (int64_t c = 0; c < stride; ++c) values.push_back(scale(expert, matrix, row - (matrix == 1 ? shape_.ffn : 0), c * kFp8Block));
    }
    float* const out = get<float>(static_cast<int64_t>(values.size()));
    must(cudaMemcpy(out, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
    scales.push_back(out);
  }

  ExpertShape shape_;
  std::vector<DeviceBuffer> memory_;
};

template <typename T>
std::vector<T> from_device(const T* data, size_t count) {
  std::vector<T> out(count);
  must(cudaDeviceSynchronize());
  must(cudaMemcpy(out.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
  return out;
}

template <typename T>
void to_device(const std::vector<T>& data, void* to) {
  must(cudaMemcpy(to, data.data(), data.size() * sizeof(T), cudaMemcpyHostToDevice));
}

}  // namespace warpweave::gpu
