// Models that are not part of the project: tests that want one are skipped where its folder does not exist.
#pragma once

#include <cstdlib>
#include <string>

namespace warpweave {

// The folder of the model, in WARPWEAVE_SHARED or else in ../shared.
inline std::string shared_model(const std::string& name) {
  const char* shared = std::getenv("WARPWEAVE_SHARED");
  return std::string(shared != nullptr ? shared : "../shared") + "/models/" + name;
}

}  // namespace warpweave
