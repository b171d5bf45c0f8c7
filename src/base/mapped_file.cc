#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

namespace warpweave {
namespace {

// What the signal handler may look at: it can neither lock nor allocate.
struct Watch {
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> damaged{false};
  std::atomic<bool> sealed{false};
  std::atomic<const char*> path{nullptr};
};

std::array<Watch, 4096> watches;
std::mutex watches_mutex;  // for taking and giving back
struct sigaction previous_action;

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

[[noreturn]] void end_program(const Watch& watch) {
  say("warpweave: ");
  if (const char* path = watch.path.load()) say(path);
  say(": the file was cut or cannot be read any more while it is in use; put the whole file in place and "
      "start again\n");
  _exit(1);
}

// Puts zeros in place of the page that cannot be read and of all that follow it in the file.
void on_bus_error(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Watch& watch : watches) {
    const uintptr_t begin = watch.begin.load(), end = watch.end.load();
    if (begin == 0 || address < begin || address >= end) continue;
    if (watch.sealed.load()) end_program(watch);
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t from = address / page * page;
    watch.damaged.store(true);
    if (mmap(reinterpret_cast<void*>(from), end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED) {
      end_program(watch);
    }
    errno = saved_errno;
    return;
  }
  // Not ours: the instruction runs again and whoever was there before gets the signal.
  sigaction(SIGBUS, &previous_action, nullptr);
  errno = saved_errno;
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous_action);
  });
}

Watch* take_watch(uintptr_t begin, uintptr_t end, const char* path) {
  std::lock_guard lock(watches_mutex);
  for (Watch& watch : watches) {
    if (watch.begin.load() != 0) continue;
    watch.end = end;
    watch.damaged = false;
    watch.sealed = false;
    watch.path = path;
    watch.begin = begin;
    return &watch;
  }
  return nullptr;
}

Status file_error(const std::string& path, const char* what) {
  const StatusCode code = errno == ENOENT ? StatusCode::not_found : StatusCode::invalid_argument;
  return {code, path + ": " + what + ": " + std::strerror(errno), path};
}

// An open file, closed at the end.
class File {
 public:
  explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

Status check_regular(const File& file, const std::string& path, struct stat& info) {
  if (file.fd() < 0) return file_error(path, "cannot be opened");
  if (fstat(file.fd(), &info) != 0) return file_error(path, "cannot be examined");
  if (S_ISREG(info.st_mode)) return {};
  return Status::invalid_argument(path + ": is no regular file but a " +
                                      (S_ISDIR(info.st_mode)    ? "folder"
                                       : S_ISFIFO(info.st_mode) ? "pipe"
                                                                : "device or socket") +
                                      "; give a regular file",
                                  path);
}

// What a clone without Git LFS has in place of its large files.
Status check_content(std::string_view content, const std::string& path) {
  if (!content.starts_with("version https://git-lfs.github.com/spec/")) return {};
  return Status::data_loss(path + ": is a Git LFS pointer in place of the file; run git lfs pull in the folder it was "
                                  "cloned into, or download the file", path);
}

bool same_time(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

}  // namespace

struct MappedFile::Mapping {
  Mapping(File opened, struct stat facts, std::string name)
      : file(std::move(opened)), info(facts), path(std::move(name)), size(static_cast<size_t>(facts.st_size)) {}
  ~Mapping() {
    if (watch != nullptr) watch->begin = 0;
    if (data != nullptr) munmap(const_cast<char*>(data), size);
  }

  File file;
  struct stat info;  // as it was when opened
  std::string path;
  size_t size;
  const char* data = nullptr;
  Watch* watch = nullptr;
};

MappedFile::MappedFile() = default;
MappedFile::MappedFile(MappedFile&& other) noexcept = default;
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept = default;
MappedFile::~MappedFile() = default;

const char* MappedFile::data() const { return mapping_ ? mapping_->data : nullptr; }
size_t MappedFile::size() const { return mapping_ ? mapping_->size : 0; }

Result<MappedFile> MappedFile::open(const std::string& path) {
  File file(path);
  struct stat info {};
  WW_RETURN_IF_ERROR(check_regular(file, path, info));
  MappedFile out;
  if (info.st_size == 0) return out;
  install_handler();
  auto mapping = std::make_unique<Mapping>(std::move(file), info, path);
  void* const data = mmap(nullptr, mapping->size, PROT_READ, MAP_PRIVATE, mapping->file.fd(), 0);
  if (data == MAP_FAILED) return file_error(path, "cannot be mapped");
  mapping->data = static_cast<const char*>(data);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  mapping->watch = take_watch(begin, begin + mapping->size, mapping->path.c_str());
  if (mapping->watch == nullptr) {
    return Status::resource_exhausted(path + ": more than " + std::to_string(watches.size()) +
                                      " files are open at once; merge the model's shards");
  }
  out.mapping_ = std::move(mapping);
  WW_RETURN_IF_ERROR(check_content(out.text(), path));
  return out;
}

Status MappedFile::intact() const {
  if (!mapping_) return {};
  struct stat now {};
  const struct stat& then = mapping_->info;
  const bool known = fstat(mapping_->file.fd(), &now) == 0;
  if (known && now.st_size == then.st_size && same_time(now.st_mtim, then.st_mtim) && !mapping_->watch->damaged) {
    return {};
  }
  std::string how = ": a part of it cannot be read";
  if (known && now.st_size != then.st_size) {
    how = ": it had " + std::to_string(then.st_size) + " bytes and now has " + std::to_string(now.st_size);
  } else if (known && !same_time(now.st_mtim, then.st_mtim)) {
    how = ": it was written to";
  }
  return Status::data_loss(mapping_->path + ": the file changed while it was read" + how +
                               "; put the whole file in place and start again",
                           mapping_->path);
}

Status MappedFile::seal() const {
  WW_RETURN_IF_ERROR(intact());
  if (mapping_) mapping_->watch->sealed = true;
  return {};
}

void MappedFile::release_pages(const void* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

bool path_exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

Result<std::string> read_text_file(const std::string& path, size_t max_bytes) {
  const File file(path);
  struct stat info {};
  WW_RETURN_IF_ERROR(check_regular(file, path, info));
  const auto too_large = [&] {
    return Status::data_loss(path + ": larger than the " + std::to_string(max_bytes) + " bytes allowed", path);
  };
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > max_bytes) return too_large();
  // One byte more than it says, so that its end is seen without growing; /proc's files say 0.
  std::string text(std::max<size_t>(size + 1, 4096), '\0');
  size_t filled = 0;
  while (true) {
    const ssize_t got = read(file.fd(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(path, "cannot be read");
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    if (filled > max_bytes) return too_large();
    if (filled == text.size()) text.resize(2 * filled);
  }
  text.resize(filled);
  WW_RETURN_IF_ERROR(check_content(text, path));
  return text;
}

}  // namespace warpweave
