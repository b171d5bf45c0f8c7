// NVIDIA's libraries, opened when first used, so that the program starts without them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "warpweave/status.h"

namespace warpweave {

// A shared library that stays open to the program's end. Looks in the loader's path, CUDA_HOME and
// the usual folders of the toolkit and of NVIDIA's Python packages.
class SharedLibrary {
 public:
  // `unsupported`, naming the library and how to get it, when none of `names` can be opened.
  static Result<SharedLibrary> open(std::initializer_list<std::string_view> names);
  // Null when the library has no such function.
  void* find(const char* function) const;
  const std::string& path() const { return path_; }

 private:
  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace warpweave
