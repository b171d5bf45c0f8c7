// Compiled programs on disk, so that a second start does not compile: one file per key in
// $WARPWEAVE_CACHE_DIR, else $XDG_CACHE_HOME/warpweave, else ~/.cache/warpweave.
//
// Crash-safe: a file is written under another name, synced and renamed. Checked on load: a file that
// is cut, altered or of another key counts as absent, is said in the log, and is replaced by the next
// store. The folder is kept below a size: files that were not used for longest go first. Failures to
// write are not errors. Thread-safe, also between processes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "warpweave/status.h"

namespace warpweave {

class ProgramCache {
 public:
  static constexpr size_t kDefaultMaxBytes = size_t{256} << 20;

  // `folder` empty: no cache.
  explicit ProgramCache(std::string folder, size_t max_bytes = kDefaultMaxBytes)
      : folder_(std::move(folder)), max_bytes_(max_bytes) {}
  // The folder named above; empty when none of the variables is set.
  static std::string default_folder();

  // `key` is any text that decides the program: source, options, device and compiler.
  std::optional<std::string> load(std::string_view key) const;
  void store(std::string_view key, std::string_view program) const;
  std::string path_of(std::string_view key) const;

 private:
  void make_room() const;

  std::string folder_;
  size_t max_bytes_;
};

// The bytes of a cache file, and back: the program is a part of `file`. `invalid_argument` says what
// is wrong with the file.
std::string program_file(std::string_view key, std::string_view program);
Result<std::string_view> program_in_file(std::string_view file, std::string_view key);

}  // namespace warpweave
