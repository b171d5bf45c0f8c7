// A whole file, read-only, in memory by mmap. Move-only; the view dies with the object.
// A file cut while it is mapped would fault: model files are opened, packed and let go at start.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "warpweave/status.h"

namespace warpweave {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedFile();

  const char* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {data_, size_}; }

  // Lets the kernel drop the pages [data, data + bytes) from this process's resident memory; they
  // are read again from the file when touched.
  static void release_pages(const void* data, size_t bytes);

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// A small text file, at most `max_bytes`.
Result<std::string> read_text_file(const std::string& path, size_t max_bytes = 256 << 20);

}  // namespace warpweave
