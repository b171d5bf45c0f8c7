// A copy of a golden model's folder that a test may break, and what tests of loading say about refusals.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/testing/temporary_folder.h"
#include "model/testing/paged_run.h"

namespace warpweave {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
inline std::string safetensors(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string out(reinterpret_cast<const char*>(&size), sizeof size);
  return out + header + std::string(data_bytes, '\0');
}

// Expects a refusal whose message holds every one of `words`.
template <typename T>
void expect_refusal(const Result<T>& result, StatusCode code, std::initializer_list<const char*> words) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  for (const char* word : words) {
    EXPECT_NE(result.status().message().find(word), std::string::npos)
        << "no '" << word << "' in: " << result.status().message();
  }
}

class ModelFolderTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::copy("tests/golden/families/llama", folder_); }
  Result<std::unique_ptr<PagedRun>> open() { return PagedRun::open(folder_, {}); }
  void edit_config(const std::function<void(nlohmann::json&)>& edit) {
    nlohmann::json config = nlohmann::json::parse(read_file(folder_ / "config.json"));
    edit(config);
    write_file(folder_ / "config.json", config.dump());
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_ / "llama";
};

}  // namespace warpweave
