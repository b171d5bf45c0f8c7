// NVRTC, NVIDIA's run-time compiler: CUDA C to machine code of one architecture. Opened when first
// used (library.h says where it is looked for); needs no GPU. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

struct NvrtcSource {
  std::string text;
  std::vector<std::string> defines;  // "TILE_M=64"
  int compute_capability = 90;       // 90: sm_90
};

class Nvrtc {
 public:
  // Opened once. `unsupported`, with what to install, where there is none.
  static Result<const Nvrtc*> get();

  // "13.0": code of one version is not taken for that of another.
  const std::string& version() const { return version_; }
  // The cubin. `internal` with the compiler's first messages when the text does not compile.
  Result<std::string> compile(const NvrtcSource& source) const;

 private:
  using Program = struct NvrtcProgramHandle*;
  static Result<Nvrtc> open();
  std::string error_text(int code) const;
  std::string log_of(Program program) const;

  std::string version_;
  int (*create_)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*destroy_)(Program*) = nullptr;
  int (*compile_)(Program, int, const char* const*) = nullptr;
  int (*cubin_size_)(Program, size_t*) = nullptr;
  int (*cubin_)(Program, char*) = nullptr;
  int (*log_size_)(Program, size_t*) = nullptr;
  int (*log_)(Program, char*) = nullptr;
  const char* (*error_string_)(int) = nullptr;
};

// Options of the compiler, as NvrtcSource asks for them.
std::vector<std::string> nvrtc_options(const NvrtcSource& source);

}  // namespace warpweave
