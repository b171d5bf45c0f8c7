// A program built for one device, from its cached binary where there is one, else from source.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "device/opencl/opencl_device.h"
#include "device/program_cache.h"
#include "warpweave/status.h"

namespace warpweave::opencl {

struct ProgramSource {
  std::string text;
  std::string options;  // "-DTILE_M=64 ..."
};

class Program {
 public:
  // The device outlives the program. A failed build's Status holds the compiler's first messages.
  static Result<std::unique_ptr<Program>> build(Device& device, const ProgramSource& source,
                                                const ProgramCache& cache);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Result<cl_kernel> kernel(std::string_view name);  // owned by the program
  bool from_cache() const { return from_cache_; }
  double build_seconds() const { return build_seconds_; }

 private:
  explicit Program(Device& device) : device_(device) {}
  Status build_from_source(const ProgramSource& source);
  bool build_from_binary(const ProgramSource& source, const std::string& binary);
  std::string binary() const;

  Device& device_;
  const Api* api_ = nullptr;
  cl_program program_ = nullptr;
  std::map<std::string, cl_kernel, std::less<>> kernels_;
  bool from_cache_ = false;
  double build_seconds_ = 0;
};

}  // namespace warpweave::opencl
