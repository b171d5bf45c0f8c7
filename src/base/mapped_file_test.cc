// Files that are none, and files that change while they are read.
#include "base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/testing/temporary_folder.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;
constexpr size_t kBytes = 1 << 20;

class MappedFileTest : public testing::Test {
 protected:
  std::string write(const std::string& name, size_t bytes) {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << std::string(bytes, 'x');
    return path;
  }
  const TemporaryFolder folder_;
};

size_t count_x(std::string_view text) { return static_cast<size_t>(std::count(text.begin(), text.end(), 'x')); }

TEST_F(MappedFileTest, ReadsWholeFilesByBothWays) {
  const std::string path = write("whole", kBytes);
  const auto mapped = MappedFile::open(path);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_EQ(count_x(mapped->text()), kBytes);
  EXPECT_TRUE(mapped->seal().ok());
  EXPECT_EQ(*read_text_file(path), mapped->text());
  EXPECT_EQ(read_text_file(path, kBytes - 1).status().code(), StatusCode::data_loss);
  EXPECT_EQ(*read_text_file(write("empty", 0)), "");
  EXPECT_TRUE(MappedFile::open(write("empty", 0))->intact().ok());
  EXPECT_GT(read_text_file("/proc/self/status")->size(), 100u);
}

TEST_F(MappedFileTest, WhatIsNoRegularFileIsRefusedAtOnce) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero"), std::string(folder_ / ".")}) {
    for (const Status& status : {MappedFile::open(path).status(), read_text_file(path).status()}) {
      EXPECT_EQ(status.code(), StatusCode::invalid_argument) << path;
      EXPECT_NE(status.message().find("no regular file"), std::string::npos) << status.message();
    }
  }
  EXPECT_EQ(MappedFile::open(folder_ / "missing").status().code(), StatusCode::not_found);
  EXPECT_EQ(read_text_file(folder_ / "missing").status().code(), StatusCode::not_found);
}

TEST_F(MappedFileTest, APointerOfGitLfsIsNotTakenForTheFile) {
  const std::string path = folder_ / "model.safetensors";
  std::ofstream(path) << "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 135\n";
  for (const Status& status : {MappedFile::open(path).status(), read_text_file(path).status()}) {
    EXPECT_EQ(status.code(), StatusCode::data_loss);
    EXPECT_NE(status.message().find("git lfs pull"), std::string::npos) << status.message();
  }
}

TEST_F(MappedFileTest, AFileThatIsCutWhileItIsReadIsAnError) {
  const std::string path = write("cut", kBytes);
  const auto other = MappedFile::open(write("other", kBytes));
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->intact().ok());
  fs::resize_file(path, kBytes / 2 + 100);
  EXPECT_LE(count_x(file->text()), kBytes / 2 + 4096);  // faults where the file no longer is
  const Status status = file->intact();
  EXPECT_EQ(status.code(), StatusCode::data_loss);
  EXPECT_NE(status.message().find("cut: the file changed while it was read"), std::string::npos) << status.message();
  EXPECT_EQ(status.code(), file->seal().code());
  EXPECT_EQ(count_x(other->text()), kBytes);
  EXPECT_TRUE(other->intact().ok());
}

TEST_F(MappedFileTest, AFileThatIsWrittenToWhileItIsReadIsAnError) {
  const std::string path = write("written", kBytes);
  const auto file = MappedFile::open(path);
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_EQ(file->intact().code(), StatusCode::data_loss);
  // Another file of the same name is not this one.
  const std::string replaced = write("replaced", kBytes);
  const auto held = MappedFile::open(replaced);
  fs::rename(write("new", 10), replaced);
  EXPECT_EQ(count_x(held->text()), kBytes);
  EXPECT_TRUE(held->intact().ok());
}

TEST_F(MappedFileTest, MappingsComeAndGoWithoutUsingUpWatches) {
  const std::string path = write("often", 4096);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(MappedFile::open(path).ok()) << i;
}

using MappedFileDeathTest = MappedFileTest;

TEST_F(MappedFileDeathTest, AFileInUseThatIsCutEndsTheProgramWithItsName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = write("in_use", kBytes);
  EXPECT_EXIT(
      {
        const auto file = MappedFile::open(path);
        if (!file->seal().ok()) _exit(3);
        fs::resize_file(path, 0);
        _exit(count_x(file->text()) > 0 ? 4 : 5);
      },
      testing::ExitedWithCode(1), "in_use: the file was cut");
}

TEST_F(MappedFileDeathTest, AFaultOfSomeoneElseStaysOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = write("foreign", kBytes);
  EXPECT_EXIT(
      {
        signal(SIGBUS, SIG_DFL);  // without a sanitizer's own handler
        const auto file = MappedFile::open(path);
        const int fd = ::open(path.c_str(), O_RDONLY);
        const auto* own = static_cast<const char*>(mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0));
        fs::resize_file(path, 0);
        _exit(own[100] == 'x' ? 4 : 5);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace warpweave
