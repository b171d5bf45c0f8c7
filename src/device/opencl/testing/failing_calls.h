// Failures of an OpenCL driver, for tests: the so many-th call that starts kernels or waits for them.
#pragma once

#include <gtest/gtest.h>

#include <atomic>

#include "device/opencl/opencl_api.h"

namespace warpweave::opencl {

// One at a time, where OpenCL is. Calls of any thread count.
class FailingCalls {
 public:
  FailingCalls() {
    const Result<Api*> found = changeable_api();
    EXPECT_TRUE(found.ok()) << found.status().message();
    api_ = *found;
    real() = *api_;
    left() = 0;
    api_->clEnqueueNDRangeKernel = [](auto... arguments) -> cl_int {
      return fails() ? CL_OUT_OF_RESOURCES : real().clEnqueueNDRangeKernel(arguments...);
    };
    api_->clFinish = [](cl_command_queue queue) -> cl_int {
      const cl_int error = real().clFinish(queue);
      return fails() ? CL_OUT_OF_RESOURCES : error;
    };
  }
  ~FailingCalls() { *api_ = real(); }
  FailingCalls(const FailingCalls&) = delete;
  FailingCalls& operator=(const FailingCalls&) = delete;

  // The so many-th from now on; 0: none.
  void fail_in(int calls) { left() = calls; }
  // Whether it came to the call that fails.
  bool failed() const { return left() <= 0; }

 private:
  static Api& real() {
    static Api api;
    return api;
  }
  static std::atomic<int>& left() {
    static std::atomic<int> calls;
    return calls;
  }
  static bool fails() { return left()-- == 1; }

  Api* api_ = nullptr;
};

}  // namespace warpweave::opencl
