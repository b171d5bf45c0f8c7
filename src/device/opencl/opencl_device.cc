#include "device/opencl/opencl_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace warpweave::opencl {
namespace {

std::string device_text(const Api& api, cl_device_id id, cl_device_info what) {
  size_t bytes = 0;
  if (api.clGetDeviceInfo(id, what, 0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return {};
  std::string text(bytes, '\0');
  if (api.clGetDeviceInfo(id, what, bytes, text.data(), nullptr) != CL_SUCCESS) return {};
  text.resize(bytes - 1);
  return text;
}

template <typename T>
T device_value(const Api& api, cl_device_id id, cl_device_info what) {
  T value{};
  if (api.clGetDeviceInfo(id, what, sizeof(value), &value, nullptr) != CL_SUCCESS) return T{};
  return value;
}

std::string platform_text(const Api& api, cl_platform_id id, cl_platform_info what) {
  size_t bytes = 0;
  if (api.clGetPlatformInfo(id, what, 0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return {};
  std::string text(bytes, '\0');
  if (api.clGetPlatformInfo(id, what, bytes, text.data(), nullptr) != CL_SUCCESS) return {};
  text.resize(bytes - 1);
  return text;
}

DeviceInfo describe(const Api& api, cl_platform_id platform, cl_device_id id) {
  DeviceInfo info;
  info.id = id;
  const auto type = device_value<cl_device_type>(api, id, CL_DEVICE_TYPE);
  info.kind = type & CL_DEVICE_TYPE_CPU   ? DeviceKind::cpu
              : type & CL_DEVICE_TYPE_GPU ? DeviceKind::gpu
                                          : DeviceKind::other;
  info.name = device_text(api, id, CL_DEVICE_NAME);
  info.platform = platform_text(api, platform, CL_PLATFORM_NAME);
  info.version = fmt::format("{} / {} / {}", platform_text(api, platform, CL_PLATFORM_VERSION),
                             device_text(api, id, CL_DEVICE_VERSION),
                             device_text(api, id, CL_DRIVER_VERSION));
  info.compute_units = static_cast<int>(device_value<cl_uint>(api, id, CL_DEVICE_MAX_COMPUTE_UNITS));
  info.native_float_width =
      static_cast<int>(device_value<cl_uint>(api, id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT));
  info.local_memory_bytes = device_value<cl_ulong>(api, id, CL_DEVICE_LOCAL_MEM_SIZE);
  info.global_memory_bytes = device_value<cl_ulong>(api, id, CL_DEVICE_GLOBAL_MEM_SIZE);
  const std::string extensions = device_text(api, id, CL_DEVICE_EXTENSIONS) + " ";
  const auto has = [&extensions](std::string_view name) {
    return extensions.find(std::string(name) + " ") != std::string::npos;
  };
  info.intel_subgroups = has("cl_intel_subgroups") && has("cl_intel_required_subgroup_size");
  // Devices whose matrix units are 8 lanes wide take other operand shapes.
  constexpr cl_device_info kSubGroupSizes = 0x4108;  // CL_DEVICE_SUB_GROUP_SIZES_INTEL
  size_t sizes[8] = {};
  size_t bytes = 0;
  if (info.intel_subgroups && has("cl_intel_subgroup_matrix_multiply_accumulate") &&
      api.clGetDeviceInfo(id, kSubGroupSizes, sizeof(sizes), sizes, &bytes) == CL_SUCCESS) {
    info.intel_matrix = bytes >= sizeof(size_t) && sizes[0] == 16;
  }
  const auto svm =
      device_value<cl_device_svm_capabilities>(api, id, CL_DEVICE_SVM_CAPABILITIES);
  info.shares_addresses =
      info.kind == DeviceKind::cpu || (svm & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM) != 0;
  return info;
}

// PoCL's worker threads still look at a kernel's queue, context and sub-device for a moment after
// clFinish has returned (a crash in POclReleaseEvent, PoCL 3.1), so none of them is ever released: a
// closed device's handles wait here for the next device of the same kind. Thread-safe.
class IdleHandles {
 public:
  using Key = std::pair<cl_device_id, int>;  // of the whole device, with the compute units asked for

  std::optional<DeviceHandles> take(const Key& key) {
    std::lock_guard lock(mutex_);
    const auto found = idle_.find(key);
    if (found == idle_.end()) return std::nullopt;
    const DeviceHandles handles = found->second;
    idle_.erase(found);
    return handles;
  }

  void put(const Key& key, const DeviceHandles& handles) {
    std::lock_guard lock(mutex_);
    idle_.emplace(key, handles);
  }

 private:
  std::mutex mutex_;
  std::multimap<Key, DeviceHandles> idle_;
};

IdleHandles& idle_handles() {
  static auto* handles = new IdleHandles;  // outlives every static Device
  return *handles;
}

Result<DeviceHandles> create_handles(const Api& api, const DeviceInfo& info, int compute_units) {
  DeviceHandles handles = {.id = info.id, .asked_units = compute_units,
                           .compute_units = info.compute_units};
  if (compute_units < info.compute_units) {
    const cl_device_partition_property parts[] = {CL_DEVICE_PARTITION_BY_COUNTS, compute_units,
                                                  CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
    cl_device_id part = nullptr;
    // Where the driver cannot split its device, all of it is used.
    if (api.clCreateSubDevices(info.id, parts, 1, &part, nullptr) == CL_SUCCESS) {
      handles.id = part;
      handles.compute_units = compute_units;
    }
  }
  cl_int error = CL_SUCCESS;
  handles.context = api.clCreateContext(nullptr, 1, &handles.id, nullptr, nullptr, &error);
  if (error == CL_SUCCESS) {
    handles.queue = api.clCreateCommandQueue(handles.context, handles.id, 0, &error);
  }
  if (error == CL_SUCCESS) return handles;
  // Nothing has run on these: they may go.
  if (handles.context != nullptr) api.clReleaseContext(handles.context);
  if (handles.id != info.id) api.clReleaseDevice(handles.id);
  return Status::unavailable(
      fmt::format("OpenCL device {} does not open: {}", info.name, error_text(error)));
}

}  // namespace

Result<std::vector<DeviceInfo>> devices() {
  WW_ASSIGN_OR_RETURN(const Api* api, opencl::api());
  cl_uint count = 0;
  std::vector<DeviceInfo> found;
  if (api->clGetPlatformIDs(0, nullptr, &count) == CL_SUCCESS && count > 0) {
    std::vector<cl_platform_id> platforms(count);
    if (api->clGetPlatformIDs(count, platforms.data(), nullptr) != CL_SUCCESS) platforms.clear();
    for (cl_platform_id platform : platforms) {
      cl_uint device_count = 0;
      if (api->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &device_count) !=
              CL_SUCCESS || device_count == 0) {
        continue;
      }
      std::vector<cl_device_id> ids(device_count);
      if (api->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, device_count, ids.data(), nullptr) !=
          CL_SUCCESS) {
        continue;
      }
      for (cl_device_id id : ids) found.push_back(describe(*api, platform, id));
    }
  }
  if (found.empty()) {
    return Status::unsupported(
        "the OpenCL library finds no device; install a driver, on Debian for the CPU: apt-get "
        "install pocl-opencl-icd");
  }
  std::stable_sort(found.begin(), found.end(), [](const DeviceInfo& a, const DeviceInfo& b) {
    return (a.kind == DeviceKind::cpu) > (b.kind == DeviceKind::cpu);
  });
  return found;
}

Status check_shares_addresses(const DeviceInfo& info) {
  if (info.shares_addresses) return {};
  return Status::unsupported(fmt::format(
      "OpenCL device {} cannot read this process's memory in place (no fine-grained system SVM)",
      info.name));
}

Result<std::unique_ptr<Device>> Device::open(const DeviceInfo& info, int max_threads) {
  WW_RETURN_IF_ERROR(check_shares_addresses(info));
  WW_ASSIGN_OR_RETURN(const Api* api, opencl::api());
  const bool split =
      info.kind == DeviceKind::cpu && max_threads > 0 && max_threads < info.compute_units;
  const int threads = split ? max_threads : info.compute_units;
  std::optional<DeviceHandles> handles = idle_handles().take({info.id, threads});
  if (!handles) {
    WW_ASSIGN_OR_RETURN(handles, create_handles(*api, info, threads));
  }
  return std::unique_ptr<Device>(new Device(info, *api, *handles));
}

Device::Device(const DeviceInfo& info, const Api& api, const DeviceHandles& handles)
    : info_(info), api_(&api), handles_(handles) {
  info_.compute_units = handles.compute_units;
}

Device::~Device() {
  api_->clFinish(handles_.queue);
  idle_handles().put({info_.id, handles_.asked_units}, handles_);
}

Status Device::launch(cl_kernel kernel, const void* argument, size_t argument_bytes,
                      const Grid& grid) {
  cl_int error = api_->clSetKernelArg(kernel, 0, argument_bytes, argument);
  if (error == CL_SUCCESS) {
    const size_t local[3] = {grid.work_items, 1, 1};
    const size_t global[3] = {grid.groups[0] * grid.work_items, grid.groups[1], grid.groups[2]};
    error = api_->clEnqueueNDRangeKernel(handles_.queue, kernel, 3, nullptr, global, local, 0, nullptr,
                                         nullptr);
  }
  if (error == CL_SUCCESS) return {};
  api_->clFinish(handles_.queue);
  return Status::internal(
      fmt::format("OpenCL device {} does not start a kernel: {}", info_.name, error_text(error)));
}

Status Device::finish() {
  const cl_int error = api_->clFinish(handles_.queue);
  if (error == CL_SUCCESS) return {};
  return Status::internal(fmt::format("a kernel failed on OpenCL device {}: {}", info_.name,
                                      error_text(error)));
}

}  // namespace warpweave::opencl
