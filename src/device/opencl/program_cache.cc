#include "device/opencl/program_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace warpweave::opencl {
namespace {

constexpr size_t kMaxProgramBytes = size_t{64} << 20;

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

Header header_of(std::string_view key, std::string_view program) {
  Header header;
  header.key_hash = hash(key, 0);
  header.program_bytes = program.size();
  header.program_hash = hash(program, 0);
  return header;
}

bool write_all(int file, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    next += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

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
  return fmt::format("{}/{:016x}{:016x}.program", folder_, hash(key, 0),
                     hash(key, 0x9e3779b97f4a7c15u));
}

std::optional<std::string> ProgramCache::load(std::string_view key) const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream file(path_of(key), std::ios::binary);
  Header header;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header))) return std::nullopt;
  if (header.program_bytes > kMaxProgramBytes) return std::nullopt;
  std::string program(header.program_bytes, '\0');
  if (!file.read(program.data(), static_cast<std::streamsize>(program.size())) ||
      file.peek() != std::ifstream::traits_type::eof()) {
    return std::nullopt;
  }
  const Header expected = header_of(key, program);
  if (std::memcmp(&header, &expected, sizeof(header)) != 0) return std::nullopt;
  return program;
}

void ProgramCache::store(std::string_view key, std::string_view program) const {
  if (folder_.empty() || program.size() > kMaxProgramBytes) return;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  std::string temporary = path_of(key) + ".XXXXXX";
  const int file = ::mkstemp(temporary.data());
  if (file < 0) return;
  const Header header = header_of(key, program);
  const bool written = write_all(file, &header, sizeof(header)) &&
                       write_all(file, program.data(), program.size()) && ::fsync(file) == 0;
  ::close(file);
  if (!written || ::rename(temporary.c_str(), path_of(key).c_str()) != 0) {
    ::unlink(temporary.c_str());
  }
}

}  // namespace warpweave::opencl
