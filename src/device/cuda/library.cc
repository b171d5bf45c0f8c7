#include "device/cuda/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace warpweave {
namespace {

namespace fs = std::filesystem;

// nvidia/<part>/lib below every site-packages folder of a Python environment.
void add_python_folders(const std::string& environment, std::vector<std::string>& folders) {
  std::error_code error;
  for (const auto& python : fs::directory_iterator(environment + "/lib", error)) {
    const fs::path nvidia = python.path() / "site-packages/nvidia";
    for (const auto& part : fs::directory_iterator(nvidia, error)) {
      folders.push_back((part.path() / "lib").string());
    }
  }
}

std::vector<std::string> library_folders() {
  std::vector<std::string> folders = {""};
  if (const char* home = std::getenv("CUDA_HOME")) folders.push_back(std::string(home) + "/lib64");
  folders.push_back("/usr/local/cuda/lib64");
  folders.push_back("/usr/local/cuda/targets/x86_64-linux/lib");
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* environment = std::getenv(variable)) add_python_folders(environment, folders);
  }
  folders.push_back(WARPWEAVE_TOOLKIT_LIBRARIES);  // of the toolkit that built this program
  return folders;
}

}  // namespace

Result<SharedLibrary> SharedLibrary::open(std::initializer_list<std::string_view> names) {
  SharedLibrary out;
  for (const std::string& folder : library_folders()) {
    for (std::string_view name : names) {
      out.path_ = folder.empty() ? std::string(name) : folder + "/" + std::string(name);
      out.handle_ = dlopen(out.path_.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (out.handle_ != nullptr) return out;
    }
  }
  const std::string name(*names.begin());
  return Status::unsupported(name + " was not found; install the CUDA toolkit's libraries, put their "
                             "folder into LD_LIBRARY_PATH, or use --device cpu", "--device");
}

void* SharedLibrary::find(const char* function) const { return dlsym(handle_, function); }

}  // namespace warpweave
