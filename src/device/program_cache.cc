#include "device/program_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/log.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxProgramBytes = size_t{64} << 20;
constexpr std::string_view kSuffix = ".program";
// A writer that lives needs seconds; what is older was left by one that died.
constexpr auto kTemporaryLife = std::chrono::hours(1);

// FNV-1a with two offsets: 128 bits against accidental collisions and damage, not against attack.
uint64_t hash(std::string_view text, uint64_t offset) {
  uint64_t value = 0xcbf29ce484222325u ^ offset;
  for (unsigned char c : text) value = (value ^ c) * 0x100000001b3u;
  return value;
}

struct Header {
  char magic[8] = {'W', 'W', 'P', 'R', 'O', 'G', '0', '1'};
  uint64_t key_hash = 0;
  uint64_t program_bytes = 0;
  uint64_t program_hash = 0;
};

bool write_all(int file, std::string_view data) {
  while (!data.empty()) {
    const ssize_t written = ::write(file, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// Opened once: a writer may put another file in this one's place meanwhile.
std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff bytes = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (bytes < 0 || static_cast<uint64_t>(bytes) > kMaxProgramBytes + sizeof(Header)) return std::nullopt;
  std::string text(static_cast<size_t>(bytes), '\0');
  file.seekg(0);
  file.read(text.data(), bytes);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

struct KeptFile {
  fs::path path;
  fs::file_time_type used;
  uintmax_t bytes = 0;
};

}  // namespace

std::string program_file(std::string_view key, std::string_view program) {
  Header header;
  header.key_hash = hash(key, 0);
  header.program_bytes = program.size();
  header.program_hash = hash(program, 0);
  std::string file(sizeof(header), '\0');
  std::memcpy(file.data(), &header, sizeof(header));
  return file.append(program);
}

Result<std::string_view> program_in_file(std::string_view file, std::string_view key) {
  Header header;
  const Header expected;
  if (file.size() < sizeof(header)) return Status::invalid_argument("it is cut");
  std::memcpy(&header, file.data(), sizeof(header));
  file.remove_prefix(sizeof(header));
  if (std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0) {
    return Status::invalid_argument("it does not begin like a cached program");
  }
  if (header.key_hash != hash(key, 0)) return Status::invalid_argument("it is of another program");
  if (header.program_bytes != file.size()) {
    return Status::invalid_argument(fmt::format("it has {} bytes where its header says {}", file.size(),
                                                header.program_bytes));
  }
  if (header.program_hash != hash(file, 0)) return Status::invalid_argument("its checksum is wrong");
  return file;
}

std::string ProgramCache::default_folder() {
  if (const char* folder = std::getenv("WARPWEAVE_CACHE_DIR")) return folder;
  if (const char* folder = std::getenv("XDG_CACHE_HOME"); folder != nullptr && *folder) {
    return std::string(folder) + "/warpweave";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home) {
    return std::string(home) + "/.cache/warpweave";
  }
  return {};
}

std::string ProgramCache::path_of(std::string_view key) const {
  return fmt::format("{}/{:016x}{:016x}{}", folder_, hash(key, 0), hash(key, 0x9e3779b97f4a7c15u),
                     kSuffix);
}

std::optional<std::string> ProgramCache::load(std::string_view key) const {
  if (folder_.empty()) return std::nullopt;
  const std::string path = path_of(key);
  const std::optional<std::string> file = read_file(path);
  if (!file) return std::nullopt;
  const Result<std::string_view> program = program_in_file(*file, key);
  if (!program.ok()) {
    LOG_WARN("cached program {} is damaged ({}); it is compiled anew", path, program.status().message());
    return std::nullopt;
  }
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return std::string(*program);
}

void ProgramCache::store(std::string_view key, std::string_view program) const {
  if (folder_.empty() || program.size() > kMaxProgramBytes) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  std::string temporary = path_of(key) + ".XXXXXX";
  const int file = ::mkstemp(temporary.data());
  if (file < 0) return;
  const bool written = write_all(file, program_file(key, program)) && ::fsync(file) == 0;
  ::close(file);
  if (!written || ::rename(temporary.c_str(), path_of(key).c_str()) != 0) {
    ::unlink(temporary.c_str());
    return;
  }
  make_room();
}

// Other processes may remove the same files: what is gone already is as good as removed.
void ProgramCache::make_room() const {
  std::vector<KeptFile> files;
  uintmax_t total_bytes = 0;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    std::error_code gone;
    const KeptFile file = {entry.path(), entry.last_write_time(gone), entry.file_size(gone)};
    if (gone) continue;
    if (file.path.extension() == kSuffix) {
      files.push_back(file);
      total_bytes += file.bytes;
    } else if (file.path.stem().extension() == kSuffix && now - file.used > kTemporaryLife) {
      fs::remove(file.path, gone);
    }
  }
  if (total_bytes <= max_bytes_) return;
  std::sort(files.begin(), files.end(),
            [](const KeptFile& a, const KeptFile& b) { return a.used < b.used; });
  for (const KeptFile& file : files) {
    if (total_bytes <= max_bytes_) break;
    std::error_code gone;
    fs::remove(file.path, gone);
    total_bytes -= file.bytes;
  }
}

}  // namespace warpweave
