// The OpenCL device that this process runs kernels on, opened once for all who use as many threads, with the programs
// built for it.
//
// Thread-safety: get() may be called by any thread; all else with the mutex held.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/opencl/opencl_device.h"
#include "device/opencl/opencl_program.h"

namespace warpweave::opencl {

class SharedDevice {
 public:
  // The first device, CPUs before others; lives until the process ends. Errors: those of devices() and Device::open().
  static Result<std::shared_ptr<SharedDevice>> get(int threads);

  explicit SharedDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  Device& device() { return *device_; }
  std::mutex& mutex() { return mutex_; }
  // Built when first asked for.
  Result<Program*> program(const ProgramSource& source);

 private:
  std::mutex mutex_;
  std::unique_ptr<Device> device_;
  ProgramCache cache_{ProgramCache::default_folder()};
  std::map<std::string, std::unique_ptr<Program>> programs_;  // by options and text
};

}  // namespace warpweave::opencl
