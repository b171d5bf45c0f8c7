// What the GPU benchmarks share. An error is printed and ends the program: check(), take().
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "device/cuda/graph.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave::bench {

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "CUDA: {}\n", cudaGetErrorString(error));
  std::exit(1);
}

inline void check(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "{}\n", status.message());
  std::exit(1);
}

template <typename T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

// Normal numbers: a random block of an odd length, again and again.
struct Matrix {
  std::vector<uint16_t> block;
  DType dtype = DType::bf16;
  DeviceBuffer memory;
  double at(size_t i) const {
    const uint16_t bits = block[i % block.size()];
    return dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
};

inline Matrix random_matrix(size_t count, float scale, DType dtype = DType::bf16) {
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal(0, scale);
  Matrix out = {std::vector<uint16_t>((size_t{1} << 20) + 331), dtype, take(DeviceBuffer::allocate(count * 2, "a benchmark"))};
  for (uint16_t& x : out.block) x = dtype == DType::bf16 ? f32_to_bf16(normal(random)) : f32_to_f16(normal(random));
  uint16_t* const to = out.memory.as<uint16_t>();
  size_t filled = std::min(out.block.size(), count);
  check(cudaMemcpy(to, out.block.data(), filled * 2, cudaMemcpyHostToDevice));
  for (; filled < count; filled *= 2) {
    check(cudaMemcpy(to + filled, to, std::min(filled, count - filled) * 2, cudaMemcpyDeviceToDevice));
  }
  return out;
}

template <typename Enqueue>
CudaGraphExec graph_of(cudaStream_t stream, const Enqueue& enqueue) {
  return take(capture_graph(stream, "a benchmark", [&] {
    enqueue();
    return Status();
  }));
}

// Microseconds of one of the `launches` that `enqueue` makes on `stream`: the median of kReplays replays of a graph of
// them, after they have run once.
template <typename Enqueue>
double time_us(cudaStream_t stream, int launches, const Enqueue& enqueue) {
  constexpr int kReplays = 9;
  enqueue();
  check(cudaStreamSynchronize(stream));
  const CudaGraphExec exec = graph_of(stream, enqueue);
  CudaEvent begin, end;
  check(cudaEventCreate(begin.out()));
  check(cudaEventCreate(end.out()));
  std::vector<float> times;
  for (int i = 0; i < kReplays; ++i) {
    check(cudaEventRecord(begin.get(), stream));
    check(cudaGraphLaunch(exec.get(), stream));
    check(cudaEventRecord(end.get(), stream));
    check(cudaEventSynchronize(end.get()));
    check(cudaEventElapsedTime(&times.emplace_back(), begin.get(), end.get()));
  }
  std::sort(times.begin(), times.end());
  return times[kReplays / 2] * 1e3 / launches;
}

}  // namespace warpweave::bench
