// Compiled programs on disk, so that a second start does not compile: one file per key in
// $WARPWEAVE_CACHE_DIR, else $XDG_CACHE_HOME/warpweave, else ~/.cache/warpweave.
//
// Crash-safe: a file is written under another name, synced and renamed. Checked on load: a file
// that is cut, altered or of another key counts as absent. Failures to write are not errors.
// Thread-safe, also between processes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace warpweave::opencl {

class ProgramCache {
 public:
  // `folder` empty: no cache.
  explicit ProgramCache(std::string folder) : folder_(std::move(folder)) {}
  // The folder named above; empty when none of the variables is set.
  static std::string default_folder();

  // `key` is any text that decides the program: source, options, device and driver.
  std::optional<std::string> load(std::string_view key) const;
  void store(std::string_view key, std::string_view program) const;
  std::string path_of(std::string_view key) const;

 private:
  std::string folder_;
};

}  // namespace warpweave::opencl
