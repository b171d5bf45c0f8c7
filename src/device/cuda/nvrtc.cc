#include "device/cuda/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "device/cuda/library.h"

namespace warpweave {
namespace {

constexpr size_t kMaxLogChars = 4000;

// NVRTC opens its builtins by name when it first compiles; where it was found by path, the loader
// would not find them.
void open_builtins(void* function, int major, int minor) {
  Dl_info info;
  if (dladdr(function, &info) == 0) return;
  const auto folder = std::filesystem::path(info.dli_fname).parent_path();
  dlopen((folder / fmt::format("libnvrtc-builtins.so.{}.{}", major, minor)).c_str(), RTLD_NOW | RTLD_GLOBAL);
}

}  // namespace

std::vector<std::string> nvrtc_options(const NvrtcSource& source) {
  std::vector<std::string> options = {fmt::format("--gpu-architecture=sm_{}", source.compute_capability),
                                      "--std=c++17"};
  for (const std::string& define : source.defines) options.push_back("-D" + define);
  return options;
}

Result<const Nvrtc*> Nvrtc::get() {
  static const Result<Nvrtc> opened = open();
  if (!opened.ok()) return opened.status();
  return &*opened;
}

Result<Nvrtc> Nvrtc::open() {
  const Result<SharedLibrary> library =
      SharedLibrary::open({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  if (!library.ok()) {
    return Status::unsupported(
        "its kernels are compiled when they are first used, by NVIDIA's NVRTC (libnvrtc.so.13 or .12), which "
        "was not found; install the CUDA toolkit, or nvidia-cuda-nvrtc into the active Python environment, "
        "or put its folder into LD_LIBRARY_PATH",
        "--attention-backend");
  }
  Nvrtc nvrtc;
  bool complete = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library->find(name));
    complete = complete && function != nullptr;
  };
  int (*version)(int*, int*) = nullptr;
  find(version, "nvrtcVersion");
  find(nvrtc.create_, "nvrtcCreateProgram");
  find(nvrtc.destroy_, "nvrtcDestroyProgram");
  find(nvrtc.compile_, "nvrtcCompileProgram");
  find(nvrtc.cubin_size_, "nvrtcGetCUBINSize");
  find(nvrtc.cubin_, "nvrtcGetCUBIN");
  find(nvrtc.log_size_, "nvrtcGetProgramLogSize");
  find(nvrtc.log_, "nvrtcGetProgramLog");
  find(nvrtc.error_string_, "nvrtcGetErrorString");
  int major = 0, minor = 0;
  if (!complete || version(&major, &minor) != 0 || major < 12) {
    return Status::unsupported(library->path() + " is older than CUDA 12, or no NVRTC; install a newer CUDA toolkit",
                               "--attention-backend");
  }
  nvrtc.version_ = fmt::format("{}.{}", major, minor);
  open_builtins(reinterpret_cast<void*>(version), major, minor);
  return nvrtc;
}

std::string Nvrtc::error_text(int code) const { return fmt::format("{} ({})", error_string_(code), code); }

std::string Nvrtc::log_of(Program program) const {
  size_t bytes = 0;
  if (log_size_(program, &bytes) != 0 || bytes <= 1) return {};
  std::string text(bytes, '\0');
  log_(program, text.data());
  text.resize(std::min(bytes - 1, kMaxLogChars));
  return text;
}

Result<std::string> Nvrtc::compile(const NvrtcSource& source) const {
  Program program = nullptr;
  int code = create_(&program, source.text.c_str(), "kernels.cu", 0, nullptr, nullptr);
  if (code != 0) return Status::internal("NVRTC: " + error_text(code));
  const auto destroy = [this](Program p) { destroy_(&p); };
  const std::unique_ptr<std::remove_pointer_t<Program>, decltype(destroy)> owner(program, destroy);

  const std::vector<std::string> options = nvrtc_options(source);
  std::vector<const char*> pointers;
  for (const std::string& option : options) pointers.push_back(option.c_str());
  code = compile_(program, static_cast<int>(pointers.size()), pointers.data());
  if (code != 0) {
    return Status::internal(fmt::format("NVRTC {} does not compile kernels for sm_{}: {}\n{}", version_,
                                        source.compute_capability, error_text(code), log_of(program)));
  }
  size_t bytes = 0;
  code = cubin_size_(program, &bytes);
  std::string cubin(bytes, '\0');
  if (code == 0) code = cubin_(program, cubin.data());
  if (code != 0 || bytes == 0) return Status::internal("NVRTC gave no machine code: " + error_text(code));
  return cubin;
}

}  // namespace warpweave
