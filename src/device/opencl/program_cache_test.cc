#include "device/opencl/program_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace warpweave::opencl {
namespace {

class ProgramCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "ww_program_cache_" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(ProgramCacheTest, KeepsProgramsByKey) {
  const ProgramCache cache(folder_);
  EXPECT_FALSE(cache.load("a").has_value());
  const std::string program("\0binary\n", 8);
  cache.store("a", program);
  cache.store("b", "other");
  EXPECT_EQ(cache.load("a"), program);
  EXPECT_EQ(cache.load("b"), "other");
  EXPECT_FALSE(cache.load("c").has_value());
  cache.store("a", "newer");
  EXPECT_EQ(cache.load("a"), "newer");
}

TEST_F(ProgramCacheTest, DamagedFilesCountAsAbsent) {
  const ProgramCache cache(folder_);
  cache.store("key", "a program of some bytes");
  const std::string path = cache.path_of("key");
  const auto size = std::filesystem::file_size(path);

  std::filesystem::resize_file(path, size - 1);  // cut
  EXPECT_FALSE(cache.load("key").has_value());
  cache.store("key", "a program of some bytes");
  std::ofstream(path, std::ios::app) << "x";  // longer than it says
  EXPECT_FALSE(cache.load("key").has_value());
  for (size_t at = 0; at < size; at += 7) {  // altered anywhere
    cache.store("key", "a program of some bytes");
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char changed = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(changed);
    file.close();
    EXPECT_FALSE(cache.load("key").has_value()) << "byte " << at;
  }
}

TEST_F(ProgramCacheTest, LeavesNoTemporaryFiles) {
  const ProgramCache cache(folder_);
  for (int i = 0; i < 3; ++i) cache.store("key", "program");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1);
}

TEST_F(ProgramCacheTest, AFolderThatCannotBeMadeIsNoError) {
  const ProgramCache nowhere("/proc/none");
  nowhere.store("key", "program");
  EXPECT_FALSE(nowhere.load("key").has_value());
  const ProgramCache off("");
  off.store("key", "program");
  EXPECT_FALSE(off.load("key").has_value());
}

}  // namespace
}  // namespace warpweave::opencl
