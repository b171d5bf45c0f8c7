// OpenCL devices of this machine, and one opened for running kernels.
//
// Memory: kernels get plain addresses of this process, as integers inside their argument, so every
// array is shared without copies, registration or a size limit. That is right on CPU devices, whose
// kernels run in this process, and on devices with fine-grained system SVM; DeviceInfo says which
// devices have it, and others are refused.
// Thread-safety: devices() may be called by any thread; a Device belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "device/opencl/opencl_api.h"
#include "warpweave/status.h"

namespace warpweave::opencl {

enum class DeviceKind { cpu, gpu, other };

struct DeviceInfo {
  cl_device_id id = nullptr;
  DeviceKind kind = DeviceKind::other;
  std::string name;               // "AMD EPYC"
  std::string platform;           // "Portable Computing Language"
  std::string version;            // of platform and driver; part of the key of cached programs
  int compute_units = 0;
  int native_float_width = 0;     // floats in a vector register; 1 on GPUs
  size_t local_memory_bytes = 0;
  size_t global_memory_bytes = 0;
  bool intel_subgroups = false;   // cl_intel_subgroups with a required sub-group size
  bool intel_matrix = false;      // those, and matrix units on sub-groups of 16
  bool shares_addresses = false;  // kernels may follow this process's pointers
};

// Every device of every platform, CPUs first; `unsupported` without OpenCL or without any device.
Result<std::vector<DeviceInfo>> devices();

// `unsupported` for a device that cannot read this process's memory in place.
Status check_shares_addresses(const DeviceInfo& info);

// A grid of work-groups.
struct Grid {
  size_t groups[3] = {1, 1, 1};
  size_t work_items = 1;  // per group, along the first dimension
};

// What the driver gave for an opened device.
struct DeviceHandles {
  cl_device_id id = nullptr;  // the device, or a sub-device where only a part of it is used
  cl_context context = nullptr;
  cl_command_queue queue = nullptr;
  int asked_units = 0;
  int compute_units = 0;  // more than asked where the driver cannot split its device
};

// The driver's handles are kept when a Device goes and taken again by the next like it.
class Device {
 public:
  // On a CPU device at most `max_threads` compute units run kernels (0: all of them).
  static Result<std::unique_ptr<Device>> open(const DeviceInfo& info, int max_threads);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  cl_device_id id() const { return handles_.id; }
  cl_context context() const { return handles_.context; }

  // Starts `kernel` with one argument, passed by value, after what was started before. When it fails, that has ended:
  // memory that it used is the caller's again.
  Status launch(cl_kernel kernel, const void* argument, size_t argument_bytes, const Grid& grid);
  // Waits until everything started has ended.
  Status finish();

 private:
  Device(const DeviceInfo& info, const Api& api, const DeviceHandles& handles);

  DeviceInfo info_;
  const Api* api_;
  DeviceHandles handles_;
};

}  // namespace warpweave::opencl
