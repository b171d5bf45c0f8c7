// Compilers that tests run on text for devices that are not there: commands, and which are installed. Header-only.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "base/testing/temporary_folder.h"

namespace warpweave {

// Exit status and what was printed.
struct CompilerRun {
  int status = -1;
  std::string text;
};

inline CompilerRun run_compiler(const std::string& command) {
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  CompilerRun run;
  run.status = std::system((command + " >" + log + " 2>&1").c_str());
  std::ostringstream text;
  text << std::ifstream(log).rdbuf();
  run.text = text.str();
  return run;
}

// Empty: there is none.
inline std::string find_nvcc() {
  for (const char* path : {"nvcc", "/usr/local/cuda/bin/nvcc"}) {
    if (run_compiler(std::string(path) + " --version").status == 0) return path;
  }
  return {};
}
// A clang with the code generator of an AMD GPU.
inline std::string find_hip_clang(const std::string& arch) {
  for (const char* name : {"clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang"}) {
    const std::string probe = std::string("echo | ") + name + " -x hip -nogpuinc -nogpulib " + "--offload-arch=" + arch +
                              " --cuda-device-only -S -o /dev/null -";
    if (run_compiler(probe).status == 0) return name;
  }
  return {};
}

}  // namespace warpweave
