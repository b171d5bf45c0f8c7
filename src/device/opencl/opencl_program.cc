#include "device/opencl/opencl_program.h"

#include <fmt/format.h>

#include <chrono>

namespace warpweave::opencl {
namespace {

constexpr size_t kMaxLogChars = 4000;

std::string cache_key(const DeviceInfo& info, const ProgramSource& source) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", info.platform, info.name, info.version,
                     info.compute_units, source.options, source.text);
}

}  // namespace

Result<std::unique_ptr<Program>> Program::build(Device& device, const ProgramSource& source,
                                                const ProgramCache& cache) {
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<Program> program(new Program(device));
  WW_ASSIGN_OR_RETURN(program->api_, opencl::api());
  const std::string key = cache_key(device.info(), source);
  if (const auto binary = cache.load(key)) {
    program->from_cache_ = program->build_from_binary(source, *binary);
  }
  if (!program->from_cache_) {
    WW_RETURN_IF_ERROR(program->build_from_source(source));
    cache.store(key, program->binary());
  }
  program->build_seconds_ =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return program;
}

Status Program::build_from_source(const ProgramSource& source) {
  const char* text = source.text.data();
  const size_t length = source.text.size();
  cl_int error = CL_SUCCESS;
  program_ = api_->clCreateProgramWithSource(device_.context(), 1, &text, &length, &error);
  const cl_device_id id = device_.id();
  if (error == CL_SUCCESS) {
    error = api_->clBuildProgram(program_, 1, &id, source.options.c_str(), nullptr, nullptr);
  }
  if (error == CL_SUCCESS) return {};
  std::string log;
  size_t bytes = 0;
  if (program_ != nullptr && api_->clGetProgramBuildInfo(program_, id, CL_PROGRAM_BUILD_LOG, 0,
                                                         nullptr, &bytes) == CL_SUCCESS) {
    log.resize(bytes);
    api_->clGetProgramBuildInfo(program_, id, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr);
    while (!log.empty() && log.back() == '\0') log.pop_back();
    if (log.size() > kMaxLogChars) log.resize(kMaxLogChars);
  }
  return Status::internal(fmt::format("kernels do not build on OpenCL device {}: {}; options: {}\n{}",
                                      device_.info().name, error_text(error), source.options, log));
}

bool Program::build_from_binary(const ProgramSource& source, const std::string& binary) {
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t length = binary.size();
  const cl_device_id id = device_.id();
  cl_int error = CL_SUCCESS, loaded = CL_SUCCESS;
  program_ = api_->clCreateProgramWithBinary(device_.context(), 1, &id, &length, &data, &loaded,
                                             &error);
  if (error == CL_SUCCESS && loaded == CL_SUCCESS &&
      api_->clBuildProgram(program_, 1, &id, source.options.c_str(), nullptr, nullptr) ==
          CL_SUCCESS) {
    return true;
  }
  if (program_ != nullptr) api_->clReleaseProgram(program_);
  program_ = nullptr;
  return false;
}

std::string Program::binary() const {
  size_t bytes = 0;
  if (api_->clGetProgramInfo(program_, CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, nullptr) !=
      CL_SUCCESS) {
    return {};
  }
  std::string binary(bytes, '\0');
  auto* data = reinterpret_cast<unsigned char*>(binary.data());
  if (api_->clGetProgramInfo(program_, CL_PROGRAM_BINARIES, sizeof(data), &data, nullptr) !=
      CL_SUCCESS) {
    return {};
  }
  return binary;
}

Result<cl_kernel> Program::kernel(std::string_view name) {
  if (const auto found = kernels_.find(name); found != kernels_.end()) return found->second;
  cl_int error = CL_SUCCESS;
  const cl_kernel kernel = api_->clCreateKernel(program_, std::string(name).c_str(), &error);
  if (error != CL_SUCCESS) {
    return Status::internal(fmt::format("OpenCL kernel {} is not there: {}", name, error_text(error)));
  }
  kernels_.emplace(name, kernel);
  return kernel;
}

Program::~Program() {
  for (const auto& [name, kernel] : kernels_) api_->clReleaseKernel(kernel);
  if (program_ != nullptr) api_->clReleaseProgram(program_);
}

}  // namespace warpweave::opencl
