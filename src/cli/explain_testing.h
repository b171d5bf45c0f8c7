// Runs explain in tests: command lines in pieces, answers as JSON.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace warpweave {

using Argv = std::vector<std::string>;

inline Argv operator+(Argv a, const Argv& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::string text_of(const Argv& argv) {
  std::string text;
  for (const std::string& word : argv) text += word + " ";
  return text;
}

struct Explained {
  int exit_code = 0;
  nlohmann::json json;
};

inline Explained explain_json(const Argv& argv) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Explained out;
  out.exit_code = explain_command(argv + Argv{"--json"});
  testing::internal::GetCapturedStderr();
  out.json = nlohmann::json::parse(testing::internal::GetCapturedStdout(), nullptr, false);
  return out;
}

}  // namespace warpweave
