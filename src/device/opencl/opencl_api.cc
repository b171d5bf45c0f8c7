#include "device/opencl/opencl_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

namespace warpweave::opencl {
namespace {

std::string how_to_install() {
  return "install an OpenCL driver, on Debian for the CPU: apt-get install ocl-icd-libopencl1 "
         "pocl-opencl-icd";
}

// PoCL ends the process where it cannot read the machine's layout, as in a root without /sys.
Status check_sysfs() {
  if (std::filesystem::exists("/sys/devices/system/cpu")) return {};
  return Status::unsupported(
      "OpenCL drivers read /sys, which is not mounted here; mount it: mount -t sysfs sys /sys");
}

Result<Api> load() {
  // PoCL would compile each kernel a second time at its first launch, for that launch's grid: seconds
  // that these kernels gain nothing from and that no cached program could save.
  ::setenv("POCL_WORK_GROUP_SPECIALIZATION", "0", 0);
  WW_RETURN_IF_ERROR(check_sysfs());
  void* library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status::unsupported("there is no libOpenCL.so.1 on this machine; " + how_to_install());
  }
  Api api;
#define WW_OPENCL_LOAD(name)                                                             \
  api.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));                 \
  if (api.name == nullptr) {                                                             \
    return Status::unsupported("libOpenCL.so.1 has no " #name "; OpenCL 1.2 is needed"); \
  }
  WW_OPENCL_FUNCTIONS(WW_OPENCL_LOAD)
#undef WW_OPENCL_LOAD
  return api;
}

}  // namespace

Result<Api*> changeable_api() {
  static Result<Api> loaded = load();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

Result<const Api*> api() {
  WW_ASSIGN_OR_RETURN(const Api* loaded, changeable_api());
  return loaded;
}

Status look_for_drivers() {
  WW_RETURN_IF_ERROR(check_sysfs());
  // Variables of the loaders that name drivers elsewhere: then only loading can tell.
  for (const char* name : {"OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH", "OCL_ICD_VENDORS"}) {
    if (std::getenv(name) != nullptr) return {};
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/etc/OpenCL/vendors", error)) {
    if (entry.path().extension() == ".icd") return {};
  }
  return Status::unsupported("there is no OpenCL driver in /etc/OpenCL/vendors; " + how_to_install());
}

std::string error_text(cl_int error) {
  std::string_view name = "error";
  switch (error) {
    case CL_DEVICE_NOT_FOUND: name = "CL_DEVICE_NOT_FOUND"; break;
    case CL_DEVICE_NOT_AVAILABLE: name = "CL_DEVICE_NOT_AVAILABLE"; break;
    case CL_COMPILER_NOT_AVAILABLE: name = "CL_COMPILER_NOT_AVAILABLE"; break;
    case CL_OUT_OF_RESOURCES: name = "CL_OUT_OF_RESOURCES"; break;
    case CL_OUT_OF_HOST_MEMORY: name = "CL_OUT_OF_HOST_MEMORY"; break;
    case CL_BUILD_PROGRAM_FAILURE: name = "CL_BUILD_PROGRAM_FAILURE"; break;
    case CL_INVALID_VALUE: name = "CL_INVALID_VALUE"; break;
    case CL_INVALID_BINARY: name = "CL_INVALID_BINARY"; break;
    case CL_INVALID_BUILD_OPTIONS: name = "CL_INVALID_BUILD_OPTIONS"; break;
    case CL_INVALID_KERNEL_ARGS: name = "CL_INVALID_KERNEL_ARGS"; break;
    case CL_INVALID_WORK_GROUP_SIZE: name = "CL_INVALID_WORK_GROUP_SIZE"; break;
    case -1001: name = "CL_PLATFORM_NOT_FOUND_KHR"; break;
  }
  return fmt::format("{} ({})", name, error);
}

}  // namespace warpweave::opencl
