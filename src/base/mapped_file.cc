#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace warpweave {
namespace {

Status file_error(const std::string& path, const char* what) {
  const StatusCode code = errno == ENOENT ? StatusCode::not_found : StatusCode::invalid_argument;
  return {code, path + ": " + what + ": " + std::strerror(errno), path};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return file_error(path, "cannot be opened");
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Status::invalid_argument(path + ": not a regular file", path);
  }
  MappedFile file;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ > 0) {
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      Status status = file_error(path, "cannot be mapped");
      close(fd);
      file.size_ = 0;
      return status;
    }
    file.data_ = static_cast<const char*>(data);
  }
  close(fd);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
}

void MappedFile::release_pages(const void* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::string& path, size_t max_bytes) {
  WW_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  if (file.size() > max_bytes) {
    return Status::data_loss(path + ": larger than the " + std::to_string(max_bytes) + " bytes allowed", path);
  }
  return std::string(file.text());
}

}  // namespace warpweave
