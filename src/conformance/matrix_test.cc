// docs/matrix.md is what the committed reports say, and they claim what the Caps claim today.
#include "conformance/matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace warpweave::conformance {
namespace {

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Matrix, TheCommittedOneIsWhatResultsSay) {
  EXPECT_EQ(read_file("docs/matrix.md"), matrix_markdown(committed_reports()))
      << "run: warpweave docs matrix > docs/matrix.md";
}

TEST(Matrix, CommittedResultsAreReadAndNoneFailed) {
  const std::vector<DeviceReport> reports = committed_reports();
  EXPECT_FALSE(reports.empty());
  for (const DeviceReport& report : reports) {
    EXPECT_FALSE(report.device.empty());
    for (const BackendReport& backend : report.backends) {
      for (const Cell& cell : backend.cells) {
        EXPECT_NE(cell.state, CellState::failed) << backend.name << ": " << cell.text;
      }
    }
  }
}

// A backend whose Caps changed must be run again: its recorded claims are not those of today.
TEST(Matrix, RecordedClaimsAreTheCapsOfToday) {
  for (const DeviceReport& report : committed_reports()) {
    for (const BackendReport& recorded : report.backends) {
      for (const BackendRegistration& built : built_backends()) {
        const BackendReport now = claims_of(*built.caps);
        if (now.name != recorded.name || now.kind != recorded.kind || now.archs != recorded.archs) continue;
        EXPECT_EQ(now.page_sizes, recorded.page_sizes) << now.name;
        for (size_t i = 0; i < now.cells.size(); ++i) {
          EXPECT_EQ(now.cells[i].state == CellState::refused,
                    recorded.cells[i].state == CellState::refused)
              << now.name << ", " << matrix_columns()[i].title << ": run warpweave conformance --json on "
              << report.device << " again";
        }
      }
    }
  }
}

Variant fake_variant(const Caps& caps) {
  return {std::string(caps.name), "cpu", {"A device", DeviceArch::cpu_x86_64, 0}, &caps, nullptr, {}, 1};
}

CheckResult passed_check(std::vector<std::string> features, bool passed) {
  CheckResult result;
  result.variant = "intel_amx";
  result.case_name = "some_case";
  result.passed = passed;
  result.features = std::move(features);
  result.text = passed ? "" : "output differs";
  return result;
}

TEST(Report, CellsFollowClaimsAndResults) {
  const Caps* caps = nullptr;
  for (const Caps& declared : declared_backends()) {
    if (declared.name == "intel_amx") caps = &declared;
  }
  ASSERT_NE(caps, nullptr);
  const Variant variants[] = {fake_variant(*caps)};
  const CheckResult results[] = {passed_check({"prefill", "pages > 1"}, true),
                                 passed_check({"prefill"}, true), passed_check({"decode"}, false)};
  const DeviceReport report = make_report(variants, results, "2026-01-31", "abc");
  ASSERT_EQ(report.backends.size(), 1u);
  auto state = [&](std::string_view title) {
    for (size_t i = 0; i < matrix_columns().size(); ++i) {
      if (matrix_columns()[i].title == title) return report.backends[0].cells[i].state;
    }
    return CellState::failed;
  };
  EXPECT_EQ(state("prefill"), CellState::proven);
  EXPECT_EQ(state("decode"), CellState::failed);
  EXPECT_EQ(state("cached prefix"), CellState::claimed);
  EXPECT_EQ(state("FP4 KV"), CellState::refused);

  const auto read = parse_report(report_json(report));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(report_json(*read), report_json(report));
  const DeviceReport reports[] = {*read};
  const std::string text = matrix_markdown(reports, "A device");
  EXPECT_NE(text.find("proven here"), std::string::npos);
  EXPECT_NE(text.find("FAILED here"), std::string::npos);
  EXPECT_EQ(parse_report("{}").status().code(), StatusCode::data_loss);
}

// Two variants share the pools of a case, so a case counts once; formats that round nothing are left out.
TEST(Report, KvRoundingErrorPerFormat) {
  CheckResult results[4] = {passed_check({}, true), passed_check({}, true), passed_check({}, true),
                            passed_check({}, true)};
  for (CheckResult& result : results) result.kv_format = KvFormat::fp8_e4m3;
  results[0].kv_error = results[1].kv_error = 0.03;
  results[1].variant = "intel_amx@avx2";
  results[2].kv_error = 0.02;
  results[2].case_name = "another_case";
  results[3].kv_format = KvFormat::f32;
  const DeviceReport report = make_report({}, results, "2026-01-31", "abc");
  ASSERT_EQ(report.kv_errors.size(), 1u);
  EXPECT_EQ(report.kv_errors[0].format, "fp8_e4m3");
  EXPECT_EQ(report.kv_errors[0].cases, 2);
  EXPECT_DOUBLE_EQ(report.kv_errors[0].mean, 0.025);
  EXPECT_DOUBLE_EQ(report.kv_errors[0].largest, 0.03);
  const auto read = parse_report(report_json(report));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(report_json(*read), report_json(report));
}

}  // namespace
}  // namespace warpweave::conformance
