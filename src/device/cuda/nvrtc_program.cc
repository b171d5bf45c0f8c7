#include "device/cuda/nvrtc_program.h"

#include <fmt/format.h>

#include <chrono>

#include "device/cuda/cuda_check.h"

namespace warpweave {
namespace {

// The parts of the driver that the runtime has no form of before CUDA 12.8.
struct Driver {
  CUresult (*load_module)(CUmodule*, const void*) = nullptr;
  CUresult (*unload_module)(CUmodule) = nullptr;
  CUresult (*get_function)(CUfunction*, CUmodule, const char*) = nullptr;
  CUresult (*set_attribute)(CUfunction, CUfunction_attribute, int) = nullptr;
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                     void**, void**) = nullptr;
  CUresult (*error_string)(CUresult, const char**) = nullptr;
};

Result<Driver> find_driver() {
  Driver driver;
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      missing = name;
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find(driver.load_module, "cuModuleLoadData");
  find(driver.unload_module, "cuModuleUnload");
  find(driver.get_function, "cuModuleGetFunction");
  find(driver.set_attribute, "cuFuncSetAttribute");
  find(driver.launch, "cuLaunchKernel");
  find(driver.error_string, "cuGetErrorString");
  if (missing.empty()) return driver;
  return Status::unsupported("the NVIDIA driver has no " + missing + "; update it, or use --device cpu", "--device");
}

Result<const Driver*> driver() {
  static const Result<Driver> found = find_driver();
  if (!found.ok()) return found.status();
  return &*found;
}

Status driver_status(const Driver& api, CUresult code, std::string_view what) {
  if (code == CUDA_SUCCESS) return {};
  const char* text = nullptr;
  api.error_string(code, &text);
  return Status::internal(fmt::format("{}: the driver says {}", what, text != nullptr ? text : "an unknown error"));
}

std::string cache_key(const NvrtcSource& source, const std::string& version) {
  std::string key = "NVRTC " + version;
  for (const std::string& option : nvrtc_options(source)) key += "\n" + option;
  return key + "\n" + source.text;
}

}  // namespace

Result<std::unique_ptr<NvrtcProgram>> NvrtcProgram::build(const NvrtcSource& source, const ProgramCache& cache) {
  const auto start = std::chrono::steady_clock::now();
  WW_ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::get());
  // Makes the primary context this thread's.
  WW_CUDA_RETURN_IF_ERROR(cudaFree(nullptr), "opening the GPU");
  std::unique_ptr<NvrtcProgram> program(new NvrtcProgram);
  const std::string key = cache_key(source, nvrtc->version());
  if (const auto cubin = cache.load(key)) program->from_cache_ = program->load(*cubin).ok();
  if (!program->from_cache_) {
    WW_ASSIGN_OR_RETURN(const std::string cubin, nvrtc->compile(source));
    WW_RETURN_IF_ERROR(program->load(cubin));
    cache.store(key, cubin);
  }
  program->build_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return program;
}

Status NvrtcProgram::load(const std::string& cubin) {
  WW_ASSIGN_OR_RETURN(const Driver* api, driver());
  return driver_status(*api, api->load_module(&module_, cubin.data()), "loading compiled kernels");
}

NvrtcProgram::~NvrtcProgram() {
  if (module_ != nullptr) (*driver())->unload_module(module_);
}

Result<CUfunction> NvrtcProgram::kernel(const char* name, size_t shared_bytes) const {
  WW_ASSIGN_OR_RETURN(const Driver* api, driver());
  CUfunction function = nullptr;
  WW_RETURN_IF_ERROR(driver_status(*api, api->get_function(&function, module_, name), name));
  WW_RETURN_IF_ERROR(driver_status(*api, api->set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                            static_cast<int>(shared_bytes)),
                                   name));
  return function;
}

Status launch_kernel(CUfunction kernel, const KernelGrid& grid, void* argument, cudaStream_t stream) {
  WW_ASSIGN_OR_RETURN(const Driver* api, driver());
  void* arguments[] = {argument};
  return driver_status(*api, api->launch(kernel, grid.x, grid.y, grid.z, grid.threads, 1, 1, grid.shared_bytes, stream,
                                         arguments, nullptr),
                       "a kernel launch");
}

}  // namespace warpweave
