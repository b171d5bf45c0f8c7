// Files from outside: whole ones in memory by mmap, small ones by reading. Only regular files are opened: a
// pipe would wait for a writer, a device may never end.
//
// A mapped file that another program cuts (or that a disk fails to deliver) would end this one with a SIGBUS.
// Here such pages read as zeros instead, and intact() says so afterwards: whoever reads a mapped file asks it
// before trusting what was read. Once seal() has been called nobody will ask again, so from then on the
// program ends with a message that names the file. MappedFile is move-only; views die with the object.
// Thread-safe but for moves.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "warpweave/status.h"

namespace warpweave {

class MappedFile {
 public:
  // `data_loss` for a Git LFS pointer, which stands where a clone has not fetched the file.
  static Result<MappedFile> open(const std::string& path);
  MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const char* data() const;
  size_t size() const;
  std::string_view text() const { return {data(), size()}; }

  // `data_loss` when the file has changed since open(), or a page of it could not be read.
  Status intact() const;
  // For files that stay in use: intact(), and a page that cannot be read later ends the program.
  Status seal() const;

  // Lets the kernel drop the pages [data, data + bytes) from this process's resident memory; they
  // are read again from the file when touched.
  static void release_pages(const void* data, size_t bytes);

 private:
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;  // null: an empty file, or none
};

// Whether something is there under this name, whatever it is and whether or not it can be opened.
bool path_exists(const std::string& path);

// A small file, at most `max_bytes`, by reading: a file that is cut meanwhile gives a shorter text. `data_loss` for a
// Git LFS pointer, as of MappedFile::open().
Result<std::string> read_text_file(const std::string& path, size_t max_bytes = 256 << 20);

}  // namespace warpweave
