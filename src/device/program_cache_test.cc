#include "device/program_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "base/testing/temporary_folder.h"

namespace warpweave {
namespace {

class ProgramCacheTest : public testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_ / "cache";
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

int count_files(const std::string& folder) {
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++files;
  return files;
}

TEST_F(ProgramCacheTest, AFileOfAnotherKeyIsNotTaken) {
  const ProgramCache cache(folder_);
  cache.store("a", "program");
  std::filesystem::copy_file(cache.path_of("a"), cache.path_of("b"));
  EXPECT_FALSE(cache.load("b").has_value());
}

// A second process replaces the file all the time: a reader sees one program or the other, whole.
TEST_F(ProgramCacheTest, TwoProcessesMayWriteTheSameProgram) {
  const ProgramCache cache(folder_);
  const std::string one(40000, '1'), two(50000, '2');
  cache.store("key", one);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int i = 0; i < 50; ++i) cache.store("key", two);
    _exit(0);
  }
  for (int i = 0; i < 50; ++i) {
    const auto program = cache.load("key");
    EXPECT_TRUE(program == one || program == two);
    cache.store("key", one);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(count_files(folder_), 1);
}

TEST_F(ProgramCacheTest, FilesUnusedForLongestGoFirst) {
  const ProgramCache cache(folder_, 3500);
  const std::string program(1000, 'x');
  const auto now = std::filesystem::file_time_type::clock::now();
  int hours = 10;
  for (const char* key : {"a", "b", "c"}) {
    cache.store(key, program);
    std::filesystem::last_write_time(cache.path_of(key), now - std::chrono::hours(hours--));
  }
  EXPECT_TRUE(cache.load("a").has_value());  // used just now
  cache.store("d", program);
  EXPECT_FALSE(cache.load("b").has_value());
  for (const char* key : {"a", "c", "d"}) EXPECT_TRUE(cache.load(key).has_value()) << key;
}

TEST_F(ProgramCacheTest, WhatAWriterThatDiedLeftIsRemoved) {
  const ProgramCache cache(folder_);
  cache.store("a", "program");
  const std::string old = cache.path_of("b") + ".aaaaaa", young = cache.path_of("b") + ".bbbbbb";
  for (const std::string& path : {old, young}) std::ofstream(path) << "half";
  std::filesystem::last_write_time(old, std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  cache.store("c", "program");
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(young));
}

TEST_F(ProgramCacheTest, LeavesNoTemporaryFiles) {
  const ProgramCache cache(folder_);
  for (int i = 0; i < 3; ++i) cache.store("key", "program");
  EXPECT_EQ(count_files(folder_), 1);
}

TEST_F(ProgramCacheTest, AFolderThatCannotBeMadeIsNoError) {
  std::filesystem::create_directories(folder_);
  const std::string file = folder_ + "/file";
  std::ofstream(file) << "not a folder";
  const ProgramCache nowhere(file + "/below");
  nowhere.store("key", "program");
  EXPECT_FALSE(nowhere.load("key").has_value());
  const ProgramCache off("");
  off.store("key", "program");
  EXPECT_FALSE(off.load("key").has_value());
}

}  // namespace
}  // namespace warpweave
