// The device that a serving test runs on: the same tests are built for the CPU and, with WW_TEST_ON_GPU, for a GPU.
#pragma once

#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "flags/server_args.h"

namespace warpweave {

// Serves in f32 where the test names no type, so that texts compare. On the CPU, pages that are given back are
// overwritten at once.
inline void serve_on_test_device(ServerArgs& args) {
  if (args.dtype == "auto") args.dtype = "float32";
#ifdef WW_TEST_ON_GPU
  args.device = "cuda";
#else
  args.device = "cpu";
  args.enable_kv_canary = true;
#endif
}

// For requests that come as ids, on one thread.
inline ServerArgs ids_only_args(const std::string& model_path, const std::string& dtype) {
  ServerArgs args;
  args.dtype = dtype;
  serve_on_test_device(args);
  args.model_path = model_path;
  args.skip_tokenizer_init = true;
  args.threads = 1;
  return args;
}

// Empty, or why the tests of this file cannot run here.
inline std::string no_test_device() {
#ifdef WW_TEST_ON_GPU
  const auto gpu = probe_cuda_device();
  return gpu.ok() ? "" : gpu.status().message();
#else
  return "";
#endif
}

}  // namespace warpweave
