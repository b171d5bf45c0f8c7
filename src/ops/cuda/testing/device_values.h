// For tests on a GPU: values into its memory and back. Blocking; failures are the test's.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "device/cuda/memory.h"

namespace warpweave::gpu {

inline DeviceBuffer on_device(const void* data, size_t size_bytes) {
  DeviceBuffer out = DeviceBuffer::allocate(size_bytes, "a test").value();
  if (size_bytes == 0) return out;
  EXPECT_EQ(cudaMemcpy(out.as<void>(), data, size_bytes, cudaMemcpyHostToDevice), cudaSuccess);
  return out;
}
template <typename T>
DeviceBuffer on_device(const std::vector<T>& data) {
  return on_device(data.data(), data.size() * sizeof(T));
}

template <typename T>
std::vector<T> from_device(const DeviceBuffer& memory, size_t count) {
  std::vector<T> out(count);
  EXPECT_EQ(cudaMemcpy(out.data(), memory.as<void>(), count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  return out;
}

}  // namespace warpweave::gpu
